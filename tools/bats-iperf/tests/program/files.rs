//! File transfers between real processes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    Scratch, Server, Tmpfs, client, free_port, noise, program, signal, slow_client, text,
    wait_until,
};

fn same(left: &Path, right: &Path) {
    assert!(fs::read(left).unwrap() == fs::read(right).unwrap(), "{}", right.display());
}

#[test]
fn files_of_all_sizes_arrive_with_all_options() {
    let scratch = Scratch::new("matrix");
    let tree = scratch.0.join("tree");
    fs::create_dir_all(tree.join("deep/er/empty")).unwrap();
    fs::write(tree.join("nothing"), "").unwrap();
    fs::write(tree.join("text with blanks.txt"), "hello\n".repeat(50_000)).unwrap();
    fs::write(tree.join("deep/Füße"), noise(1_000, 1)).unwrap();
    fs::write(tree.join("deep/er/large"), noise(13_000_000, 2)).unwrap();
    for number in 0..60 {
        fs::write(tree.join(format!("deep/{number}")), noise(number * 100, 3)).unwrap();
    }
    for (number, options) in [
        &[][..],
        &["-P", "4"],
        &["-P", "3", "-C"],
        &["-P", "2", "--compress=lz4"],
        &["-P", "2", "--emulate", "loss=3%,delay=3ms,rate=200M"],
    ]
    .into_iter()
    .enumerate()
    {
        let directory = scratch.0.join(format!("in/{number}"));
        fs::create_dir(&directory).unwrap();
        let port = free_port();
        let server = Server::start(port, &["-1", "--directory", directory.to_str().unwrap()]);
        let options = [options, &["-J", "-f", tree.to_str().unwrap()]].concat();
        let output = client(port, &options);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let (code, report) = server.finish();
        assert_eq!(code, 0, "{report}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let files = report["files"].as_array().unwrap();
        // 64 files and 4 directories.
        assert_eq!(files.len(), 68);
        for file in files {
            assert_eq!(file["verified"], true);
            let name = file["name"].as_str().unwrap();
            match file["blake3"].as_str() {
                Some(hash) => {
                    same(&scratch.0.join(name), &directory.join(name));
                    let content = fs::read(directory.join(name)).unwrap();
                    assert_eq!(hash, blake3::hash(&content).to_hex().as_str());
                }
                None => assert!(directory.join(name).is_dir(), "{name}"),
            }
        }
    }
}

#[test]
fn a_killed_transfer_resumes() {
    let scratch = Scratch::new("kill");
    fs::write(scratch.0.join("large"), noise(60_000_000, 4)).unwrap();
    let port = free_port();
    let directory = scratch.path("in");
    let server = Server::start(port, &["--directory", &directory]);
    let file = scratch.path("large");
    let mut first = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "--congestion", "100M", "-f", &file])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = scratch.0.join("in/.large.openbats.part");
    // Allocated blocks, not the file length.
    let arrived = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&partial).map_or(0, |metadata| metadata.blocks() * 512)
    };
    wait_until("some of it has arrived", || arrived() > 15_000_000);
    first.kill().unwrap();
    first.wait().unwrap();
    // Kill the server, too, so that only the partial file remains.
    drop(server);
    assert!(!scratch.0.join("in/large").exists());
    let server = Server::start(port, &["-1", "--directory", &directory]);
    let output = client(port, &["-P", "2", "-J", "-f", &file]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.finish().0, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sent = report["files"][0]["sent_bytes"].as_u64().unwrap();
    assert!(sent <= 60_000_000 - 8_000_000, "{sent}");
    same(&scratch.0.join("large"), &scratch.0.join("in/large"));
    assert!(!partial.exists());
}

#[test]
fn a_stalled_transfer_is_aborted() {
    let scratch = Scratch::new("stalled");
    fs::write(scratch.0.join("large"), noise(30_000_000, 4)).unwrap();
    let port = free_port();
    let directory = scratch.path("in");
    let server = Server::start(port, &["-1", "--directory", &directory, "--rcv-timeout", "700"]);
    let mut sender = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "--congestion", "20M"])
        .args(["-f", &scratch.path("large")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = scratch.0.join("in/.large.openbats.part");
    wait_until("the transfer starts", || partial.exists());
    signal("STOP", sender.id());
    let (code, report) = server.finish();
    assert_eq!(code, 1, "{report}");
    assert!(report.contains("failed large") && partial.exists(), "{report}");
    sender.kill().unwrap();
    sender.wait().unwrap();
}

#[test]
fn existing_files_are_handled_as_the_server_option_says() {
    for (choice, code, content, copy) in [
        (&[][..], 1, "old", None),
        (&["--overwrite"], 0, "new", None),
        (&["--existing", "overwrite"], 0, "new", None),
        (&["--existing", "rename"], 0, "old", Some("new")),
    ] {
        let scratch = Scratch::new("taken");
        fs::write(scratch.0.join("in/name"), "old").unwrap();
        fs::write(scratch.0.join("name"), "new").unwrap();
        let port = free_port();
        let server =
            Server::start(port, &[&["-1", "--directory", &scratch.path("in")], choice].concat());
        let output = client(port, &["-f", &scratch.path("name")]);
        assert_eq!(output.status.code(), Some(code), "{choice:?} {}", text(&output.stderr));
        assert_eq!(server.finish().0, code);
        assert_eq!(fs::read_to_string(scratch.path("in/name")).unwrap(), content);
        assert_eq!(fs::read_to_string(scratch.path("in/name.1")).ok().as_deref(), copy);
    }
}

#[test]
fn sha256sum_files_are_checked_and_written() {
    let scratch = Scratch::new("sha256sum");
    fs::write(scratch.0.join("good.bin"), noise(5_000_000, 5)).unwrap();
    fs::write(scratch.0.join("bad.bin"), noise(5_000, 6)).unwrap();
    let sum = Command::new("sha256sum").arg("good.bin").current_dir(&scratch.0).output().unwrap();
    fs::write(scratch.0.join("good.bin.sha256sum"), &sum.stdout).unwrap();
    fs::write(scratch.0.join("bad.bin.sha256sum"), &sum.stdout[..64]).unwrap();
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    let output = client(port, &["-f", &scratch.path("good.bin"), &scratch.path("bad.bin")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("failed bad.bin"), "{}", text(&output.stdout));
    assert_eq!(server.finish().0, 1);
    let check = Command::new("sha256sum")
        .args(["-c", "good.bin.sha256sum"])
        .current_dir(scratch.0.join("in"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", text(&check.stderr));
    assert_eq!(fs::read_dir(scratch.0.join("in")).unwrap().count(), 2);
}

#[test]
fn a_full_disk_fails_only_files_that_do_not_fit() {
    let scratch = Scratch::new("full");
    let directory = scratch.0.join("in");
    let test = "a_full_disk_fails_only_files_that_do_not_fit";
    let Some(_disk) = Tmpfs::mount(test, &directory, "8m") else { return };
    fs::write(scratch.0.join("huge"), noise(20_000_000, 7)).unwrap();
    fs::write(scratch.0.join("small"), noise(1_000_000, 8)).unwrap();
    let port = free_port();
    let server = Server::start(port, &["--directory", directory.to_str().unwrap()]);
    let output = client(port, &["-f", &scratch.path("huge"), &scratch.path("small")]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(report.contains("failed huge: ") && report.contains("bytes free"), "{report}");
    assert!(report.contains("sent small"), "{report}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no partial file must remain");

    // The disk has room at the start and is full later.
    fs::write(scratch.0.join("middle"), noise(6_500_000, 9)).unwrap();
    let file = scratch.path("middle");
    let slow = slow_client(port, &["-f", &file]);
    wait_until("the transfer starts", || directory.join(".middle.openbats.part").exists());
    fs::write(directory.join("other"), noise(5_000_000, 10)).unwrap();
    let output = slow.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let report = text(&output.stdout);
    assert!(report.contains("failed middle: ") && report.contains("bytes free"), "{report}");
    assert!(!directory.join(".middle.openbats.part").exists());
    fs::remove_file(directory.join("other")).unwrap();
    let again = client(port, &["-f", &file]);
    assert!(again.status.success(), "{}", text(&again.stdout));
    drop(server);
}

#[test]
fn a_transfer_without_a_terminal_prints_plain_lines() {
    let scratch = Scratch::new("plain");
    fs::write(scratch.0.join("file"), noise(6_000_000, 11)).unwrap();
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    let output =
        client(port, &["--congestion", "20M", "--get-server-output", "-f", &scratch.path("file")]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}");
    assert_eq!(server.finish().0, 0);
    assert!(
        report.lines().any(|line| line.contains("%  ") && line.contains(" of 6.00 MBytes")),
        "{report}"
    );
    assert!(!report.contains('\u{1b}') && !report.contains('\r'), "{report:?}");
    assert!(report.contains("1 of 1 files verified,"), "{report}");
    assert!(report.contains("1 of 1 files verified and stored"), "{report}");
}

/// Compression is on, as the file is nearly all zeros; neither end needs disk space for them.
#[test]
fn offsets_beyond_4_gib_are_kept() {
    use std::os::unix::fs::{FileExt, MetadataExt};

    let size = (1_u64 << 32) + 5_000_001;
    let scratch = Scratch::with_free_space("sparse", size + (1 << 30));
    // Around every offset at which 32 bits would wrap, and at the end.
    let places = [0, (1 << 31) - 3, (1 << 32) - 3, (1 << 32) + 4_194_301, size - 7];
    let file = fs::File::create(scratch.0.join("sparse")).unwrap();
    file.set_len(size).unwrap();
    for (place, byte) in places.into_iter().zip(1_u8..) {
        file.write_all_at(&[byte; 7], place).unwrap();
    }
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    let output = client(port, &["-P", "2", "-C", "-J", "-f", &scratch.path("sparse")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.finish().0, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sent = &report["files"][0];
    assert_eq!((&sent["bytes"], &sent["sent_bytes"]), (&size.into(), &size.into()));
    assert_eq!(sent["verified"], true);
    let stored = fs::File::open(scratch.path("in/sparse")).unwrap();
    assert_eq!(stored.metadata().unwrap().len(), size);
    assert!(stored.metadata().unwrap().blocks() * 512 < 64 << 20, "holes must remain holes");
    for (place, byte) in places.into_iter().zip(1_u8..) {
        let (mut there, mut before) = ([0; 7], [9; 1]);
        stored.read_exact_at(&mut there, place).unwrap();
        assert_eq!(there, [byte; 7], "{place}");
        if place > 0 {
            stored.read_exact_at(&mut before, place - 1).unwrap();
            assert_eq!(before, [0], "{place}");
        }
    }
}

#[test]
fn file_reports_of_all_reliable_modes_match_the_schema() {
    let scratch = Scratch::new("other-modes");
    fs::write(scratch.0.join("file"), noise(300_000, 1)).unwrap();
    let port = free_port();
    let _server = Server::start(port, &["--directory", &scratch.path("in")]);
    for (mode, name) in [("1", "BRTP"), ("2", "BRCTP"), ("10", "TCP+TLS"), ("12", "QUIC")] {
        let output = client(port, &["-m", mode, "-J", "-f", &scratch.path("file")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        crate::json::check("files_report", &report);
        assert_eq!(report["start"]["files_start"]["protocol"], name);
    }
}
