//! Endpoints that share I/O threads.

use std::num::NonZeroUsize;
use std::time::Duration;

use openbats::{ClientOptions, Endpoint, Identity, IoThreads, Mode, ServerOptions, Trust, Wait};

const LIMIT: Duration = Duration::from_secs(60);

/// Threads and open files of this process.
fn resources() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

fn connect(
    client: &Endpoint,
    server: &Endpoint,
    options: ClientOptions,
) -> [openbats::Connection; 2] {
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    [near, server.accept().wait_for(LIMIT).unwrap().unwrap()]
}

/// One test, because threads and files of the whole process are counted.
#[test]
fn endpoints_share_threads_and_end_independently_of_each_other() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let modes = [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];
    let before = resources();
    let threads = IoThreads::new(NonZeroUsize::new(2).unwrap());
    let server = Endpoint::builder()
        .bind(([127, 0, 0, 1], 0).into())
        .server(ServerOptions::new(identity).modes(modes))
        .io_threads(&threads)
        .start()
        .unwrap();
    let clients: Vec<Endpoint> =
        (0..60).map(|_| Endpoint::builder().io_threads(&threads).start().unwrap()).collect();
    let started = resources();
    assert_eq!(started.0 - before.0, 2, "threads");
    // One descriptor for each socket, and a few for each thread.
    assert!(started.1 - before.1 <= 61 + 10, "{} files", started.1 - before.1);

    let mut pairs = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let options = ClientOptions::new(trust.clone()).mode(modes[number % modes.len()]);
        pairs.push(connect(client, &server, options));
    }
    assert_eq!(resources().0 - before.0, 2, "threads");
    for [near, far] in &pairs {
        near.send(vec![7; 10_000]).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap().len(), 10_000);
    }
    // The others go on when every second endpoint ends.
    for (number, client) in clients.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        client.terminate(0, "").wait_for(LIMIT).unwrap();
        let _ = std::net::UdpSocket::bind(client.local_addr()).unwrap();
        assert!(pairs[number][1].recv().wait_for(LIMIT).unwrap().is_err());
    }
    for (number, [near, far]) in pairs.iter().enumerate().filter(|(number, _)| number % 2 == 1) {
        far.send(vec![8; 20_000]).wait_for(LIMIT).unwrap().unwrap();
        let message = near.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert_eq!(message.len(), 20_000, "{number}");
    }
    drop(pairs);
    for client in clients.into_iter().chain([server]) {
        client.terminate(0, "").wait_for(LIMIT).unwrap();
    }
    // Threads end with their last endpoint, and new ones start.
    let again = Endpoint::builder().io_threads(&threads).start().unwrap();
    again.terminate(0, "").wait_for(LIMIT).unwrap();
    drop(again);
    let is_back = || resources() == before;
    for _ in 0..2_000 {
        if is_back() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(resources(), before, "threads and files");
}
