//! Transfers of single files over real connections: complete and verified, or not at all.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::Scratch;
use openbats::file::set::{Reserve, StorageBudget};
use openbats::file::{self, FileError, Receiver};
use openbats::{ClientOptions, Connection, Endpoint, Identity, Mode, ServerOptions, Trust, Wait};

const LIMIT: Duration = Duration::from_secs(60);

fn connect() -> (Connection, Connection) {
    connect_in(Mode::Brtp)
}

fn connect_in(mode: Mode) -> (Connection, Connection) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint())).mode(mode);
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).modes([mode]))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let to = server.local_addr();
    let near = client.connect(to, "localhost", options).wait_for(LIMIT).unwrap().unwrap();
    (near, server.accept().wait_for(LIMIT).unwrap().unwrap())
}

/// Sends and receives files in mode BRTP; returns the results of both sides.
#[expect(clippy::type_complexity, reason = "a pair of lists of results")]
fn transfer(
    receiver: &Receiver,
    paths: &[&Path],
) -> (Vec<Result<u64, String>>, Vec<Result<u64, FileError>>) {
    transfer_by(Mode::Brtp, receiver, paths)
}

/// Like [`transfer`], in another mode.
#[expect(clippy::type_complexity, reason = "a pair of lists of results")]
fn transfer_by(
    mode: Mode,
    receiver: &Receiver,
    paths: &[&Path],
) -> (Vec<Result<u64, String>>, Vec<Result<u64, FileError>>) {
    let (near, far) = connect_in(mode);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let mut results = Vec::new();
            loop {
                match receiver.receive(&far, |_, _, _| ()).wait_for(LIMIT).unwrap() {
                    Ok(Some(file)) => results.push(Ok(file.size)),
                    Ok(None) => return results,
                    Err(error) => {
                        results.push(Err(error));
                        let _ = far.flush().wait_for(LIMIT).unwrap();
                        return results;
                    }
                }
            }
        });
        let mut sent = Vec::new();
        for path in paths {
            let mut last = 0;
            let result = file::send(&near, path, |done, all| {
                assert!(done >= last && done <= all);
                last = done;
            });
            let result = result.wait_for(LIMIT).unwrap();
            sent.push(result.map(|file| file.size).map_err(|error| error.to_string()));
        }
        let _ = near.finish().wait_for(LIMIT).unwrap();
        (sent, receiving.join().unwrap())
    })
}

fn pseudo_random(len: usize) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"content");
    let mut content = vec![0; len];
    hasher.finalize_xof().read_exact(&mut content).unwrap();
    content
}

#[test]
fn files_of_all_sizes_are_transferred() {
    let scratch = Scratch::new("sizes");
    let sizes = [0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 20_000_000];
    let paths: Vec<PathBuf> =
        sizes.iter().map(|&size| scratch.file(&format!("{size}"), &pseudo_random(size))).collect();
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let (sent, received) = transfer(&Receiver::new(scratch.incoming()), &paths);
    for (index, &size) in sizes.iter().enumerate() {
        assert_eq!(sent[index], Ok(size as u64));
        assert_eq!(*received[index].as_ref().unwrap(), size as u64);
        let arrived = fs::read(scratch.incoming().join(size.to_string())).unwrap();
        assert!(arrived == pseudo_random(size), "{size}");
    }
    assert_eq!(scratch.received().len(), sizes.len(), "no temporary file is left");
}

#[test]
fn files_are_transferred_in_every_reliable_mode() {
    for mode in [Mode::Brctp, Mode::Tcp, Mode::Quic] {
        let scratch = Scratch::new(&format!("mode-{}", mode as u8));
        let sizes = [0, 1, (256 << 10) + 1, 5_000_000];
        let paths = sizes.map(|size| scratch.file(&format!("{size}"), &pseudo_random(size)));
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let (sent, _) = transfer_by(mode, &Receiver::new(scratch.incoming()), &paths);
        assert_eq!(sent, sizes.map(|size| Ok(size as u64)), "{mode:?}");
        for size in sizes {
            let arrived = fs::read(scratch.incoming().join(size.to_string())).unwrap();
            assert!(arrived == pseudo_random(size), "{mode:?}: {size}");
        }
    }
}

#[test]
fn an_existing_file_is_replaced_only_on_request() {
    let scratch = Scratch::new("exists");
    let path = scratch.file("name", b"new");
    fs::write(scratch.incoming().join("name"), b"old").unwrap();
    let receiver = Receiver::new(scratch.incoming());
    let (sent, received) = transfer(&receiver, &[&path]);
    assert!(sent[0].as_ref().unwrap_err().contains("exists"), "{sent:?}");
    assert!(matches!(received[0], Err(FileError::Exists(_))), "{received:?}");
    assert_eq!(fs::read(scratch.incoming().join("name")).unwrap(), b"old");
    let (sent, _) = transfer(&receiver.overwrite(true), &[&path]);
    assert_eq!(sent, [Ok(3)]);
    assert_eq!(fs::read(scratch.incoming().join("name")).unwrap(), b"new");
    assert_eq!(scratch.received(), ["name"]);
}

/// The sender reports the refusal even if the connection is closed before it sends anything.
#[test]
fn a_refusal_is_reported_after_the_peer_has_closed() {
    let scratch = Scratch::new("closed");
    let path = scratch.file("name", b"new");
    let (near, far) = connect();
    far.send(&b"\x05\x01no room here"[..]).wait_for(LIMIT).unwrap().unwrap();
    far.flush().wait_for(LIMIT).unwrap().unwrap();
    far.close(0, "");
    // Waiting for the close does not take messages from the connection.
    for _ in 0..LIMIT.as_millis() {
        if near.close_reason().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = file::send(&near, &path, |_, _| ()).wait_for(LIMIT).unwrap().unwrap_err();
    assert!(matches!(&error, FileError::Peer(why) if why.contains("no room here")), "{error}");
}

#[test]
fn errors_name_files_that_cannot_be_sent_or_stored() {
    let scratch = Scratch::new("errors");
    let receiver = Receiver::new(scratch.incoming()).max_size(10);
    let (sent, _) = transfer(&receiver, &[&scratch.0.join("missing")]);
    assert!(sent[0].as_ref().unwrap_err().contains("missing"), "{sent:?}");
    let (sent, _) = transfer(&receiver, &[&scratch.0]);
    assert!(sent[0].as_ref().unwrap_err().contains("not a regular file"), "{sent:?}");
    let large = scratch.file("large", &[7; 11]);
    let (sent, _) = transfer(&receiver, &[&large]);
    assert!(sent[0].as_ref().unwrap_err().contains("limit of 10 bytes"), "{sent:?}");
    let (sent, _) = transfer(&Receiver::new(scratch.0.join("nowhere")), &[&large]);
    assert!(sent[0].as_ref().unwrap_err().contains("nowhere"), "{sent:?}");
    assert!(scratch.received().is_empty());
    // Larger than any disk: refused before a byte is written.
    let huge = scratch.0.join("huge");
    File::create(&huge).unwrap().set_len(1 << 42).unwrap();
    let (sent, received) = transfer(&Receiver::new(scratch.incoming()), &[&huge]);
    assert!(sent[0].is_err(), "{sent:?}");
    assert!(matches!(received[0], Err(FileError::NoSpace { .. })), "{received:?}");
    assert!(scratch.received().is_empty());
}

#[test]
fn files_beyond_the_budget_or_into_the_reserve_are_refused() {
    let scratch = Scratch::new("limits");
    let paths = ["one", "two"].map(|name| scratch.file(name, &pseudo_random(400_000)));
    let budget = StorageBudget::new(800_000);
    let receiver = || Receiver::new(scratch.incoming()).budget(budget.clone());
    let full = receiver().reserve(Reserve::Percent(100));
    let (sent, received) = transfer(&full, &[&paths[0]]);
    assert!(sent[0].as_ref().unwrap_err().contains("0 bytes free, 400000 needed"), "{sent:?}");
    assert!(matches!(received[0], Err(FileError::NoSpace { .. })), "{received:?}");
    assert_eq!(budget.left(), 800_000, "what was refused is not charged");
    // A file that does not arrive gives its bytes back.
    let (near, far) = connect();
    let begin = [&[1][..], &400_000_u64.to_be_bytes(), b"name"].concat();
    near.send(begin).wait().unwrap();
    near.finish().wait_for(LIMIT).unwrap().unwrap();
    assert!(receiver().receive(&far, |_, _, _| ()).wait_for(LIMIT).unwrap().is_err());
    assert_eq!(budget.left(), 800_000);
    let (sent, _) = transfer(&receiver(), &[&paths[0]]);
    assert_eq!(sent, [Ok(400_000)]);
    let (sent, received) = transfer(&receiver(), &[&paths[1]]);
    assert!(sent[0].as_ref().unwrap_err().contains("needs 400000"), "{sent:?}");
    assert!(matches!(received[0], Err(FileError::OverBudget { .. })), "{received:?}");
    assert_eq!(scratch.received(), ["one"]);
}

#[test]
fn a_hostile_sender_cannot_leave_files() {
    let begin = |size: u64, name: &str| [&[1][..], &size.to_be_bytes(), name.as_bytes()].concat();
    let data = |content: &[u8]| [&[2], content].concat();
    let end = |content: &[u8]| [&[3], blake3::hash(content).as_bytes().as_slice()].concat();
    let scripts = [
        ("outside", vec![begin(1, "../outside")]),
        ("absolute", vec![begin(1, "/tmp/outside")]),
        ("too much", vec![begin(3, "a"), data(b"four")]),
        ("too little", vec![begin(3, "a"), data(b"tw"), end(b"tw")]),
        ("other content", vec![begin(3, "a"), data(b"abc"), end(b"abd")]),
        ("no beginning", vec![data(b"abc")]),
        ("unknown", vec![vec![9, 9, 9]]),
        ("empty", vec![vec![]]),
        ("unfinished", vec![begin(3, "a"), data(b"ab")]),
    ];
    for (case, script) in scripts {
        let scratch = Scratch::new(&format!("hostile-{}", case.replace(' ', "-")));
        let (near, far) = connect();
        for message in script {
            near.send(message).wait().unwrap();
        }
        near.finish().wait_for(LIMIT).unwrap().unwrap();
        let receiver = Receiver::new(scratch.incoming());
        let result = receiver.receive(&far, |_, _, _| ()).wait_for(LIMIT).unwrap();
        assert!(result.is_err(), "{case}");
        assert!(scratch.received().is_empty(), "{case}: {:?}", scratch.received());
        assert!(!scratch.0.join("outside").exists(), "{case}");
    }
}

#[test]
fn a_lost_sender_leaves_no_temporary_file() {
    let scratch = Scratch::new("vanished");
    let (near, far) = connect();
    near.send([&[1][..], &9u64.to_be_bytes(), b"name"].concat()).wait().unwrap();
    near.send(&b"\x02half"[..]).wait().unwrap();
    near.flush().wait_for(LIMIT).unwrap().unwrap();
    drop(near);
    let receiver = Receiver::new(scratch.incoming());
    let error = receiver.receive(&far, |_, _, _| ()).wait_for(LIMIT).unwrap().unwrap_err();
    assert!(matches!(error, FileError::Receive(_)), "{error}");
    assert!(scratch.received().is_empty());
}

/// Files cannot be created in `/proc/self`. A full file system is not tested: a small tmpfs would
/// need root.
#[test]
fn an_unwritable_directory_is_reported_as_an_error() {
    let scratch = Scratch::new("unwritable");
    let path = scratch.file("x", b"abc");
    let receiver = Receiver::new("/proc/self");
    let (sent, received) = transfer(&receiver, &[&path]);
    assert!(sent[0].is_err() && received[0].is_err(), "{sent:?} {received:?}");
}
