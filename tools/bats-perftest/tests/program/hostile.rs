//! Packets of unauthenticated peers and of misbehaving ones.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use openbats::{
    ClientOptions, Connection, Endpoint, Identity, Mode, ServerOptions, TransportConfig, Trust,
    Wait,
};

use crate::support::{
    Program, announcement, domain, end_mark, hello, message, noise, port, summary,
};

/// Resident memory of a process in bytes.
fn memory(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// Sends noise, and valid messages with changed bytes, to a port.
fn flood(domain: &str, to: u16, count: u64) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for seed in 0..count {
        let mut message = match seed % 3 {
            0 => noise(seed as usize % 1_400, seed),
            _ => hello(domain, 5),
        };
        if let Some(byte) = noise(1, seed).first()
            && let length @ 1.. = message.len()
            && seed % 3 == 2
        {
            message[usize::from(*byte) % length] ^= 1 << (seed % 8);
        }
        // Other domains only: a valid hello would take the place of the publisher.
        if seed % 3 == 1 {
            message[40] ^= 1;
        }
        let _ = socket.send_to(&message, ("127.0.0.1", to));
        if seed % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_flood_from_unauthenticated_peers_does_not_disturb_a_test() {
    for both in ["", "-raw -peer 127.0.0.1"] {
        let domain = domain();
        let subscriber = Program::start(&domain, &format!("-sub -noPrint {both} -numPublishers 1"));
        let publisher = Program::start(
            &domain,
            &format!("-pub -noPrint {both} -numIter 4000 -pubRate 1000:sleep -latencyCount 10"),
        );
        // The test runs: later hello messages are refused.
        std::thread::sleep(Duration::from_millis(2_500));
        let before = memory(subscriber.id());
        for offset in [0, 1, 11, 12] {
            flood(&domain, port(&domain, offset), 3_000);
        }
        let grown = memory(subscriber.id()).saturating_sub(before);
        assert!(grown < 64 << 20, "{both}: {grown} bytes");
        let publisher = publisher.success();
        assert_eq!(summary(&publisher.output).len(), 10);
        let figures = summary(&subscriber.success().output);
        assert_eq!((figures[1], figures[4]), (4_000.0, 0.0), "{both}");
    }
}

#[test]
fn announcements_of_invented_subscribers_do_not_stop_a_publisher() {
    let domain = domain();
    let publisher = Program::start(&domain, "-pub -noPrint -numIter 100");
    std::thread::sleep(Duration::from_millis(300));
    let before = memory(publisher.id());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // They do not answer, so that each attempt takes its whole time.
    let silent: Vec<_> = (1..119)
        .map(|id| UdpSocket::bind(("127.0.0.1", port(&domain, 12 + 2 * id))).unwrap())
        .collect();
    let target = domain.to_string();
    let inventing = std::thread::spawn(move || {
        for process in 0..12_000u64 {
            // Ports that no subscriber has, and all that one can have.
            let id = 1 + process as u32 % 118;
            let invented = if process % 2 == 0 { 9 } else { port(&target, 12 + 2 * id as u16) };
            let message = announcement(&target, id, process, invented);
            let _ = socket.send_to(&message, ("127.0.0.1", port(&target, 11)));
            if process % 200 == 0 {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    std::thread::sleep(Duration::from_secs(1));
    let subscriber = Program::start(&domain, "-sub -noPrint");
    let publisher_memory = memory(publisher.id()).saturating_sub(before);
    assert!(publisher_memory < 64 << 20, "{publisher_memory} bytes");
    // All 119 take their turn in four rounds of attempts of 1.5 s; twice that on a busy machine.
    let publisher = publisher.end_within(Duration::from_secs(12 + 8));
    assert_eq!(publisher.code, Some(0), "{publisher:?}");
    drop(silent);
    inventing.join().unwrap();
    assert_eq!(summary(&subscriber.success().output)[1], 100.0);
}

/// A client of a subscriber, as anyone on the network can be one.
fn client(domain: &str, mode: Mode) -> (Endpoint, Connection) {
    let endpoint = Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], port(domain, 12)));
    let transport = TransportConfig { mode, ..TransportConfig::default() };
    let options = ClientOptions::new(Trust::dangerous_any()).transport(transport);
    let connection = endpoint.connect(to, "bats-perftest", options).wait().unwrap();
    (endpoint, connection)
}

#[test]
fn connections_without_a_hello_keep_no_publisher_out() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint");
    subscriber.wait_for_errors("Waiting to discover");
    // More than wait for a hello at once, without an end to their number.
    let silent: Vec<_> = (0..100).map(|_| client(&domain, Mode::Brtp)).collect();
    let publisher = Program::start(&domain, "-pub -noPrint -numIter 100 -peer 127.0.0.1");
    let publisher = publisher.end_within(Duration::from_secs(20));
    assert_eq!(publisher.code, Some(0), "{publisher:?}");
    assert_eq!(summary(&subscriber.success().output)[1], 100.0);
    drop(silent);
}

/// The first message decides, also if a hello follows: a subscriber that skipped messages until a hello would take this
/// client, and would stay with one that sends others without end. A flood shows less: it also ends by the limit of bytes
/// that are held unread.
#[test]
fn a_client_that_sends_messages_without_a_hello_is_closed() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint");
    subscriber.wait_for_errors("Waiting to discover");
    for mode in [Mode::Brtp, Mode::Btp, Mode::Quic] {
        let (_endpoint, connection) = client(&domain, mode);
        connection.send(&b"x"[..]).wait().unwrap();
        let _ = connection.send(hello(&domain, 0)).wait();
        for _ in 0..2_000 {
            if connection.close_reason().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let reason = connection.close_reason().map(|reason| reason.to_string());
        let is_refused = reason.as_ref().is_some_and(|why| why.contains("no hello message"));
        assert!(is_refused, "{mode:?}: {reason:?}");
    }
}

/// Anyone can announce a subscriber: this one then sends tiny messages without end.
#[test]
fn a_subscriber_that_floods_a_waiting_publisher_is_closed() {
    let domain = domain();
    let to = port(&domain, 14);
    let server = ServerOptions::new(Identity::generate(&["localhost"]).unwrap());
    let endpoint = Endpoint::builder().bind(([127, 0, 0, 1], to).into()).server(server);
    let endpoint = endpoint.start().unwrap();
    let publisher = Program::start(&domain, "-pub -noPrint -numIter 100 -numSubscribers 2");
    let announced = announcement(&domain, 1, 7, to);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let connection = (0..600).find_map(|_| {
        let _ = socket.send_to(&announced, ("127.0.0.1", port(&domain, 11)));
        endpoint.accept().wait_for(Duration::from_millis(100)).ok()
    });
    let connection = connection.expect("the publisher connects").unwrap();
    connection.send(announced).wait().unwrap();
    let flooding = std::thread::spawn(move || {
        let mut sent = 0;
        while connection.send(&b"x"[..]).wait().is_ok() {
            sent += 1;
            assert!(sent < 10_000_000, "the publisher takes all of it");
        }
        connection.close_reason().unwrap().to_string()
    });
    let reason = flooding.join().unwrap();
    assert!(reason.contains("too many messages"), "{reason}");
    publisher.wait_for_errors("subscriber 1 left");
    publisher.signal("INT");
    let ended = publisher.end_within(Duration::from_secs(10));
    assert!(ended.code.is_some(), "{ended:?}");
}

#[test]
fn echoes_wait_for_a_publisher_that_reads_late() {
    const PINGS: u32 = 60;
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint");
    subscriber.wait_for_errors("Waiting to discover");
    let (_endpoint, connection) = client(&domain, Mode::Brtp);
    connection.send(hello(&domain, 0)).wait().unwrap();
    let sender = connection.clone();
    // Together they are more than both ends buffer.
    let sending = std::thread::spawn(move || {
        for sequence in 0..PINGS {
            sender.send(message([0, 0, sequence, 0, 0, 0], &vec![7; 4 << 20])).wait().unwrap();
        }
        sender.send(end_mark(PINGS)).wait().unwrap();
    });
    // Longer than an answer that may be lost waits.
    std::thread::sleep(Duration::from_secs(4));
    let (mut echoes, mut has_goodbye) = (0, false);
    while !has_goodbye {
        let message =
            connection.recv().wait_for(Duration::from_secs(30)).unwrap().unwrap().unwrap();
        match i32::from_le_bytes(message[20..24].try_into().unwrap()) {
            0 => echoes += 1,
            -7 => has_goodbye = true,
            _ => {}
        }
    }
    sending.join().unwrap();
    assert_eq!(echoes, PINGS);
    connection.close(0, "");
    assert_eq!(summary(&subscriber.success().output)[1], f64::from(PINGS));
}

#[test]
fn text_of_a_publisher_does_not_control_the_terminal() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint");
    subscriber.wait_for_errors("Waiting to discover");
    let (_endpoint, connection) = client(&domain, Mode::Brtp);
    connection.send(hello(&domain, 0)).wait().unwrap();
    subscriber.wait_for_errors("Waiting for data");
    connection.close(3, "\u{1b}[2Jgone\nerror: forged");
    let ended = subscriber.end();
    assert_eq!(ended.code, Some(255), "{ended:?}");
    assert!(ended.errors.contains("?[2Jgone?error: forged"), "{ended:?}");
}

/// A publisher over UDP that sends fuzzed samples after a valid hello.
#[test]
fn a_fuzzed_publisher_neither_stops_nor_fills_a_subscriber() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint -raw -peer 127.0.0.1");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let to = ("127.0.0.1", port(&domain, 12));
    let mut answer = [0; 2_000];
    let answered = (0..100).any(|_| {
        let _ = socket.send_to(&hello(&domain, 0), to);
        socket.recv(&mut answer).is_ok()
    });
    assert!(answered);
    for seed in 0..20_000u64 {
        let mut message = noise(28 + seed as usize % 300, seed);
        // Often a valid target and length, so that the numbers are used.
        if seed % 2 == 0 {
            message[20..24].copy_from_slice(&((seed % 11) as i32 - 9).to_le_bytes());
            let length = message.len() as u32 - 28;
            message[24..28].copy_from_slice(&length.to_le_bytes());
        }
        // Not an end mark, which would end the test.
        if message[20..24] != (-6i32).to_le_bytes() {
            let _ = socket.send_to(&message, to);
        }
        if seed % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(memory(subscriber.id()) < 128 << 20);
    let mut end = Vec::new();
    for word in [0, 0, 0, u32::MAX, u32::MAX, -6i32 as u32, 0] {
        end.extend_from_slice(&word.to_le_bytes());
    }
    for _ in 0..10 {
        let _ = socket.send_to(&end, to);
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = subscriber.success();
    assert!(ended.errors.contains("malformed messages ignored"), "{ended:?}");
}
