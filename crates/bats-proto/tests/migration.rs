//! After a change of path, the probe time-out and path MTU discovery start again.

mod harness;

use std::net::SocketAddr;

use bats_proto::TransportConfig;
use bats_proto::wire::frame::Frame;
use bats_proto::wire::short_header::PacketKind;
use harness::{Harness, MS, transport};

/// Another port, as after a NAT rebinding, and another network.
const OTHER_PORT: ([u8; 4], u16) = ([10, 0, 0, 1], 9_999);
const OTHER_NETWORK: ([u8; 4], u16) = ([192, 0, 2, 7], 1_234);
/// Half of the round-trip time that the server measures, in milliseconds.
const HALF_RTT: u32 = 5;

/// The client sends from another address and validates it.
fn migrate_to(harness: &mut Harness, (ip, port): ([u8; 4], u16)) {
    let changes = harness.stats().path.changes;
    harness.received.clear();
    harness.remote = SocketAddr::from((ip, port));
    harness.send_frame(&Frame::Ping);
    assert_eq!(harness.last_to, Some(harness.remote), "the challenge goes to the new address");
    let challenge = harness.challenge().expect("a challenge");
    harness.send_frame(&Frame::PathResponse(challenge));
    assert_eq!(harness.stats().path.changes, changes + 1);
}

/// The client acknowledges everything for `millis` milliseconds.
fn acknowledge(harness: &mut Harness, millis: u32) {
    for _ in 0..millis / HALF_RTT {
        harness.advance(MS * HALF_RTT);
        let at = harness.now;
        harness.advance(MS * HALF_RTT);
        for (number, _) in harness.take_packets() {
            harness.send_ack(at, &[(number, number)]);
        }
    }
}

/// Returns the milliseconds until the server's next probe time-out.
fn millis_until_probe(harness: &mut Harness) -> u32 {
    let before = harness.stats().congestion.probe_timeouts;
    let millis = (1..2_000).find(|_| {
        harness.advance(MS);
        harness.stats().congestion.probe_timeouts > before
    });
    millis.expect("a probe within two seconds")
}

#[test]
fn path_change_restarts_the_probe_timeout_without_backoff() {
    for address in [OTHER_PORT, OTHER_NETWORK] {
        let mut harness = Harness::established(transport());
        harness.send_from_server(3_000);
        acknowledge(&mut harness, 200);
        harness.take_packets();
        harness.send_from_server(3_000);
        let waits: Vec<u32> = (0..4).map(|_| millis_until_probe(&mut harness)).collect();
        assert!(waits[3] > 2 * waits[0], "the interval backs off: {waits:?}");
        migrate_to(&mut harness, address);
        harness.received.clear();
        let first = millis_until_probe(&mut harness);
        assert!(first <= waits[0] + 10, "{address:?}: {first} ms after {waits:?}");
        assert!(!harness.received.is_empty(), "packets are sent");
        assert_eq!(harness.last_to, Some(harness.remote), "to the peer's new address");
        let second = millis_until_probe(&mut harness);
        assert!(second > first, "the back-off starts again: {first}, {second}");
        assert_eq!(harness.closed, None);
    }
}

#[test]
fn path_mtu_discovery_restarts_on_another_network() {
    let mut harness =
        Harness::established(TransportConfig { max_udp_payload: 1_472, ..transport() });
    acknowledge(&mut harness, 300);
    assert_eq!(harness.stats().path.mtu, 1_472);
    migrate_to(&mut harness, OTHER_PORT);
    assert_eq!(harness.stats().path.mtu, 1_472, "a NAT rebinding keeps the path");
    // One address is validated in a probe timeout.
    acknowledge(&mut harness, 100);
    migrate_to(&mut harness, OTHER_NETWORK);
    assert_eq!(harness.stats().path.mtu, 1_200, "the minimum of every path");
    acknowledge(&mut harness, 300);
    assert_eq!(harness.stats().path.mtu, 1_472);
    // On a path with a smaller MTU no probe is answered.
    migrate_to(&mut harness, ([198, 51, 100, 3], 5));
    harness.received.clear();
    harness.advance(MS * 1_000);
    let large = harness.received.iter().filter(|datagram| datagram.len() > 1_200).count();
    assert!(large >= 2, "{large} probes");
    assert_eq!(harness.stats().path.mtu, 1_200);
}

/// Sends data and returns the bytes of data sent to each of two addresses; challenges are shorter.
fn bytes_to(harness: &mut Harness, addresses: [SocketAddr; 2]) -> [usize; 2] {
    let mut bytes = [0; 2];
    harness.received.clear();
    harness.send_from_server(6_000);
    for _ in 0..20 {
        harness.advance(MS);
        let received: usize = harness.received.drain(..).map(|datagram| datagram.len()).sum();
        if let Some(index) = addresses.iter().position(|&address| Some(address) == harness.last_to)
        {
            bytes[index] += received;
        }
    }
    bytes
}

/// The client sends three datagrams of full size, so that the server may send three times as many.
fn send_full_datagrams(harness: &mut Harness) {
    for _ in 0..3 {
        harness.send_packet(PacketKind::Control, |writer| {
            writer.u8(1)?;
            writer.bytes(&[0; 1_300])
        });
    }
}

/// Behind a CGN (RFC 6888) the new port may belong to another customer.
#[test]
fn unvalidated_port_gets_at_most_three_times_what_it_sent() {
    let mut harness = Harness::established(transport());
    acknowledge(&mut harness, 100);
    harness.remote = SocketAddr::from(OTHER_PORT);
    harness.received.clear();
    harness.send_from_server(100_000);
    harness.received.clear();
    let mut from_client = 0;
    for datagrams in 0..40 {
        if datagrams % 2 == 0 {
            harness.send_frame(&Frame::Ping);
            // Header, PING and tag.
            from_client += 26;
        } else {
            harness.send_packet(PacketKind::Control, |writer| {
                writer.u8(1)?;
                writer.bytes(&[0; 500])
            });
            from_client += 526;
        }
        harness.advance(MS);
        let sent: usize = harness.received.iter().map(Vec::len).sum();
        assert!(sent <= 3 * from_client, "{sent} bytes for {from_client}");
        assert_eq!(harness.closed, None);
    }
    let sent: usize = harness.received.iter().map(Vec::len).sum();
    assert!(sent > 2 * from_client, "the limit is used: {sent} bytes for {from_client}");
    // Nothing is lost: the rest follows once the port is validated.
    let challenge = harness.challenge().expect("a challenge");
    harness.received.clear();
    harness.send_frame(&Frame::PathResponse(challenge));
    assert_eq!(harness.stats().path.changes, 1);
    harness.advance(MS * 20);
    let sent: usize = harness.received.iter().map(Vec::len).sum();
    assert!(sent > 60_000, "{sent} bytes after validation");
}

#[test]
fn nat_rebinding_is_followed_before_validation_and_a_new_host_is_not() {
    for (address, follows) in [(OTHER_PORT, true), (OTHER_NETWORK, false)] {
        let mut harness = Harness::established(transport());
        acknowledge(&mut harness, 100);
        let (old, new) = (harness.remote, SocketAddr::from(address));
        harness.remote = new;
        send_full_datagrams(&mut harness);
        let bytes = bytes_to(&mut harness, [old, new]);
        assert_eq!(bytes[1] > 6_000, follows, "{address:?}: {bytes:?}");
        assert_eq!(bytes[0] > 6_000, !follows, "{address:?}: {bytes:?}");
        assert_eq!(harness.stats().path.changes, 0, "no address is validated");
        let challenge = harness.received.is_empty().then(|| {
            harness.advance(MS * 40);
            harness.challenge().expect("the challenge is repeated")
        });
        harness.send_frame(&Frame::PathResponse(challenge.unwrap()));
        assert_eq!(harness.stats().path.changes, 1);
        assert!(bytes_to(&mut harness, [old, new])[1] > 6_000);
        assert_eq!(harness.closed, None);
    }
}

#[test]
fn replays_from_another_port_divert_the_stream_once_until_the_client_sends() {
    let mut harness = Harness::established(transport());
    acknowledge(&mut harness, 100);
    let (old, new) = (harness.remote, SocketAddr::from(OTHER_PORT));
    for attempt in 0..3 {
        harness.remote = new;
        send_full_datagrams(&mut harness);
        let bytes = bytes_to(&mut harness, [old, new]);
        assert_eq!(bytes[1] > 6_000, attempt == 0, "{attempt}: {bytes:?}");
        // The client still uses its old address.
        harness.remote = old;
        harness.send_frame(&Frame::Ping);
        let bytes = bytes_to(&mut harness, [old, new]);
        assert!(bytes[0] > 6_000 && bytes[1] == 0, "{attempt}: {bytes:?}");
    }
    assert_eq!((harness.stats().path.changes, &harness.closed), (0, &None));
}

#[test]
fn an_unvalidated_port_is_abandoned() {
    let mut harness = Harness::established(transport());
    acknowledge(&mut harness, 100);
    let (old, new) = (harness.remote, SocketAddr::from(OTHER_PORT));
    harness.remote = new;
    harness.send_frame(&Frame::Ping);
    harness.advance(MS * 5_000);
    let bytes = bytes_to(&mut harness, [old, new]);
    assert!(bytes[0] > 6_000 && bytes[1] == 0, "{bytes:?}");
    assert_eq!((harness.stats().path.changes, &harness.closed), (0, &None));
}

/// A peer that sends from ever more ports does not keep the first one in use.
#[test]
fn challenges_to_other_ports_do_not_extend_an_unvalidated_port() {
    let mut harness = Harness::established(transport());
    acknowledge(&mut harness, 100);
    let (old, new) = (harness.remote, SocketAddr::from(OTHER_PORT));
    harness.remote = new;
    send_full_datagrams(&mut harness);
    assert!(bytes_to(&mut harness, [old, new])[1] > 6_000, "the new port is used");
    for port in 0..200 {
        harness.remote = SocketAddr::from((OTHER_PORT.0, 20_000 + port));
        harness.send_frame(&Frame::Ping);
        harness.advance(MS * 5);
    }
    let bytes = bytes_to(&mut harness, [old, new]);
    assert!(bytes[0] > 6_000 && bytes[1] == 0, "{bytes:?}");
    assert_eq!((harness.stats().path.changes, &harness.closed), (0, &None));
}
