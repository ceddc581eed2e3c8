//! Endpoints with several I/O threads.
#![cfg(target_os = "linux")]

use std::net::UdpSocket;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openbats::{
    Builder, ClientOptions, ConnectError, Connection, Endpoint, Identity, Mode, ServerOptions,
    StartError, Trust, Wait,
};

#[path = "../examples/threads.rs"]
#[expect(dead_code, reason = "the test passes its own arguments")]
mod example;

const LIMIT: Duration = Duration::from_secs(60);
/// One test at a time, because one counts the threads of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn server(identity: Identity, modes: &[Mode], count: usize) -> Builder {
    Endpoint::builder()
        .bind(([127, 0, 0, 1], 0).into())
        .server(ServerOptions::new(identity).modes(modes.iter().copied()))
        .threads(threads(count))
}

/// I/O threads of this process.
fn io_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "openbats-io")).count()
}

/// Waits until there are as many: they take a moment to start, and those of the test before to end.
fn wait_for_threads(count: usize) {
    for _ in 0..2_000 {
        if io_threads() == count {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(io_threads(), count);
}

fn text(connection: &Connection) -> Vec<u8> {
    connection.recv().wait_for(LIMIT).unwrap().unwrap().unwrap().to_vec()
}

#[test]
fn connections_of_all_modes_are_served_by_several_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    wait_for_threads(0);
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let modes = [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent, Mode::Tcp];
    let server = server(identity, &modes, 4).start().unwrap();
    let client = Endpoint::builder().threads(threads(3)).start().unwrap();
    wait_for_threads(7);
    assert!(UdpSocket::bind(server.local_addr()).is_err(), "the address is in use");

    let mut pairs = Vec::new();
    for number in 0..30 {
        let options = ClientOptions::new(trust.clone()).mode(modes[number % modes.len()]);
        let near = client.connect(server.local_addr(), "localhost", options);
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        near.send(vec![number as u8; 100 + number]).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(text(&far), vec![number as u8; 100 + number]);
        far.send(vec![number as u8; 3_000]).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(text(&near), vec![number as u8; 3_000]);
        pairs.push([near, far]);
    }
    assert_eq!(server.stats().handshakes_started, 30);
    // A waiting accept gets the connection of any thread.
    for _ in 0..8 {
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| server.accept().wait_for(LIMIT).unwrap().unwrap());
            let options = ClientOptions::new(trust.clone());
            let near = client.connect(server.local_addr(), "localhost", options);
            let near = near.wait_for(LIMIT).unwrap().unwrap();
            let far = accepted.join().unwrap();
            far.send("hello").wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(text(&near), b"hello");
        });
    }
    server.stop_accepting();
    let refused = client.connect(server.local_addr(), "localhost", ClientOptions::new(trust));
    // The close may arrive after the handshake.
    match refused.wait_for(LIMIT).unwrap() {
        Err(error) => assert!(matches!(error, ConnectError::Closed(_)), "{error}"),
        Ok(connection) => assert!(connection.recv().wait_for(LIMIT).unwrap().is_err()),
    }

    let address = server.local_addr();
    client.terminate(0, "over").wait_for(LIMIT).unwrap();
    for [_, far] in &pairs {
        assert!(far.recv().wait_for(LIMIT).unwrap().is_err());
    }
    server.terminate(0, "").wait_for(LIMIT).unwrap();
    UdpSocket::bind(address).unwrap();
}

#[test]
fn what_cannot_have_several_threads_is_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let identity = || Identity::generate(&["localhost"]).unwrap();
    for mode in [Mode::Udp, Mode::Quic] {
        let error = server(identity(), &[mode], 2).start().unwrap_err();
        assert!(matches!(&error, StartError::Configuration(why) if why.contains("one thread")));
        server(identity(), &[mode], 1).start().unwrap();
        let client = Endpoint::builder().threads(threads(2)).start().unwrap();
        let options = ClientOptions::new(Trust::fingerprint(identity().fingerprint())).mode(mode);
        let refused = client.connect(([127, 0, 0, 1], 9).into(), "localhost", options);
        let error = refused.wait_for(LIMIT).unwrap().unwrap_err();
        assert!(matches!(&error, ConnectError::Configuration(why) if why.contains("one thread")));
    }
    let error = Endpoint::builder().only_udp().threads(threads(2)).start().unwrap_err();
    assert!(matches!(error, StartError::Configuration(_)));
    for count in [65, 256, usize::MAX] {
        let error = Endpoint::builder().threads(threads(count)).start().unwrap_err();
        assert!(matches!(&error, StartError::Configuration(why) if why.contains("64")), "{error}");
    }
    // Sockets of other programs that share the address.
    for kind in [socket2::Type::DGRAM, socket2::Type::STREAM] {
        let other = socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
        rustix::net::sockopt::set_socket_reuseport(&other, true).unwrap();
        other.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        if kind == socket2::Type::STREAM {
            other.listen(1).unwrap();
        }
        let address = other.local_addr().unwrap().as_socket().unwrap();
        let refused = server(identity(), &[Mode::Brtp, Mode::Tcp], 2).bind(address).start();
        match kind {
            socket2::Type::DGRAM => assert!(matches!(refused, Err(StartError::Bind { .. }))),
            _ => assert!(matches!(refused, Err(StartError::BindTcp { .. }))),
        }
    }
    // The address of another endpoint, although its sockets share it.
    let first = server(identity(), &[Mode::Brtp], 2).start().unwrap();
    let second = Endpoint::builder().bind(first.local_addr()).threads(threads(2)).start();
    assert!(matches!(second, Err(StartError::Bind { .. })), "{second:?}");
}

/// The kernel reports the error to any of the sockets.
#[test]
fn connecting_to_a_closed_port_is_refused_on_each_thread() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let client = Endpoint::builder().threads(threads(3)).start().unwrap();
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for _ in 0..12 {
        let transport = openbats::TransportConfig {
            handshake_timeout: LIMIT,
            ..openbats::TransportConfig::default()
        };
        let options = ClientOptions::new(Trust::dangerous_any()).transport(transport);
        let refused = client.connect(closed, "localhost", options).wait_for(LIMIT / 2).unwrap();
        assert_eq!(refused.unwrap_err(), ConnectError::Closed(openbats::CloseReason::Refused));
    }
}

#[test]
fn four_connections_share_two_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    example::run(20, threads(2)).unwrap();
}
