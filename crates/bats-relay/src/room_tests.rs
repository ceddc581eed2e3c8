//! Room that the next node reports, room that a relay reports, and the repairs that reports ask for.

use core::time::Duration;

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
    relay.send_coded(NOW, KEY, LINK_DOWN, PacketKind::Source, &packet);
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
