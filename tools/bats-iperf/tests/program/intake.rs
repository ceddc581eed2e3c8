//! What a server accepts of its clients' files.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Output};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use openbats::Wait;
use serde_json::Value;

use crate::misbehaving::{Attacker, LIMIT, READY, REQUEST, receive_json, receive_until_closed};
use crate::support::{
    Scratch, Server, Tmpfs, client, free_port, noise, program, slow_client, text, wait_until,
};

/// The server is started within a directory, as users do, and names none.
#[test]
fn a_server_without_a_directory_accepts_no_files() {
    let scratch = Scratch::new("no-directory");
    fs::write(scratch.0.join("file"), "content").unwrap();
    let port = free_port();
    let mut command = program();
    command.current_dir(scratch.0.join("in")).args(["-s", "-I", "lo", "-p", &port.to_string()]);
    let server = Server::of(command);
    let output = client(port, &["-f", &scratch.path("file")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("does not accept files"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(scratch.0.join("in")).unwrap().count(), 0);
    // Other tests are not affected.
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
    drop(server);
}

#[test]
fn a_client_cannot_place_a_hook_into_a_repository() {
    let scratch = Scratch::new("hook");
    let hooks = scratch.0.join("in/project/.git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    fs::create_dir_all(scratch.0.join("project/.git/hooks")).unwrap();
    fs::write(scratch.0.join("project/.git/hooks/post-checkout"), "#!/bin/sh").unwrap();
    fs::create_dir_all(scratch.0.join("elsewhere")).unwrap();
    symlink(scratch.0.join("elsewhere"), scratch.0.join("in/link")).unwrap();
    fs::create_dir_all(scratch.0.join("link")).unwrap();
    fs::write(scratch.0.join("link/file"), "through a link").unwrap();
    let files = [scratch.path("project"), scratch.path("link")];
    let port = free_port();
    let server = Server::start(port, &["--directory", &scratch.path("in")]);
    for path in &files {
        let output = client(port, &["-f", path]);
        assert_eq!(output.status.code(), Some(1), "{path}");
        assert!(text(&output.stderr).contains("exists"), "{}", text(&output.stderr));
    }
    assert_eq!(fs::read_dir(&hooks).unwrap().count(), 0);
    drop(server);
    let server = Server::start(port, &["--directory", &scratch.path("in"), "--merge"]);
    assert!(client(port, &["-f", &files[0]]).status.success());
    assert_eq!(client(port, &["-f", &files[1]]).status.code(), Some(1));
    assert_eq!(fs::read_dir(&hooks).unwrap().count(), 1);
    assert_eq!(fs::read_dir(scratch.0.join("elsewhere")).unwrap().count(), 0);
    drop(server);
}

#[test]
fn quotas_apply_over_all_transfers() {
    let scratch = Scratch::new("quota");
    for (name, size) in [("a", 400_000), ("b", 400_000), ("c", 400_000), ("tiny", 1)] {
        fs::write(scratch.0.join(name), noise(size, size as u64)).unwrap();
    }
    for option in ["--quota", "--client-quota"] {
        let directory = scratch.0.join(option);
        fs::create_dir(&directory).unwrap();
        let port = free_port();
        let server =
            Server::start(port, &["--directory", directory.to_str().unwrap(), option, "900k"]);
        let send = |name: &str| client(port, &["-f", &scratch.path(name)]);
        assert!(send("a").status.success());
        // What exists is not stored again.
        assert!(send("a").status.success());
        assert!(send("b").status.success());
        let output = send("c");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("accepts"), "{}", text(&output.stderr));
        assert!(send("tiny").status.success());
        let mut names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|x| x.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "tiny"], "{option}");
        drop(server);
    }
}

/// Each client stays below its own quota; together they exceed that of all.
#[test]
fn the_quota_of_all_clients_applies_to_two_of_them_at_once() {
    let scratch = Scratch::new("quota-of-two");
    for name in ["one", "two"] {
        fs::write(scratch.0.join(name), noise(5_000_000, name.len() as u64)).unwrap();
    }
    let port = free_port();
    let directory = scratch.path("in");
    let server =
        Server::start(port, &["--directory", &directory, "--quota", "8M", "--client-quota", "6M"]);
    let clients = [("127.0.0.2", "one"), ("127.0.0.3", "two")];
    let started = clients
        .map(|(address, name)| slow_client(port, &["-B", address, "-f", &scratch.path(name)]));
    let outputs = started.map(|client| client.wait_with_output().unwrap());
    let failed: Vec<_> = outputs.iter().filter(|output| !output.status.success()).collect();
    assert_eq!(failed.len(), 1, "{outputs:?}");
    let why = text(&failed[0].stderr);
    assert!(why.contains("accepts") && why.contains("needs 5000000"), "{why}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left of the other");
    // Neither is the share of a client that has stored nothing.
    fs::write(scratch.0.join("three"), noise(2_900_000, 3)).unwrap();
    let send = |address: &str| client(port, &["-B", address, "-f", &scratch.path("three")]);
    let failed = usize::from(!outputs[1].status.success());
    assert!(send(clients[failed].0).status.success());
    drop(server);
}

#[test]
fn empty_files_and_directories_use_up_the_quota() {
    let scratch = Scratch::new("inodes");
    fs::create_dir(scratch.0.join("many")).unwrap();
    for number in 0..60 {
        fs::write(scratch.0.join(format!("many/{number}")), "").unwrap();
    }
    let port = free_port();
    let server = Server::start(
        port,
        &["--directory", &scratch.path("in"), "--client-quota", &(4_096 * 20).to_string()],
    );
    let output = client(port, &["-J", "-f", &scratch.path("many")]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["end"]["sum_sent"]["files_verified"], 19, "and one directory");
    assert_eq!(fs::read_dir(scratch.0.join("in/many")).unwrap().count(), 19);
    drop(server);
}

#[test]
fn the_reserve_stays_free() {
    let scratch = Scratch::new("reserve");
    fs::write(scratch.0.join("file"), noise(1_000, 1)).unwrap();
    let port = free_port();
    for (reserve, code) in [("99%", 1), ("1000000G", 1), ("0", 0)] {
        let server =
            Server::start(port, &["-1", "--directory", &scratch.path("in"), "--reserve", reserve]);
        let output = client(port, &["-f", &scratch.path("file")]);
        assert_eq!(output.status.code(), Some(code), "{reserve}: {}", text(&output.stderr));
        assert_eq!(server.finish().0, code);
        assert_eq!(scratch.0.join("in/file").exists(), code == 0);
    }
}

/// Waits for clients and watches the free space of a file system meanwhile; returns their output and the
/// least free space.
fn watched(clients: Vec<Child>, disk: &Tmpfs<'_>) -> (Vec<Output>, u64) {
    let clients = clients.into_iter().map(|client| thread::spawn(|| client.wait_with_output()));
    let clients: Vec<_> = clients.collect();
    let mut least = disk.free();
    while !clients.iter().all(JoinHandle::is_finished) {
        least = least.min(disk.free());
        thread::sleep(Duration::from_millis(1));
    }
    let outputs = clients.into_iter().map(|client| client.join().unwrap().unwrap());
    (outputs.collect(), least.min(disk.free()))
}

/// Of 16 MiB, 12.8 MB may be used; each of the transfers fits alone.
#[test]
fn the_reserve_stays_free_with_two_transfers_at_once() {
    let scratch = Scratch::new("reserve-of-two");
    let directory = scratch.0.join("in");
    let test = "the_reserve_stays_free_with_two_transfers_at_once";
    let Some(disk) = Tmpfs::mount(test, &directory, "16m") else { return };
    for name in ["one", "two"] {
        fs::write(scratch.0.join(name), noise(8_000_000, name.len() as u64)).unwrap();
    }
    let port = free_port();
    let server = Server::start(port, &["--directory", &scratch.path("in"), "--reserve", "4M"]);
    let start = |name: &str| slow_client(port, &["-f", &scratch.path(name)]);
    let (outputs, least) = watched(["one", "two"].map(start).into(), &disk);
    let failed: Vec<_> = outputs.iter().filter(|output| !output.status.success()).collect();
    assert_eq!(failed.len(), 1, "{outputs:?}");
    let why = text(&failed[0].stderr);
    assert!(why.contains("bytes free, 8000000 needed"), "{why}");
    assert!(least >= 4_000_000, "{least} bytes were free");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left of the other");
    drop(server);
}

/// Another program takes the space that was free when the transfer began.
#[test]
fn a_transfer_that_would_use_up_the_reserve_later_fails() {
    let scratch = Scratch::new("reserve-later");
    let directory = scratch.0.join("in");
    let test = "a_transfer_that_would_use_up_the_reserve_later_fails";
    let Some(disk) = Tmpfs::mount(test, &directory, "16m") else { return };
    fs::write(scratch.0.join("file"), noise(8_000_000, 1)).unwrap();
    let port = free_port();
    let server = Server::start(port, &["--directory", &scratch.path("in"), "--reserve", "4M"]);
    let slow = slow_client(port, &["-f", &scratch.path("file")]);
    wait_until("the transfer starts", || directory.join(".file.openbats.part").exists());
    let other = directory.join("other");
    fs::write(&other, noise(6_000_000, 2)).unwrap();
    let (outputs, least) = watched(vec![slow], &disk);
    let why = text(&outputs[0].stderr);
    assert_eq!(outputs[0].status.code(), Some(1), "{least} bytes were free");
    assert!(why.contains("bytes free, ") && why.contains(" needed"), "{why}");
    assert!(least >= 4_000_000, "{least} bytes were free");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left of the file");
    fs::remove_file(&other).unwrap();
    assert!(client(port, &["-f", &scratch.path("file")]).status.success());
    drop(server);
}

#[test]
fn names_of_up_to_255_bytes_arrive() {
    let scratch = Scratch::new("long-names");
    let names: Vec<String> =
        [231, 232, 254, 255].into_iter().map(|length| "n".repeat(length)).collect();
    let mut paths = Vec::new();
    for (name, number) in names.iter().zip(1..) {
        // One of them has several parts, and so a temporary name that stays.
        fs::write(scratch.0.join(name), noise(number * 1_500_000, 3)).unwrap();
        paths.push(scratch.path(name));
    }
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    let mut options = vec!["-P", "2", "-f"];
    options.extend(paths.iter().map(String::as_str));
    let output = client(port, &options);
    assert!(output.status.success(), "{}", text(&output.stdout));
    assert_eq!(server.finish().0, 0);
    for name in &names {
        let stored = fs::read(scratch.0.join("in").join(name)).unwrap();
        assert!(stored == fs::read(scratch.0.join(name)).unwrap());
    }
    assert_eq!(fs::read_dir(scratch.0.join("in")).unwrap().count(), names.len());
}

#[test]
fn directories_are_not_counted_as_files() {
    let scratch = Scratch::new("count");
    fs::create_dir_all(scratch.0.join("tree/deep/empty")).unwrap();
    fs::write(scratch.0.join("tree/deep/file"), "x").unwrap();
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    let output = client(port, &["-f", &scratch.path("tree")]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}");
    assert!(report.contains("1 of 1 files and 3 directories verified"), "{report}");
    let (code, report) = server.finish();
    assert_eq!(code, 0);
    assert!(report.contains("1 of 1 files and 3 directories verified and stored"), "{report}");
}

/// At 40 Mbit/s, the file takes 8 s.
#[test]
fn transfers_end_after_the_longest_time_and_can_be_continued() {
    let scratch = Scratch::new("longest");
    fs::write(scratch.0.join("file"), noise(40_000_000, 1)).unwrap();
    let (directory, port) = (scratch.path("in"), free_port());
    let mut arguments = vec!["--directory", &directory, "--server-max-duration", "3"];
    let limited = [&arguments[..], &["--server-bitrate-limit", "40M"]].concat();
    let server = Server::start(port, &limited);
    let output = client(port, &["-f", &scratch.path("file")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("longest time"), "{}", text(&output.stderr));
    // The place of the transfer is free.
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
    drop(server);
    arguments.truncate(2);
    let _server = Server::start(port, &arguments);
    let output = client(port, &["-f", &scratch.path("file"), "-J"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Whole parts of 4 MiB that have arrived are not sent again.
    let sent = report["files"][0]["sent_bytes"].as_u64().unwrap();
    assert!(sent <= 40_000_000 - (4 << 20), "{sent}");
    assert!(fs::read(scratch.0.join("in/file")).unwrap() == noise(40_000_000, 1));
}

/// It announces a large file, which has a place and free space promised, and then sends next to nothing.
#[test]
fn a_client_that_sends_next_to_nothing_keeps_no_place() {
    const SIZE: u64 = 10_000_000;
    let scratch = Scratch::new("next-to-nothing");
    fs::write(scratch.0.join("in/known"), noise(SIZE as usize, 1)).unwrap();
    let port = free_port();
    let directory = scratch.path("in");
    let _server = Server::start(port, &["--directory", &directory, "--rcv-timeout", "3000"]);
    let attacker = Attacker::new(port);
    let throughput =
        REQUEST.find(r#"{"throughput""#).unwrap()..REQUEST.find(r#","title""#).unwrap();
    let files = REQUEST.replace(&REQUEST[throughput], r#"{"files":{"count":1000,"bytes":5}}"#);
    let offer =
        |name: &str| [&[16, 0, 0, 0, 0, 0][..], &SIZE.to_be_bytes(), name.as_bytes()].concat();
    let data =
        |encoding: u8, bytes: &[u8]| [&[17, 0, 0, 0, 0, 0, 0, 0, 0, encoding][..], bytes].concat();
    let checking = |bytes: u64| [&[48, 0, 0, 0, 0][..], &bytes.to_be_bytes()].concat();
    // The file exists with another size.
    let refused = |id: u32| {
        let (id, size) = (id.to_be_bytes(), (SIZE + 1).to_be_bytes());
        [&[16][..], &id, &[0], &size, b"known"].concat()
    };
    // RFC 8878: a frame of one segment of 256 KiB, in two blocks that repeat a byte.
    let zeros = [
        &[0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 4, 0][..],
        &[0x02, 0, 0x10, 0][..],
        &[0x03, 0, 0x10, 0][..],
    ]
    .concat();
    let (often, rarely) = (Duration::from_millis(50), Duration::from_secs(1));
    type MessageOf<'a> = &'a dyn Fn(u32) -> Vec<u8>;
    let cases: [(&str, MessageOf<'_>, Duration, &[&str]); 6] = [
        ("empty", &|_| data(0, &[]), often, &["the transfer failed"]),
        ("bytes", &|_| data(0, &[7]), often, &["slower than"]),
        ("known", &|_| checking(1), often, &["slower than"]),
        // Each would be enough by what it says. On a busy machine, one may come too late.
        ("zeros", &|_| data(1, &zeros), rarely, &["slower than", "stalled"]),
        ("other", &refused, rarely, &["slower than", "stalled"]),
        ("known", &|_| checking(60_000), rarely, &["slower than", "stalled"]),
    ];
    for (name, message, pause, ends) in cases {
        let (control, connection) = attacker.join_test(&files);
        control.send(READY).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(receive_json(&control), "start", "{name}");
        connection.send(offer(name)).wait_for(LIMIT).unwrap().unwrap();
        let mut sent = 0;
        while connection.send(message(sent + 1)).wait_for(LIMIT).unwrap().is_ok() {
            sent += 1;
            assert!(pause * sent < Duration::from_secs(15), "{name}: the transfer goes on");
            thread::sleep(pause);
        }
        let (_, reason) = receive_until_closed(&connection);
        assert!(ends.iter().any(|end| reason.contains(end)), "{name}: {reason}");
    }
    fs::write(scratch.0.join("file"), noise(1_000, 2)).unwrap();
    assert!(client(port, &["-f", &scratch.path("file")]).status.success());
}

/// Neither in a refusal nor in the copy of the server's output.
#[test]
fn clients_learn_no_path_of_the_server() {
    let scratch = Scratch::new("paths");
    for name in ["stored", "in/stored"] {
        fs::write(scratch.0.join(name), name).unwrap();
    }
    let port = free_port();
    let _server = Server::start(port, &["--directory", &scratch.path("in")]);
    // The client's own messages name its own path.
    let incoming = scratch.path("in");
    for format in [&["--get-server-output"][..], &["--get-server-output", "-J"]] {
        let output = client(port, &[&["-f", &scratch.path("stored")], format].concat());
        assert_eq!(output.status.code(), Some(1));
        let text = text(&output.stdout) + &text(&output.stderr);
        assert!(text.contains("stored exists") && !text.contains(&incoming), "{text}");
    }
}
