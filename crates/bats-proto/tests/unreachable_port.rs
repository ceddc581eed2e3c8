//! ICMP "port unreachable" errors: real ones end connections, forged ones do not.

mod harness;

use std::time::Duration;

use bats_proto::wire::frame::Frame;
use bats_proto::{CloseReason, TransportConfig};

use harness::{Harness, MS, transport};

fn idle_for_long() -> TransportConfig {
    TransportConfig { idle_timeout: Duration::from_secs(3_600), ..transport() }
}

/// Reports errors that quote `quoted` every 10 ms for a second.
fn report(harness: &mut Harness, quoted: &[u8]) {
    for _ in 0..100 {
        harness.server.handle_unreachable_port(harness.now, Harness::address(), quoted);
        harness.settle();
        harness.advance(MS * 10);
    }
}

#[test]
fn persistent_errors_that_quote_a_packet_end_the_connection() {
    let mut harness = Harness::established(idle_for_long());
    harness.send_from_server(1_000);
    let packet = harness.received.last().unwrap().clone();
    // Hosts and routers quote different parts of a packet.
    report(&mut harness, &packet[..20]);
    assert!(matches!(&harness.closed, Some(CloseReason::Lost(_))), "{:?}", harness.closed);
}

#[test]
fn forged_errors_have_no_effect() {
    let mut harness = Harness::established(idle_for_long());
    harness.send_from_server(1_000);
    let packet = harness.received.last().unwrap().clone();
    let mut other_connection = packet.clone();
    other_connection[3] ^= 1;
    let long_header = [0xc0, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4];
    let quotations: [&[u8]; 8] = [
        &[],
        &[0],
        &packet[..4],
        &other_connection,
        &long_header,
        &[0xff; 6],
        &[0xff; 64],
        &[0; 64],
    ];
    for quoted in quotations {
        report(&mut harness, quoted);
        assert_eq!(harness.closed, None, "{quoted:?}");
    }
    // A quotation of another address.
    let other = "192.0.2.1:9".parse().unwrap();
    for _ in 0..100 {
        harness.server.handle_unreachable_port(harness.now, other, &packet);
        harness.advance(MS * 10);
    }
    assert_eq!(harness.closed, None);
}

#[test]
fn errors_between_packets_of_the_peer_have_no_effect() {
    let mut harness = Harness::established(idle_for_long());
    harness.send_from_server(1_000);
    let packet = harness.received.last().unwrap().clone();
    for _ in 0..100 {
        harness.server.handle_unreachable_port(harness.now, Harness::address(), &packet);
        harness.advance(MS);
        harness.send_frame(&Frame::Ping);
        harness.advance(MS * 9);
    }
    assert_eq!(harness.closed, None);
}
