//! Threads that block on messages serve the socket themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use openbats::{
    ClientOptions, Connection, Endpoint, Identity, Mode, ServerOptions, TransportConfig, Trust,
    Wait,
};

const LIMIT: Duration = Duration::from_secs(60);

struct Pair {
    client: Endpoint,
    server: Endpoint,
    near: Connection,
    far: Connection,
    trust: Trust,
}

impl Pair {
    fn new(mode: Mode, busy_poll: Duration) -> Self {
        let identity = Identity::generate(&["localhost"]).unwrap();
        let trust = Trust::fingerprint(identity.fingerprint());
        let transport = TransportConfig { mode, ..TransportConfig::default() };
        let server = Endpoint::builder()
            .bind(([127, 0, 0, 1], 0).into())
            .busy_poll(busy_poll)
            .server(ServerOptions::new(identity).transport(transport))
            .start()
            .unwrap();
        let client = Endpoint::builder()
            .bind(([127, 0, 0, 1], 0).into())
            .busy_poll(busy_poll)
            .start()
            .unwrap();
        let [near, far] = connect(&client, &server, &trust, mode);
        Self { client, server, near, far, trust }
    }
}

fn connect(client: &Endpoint, server: &Endpoint, trust: &Trust, mode: Mode) -> [Connection; 2] {
    let options = ClientOptions::new(trust.clone()).mode(mode);
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    [near, server.accept().wait_for(LIMIT).unwrap().unwrap()]
}

fn receive(connection: &Connection) -> Vec<u8> {
    connection.recv().wait_for(LIMIT).unwrap().unwrap().unwrap().to_vec()
}

fn send(connection: &Connection, message: impl Into<Vec<u8>>) {
    connection.send(message.into()).wait_for(LIMIT).unwrap().unwrap();
}

/// Answers every message with itself until the peer finishes.
fn echo(connection: &Connection) {
    while let Some(message) = connection.recv().wait_for(LIMIT).unwrap().unwrap() {
        connection.send(message).wait_for(LIMIT).unwrap().unwrap();
    }
}

#[test]
fn every_message_is_echoed_in_reliable_modes() {
    let modes = [Mode::Brtp, Mode::Brctp, Mode::Quic];
    for mode in modes {
        for busy_poll in [Duration::ZERO, Duration::from_micros(50)] {
            let pair = Pair::new(mode, busy_poll);
            thread::scope(|scope| {
                scope.spawn(|| echo(&pair.far));
                for number in 0..300_usize {
                    let message = vec![number as u8; 1 + number * number % 3_000];
                    send(&pair.near, message.clone());
                    assert_eq!(receive(&pair.near), message, "{mode:?} {number}");
                }
                pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
            });
        }
    }
}

/// After its last call the application does nothing: acknowledgements are for the I/O thread.
#[test]
fn messages_arrive_and_are_acknowledged_while_the_receiver_does_something_else() {
    let pair = Pair::new(Mode::Brtp, Duration::ZERO);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let message = receive(&pair.far);
                send(&pair.far, message);
            }
            while !is_done.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        for number in 0..20 {
            send(&pair.near, [number; 50]);
            assert_eq!(receive(&pair.near), [number; 50]);
        }
        for _ in 0..5 {
            send(&pair.near, [1; 5_000]);
            let flushed = pair.near.flush().wait_for(LIMIT).unwrap();
            assert!(flushed.is_ok());
        }
        is_done.store(true, Ordering::Release);
    });
    for _ in 0..5 {
        assert_eq!(receive(&pair.far).len(), 5_000);
    }
}

/// A thread that serves the socket receives packets of other connections, too.
#[test]
fn threads_of_several_connections_of_an_endpoint_all_get_their_messages() {
    let pair = Pair::new(Mode::Brtp, Duration::ZERO);
    let more: Vec<_> =
        (0..5).map(|_| connect(&pair.client, &pair.server, &pair.trust, Mode::Brtp)).collect();
    thread::scope(|scope| {
        scope.spawn(|| echo(&pair.far));
        for [near, far] in &more {
            scope.spawn(|| echo(far));
            scope.spawn(|| {
                for number in 0..200_u32 {
                    send(near, number.to_le_bytes());
                    assert_eq!(receive(near), number.to_le_bytes());
                }
                near.finish().wait_for(LIMIT).unwrap().unwrap();
            });
        }
        for number in 0..200_u8 {
            send(&pair.near, [number; 40]);
            assert_eq!(receive(&pair.near), [number; 40]);
        }
        pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
    });
}

/// One thread waits for messages, another for the free send buffer of the same connection.
#[test]
fn a_thread_can_send_while_another_waits_for_messages() {
    let pair = Pair::new(Mode::Brtp, Duration::ZERO);
    const MESSAGES: usize = 300;
    thread::scope(|scope| {
        scope.spawn(|| echo(&pair.far));
        scope.spawn(|| {
            for _ in 0..MESSAGES {
                send(&pair.near, vec![3; 60_000]);
            }
        });
        for _ in 0..MESSAGES {
            assert_eq!(receive(&pair.near).len(), 60_000);
        }
        pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
    });
}

#[test]
fn a_time_limit_ends_the_wait_and_loses_no_message() {
    for busy_poll in [Duration::ZERO, Duration::from_millis(1)] {
        let pair = Pair::new(Mode::Brtp, busy_poll);
        for number in 0..10_u8 {
            assert!(pair.far.recv().wait_for(Duration::from_millis(3)).is_err());
            send(&pair.near, [number]);
            assert_eq!(receive(&pair.far), [number]);
        }
    }
}

#[test]
fn the_end_of_an_endpoint_ends_a_blocked_receiver_and_frees_the_address() {
    for busy_poll in [Duration::ZERO, Duration::from_secs(1)] {
        let Pair { client, server, near, far, .. } = Pair::new(Mode::Brtp, busy_poll);
        send(&near, b"hello");
        assert_eq!(receive(&far), b"hello");
        let address = client.local_addr();
        let near = Arc::new(near);
        let blocked = Arc::clone(&near);
        let receiver = thread::spawn(move || blocked.recv().wait_for(LIMIT));
        thread::sleep(Duration::from_millis(50));
        client.terminate(0, "").wait_for(LIMIT).unwrap();
        drop(std::net::UdpSocket::bind(address).expect("the address is free"));
        assert!(receiver.join().unwrap().unwrap().is_err());
        // The peer is notified.
        assert!(far.recv().wait_for(LIMIT).unwrap().is_err());
        drop((near, far, server));
    }
}

#[test]
fn a_closed_connection_ends_a_blocked_receiver() {
    let pair = Pair::new(Mode::Brtp, Duration::ZERO);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| pair.far.recv().wait_for(LIMIT));
        thread::sleep(Duration::from_millis(20));
        pair.near.close(7, "enough");
        assert!(receiver.join().unwrap().unwrap().is_err());
        // By another thread of this end.
        let again = scope.spawn(|| pair.near.recv().wait_for(LIMIT));
        assert!(again.join().unwrap().unwrap().is_err());
    });
}

/// Wakers of dropped waits must not pile up, nor the descriptors that they use.
#[test]
fn waits_of_a_thread_share_one_waker_and_descriptor() {
    let pair = Pair::new(Mode::Brtp, Duration::ZERO);
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(pair.far.recv().wait_for(Duration::from_millis(1)).is_err());
    let before = files();
    for _ in 0..200 {
        assert!(pair.far.recv().wait_for(Duration::from_micros(10)).is_err());
    }
    // Other tests of this process run at the same time and open a few.
    assert!(files() < before + 150, "{before} {}", files());
}
