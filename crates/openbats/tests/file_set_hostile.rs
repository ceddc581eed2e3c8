//! Receivers of many files and hostile senders, local programs and users.

mod common;
#[path = "common/set.rs"]
mod set;

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Scratch;
use openbats::file::FileError;
use openbats::file::set::{
    Existing, FileReport, FileSet, Outcome, Progress, ReadBudget, Receiver, Reserve, Sender,
};
use openbats::{Connection, Wait};
use set::{LIMIT, connect, content};

/// Part size in bytes.
const PART: usize = 4 << 20;
/// Payload of a `DATA` message in bytes.
const CHUNK: usize = 256 << 10;

fn offer(id: u32, size: u64, name: &str) -> Vec<u8> {
    [&[16][..], &id.to_be_bytes(), &[0], &size.to_be_bytes(), name.as_bytes()].concat()
}

fn data(id: u32, part: u32, bytes: &[u8]) -> Vec<u8> {
    [&[17][..], &id.to_be_bytes(), &part.to_be_bytes(), &[0], bytes].concat()
}

fn part_end(id: u32, part: u32, hash: &[u8; 32]) -> Vec<u8> {
    [&[18][..], &id.to_be_bytes(), &part.to_be_bytes(), hash].concat()
}

fn finish(id: u32, sent: u32, hash: &[u8; 32]) -> Vec<u8> {
    [&[19][..], &id.to_be_bytes(), &sent.to_be_bytes(), hash].concat()
}

fn checking(id: u32, bytes: u64) -> Vec<u8> {
    [&[48][..], &id.to_be_bytes(), &bytes.to_be_bytes()].concat()
}

fn part_hash(content: &[u8], part: usize) -> [u8; 32] {
    use blake3::hazmat::HasherExt;
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset((part * PART) as u64);
    let end = content.len().min((part + 1) * PART);
    hasher.update(&content[part * PART..end]).finalize_non_root()
}

fn hashes(id: u32, content: &[u8]) -> Vec<u8> {
    let parts = (0..content.len().div_ceil(PART)).map(|part| part_hash(content, part));
    [&[22][..], &id.to_be_bytes()].concat().into_iter().chain(parts.flatten()).collect()
}

/// Runs the receiver while `act` acts as the sender.
fn run(receiver: &Receiver, act: impl FnOnce(&Connection)) -> Result<(), FileError> {
    run_observed(receiver, |_| {}, act)
}

fn run_observed(
    receiver: &Receiver,
    observe: impl Fn(Progress<'_>) + Send,
    act: impl FnOnce(&Connection),
) -> Result<(), FileError> {
    let (near, far) = connect(1);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let result = receiver.run(&far[0], observe).wait_for(LIMIT).unwrap();
            far[0].close(1, "over");
            result
        });
        act(&near[0]);
        let _ = near[0].finish().wait_for(LIMIT).unwrap();
        receiving.join().unwrap()
    })
}

/// The next message other than reports of progress; empty if there is none.
fn reply(connection: &Connection) -> Vec<u8> {
    loop {
        match connection.recv().wait_for(LIMIT).unwrap() {
            Ok(Some(bytes)) if bytes[0] == 48 => {}
            Ok(Some(bytes)) => return bytes.to_vec(),
            _ => return Vec::new(),
        }
    }
}

fn send(connection: &Connection, message: Vec<u8>) {
    let _ = connection.send(message).wait_for(LIMIT).unwrap();
}

fn transfer(path: &Path, receiver: &Receiver) -> FileReport {
    let sender = Sender::new(FileSet::collect([path]).unwrap());
    run(receiver, |near| {
        sender.run(near, |_| {}).wait_for(LIMIT).unwrap().unwrap();
    })
    .unwrap();
    sender.reports().remove(0).unwrap()
}

/// The sender learns for each part whether it is right, so that each wrong one counts.
#[test]
fn each_wrong_part_of_an_interrupted_transfer_is_a_guess() {
    const MISMATCH: u64 = 1_000_000_000;
    let scratch = Scratch::new("hostile-parts");
    let whole = content(3 * PART, 1);
    let path = scratch.file("large", &whole);
    let left_over = [&content(PART, 2)[..], &whole[PART..2 * PART]].concat();
    let read = 2 * PART as u64;
    for (budget, sent) in [(MISMATCH + read, 3 * PART), (2 * MISMATCH + read, 2 * PART)] {
        scratch.file("in/.large.openbats.part", &left_over);
        let receiver = Receiver::new(scratch.incoming()).read_budget(ReadBudget::per_day(budget));
        let report = transfer(&path, &receiver);
        assert!(matches!(report.outcome, Outcome::Stored { .. }), "{report:?}");
        assert_eq!(report.sent, sent as u64);
        let stored = scratch.incoming().join("large");
        assert!(fs::read(&stored).unwrap() == whole);
        fs::remove_file(stored).unwrap();
    }
}

/// Files, links and pipes at the names of temporary files that this receiver did not make.
#[test]
fn files_of_other_programs_and_users_are_not_written_to() {
    let scratch = Scratch::new("hostile-part");
    let whole = content(2 * PART + 5, 1);
    let path = scratch.file("large", &whole);
    let mine = scratch.file("mine", b"mine");
    let is_root = fs::metadata(&path).unwrap().uid() == 0;
    type Place<'a> = (&'a str, &'a dyn Fn(&Path));
    let places: [Place<'_>; 6] = [
        (".large.part", &|at| fs::write(at, "mine").unwrap()),
        (".large.openbats.part", &|at| symlink(&mine, at).unwrap()),
        (".large.openbats.part", &|at| symlink("nowhere", at).unwrap()),
        (".large.openbats.part", &|at| fs::hard_link(&mine, at).unwrap()),
        (".large.openbats.part", &|at| fs::create_dir(at).unwrap()),
        (".large.openbats.part", &|at| {
            // Only root can make a file of another user.
            match is_root {
                true => {
                    fs::write(at, "mine").unwrap();
                    chown(at, Some(12_345), None).unwrap();
                }
                false => symlink(&mine, at).unwrap(),
            }
        }),
    ];
    for (number, (name, place)) in places.into_iter().enumerate() {
        let at = scratch.incoming().join(name);
        place(&at);
        let before = at.symlink_metadata().unwrap();
        let report = transfer(&path, &Receiver::new(scratch.incoming()));
        assert!(matches!(report.outcome, Outcome::Stored { .. }), "{number}: {report:?}");
        let after = at.symlink_metadata().unwrap();
        assert_eq!((before.ino(), before.len()), (after.ino(), after.len()), "{number}");
        assert_eq!(fs::read(&mine).unwrap(), b"mine", "{number}");
        let stored = scratch.incoming().join("large");
        assert!(fs::read(&stored).unwrap() == whole, "{number}");
        assert_eq!(scratch.received().len(), 2, "{number}: {:?}", scratch.received());
        fs::remove_file(stored).unwrap();
        match before.is_dir() {
            true => fs::remove_dir(at).unwrap(),
            false => fs::remove_file(at).unwrap(),
        }
    }
}

/// A sender repeats a part whose hash was verified already.
#[test]
fn a_verified_file_is_not_changed() {
    let scratch = Scratch::new("hostile-again");
    let whole = content(PART + 1_000, 1);
    let other = vec![7; CHUNK];
    let receiver = Receiver::new(scratch.incoming());
    let result = run(&receiver, |near| {
        send(near, offer(0, whole.len() as u64, "file"));
        assert_eq!(reply(near)[0], 32);
        for part in 0..2 {
            let end = whole.len().min((part + 1) * PART);
            for chunk in whole[part * PART..end].chunks(CHUNK) {
                send(near, data(0, part as u32, chunk));
            }
            send(near, part_end(0, part as u32, &part_hash(&whole, part)));
        }
        send(near, data(0, 0, &other));
        send(near, finish(0, 2, blake3::hash(&whole).as_bytes()));
        send(near, data(0, 0, &other));
    });
    assert!(result.is_err(), "the part was not requested again");
    let stored = fs::read(scratch.incoming().join("file"));
    assert!(stored.is_err() || stored.is_ok_and(|stored| stored == whole));
}

/// The hash of a part lets a sender test guesses of the content without asking again.
#[test]
fn the_reply_to_an_offer_has_no_hashes_of_existing_content() {
    let scratch = Scratch::new("hostile-offer");
    let secret = content(PART + 1_000, 1);
    for name in ["in/stored", "in/.partial.openbats.part", "in/.partial.part"] {
        scratch.file(name, &secret);
    }
    for existing in [Existing::Refuse, Existing::Overwrite, Existing::Rename] {
        let receiver = Receiver::new(scratch.incoming()).existing(existing);
        run(&receiver, |near| {
            for (id, name) in [(0, "stored"), (1, "partial")] {
                send(near, offer(id, secret.len() as u64, name));
                let reply = reply(near);
                assert!(reply[0] == 32 && reply.len() < 32, "{name}: {} bytes", reply.len());
            }
        })
        .unwrap();
    }
}

/// The text of a verdict that refuses a file.
fn refusal(reply: &[u8]) -> String {
    assert_eq!((reply[0], reply[5]), (33, 3), "{reply:?}");
    String::from_utf8(reply[6..].to_vec()).unwrap()
}

/// They would look like progress, so that a transfer could last without end.
#[test]
fn messages_that_carry_nothing_violate_the_protocol() {
    const SIZE: u64 = 2 * PART as u64;
    let scratch = Scratch::new("hostile-nothing");
    scratch.file("in/known", &content(SIZE as usize, 1));
    let of_known = |bytes: &[u64]| bytes.iter().map(|&bytes| checking(1, bytes)).collect();
    type Case = (Vec<Vec<u8>>, Option<&'static str>, u64);
    let cases: [Case; 7] = [
        (vec![data(0, 0, &[])], Some("data"), 0),
        (vec![data(0, 0, &[7]), data(0, 0, &[])], Some("data"), 0),
        (of_known(&[0]), Some("progress"), 0),
        (of_known(&[SIZE + 1]), Some("more"), 0),
        (of_known(&[SIZE, u64::MAX]), Some("more"), SIZE),
        (of_known(&[SIZE - 1, 1]), None, SIZE),
        // There is nothing to compare a new file with.
        (vec![checking(0, 1)], None, 0),
    ];
    for (number, (messages, why, counted)) in cases.into_iter().enumerate() {
        // What a case leaves of a file is not what the next one begins with.
        let new = format!("new {number}");
        let receiver = Receiver::new(scratch.incoming());
        let checked = AtomicU64::new(0);
        let observe = |progress: Progress<'_>| {
            if let Progress::Checking { bytes, .. } = progress {
                checked.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        let result = run_observed(&receiver, observe, |near| {
            send(near, offer(0, SIZE, &new));
            send(near, offer(1, SIZE, "known"));
            assert_eq!((reply(near)[5], reply(near)[5]), (0, 1), "all, and the hashes");
            messages.iter().for_each(|message| send(near, message.clone()));
        });
        let violation = match &result {
            Err(FileError::Protocol(violation)) => Some(*violation),
            _ => None,
        };
        let is_expected = violation.map(|text| text.contains(why.unwrap_or("none")));
        assert_eq!(is_expected, why.map(|_| true), "{why:?}: {result:?}");
        assert_eq!(checked.into_inner(), counted, "{why:?}");
    }
}

#[test]
fn a_receiver_that_reads_a_file_without_end_makes_no_progress() {
    let scratch = Scratch::new("hostile-reader");
    let path = scratch.file("large", &content(PART, 1));
    let sender = Sender::new(FileSet::collect([path]).unwrap());
    let checked = AtomicU64::new(0);
    let observe = |progress: Progress<'_>| {
        if let Progress::Checking { bytes, .. } = progress {
            checked.fetch_add(bytes, Ordering::Relaxed);
        }
    };
    let (near, far) = connect(1);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| sender.run(&near[0], observe).wait_for(LIMIT).unwrap());
        assert_eq!(reply(&far[0])[0], 16, "the offer");
        for _ in 0..20 {
            send(&far[0], checking(0, PART as u64));
        }
        send(&far[0], [&[33, 0, 0, 0, 0, 3][..], b"refused"].concat());
        sending.join().unwrap().unwrap();
    });
    assert_eq!(checked.into_inner(), 4 * PART as u64);
}

/// Over several transfers, as a client repeats them.
#[test]
fn a_sender_has_few_guesses_of_existing_content() {
    /// What a wrong guess costs in addition to the bytes read.
    const MISMATCH: u64 = 1_000_000_000;
    let scratch = Scratch::new("hostile-guess");
    let secret = content(PART + 1_000, 1);
    let wrong = content(PART + 1_000, 2);
    scratch.file("in/secret", &secret);
    let size = secret.len() as u64;
    // Two wrong guesses and two right ones, after which no more can begin.
    let read = 4 * size;
    let budget = ReadBudget::per_day(3 * MISMATCH + read);
    let checked = AtomicU64::new(0);
    let mut outcomes = Vec::new();
    for guess in [&wrong, &secret, &wrong, &secret, &wrong, &wrong, &secret] {
        let receiver = Receiver::new(scratch.incoming()).read_budget(budget.clone());
        let observe = |progress: Progress<'_>| {
            if let Progress::Checking { bytes, .. } = progress {
                checked.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        run_observed(&receiver, observe, |near| {
            send(near, offer(0, size, "secret"));
            assert_eq!(reply(near)[..], [32, 0, 0, 0, 0, 1, 3]);
            send(near, hashes(0, guess));
            let reply = reply(near);
            outcomes.push(match reply[5] {
                1 => "same",
                _ if refusal(&reply).contains("not compared") => "not compared",
                _ => "differs",
            });
        })
        .unwrap();
    }
    let expected =
        ["differs", "same", "differs", "same", "not compared", "not compared", "not compared"];
    assert_eq!(outcomes, expected);
    // A wrong guess is read to the end, too: how far it was read would tell which part is wrong.
    assert_eq!(checked.into_inner(), read);
    // Small files come with their offer; the existing one is not compared either.
    let budget = ReadBudget::per_day(0);
    let small = scratch.file("small", b"secret");
    scratch.file("in/small", b"secret");
    let with =
        |existing| Receiver::new(scratch.incoming()).read_budget(budget.clone()).existing(existing);
    let report = transfer(&small, &with(Existing::Refuse));
    assert!(matches!(&report.outcome, Outcome::Failed(why) if why.contains("not compared")));
    // Where names may be chosen or replaced, the file is stored without a comparison.
    let report = transfer(&small, &with(Existing::Rename));
    assert!(matches!(report.outcome, Outcome::Renamed { .. }), "{report:?}");
    let report = transfer(&small, &with(Existing::Overwrite));
    assert!(matches!(report.outcome, Outcome::Stored { .. }), "{report:?}");
}

/// One offer causes one comparison.
#[test]
fn hashes_are_accepted_once_and_on_request() {
    let scratch = Scratch::new("hostile-hashes");
    let whole = content(PART + 1_000, 1);
    let partial = "in/.partial.openbats.part";
    scratch.file("in/stored", &whole);
    let size = whole.len() as u64;
    let twice =
        |name: &'static str| vec![offer(0, size, name), hashes(0, &whole), hashes(0, &whole)];
    for (number, (script, is_allowed)) in [
        (vec![offer(0, size, "new"), hashes(0, &whole)], false),
        (vec![offer(0, size, "stored"), hashes(0, &whole[..1_000])], false),
        (vec![offer(0, size, "stored"), data(0, 0, b"x")], false),
        (vec![offer(0, size, "stored"), finish(0, 0, &[0; 32])], false),
        (vec![offer(0, size, "partial"), data(0, 0, b"x")], false),
        (vec![offer(0, size, "partial"), finish(0, 0, &[0; 32])], false),
        (twice("partial"), false),
        // The file is settled, and what follows is ignored.
        (twice("stored"), true),
        // A part that the receiver has.
        (vec![offer(0, size, "partial"), hashes(0, &whole), data(0, 0, b"x")], false),
    ]
    .into_iter()
    .enumerate()
    {
        scratch.file(partial, &whole);
        let receiver = Receiver::new(scratch.incoming());
        let result = run(&receiver, |near| {
            for message in script {
                send(near, message);
            }
        });
        assert_eq!(result.is_ok(), is_allowed, "{number}: {result:?}");
        assert!(fs::read(scratch.0.join(partial)).unwrap() == whole, "{number}");
        assert!(fs::read(scratch.incoming().join("stored")).unwrap() == whole, "{number}");
    }
}

/// The data of an interrupted transfer are read as far as the budget allows; the rest is sent again.
#[test]
fn without_a_budget_an_interrupted_transfer_begins_again() {
    const MISMATCH: u64 = 1_000_000_000;
    let scratch = Scratch::new("hostile-resume");
    let whole = content(3 * PART, 1);
    let path = scratch.file("large", &whole);
    for (budget, sent) in [
        (u64::MAX, PART),
        (MISMATCH + PART as u64, 2 * PART),
        (MISMATCH + PART as u64 - 1, 3 * PART),
        (0, 3 * PART),
    ] {
        // The last part is missing.
        scratch.file("in/.large.openbats.part", &whole[..2 * PART]);
        let budget = ReadBudget::per_day(budget);
        let receiver = Receiver::new(scratch.incoming()).read_budget(budget);
        let report = transfer(&path, &receiver);
        assert!(matches!(report.outcome, Outcome::Stored { .. }), "{report:?}");
        assert_eq!(report.sent, sent as u64);
        let stored = scratch.incoming().join("large");
        assert!(fs::read(&stored).unwrap() == whole);
        fs::remove_file(stored).unwrap();
    }
}

/// Errors name the file, not where the receiver keeps it.
#[test]
fn refusals_do_not_name_the_directory_of_the_receiver() {
    let scratch = Scratch::new("hostile-paths");
    scratch.file("in/stored", b"stored");
    scratch.file("in/sub/file", b"stored");
    let incoming = scratch.incoming();
    let receivers = [
        (Receiver::new(&incoming), "stored", "stored exists"),
        (Receiver::new(&incoming), "stored/below", "stored"),
        (Receiver::new(&incoming), "sub/other", "directory sub exists"),
        (
            Receiver::new(&incoming).reserve(Reserve::Bytes(u64::MAX)),
            "new",
            "0 bytes free, 4096 needed",
        ),
    ];
    let own = scratch.0.file_name().unwrap().to_str().unwrap();
    for (receiver, name, expected) in receivers {
        run(&receiver, |near| {
            send(near, offer(0, 1, name));
            let refusal = refusal(&reply(near));
            assert!(refusal.contains(expected) && !refusal.contains(own), "{refusal}");
        })
        .unwrap();
    }
}

/// A sender may go on with a file that has failed, and then keep its connection open.
#[test]
fn a_failed_file_does_not_stay_open_until_its_connection_ends() {
    let scratch = Scratch::new("hostile-failed");
    let receiver = Receiver::new(scratch.incoming());
    run(&receiver, |near| {
        send(near, offer(0, 300_000, "file"));
        assert_eq!(reply(near)[0], 32);
        send(near, data(0, 0, &content(1_000, 1)));
        send(near, [&[20][..], &0_u32.to_be_bytes(), b"changed my mind"].concat());
        send(near, data(0, 0, &content(1_000, 2)));
        // The next answer shows that these have been received.
        send(near, offer(1, 5, "../other"));
        refusal(&reply(near));
        assert!(scratch.received().is_empty(), "{:?}", scratch.received());
    })
    .unwrap();
}
