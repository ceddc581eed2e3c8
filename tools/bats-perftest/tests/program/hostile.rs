//! Packets of unauthenticated peers and of misbehaving ones.

use std::net::UdpSocket;
use std::time::Duration;

use crate::support::{Program, domain, noise, summary};

/// Resident memory of a process in bytes.
fn memory(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

fn port(domain: &str, offset: u16) -> u16 {
    7_400 + 250 * domain.parse::<u16>().unwrap() + offset
}

/// A valid hello message of this domain, as the format says.
fn hello(domain: &str, publisher: u32) -> Vec<u8> {
    let mut message = Vec::new();
    for word in [0, publisher, 0, 0, 0, -2i32 as u32, 33] {
        message.extend_from_slice(&word.to_le_bytes());
    }
    message.extend_from_slice(b"BATSPERF");
    for word in [1, domain.parse().unwrap(), 100, 1] {
        message.extend_from_slice(&u32::to_le_bytes(word));
    }
    message.extend_from_slice(&7u64.to_le_bytes());
    message.push(0);
    message
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
    for process in 0..200u64 {
        let mut message = Vec::new();
        for word in [process as u32, 0, 0, 0, 0, -3i32 as u32, 28] {
            message.extend_from_slice(&word.to_le_bytes());
        }
        message.extend_from_slice(b"BATSPERF");
        for word in [1, domain.parse().unwrap(), 9] {
            message.extend_from_slice(&u32::to_le_bytes(word));
        }
        message.extend_from_slice(&(process % 40).to_le_bytes());
        socket.send_to(&message, ("127.0.0.1", port(&domain, 11))).unwrap();
    }
    let subscriber = Program::start(&domain, "-sub -noPrint");
    let grown = memory(publisher.id()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    publisher.success();
    assert_eq!(summary(&subscriber.success().output)[1], 100.0);
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
