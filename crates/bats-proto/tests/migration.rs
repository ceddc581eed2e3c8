//! After a change of the path its clocks begin anew: the probe time-out, and the search for what fits.

mod stage;

use std::net::SocketAddr;

use bats_proto::TransportConfig;
use bats_proto::fuzzing::open_short;
use bats_proto::wire::frame::{self, Frame};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Reader;
use stage::{MS, Stage, transport};

/// Another port, as a NAT gives that has forgotten, and another network.
const PORT: ([u8; 4], u16) = ([10, 0, 0, 1], 9_999);
const NETWORK: ([u8; 4], u16) = ([192, 0, 2, 7], 1_234);
/// Half of the round trip that the server sees.
const HALF: u32 = 5;

fn challenge(stage: &Stage) -> Option<u64> {
    stage.heard.iter().find_map(|datagram| {
        let (header, payload) = open_short(false, 0, datagram)?;
        let mut reader = Reader::new(&payload);
        while header.kind == PacketKind::Control
            && let Ok(Some(frame)) = frame::decode(&mut reader, &mut Vec::new())
        {
            if let Frame::PathChallenge(challenge) = frame {
                return Some(challenge);
            }
        }
        None
    })
}

/// The liar speaks from elsewhere and proves that it is there.
fn move_to(stage: &mut Stage, (ip, port): ([u8; 4], u16)) {
    let changes = stage.stats().path_changes;
    stage.heard.clear();
    stage.remote = SocketAddr::from((ip, port));
    stage.say_frame(&Frame::Ping);
    assert_eq!(stage.last_to, Some(stage.remote), "it is challenged where it is");
    let challenge = challenge(stage).expect("a challenge");
    stage.say_frame(&Frame::PathResponse(challenge));
    assert_eq!(stage.stats().path_changes, changes + 1);
}

/// The liar acknowledges everything for some milliseconds.
fn acknowledge(stage: &mut Stage, millis: u32) {
    for _ in 0..millis / HALF {
        stage.pass(MS * HALF);
        let at = stage.now;
        stage.pass(MS * HALF);
        for (number, _) in stage.packets() {
            stage.say_ack(at, &[(number, number)]);
        }
    }
}

/// Milliseconds until the server's next probe time-out.
fn until_probe(stage: &mut Stage) -> u32 {
    let before = stage.stats().probe_timeouts;
    let millis = (1..2_000).find(|_| {
        stage.pass(MS);
        stage.stats().probe_timeouts > before
    });
    millis.expect("a probe within two seconds")
}

#[test]
fn the_probe_clock_is_armed_anew_and_does_not_wait_for_the_backoff_of_before() {
    for place in [PORT, NETWORK] {
        let mut stage = Stage::established(transport());
        stage.send(3_000);
        acknowledge(&mut stage, 200);
        stage.packets();
        stage.send(3_000);
        let waits: Vec<u32> = (0..4).map(|_| until_probe(&mut stage)).collect();
        assert!(waits[3] > 2 * waits[0], "they become rarer: {waits:?}");
        move_to(&mut stage, place);
        stage.heard.clear();
        let first = until_probe(&mut stage);
        assert!(first <= waits[0] + 10, "{place:?}: {first} ms after {waits:?}");
        assert!(!stage.heard.is_empty(), "and something is sent");
        assert_eq!(stage.last_to, Some(stage.remote), "to where the peer is");
        let second = until_probe(&mut stage);
        assert!(second > first, "and it goes on: {first}, {second}");
        assert_eq!(stage.closed, None);
    }
}

#[test]
fn the_search_for_what_fits_begins_anew_in_another_network() {
    let mut stage = Stage::established(TransportConfig { max_udp_payload: 1_472, ..transport() });
    acknowledge(&mut stage, 300);
    assert_eq!(stage.stats().path_mtu, 1_472);
    move_to(&mut stage, PORT);
    assert_eq!(stage.stats().path_mtu, 1_472, "a NAT is no other path");
    stage.heard.clear();
    move_to(&mut stage, NETWORK);
    assert_eq!(stage.stats().path_mtu, 1_200, "what every path carries");
    acknowledge(&mut stage, 300);
    assert_eq!(stage.stats().path_mtu, 1_472);
    // The same where what is larger does not pass: none of the probes is answered.
    move_to(&mut stage, ([198, 51, 100, 3], 5));
    stage.heard.clear();
    stage.pass(MS * 1_000);
    let large = stage.heard.iter().filter(|datagram| datagram.len() > 1_200).count();
    assert!(large >= 2, "{large} probes");
    assert_eq!(stage.stats().path_mtu, 1_200);
}

/// Bytes of data, more than challenges have, that go to each of two addresses while something is sent.
fn bytes_to(stage: &mut Stage, places: [SocketAddr; 2]) -> [usize; 2] {
    let mut bytes = [0; 2];
    stage.heard.clear();
    stage.send(6_000);
    for _ in 0..20 {
        stage.pass(MS);
        let heard: usize = stage.heard.drain(..).map(|datagram| datagram.len()).sum();
        if let Some(index) = places.iter().position(|&place| Some(place) == stage.last_to) {
            bytes[index] += heard;
        }
    }
    bytes
}

#[test]
fn another_port_is_followed_before_it_is_proved_and_another_host_is_not() {
    for (place, follows) in [(PORT, true), (NETWORK, false)] {
        let mut stage = Stage::established(transport());
        acknowledge(&mut stage, 100);
        let (old, new) = (stage.remote, SocketAddr::from(place));
        stage.remote = new;
        stage.say_frame(&Frame::Ping);
        let bytes = bytes_to(&mut stage, [old, new]);
        assert_eq!(bytes[1] > 6_000, follows, "{place:?}: {bytes:?}");
        assert_eq!(bytes[0] > 6_000, !follows, "{place:?}: {bytes:?}");
        assert_eq!(stage.stats().path_changes, 0, "nothing is proved");
        let challenge = stage.heard.is_empty().then(|| {
            stage.pass(MS * 40);
            challenge(&stage).expect("it is challenged, more than once")
        });
        stage.say_frame(&Frame::PathResponse(challenge.unwrap()));
        assert_eq!(stage.stats().path_changes, 1);
        assert!(bytes_to(&mut stage, [old, new])[1] > 6_000);
        assert_eq!(stage.closed, None);
    }
}

#[test]
fn who_repeats_packets_from_another_port_has_the_stream_once_and_until_the_client_speaks() {
    let mut stage = Stage::established(transport());
    acknowledge(&mut stage, 100);
    let (old, new) = (stage.remote, SocketAddr::from(PORT));
    for attempt in 0..3 {
        stage.remote = new;
        stage.say_frame(&Frame::Ping);
        let bytes = bytes_to(&mut stage, [old, new]);
        assert_eq!(bytes[1] > 6_000, attempt == 0, "{attempt}: {bytes:?}");
        // The client is where it was.
        stage.remote = old;
        stage.say_frame(&Frame::Ping);
        let bytes = bytes_to(&mut stage, [old, new]);
        assert!(bytes[0] > 6_000 && bytes[1] == 0, "{attempt}: {bytes:?}");
    }
    assert_eq!((stage.stats().path_changes, &stage.closed), (0, &None));
}

#[test]
fn a_port_that_does_not_prove_itself_is_left() {
    let mut stage = Stage::established(transport());
    acknowledge(&mut stage, 100);
    let (old, new) = (stage.remote, SocketAddr::from(PORT));
    stage.remote = new;
    stage.say_frame(&Frame::Ping);
    stage.pass(MS * 5_000);
    let bytes = bytes_to(&mut stage, [old, new]);
    assert!(bytes[0] > 6_000 && bytes[1] == 0, "{bytes:?}");
    assert_eq!((stage.stats().path_changes, &stage.closed), (0, &None));
}

/// Who speaks from ever other ports does not keep the one believed first.
#[test]
fn a_port_is_not_believed_for_long_because_another_one_is_challenged() {
    let mut stage = Stage::established(transport());
    acknowledge(&mut stage, 100);
    let (old, new) = (stage.remote, SocketAddr::from(PORT));
    stage.remote = new;
    stage.say_frame(&Frame::Ping);
    assert!(bytes_to(&mut stage, [old, new])[1] > 6_000, "it is believed");
    for port in 0..200 {
        stage.remote = SocketAddr::from((PORT.0, 20_000 + port));
        stage.say_frame(&Frame::Ping);
        stage.pass(MS * 5);
    }
    let bytes = bytes_to(&mut stage, [old, new]);
    assert!(bytes[0] > 6_000 && bytes[1] == 0, "{bytes:?}");
    assert_eq!((stage.stats().path_changes, &stage.closed), (0, &None));
}
