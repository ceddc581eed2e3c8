//! Transfers of many files over real connections: verification, resumption, and failures of single
//! files.

mod common;
#[path = "common/set.rs"]
mod set;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::Scratch;
use openbats::Wait;
use openbats::file::set::{Existing, FileReport, FileSet, Outcome, Progress, Receiver, Sender};
use set::{LIMIT, connect, content};

/// Transfers over `streams` connections; returns the reports of sender and receiver, and the bytes
/// observed.
fn transfer(
    sender: &Sender,
    receiver: &Receiver,
    streams: usize,
) -> (Vec<FileReport>, Vec<FileReport>, u64) {
    let (near, far) = connect(streams);
    let observed = AtomicU64::new(0);
    let count = |progress: Progress<'_>| {
        if let Progress::Bytes { bytes, .. } = progress {
            observed.fetch_add(bytes, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for connection in &far {
            scope.spawn(|| receiver.run(connection, |_| {}).wait_for(LIMIT).unwrap().unwrap());
        }
        for connection in &near {
            scope.spawn(|| sender.run(connection, count).wait_for(LIMIT).unwrap().unwrap());
        }
    });
    let sent = sender.reports().into_iter().map(Option::unwrap).collect();
    (sent, receiver.reports(), observed.into_inner())
}

fn by_name(reports: &[FileReport]) -> BTreeMap<&str, &FileReport> {
    reports.iter().map(|report| (report.name.as_str(), report)).collect()
}

fn send_all(paths: &[&Path], receiver: &Receiver, streams: usize) -> Vec<FileReport> {
    transfer(&Sender::new(FileSet::collect(paths).unwrap()), receiver, streams).0
}

fn why(report: &FileReport) -> &str {
    match &report.outcome {
        Outcome::Failed(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tree_is_transferred_over_any_number_of_streams() {
    for streams in [1, 3] {
        let scratch = Scratch::new(&format!("set-tree{streams}"));
        let sizes = [0, 1, 1_000, 256 << 10, (256 << 10) + 1, 4 << 20, (4 << 20) + 1, 21 << 20];
        for (number, size) in sizes.into_iter().enumerate() {
            scratch.file(&format!("tree/d{}/f{number}", number % 3), &content(size, number as u64));
        }
        for number in 0..100 {
            scratch.file(&format!("tree/many/{number}"), &content(number * 7, 9));
        }
        fs::create_dir(scratch.0.join("tree/empty")).unwrap();
        // Hidden files within a directory are sent, in one part or several.
        scratch.file("tree/.dot", &content(10, 3));
        scratch.file("tree/.config/.large", &content(9 << 20, 4));
        let set = FileSet::collect([scratch.0.join("tree")]).unwrap();
        let total = set.bytes();
        let sender = Sender::new(set);
        let receiver = Receiver::new(scratch.incoming());
        let (sent, received, observed) = transfer(&sender, &receiver, streams);
        assert_eq!(observed, total);
        assert_eq!(by_name(&sent), by_name(&received));
        assert_eq!(sent.len(), sizes.len() + 100 + 6 + 3);
        for report in &sent {
            let path = scratch.incoming().join(&report.name);
            match report.outcome {
                Outcome::Stored { hash: Some(hash) } => {
                    let content = fs::read(path).unwrap();
                    assert_eq!(content, fs::read(scratch.0.join(&report.name)).unwrap());
                    assert_eq!(hash, *blake3::hash(&content).as_bytes(), "{}", report.name);
                }
                _ => assert!(path.is_dir(), "{report:?}"),
            }
        }
        assert!(!scratch.received().iter().any(|name| name.contains(".part")));
    }
}

#[test]
fn unchanged_files_are_not_sent_again() {
    let scratch = Scratch::new("set-again");
    let (large, small) = (scratch.file("large", &content(9 << 20, 1)), scratch.file("small", b"x"));
    let receiver = || Receiver::new(scratch.incoming());
    let first = send_all(&[&large, &small], &receiver(), 2);
    assert!(first.iter().all(|report| matches!(report.outcome, Outcome::Stored { .. })));
    let second = send_all(&[&large, &small], &receiver(), 2);
    assert!(second.iter().all(|report| matches!(report.outcome, Outcome::Unchanged { .. })));
    assert_eq!(second[0].sent, 0);
    assert_eq!(scratch.received(), ["large", "small"]);
}

#[test]
fn an_interrupted_file_is_resumed() {
    let scratch = Scratch::new("set-resume");
    let whole = content(24 << 20, 5);
    let path = scratch.file("large", &whole);
    let (near, far) = connect(1);
    let sender = Sender::new(FileSet::collect([&path]).unwrap());
    let receiver = Receiver::new(scratch.incoming());
    let arrived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let observe = |progress: Progress<'_>| {
                if let Progress::Bytes { bytes, .. } = progress
                    && arrived.fetch_add(bytes, Ordering::Relaxed) > 13 << 20
                {
                    far[0].close(1, "pulled");
                }
            };
            receiver.run(&far[0], observe).wait()
        });
        assert!(sender.run(&near[0], |_| {}).wait_for(LIMIT).unwrap().is_err());
        assert!(receiving.join().unwrap().is_err());
    });
    assert!(matches!(sender.reports()[0].as_ref().unwrap().outcome, Outcome::Failed(_)));
    assert!(matches!(receiver.reports()[0].outcome, Outcome::Failed(_)));
    drop(receiver);
    assert_eq!(scratch.received(), [".large.openbats.part"]);

    // One byte of the received data changes meanwhile: that part is sent again.
    let mut left = fs::read(scratch.incoming().join(".large.openbats.part")).unwrap();
    left[5] ^= 1;
    fs::write(scratch.incoming().join(".large.openbats.part"), &left).unwrap();
    let again = send_all(&[&path], &Receiver::new(scratch.incoming()), 2);
    assert!(matches!(again[0].outcome, Outcome::Stored { .. }), "{again:?}");
    let sent = again[0].sent;
    assert!((4 << 20..20 << 20).contains(&sent), "{sent}");
    assert_eq!(fs::read(scratch.incoming().join("large")).unwrap(), whole);
    assert_eq!(scratch.received(), ["large"]);
}

/// A large file that was interrupted early is not read as a whole before it is sent.
#[test]
fn a_resumed_transfer_reads_only_parts_that_were_received() {
    let scratch = Scratch::new("set-early");
    let part = 4 << 20;
    let whole = content(3 * part, 5);
    let path = scratch.file("large", &whole);
    scratch.file("in/.large.openbats.part", &whole[..part]);
    let (near, far) = connect(1);
    let sender = Sender::new(FileSet::collect([&path]).unwrap());
    let receiver = Receiver::new(scratch.incoming());
    let checked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| receiver.run(&far[0], |_| {}).wait_for(LIMIT).unwrap().unwrap());
        let observe = |progress: Progress<'_>| {
            if let Progress::Checking { bytes, .. } = progress {
                checked.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        sender.run(&near[0], observe).wait_for(LIMIT).unwrap().unwrap();
    });
    let report = sender.reports().remove(0).unwrap();
    assert_eq!(report.sent, 2 * part as u64);
    assert_eq!(checked.into_inner(), 2 * part as u64, "a part at each end");
    assert!(fs::read(scratch.incoming().join("large")).unwrap() == whole);
}

#[test]
fn existing_names_are_refused_replaced_or_avoided() {
    for size in [100, 300 << 10, 9 << 20] {
        let scratch = Scratch::new(&format!("set-taken{size}"));
        let new = content(size, 1);
        let path = scratch.file("name", &new);
        // Existing content of the same and of another length must not be taken for the new content.
        for old in [content(size, 2), b"short".to_vec()] {
            let old_path = scratch.file("in/name", &old);
            let with = |existing| Receiver::new(scratch.incoming()).existing(existing);
            let refused = send_all(&[&path], &with(Existing::Refuse), 2);
            assert!(why(&refused[0]).contains("exists"), "{refused:?}");
            assert_eq!(fs::read(&old_path).unwrap(), old);
            let renamed = send_all(&[&path], &with(Existing::Rename), 2);
            let Outcome::Renamed { to, .. } = &renamed[0].outcome else { panic!("{renamed:?}") };
            assert_eq!(to, "name.1");
            assert_eq!(fs::read(scratch.incoming().join(to)).unwrap(), new);
            assert_eq!(fs::read(&old_path).unwrap(), old);
            fs::remove_file(scratch.incoming().join(to)).unwrap();
            let replaced = send_all(&[&path], &with(Existing::Overwrite), 2);
            assert!(matches!(replaced[0].outcome, Outcome::Stored { .. }), "{replaced:?}");
            assert_eq!(fs::read(&old_path).unwrap(), new);
            assert_eq!(scratch.received(), ["name"]);
        }
    }
}

#[test]
fn hash_files_are_verified_and_written() {
    let scratch = Scratch::new("set-sha");
    let right = scratch.file("right.bin", b"abc");
    let wrong = scratch.file("wrong.bin", b"abd");
    // FIPS 180-4, example B.1.
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    scratch.file("right.bin.sha256sum", format!("{hash}  right.bin\n").as_bytes());
    scratch.file("wrong.bin.sha256sum", format!("{hash} *wrong.bin\n").as_bytes());
    for _ in 0..2 {
        let sent = send_all(&[&right, &wrong], &Receiver::new(scratch.incoming()), 1);
        assert!(!matches!(sent[0].outcome, Outcome::Failed(_)), "{sent:?}");
        assert!(why(&sent[1]).contains(".sha256sum"), "{sent:?}");
        assert_eq!(scratch.received(), ["right.bin", "right.bin.sha256sum"]);
    }
    // A hash file of other content is not replaced by default.
    fs::remove_file(scratch.incoming().join("right.bin")).unwrap();
    scratch.file("in/right.bin.sha256sum", b"mine");
    let refused = send_all(&[&right], &Receiver::new(scratch.incoming()), 1);
    assert!(why(&refused[0]).contains("right.bin.sha256sum exists"), "{refused:?}");
    assert_eq!(scratch.received(), ["right.bin.sha256sum"]);
    let overwriting = Receiver::new(scratch.incoming()).existing(Existing::Overwrite);
    let sent = send_all(&[&right], &overwriting, 1);
    assert!(matches!(sent[0].outcome, Outcome::Stored { .. }), "{sent:?}");
    let check = std::process::Command::new("sha256sum")
        .args(["-c", "right.bin.sha256sum"])
        .current_dir(scratch.incoming())
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");
}

#[test]
fn a_failed_file_does_not_stop_the_others() {
    let scratch = Scratch::new("set-others");
    let large = scratch.file("large", &content(9 << 20, 1));
    let gone = scratch.file("gone", &content(400 << 10, 1));
    let good = scratch.file("good", &content(400 << 10, 2));
    let set = FileSet::collect([&large, &gone, &good]).unwrap();
    fs::remove_file(gone).unwrap();
    let receiver = Receiver::new(scratch.incoming()).max_size(5 << 20);
    let (sent, ..) = transfer(&Sender::new(set), &receiver, 1);
    assert!(why(&sent[0]).contains("limit"), "{sent:?}");
    assert!(why(&sent[1]).contains("gone"), "{sent:?}");
    assert!(matches!(sent[2].outcome, Outcome::Stored { .. }), "{sent:?}");
    assert_eq!(scratch.received(), ["good"]);
}

#[test]
fn symbolic_links_to_directories_are_not_followed() {
    let scratch = Scratch::new("set-link");
    scratch.file("tree/file", b"content");
    fs::create_dir(scratch.0.join("outside")).unwrap();
    std::os::unix::fs::symlink("../outside", scratch.incoming().join("tree")).unwrap();
    let tree = scratch.0.join("tree");
    let sent = send_all(&[&tree], &Receiver::new(scratch.incoming()), 1);
    assert!(sent.iter().all(|report| matches!(report.outcome, Outcome::Failed(_))), "{sent:?}");
    assert_eq!(fs::read_dir(scratch.0.join("outside")).unwrap().count(), 0);
}

/// Sends malformed messages to a receiver and checks its results.
#[test]
fn protocol_violations_leave_no_files() {
    let scratch = Scratch::new("set-rules");
    let offer = |flags: u8, size: u64, name: &str| {
        [&[16, 0, 0, 0, 1, flags][..], &size.to_be_bytes(), name.as_bytes()].concat()
    };
    let data = |part: u32, bytes: &[u8]| {
        [&[17, 0, 0, 0, 1][..], &part.to_be_bytes(), &[0], bytes].concat()
    };
    let part = |part: u32| [&[18, 0, 0, 0, 1][..], &part.to_be_bytes(), &[7; 32]].concat();
    let finish = |sent: u32| [&[19, 0, 0, 0, 1][..], &sent.to_be_bytes(), &[7; 32]].concat();
    let names = [
        "../x",
        "/etc/x",
        "a/../../x",
        ".hidden",
        ".ssh/x",
        "a/.x.part",
        "a/..",
        "a/./.x",
        "a//b",
        "",
        "a\0b",
        "a/",
        &"d/".repeat(99),
    ];
    let mut scripts: Vec<Vec<Vec<u8>>> = names
        .iter()
        .map(|name| vec![offer(1, 1, name), data(0, b"x"), part(0), finish(1)])
        .collect();
    let refused = scripts.len();
    scripts.extend([
        vec![offer(1, 3, "x"), data(0, b"abc"), part(0), finish(1)],
        vec![offer(1, 3, "x"), data(0, b"abcd")],
        vec![offer(1, 3, "x"), data(0, b"ab"), part(0)],
        vec![offer(1, 3, "x"), data(1, b"abc")],
        vec![offer(1, 3, "x"), data(u32::MAX, b"abc")],
        vec![offer(1, 3, "x"), part(0)],
        vec![offer(1, 3, "x"), finish(0)],
        vec![offer(1, 0, "x"), finish(0)],
        vec![offer(1, 3, "x"), finish(1), finish(1)],
        vec![offer(1, 3, "x"), offer(1, 3, "x")],
        vec![data(0, b"abc")],
        vec![offer(1, u64::MAX, "x")],
        vec![offer(0, 1 << 62, "x")],
        vec![offer(1, 3, "x"), vec![21, 0, 0, 0, 1]],
        vec![vec![32, 0, 0, 0, 1, 0]],
        vec![vec![]],
        vec![vec![255; 100]],
    ]);
    for (number, script) in scripts.into_iter().enumerate() {
        let (near, far) = connect(1);
        let receiver = Receiver::new(scratch.incoming());
        let ends = Mutex::new(Vec::new());
        let result = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let result = receiver.run(&far[0], |progress| {
                    if let Progress::End { report, .. } = progress {
                        ends.lock().unwrap().push(report.clone());
                    }
                });
                let result = result.wait_for(LIMIT).unwrap();
                far[0].close(1, "over");
                result
            });
            for message in script {
                let _ = near[0].send(message).wait_for(LIMIT).unwrap();
            }
            let _ = near[0].finish().wait_for(LIMIT).unwrap();
            receiving.join().unwrap()
        });
        let ends = ends.into_inner().unwrap();
        assert!(!ends.iter().any(|end| end.outcome.hash().is_some()), "{number}: {ends:?}");
        if number < refused {
            assert!(result.is_ok(), "{number}: {result:?}");
            assert!(!ends.is_empty(), "{number}");
        } else {
            let failed = ends.iter().any(|end| matches!(end.outcome, Outcome::Failed(_)));
            assert!(result.is_err() || failed, "{number}: {result:?} {ends:?}");
        }
        drop(receiver);
        let left: Vec<String> =
            scratch.received().into_iter().filter(|name| !Path::new(name).ends_with("d")).collect();
        assert!(left.iter().all(|name| name == "a" || name.starts_with('d')), "{number}: {left:?}");
    }
}

/// Checks a hash file in the receiver's directory with `sha256sum`.
fn check_hash_file(scratch: &Scratch, hash_file: &str) {
    let check = std::process::Command::new("sha256sum")
        .args(["-c", hash_file])
        .current_dir(scratch.incoming())
        .output()
        .unwrap();
    assert!(check.status.success(), "{hash_file}: {check:?}");
}

/// Small files are sent with their offer, large ones after the reply.
#[test]
fn hash_files_replace_existing_files_only_on_request() {
    for size in [1_000, 300 << 10] {
        let scratch = Scratch::new(&format!("set-sides{size}"));
        let path = scratch.file("x.bin", &content(size, 1));
        let sum = std::process::Command::new("sha256sum")
            .arg("x.bin")
            .current_dir(&scratch.0)
            .output()
            .unwrap();
        scratch.file("x.bin.sha256sum", &sum.stdout);
        let send = |existing| {
            let receiver = Receiver::new(scratch.incoming()).existing(existing);
            send_all(&[&path], &receiver, 1).remove(0).outcome
        };
        // Existing names: of a file, and of a link to one.
        scratch.file("in/x.bin.sha256sum", b"mine");
        scratch.file("kept", b"mine, too");
        std::os::unix::fs::symlink("../kept", scratch.incoming().join("x.bin.1.sha256sum"))
            .unwrap();
        let Outcome::Failed(why) = send(Existing::Refuse) else { panic!("not refused") };
        assert!(why.contains("x.bin.sha256sum exists"), "{why}");
        assert_eq!(scratch.received(), ["x.bin.1.sha256sum", "x.bin.sha256sum"]);
        // The file gets a name whose hash file name is free, too.
        let Outcome::Renamed { to, .. } = send(Existing::Rename) else { panic!("not renamed") };
        assert_eq!(to, "x.bin.2");
        check_hash_file(&scratch, "x.bin.2.sha256sum");
        // An existing file without its hash file.
        scratch.file("in/x.bin", &content(size, 1));
        let Outcome::Failed(why) = send(Existing::Refuse) else { panic!("not refused") };
        assert!(why.contains("x.bin.sha256sum exists"), "{why}");
        for _ in 0..2 {
            let outcome = send(Existing::Rename);
            assert!(matches!(outcome, Outcome::Unchanged { .. }), "{outcome:?}");
            check_hash_file(&scratch, "x.bin.sha256sum.1");
        }
        let names = [
            "x.bin",
            "x.bin.1.sha256sum",
            "x.bin.2",
            "x.bin.2.sha256sum",
            "x.bin.sha256sum",
            "x.bin.sha256sum.1",
        ];
        assert_eq!(scratch.received(), names);
        let read = |name: &str| fs::read(scratch.incoming().join(name)).unwrap();
        assert_eq!(
            (read("x.bin.sha256sum"), read("x.bin.1.sha256sum")),
            (b"mine".to_vec(), b"mine, too".to_vec())
        );
        assert_eq!(fs::read(scratch.0.join("kept")).unwrap(), b"mine, too");
        let outcome = send(Existing::Overwrite);
        assert!(!matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
        check_hash_file(&scratch, "x.bin.sha256sum");
        assert_eq!(scratch.received(), names);
    }
}

/// Each end pauses in the middle of a check until the other end has received its progress report.
#[test]
fn checks_of_large_files_are_reported_at_both_ends() {
    let scratch = Scratch::new("set-checking");
    let size = 40 << 20;
    let path = scratch.file("large", &content(size, 1));
    fs::copy(&path, scratch.incoming().join("large")).unwrap();
    let (near, far) = connect(1);
    let sender = Sender::new(FileSet::collect([&path]).unwrap());
    let receiver = Receiver::new(scratch.incoming());
    let size = size as u64;
    let (near_reported, far_reported) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait_for_more_than = |reported: &AtomicU64, bytes: u64| {
        for _ in 0..2_000 {
            if reported.load(Ordering::Relaxed) > bytes {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} bytes of {size} were reported", reported.load(Ordering::Relaxed));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let observe = |progress: Progress<'_>| {
                if let Progress::Checking { bytes, .. } = progress {
                    far_reported.fetch_add(bytes, Ordering::Relaxed);
                    wait_for_more_than(&near_reported, 0);
                }
            };
            receiver.run(&far[0], observe).wait_for(LIMIT).unwrap().unwrap();
        });
        scope.spawn(|| {
            let observe = |progress: Progress<'_>| {
                if let Progress::Checking { bytes, .. } = progress
                    // More than the receiver reads, so that this end reads.
                    && near_reported.fetch_add(bytes, Ordering::Relaxed) + bytes > size
                {
                    wait_for_more_than(&far_reported, size);
                }
            };
            sender.run(&near[0], observe).wait_for(LIMIT).unwrap().unwrap();
        });
    });
    let outcome = sender.reports().remove(0).unwrap().outcome;
    assert!(matches!(outcome, Outcome::Unchanged { .. }), "{outcome:?}");
    for reported in [near_reported, far_reported] {
        assert_eq!(reported.into_inner(), 2 * size);
    }
}

/// The receiver keeps the hashes of a limited number of existing files that wait for the sender.
#[test]
fn the_number_of_existing_files_being_checked_is_limited() {
    let scratch = Scratch::new("set-many");
    let (near, far) = connect(1);
    let receiver = Receiver::new(scratch.incoming());
    for number in 0..600 {
        scratch.file(&format!("in/{number}"), b"x");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..600_u32 {
                let name = number.to_string();
                let offer =
                    [&[16][..], &number.to_be_bytes(), &[0], &1_u64.to_be_bytes(), name.as_bytes()];
                let _ = near[0].send(offer.concat()).wait_for(LIMIT).unwrap();
            }
        });
        let begun = AtomicU64::new(0);
        let observe = |progress: Progress<'_>| {
            if let Progress::Begin { .. } = progress {
                begun.fetch_add(1, Ordering::Relaxed);
            }
        };
        let result = receiver.run(&far[0], observe).wait_for(LIMIT).unwrap();
        assert!(result.unwrap_err().to_string().contains("too many files at a time"));
        assert_eq!(begun.into_inner(), 512);
        far[0].close(1, "over");
    });
}

/// The announced number of files is accepted, and not one more.
#[test]
fn files_beyond_the_announced_number_end_the_connection() {
    let scratch = Scratch::new("set-announced");
    let paths: Vec<_> = (0..4).map(|x| scratch.file(&format!("f{x}"), b"x")).collect();
    for (count, is_good) in [(4, true), (3, false)] {
        let (near, far) = connect(1);
        let receiver =
            Receiver::new(scratch.incoming()).existing(Existing::Overwrite).max_entries(count);
        let sender = Sender::new(FileSet::collect(&paths).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = sender.run(&near[0], |_| {}).wait_for(LIMIT).unwrap();
            });
            let result = receiver.run(&far[0], |_| {}).wait_for(LIMIT).unwrap();
            assert_eq!(result.is_ok(), is_good, "{result:?}");
            if let Err(error) = result {
                assert!(error.to_string().contains("more files than announced"), "{error}");
            }
            far[0].close(1, "over");
        });
    }
}
