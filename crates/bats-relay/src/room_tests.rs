//! Room that the next node reports, room that a relay reports, and the repairs that reports ask for.

use core::time::Duration;

use super::config::QUEUE_PACKETS;
use super::room::round_trip_packets;
use super::tests::{
    KEY, LINK_DOWN, LINK_UP, NOW, pull, push, relayed, report, symbol, two_link_relay, view,
};
use super::*;
use bats_wire::batch_rank::BatchRank;
use bats_wire::coding::SourceHeader;
use bats_wire::flow::FlowKey;

/// Gives the relay a source symbol of its own.
fn send(relay: &mut Relay, number: u64) {
    let mut packet = vec![0; 4];
    SourceHeader::new(number).encode(&mut Writer::new(&mut packet)).unwrap();
    packet.extend(symbol(number));
    relay.queue_coded(NOW, KEY, LINK_DOWN, PacketKind::Source, &packet);
}

/// Regression test for sessions that never sent again, found by the swarm: the next node had no
/// room for a moment, and the report of new room was lost.
#[test]
fn neighbour_without_room_is_retried() {
    let mut relay = two_link_relay();
    let (mut now, seen) = (NOW, view(1_000_000, 100));
    send(&mut relay, 0);
    assert!(pull(&mut relay, now, &seen, 1).is_some());
    relay.on_report(now, LINK_DOWN, &seen, &report(0));
    assert!(!relay.has_room(now, KEY, LINK_DOWN));
    let end = now + Duration::from_secs(1);
    while let Some(at) = relay.next_timeout().filter(|&at| at < end) {
        now = at.max(now);
        relay.handle_timeout(now);
    }
    assert!(relay.has_room(end, KEY, LINK_DOWN));
}

/// A full node drops what it cannot hold, so packets that it has not counted may still fill its room.
#[test]
fn neighbour_that_does_not_report_gets_its_room_and_then_single_packets() {
    const ROOM: u64 = 4;
    let mut relay = two_link_relay();
    let (mut now, seen) = (NOW, view(1_000_000, 100));
    for number in 0..200 {
        send(&mut relay, number);
    }
    relay.on_report(now, LINK_DOWN, &seen, &report(ROOM));
    // New packets at each instant; recoded ones for those that may be lost do not need room.
    let mut bursts = Vec::new();
    let end = now + Duration::from_secs(3);
    let mut number = 0;
    loop {
        let before = relay.stats().forwarded;
        while pull(&mut relay, now, &seen, number).is_some() {
            number += 1;
        }
        bursts.push(relay.stats().forwarded - before);
        let Some(at) = relay.next_timeout().filter(|&at| at < end) else { break };
        now = at.max(now);
        relay.handle_timeout(now);
    }
    bursts.retain(|&burst| burst > 0);
    assert_eq!(bursts[0], ROOM);
    assert!(bursts[1..].iter().all(|&burst| burst == 1), "{bursts:?}");
    // It is asked again and again.
    assert!((5..=30).contains(&bursts.len()), "{bursts:?}");
}

/// The room that a relay reports: a round trip of the link behind it less what is queued, and twice as
/// much while hardly anything is queued. Flows that wait for that link share it.
#[test]
fn room_follows_the_next_link_the_queue_and_the_other_flows() {
    let mut relay = two_link_relay();
    let (behind, before) = (view(10_000_000, 20), view(100_000_000, 100));
    let mut now = NOW;
    let mut room = |relay: &mut Relay, key, number| {
        now += Duration::from_millis(10);
        relay.on_packet(now, LINK_UP, &before, PacketKind::Source, &relayed(key, 5, number, 40));
        relay.handle_timeout(now);
        let reports = core::iter::from_fn(|| relay.next_report(now, LINK_UP, number));
        reports.filter(|report| report.key == key).last().map(|report| report.room)
    };
    assert_eq!(room(&mut relay, KEY, 0), Some(127), "the rate is not known yet");
    assert!(pull(&mut relay, NOW, &behind, 1).is_some());
    // 112.5 ms at 10 MB/s in packets of 1,200 bytes are 937.
    assert_eq!(room(&mut relay, KEY, 1), Some(2 * 937 + 128 - 1));
    for number in 2..64 {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 40));
    }
    assert_eq!(room(&mut relay, KEY, 64), Some(937 + 128 - 64));
    for number in 65..2_000 {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 40));
    }
    assert_eq!(room(&mut relay, KEY, 2_000), Some(0));
    let other = FlowKey { flow: 8, ..KEY };
    assert!(room(&mut relay, other, 0).is_some());
    assert!(
        pull(&mut relay, NOW, &behind, 2).is_some() && pull(&mut relay, NOW, &behind, 3).is_some()
    );
    assert_eq!(room(&mut relay, other, 1), Some(2 * 468 + 128 - 1), "twice the half");
}

/// The next node may have lost its state.
#[test]
fn rank_that_falls_is_sent_again() {
    let mut relay = two_link_relay();
    let seen = view(1_000_000, 100);
    for number in 0..8 {
        send(&mut relay, number);
    }
    let mut sent = 0;
    let mut pull_all = |relay: &mut Relay| {
        let before = sent;
        while pull(relay, NOW, &seen, sent + 1).is_some() {
            sent += 1;
        }
        sent - before
    };
    assert_eq!(pull_all(&mut relay), 8);
    let ranked = |rank, mark| BatchRank { mark, ranks: vec![rank], ..report(1_000) };
    relay.on_report(NOW, LINK_DOWN, &seen, &ranked(7, 1_000));
    let for_one = pull_all(&mut relay);
    relay.on_report(NOW, LINK_DOWN, &seen, &ranked(2, 2_000));
    let for_six = pull_all(&mut relay);
    assert!(for_one >= 1 && for_six >= 6, "{for_one} and {for_six}");
}

/// Reports go only to neighbours that read them.
#[test]
fn reports_go_to_neighbours_that_accept_them() {
    for accepts in [true, false] {
        let mut relay = Relay::new(RelayConfig::new(NodeId(50)), 1);
        relay.add_link(LINK_UP, accepts);
        relay.add_link(LINK_DOWN, true);
        relay.set_route(NOW, KEY.destination, LINK_DOWN);
        let (mut now, mut reports) = (NOW, 0);
        for number in 0..200 {
            push(&mut relay, now, LINK_UP, &relayed(KEY, 5, number, 40));
            now += Duration::from_millis(1);
            while relay.next_report(now, LINK_UP, number).is_some() {
                reports += 1;
            }
        }
        // Packets trigger reports, without timers.
        assert_eq!(reports > 5, accepts, "{reports}");
        while let Some(at) = relay.next_timeout().filter(|&at| at < now + Duration::from_secs(2)) {
            relay.handle_timeout(at);
            reports += u64::from(relay.next_report(at, LINK_UP, 200).is_some());
        }
        assert_eq!(reports > 0, accepts, "{reports}");
    }
}

/// Without recoding, what arrives waits as far as the next link sends it in a round trip, or the least
/// memory of a flow holds it.
#[test]
fn packets_that_are_not_recoded_wait_up_to_a_round_trip() {
    const LEN: usize = 1_000;
    // 10 MB/s for 100 ms and two intervals between reports.
    let seen = view(10_000_000, 100);
    let round_trip = (round_trip_packets(10_000_000, &seen) + QUEUE_PACKETS) * seen.packet;
    assert!((1_000_000..2_000_000).contains(&round_trip), "{round_trip}");
    for (fits, total) in [(round_trip as usize, 256 << 20), (MIN_FLOW_BYTES, 1 << 20)] {
        let mut config = RelayConfig::new(NodeId(50));
        (config.recoding, config.total_bytes) = (false, total);
        let mut relay = Relay::new(config, 1);
        relay.add_link(LINK_UP, true);
        relay.add_link(LINK_DOWN, true);
        relay.set_view(NOW, LINK_DOWN, &seen);
        relay.set_route(NOW, KEY.destination, LINK_DOWN);
        // A link that asks for more than there is shows the flow how fast it is.
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, LEN - 4));
        assert!(pull(&mut relay, NOW, &seen, 1).is_some());
        assert!(pull(&mut relay, NOW, &seen, 2).is_none());
        assert!(Unrecoded::cost(LEN) >= LEN + size_of::<Unrecoded>());
        let packets = fits / Unrecoded::cost(LEN);
        for number in 1..=2 * packets as u64 {
            push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, LEN - 4));
        }
        let stats = relay.stats();
        assert_eq!(
            stats.memory.bytes_held,
            (packets * Unrecoded::cost(LEN)) as u64,
            "of {fits} bytes"
        );
        assert_eq!(stats.dropped.overflowed, packets as u64);
        let status = relay.flows(NOW).next().expect("the flow");
        assert_eq!((status.queued, status.bytes_held), (packets as u64, stats.memory.bytes_held));
        let sent = (2..).take_while(|&n| pull(&mut relay, NOW, &seen, n).is_some()).count();
        assert_eq!((sent, relay.stats().memory.bytes_held), (packets, 0));
    }
}
