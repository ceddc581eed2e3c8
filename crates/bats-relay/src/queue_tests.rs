//! What a relay says about its links and flows: whether they have packets, when, and of which kind.

use core::time::Duration;

use super::config::MAX_OPAQUE;
use super::routes::MAX_PATHS;
use super::tests::{
    KEY, LINK_DOWN, LINK_UP, NOW, pull, push, relayed, report, two_link_relay, view,
};
use bats_wire::varint::Reader;

use super::*;

const NANOSECOND: Duration = Duration::from_nanos(1);

fn push_opaque(relay: &mut Relay, now: Timestamp, number: u8) {
    let mut packet = vec![number; FLOW_HEADER_LEN + 9];
    FlowHeader { key: KEY, hop_limit: 5 }.encode(&mut Writer::new(&mut packet)).unwrap();
    relay.on_packet(now, LINK_UP, &LinkView::default(), PacketKind::Control, &packet);
}

fn kinds(relay: &mut Relay, now: Timestamp) -> Vec<PacketKind> {
    let mut out = Vec::new();
    let seen = view(1_000_000, 100);
    core::iter::from_fn(|| relay.pull(now, LINK_DOWN, &seen, 1, &mut out)).collect()
}

/// Handshakes and reports that fill a slow link would starve all data.
#[test]
fn end_to_end_and_coded_packets_take_turns() {
    use PacketKind::{Control, Source};
    let mut relay = two_link_relay();
    for number in 0..3 {
        push_opaque(&mut relay, NOW, number);
    }
    for number in 0..5 {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, number, 40));
    }
    let order = [Control, Source, Control, Source, Control, Source, Source, Source];
    assert_eq!(kinds(&mut relay, NOW), order);
    let stats = relay.stats();
    assert_eq!((stats.opaque_sent, stats.forwarded, stats.received), (3, 5, 8));
}

/// Without the check this test does not end.
#[test]
fn flow_with_a_timer_that_stays_due_is_removed() {
    let mut relay = two_link_relay();
    let other = FlowKey { flow: KEY.flow + 1, ..KEY };
    for key in [KEY, other] {
        push(&mut relay, NOW, LINK_UP, &relayed(key, 5, 0, 40));
    }
    relay.flows.get_mut(&KEY).expect("it began").stuck = Some(NOW);
    relay.arm(KEY);
    assert_eq!(relay.next_timeout(), Some(NOW));
    relay.handle_timeout(NOW);
    assert!(relay.next_timeout().is_none_or(|at| at > NOW));
    let stats = relay.stats();
    assert_eq!((stats.flows_stuck, stats.flows, stats.flows_expired), (1, 1, 0));
    assert!(relay.flows.contains_key(&other));
}

#[test]
fn link_wants_to_send_what_is_queued_and_may_leave() {
    let mut relay = two_link_relay();
    let wants = |relay: &Relay| (relay.wants(NOW, LINK_DOWN), relay.has_backlog(LINK_DOWN));
    assert_eq!(wants(&relay), (false, false));
    assert_eq!((relay.wants(NOW, LinkId(9)), relay.has_backlog(LinkId(9))), (false, false));
    push_opaque(&mut relay, NOW, 0);
    assert!(relay.wants(NOW, LINK_DOWN));
    assert_eq!((relay.pop_ready(), relay.pop_ready()), (Some(LINK_DOWN), None));
    assert_eq!(kinds(&mut relay, NOW).len(), 1);
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40));
    assert_eq!(wants(&relay), (true, true));
    assert_eq!(kinds(&mut relay, NOW).len(), 1);
    assert_eq!(wants(&relay), (false, false));
    // The next node has no room: packets are queued, and none may leave.
    let seen = view(1_000_000, 100);
    relay.on_report(NOW, LINK_DOWN, &seen, &report(0));
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 1, 40));
    assert_eq!(kinds(&mut relay, NOW), []);
    assert_eq!(wants(&relay), (false, true));
    relay.on_report(NOW + Duration::from_millis(1), LINK_DOWN, &seen, &report(9));
    assert_eq!(wants(&relay), (true, true));
}

#[test]
fn flow_is_forgotten_exactly_after_its_idle_timeout() {
    let end = NOW + RelayConfig::new(NodeId(50)).idle_timeout;
    for (now, flows) in [(end.saturating_sub(NANOSECOND), 1), (end, 0)] {
        let mut relay = two_link_relay();
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40));
        push_opaque(&mut relay, NOW, 1);
        let held = relay.stats();
        assert!(held.flows == 1 && held.memory.bytes_held > 0 && held.memory.state_bytes > 0);
        relay.handle_timeout(now);
        let stats = relay.stats();
        assert_eq!((stats.flows, stats.flows_expired), (flows, 1 - flows));
        if flows == 0 {
            assert_eq!((stats.memory.bytes_held, stats.memory.state_bytes), (0, 0));
            assert_eq!(kinds(&mut relay, now), []);
            assert_eq!(relay.next_timeout(), None);
        } else {
            assert!(relay.next_timeout() <= Some(end) && relay.flows(now).count() == 1);
        }
    }
}

/// A report is due at once for the first packet, and then an interval after the last one.
#[test]
fn reports_wait_for_their_interval() {
    let mut relay = two_link_relay();
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40));
    assert!(relay.has_report(LINK_UP) && !relay.has_report(LINK_DOWN));
    let first = relay.next_report(NOW, LINK_UP, 4).unwrap();
    assert_eq!((first.key, first.mark, &first.ranks[..]), (KEY, 4, &[1][..]));
    assert_eq!((relay.next_report(NOW, LINK_UP, 4), relay.has_report(LINK_UP)), (None, false));
    // A sixteenth of 100 ms.
    let due = NOW + Duration::from_micros(6_250);
    let before = due.saturating_sub(NANOSECOND);
    push(&mut relay, before, LINK_UP, &relayed(KEY, 5, 1, 40));
    relay.handle_timeout(before);
    assert!(!relay.has_report(LINK_UP));
    relay.handle_timeout(due);
    assert!(relay.has_report(LINK_UP));
    assert_eq!(relay.next_report(due, LINK_UP, 5).unwrap().ranks, [2]);
}

#[test]
fn end_to_end_packets_beyond_the_queue_are_counted() {
    let mut relay = two_link_relay();
    for number in 0..MAX_OPAQUE + 3 {
        let bytes = (number as u16).to_be_bytes();
        relay.send_opaque(NOW, FlowKey { source: NodeId(50), ..KEY }, &bytes);
    }
    let queue = relay.link_queue(LINK_DOWN).unwrap();
    assert_eq!((queue.end_to_end_queued, relay.stats().dropped.overflowed), (MAX_OPAQUE as u64, 3));
}

#[test]
fn routes_to_a_node_are_at_most_sixteen() {
    let mut relay = Relay::new(RelayConfig::new(NodeId(50)), 1);
    let links: Vec<(LinkId, u8)> = (0..=MAX_PATHS as u64).map(|id| (LinkId(id), 0)).collect();
    links.iter().for_each(|&(link, _)| relay.add_link(link, true));
    let node = KEY.destination;
    assert!(!relay.set_routes(NOW, node, &links) && relay.routes(node).count() == 0);
    assert!(relay.set_routes(NOW, node, &links[1..]));
    assert_eq!(relay.routes(node).count(), MAX_PATHS);
    assert!(!relay.add_route(NOW, node, LinkId(0)), "one too many");
    assert!(relay.add_route(NOW, node, LinkId(5)), "it is one of them");
    relay.remove_route(NOW, node, LinkId(5));
    assert!(relay.add_route(NOW, node, LinkId(0)));
    assert_eq!(relay.routes(node).count(), MAX_PATHS);
    assert!(relay.set_routes(NOW, node, &[]) && relay.routes(node).count() == 0);
}

/// The round trip of a link counts half, and its queue as long as it takes to send it.
#[test]
fn packet_takes_the_link_over_which_it_arrives_first() {
    let mut relay = Relay::new(RelayConfig::new(NodeId(50)), 1);
    // 1,200 bytes take 12 ms over the fast link, which is 50 ms shorter.
    let (fast, slow, other) = (LinkId(5), LinkId(6), LinkId(7));
    for (link, rate, rtt) in [(fast, 100_000, 20), (slow, 100_000, 120), (other, 100_000, 500)] {
        relay.add_link(link, true);
        relay.set_view(NOW, link, &view(rate, rtt));
        assert!(relay.add_route(NOW, KEY.destination, link));
    }
    relay.add_link(LINK_UP, true);
    let mut sizes = Vec::new();
    for batch in 0..8 {
        push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, batch * 16, 40));
        sizes.push([fast, slow].map(|link| relay.link_queue(link).unwrap().queued));
    }
    // Behind four packets 10 + 48 ms, behind five 70 ms; over the other 60 ms and 72 ms.
    let order = [[1, 0], [2, 0], [3, 0], [4, 0], [5, 0], [5, 1], [6, 1], [6, 2]];
    assert_eq!(sizes, order);
    // Packets of one batch stay together, and none goes back over the link that it came from.
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 5 * 16 + 1, 40));
    assert_eq!(relay.link_queue(slow).unwrap().queued, 3);
    push(&mut relay, NOW, fast, &relayed(KEY, 5, 900, 40));
    assert_eq!(relay.link_queue(slow).unwrap().queued, 4);
    assert_eq!(relay.link_queue(other).unwrap().queued, 0);
    assert_eq!(relay.slowest_inbound(KEY), Duration::from_millis(100));
    assert_eq!(pull(&mut relay, NOW, &view(1, 1), 1), None, "no route over this link");
}

/// A path stays polluting until its route is removed, whatever happens to other routes.
#[test]
fn new_routes_keep_what_is_known_of_polluting_paths() {
    let mut relay = Relay::new(RelayConfig::new(NodeId(50)), 1);
    let (first, second) = (LinkId(5), LinkId(6));
    let nodes = [NodeId(100), NodeId(101)];
    let both = [(first, 0), (second, 0)];
    for (link, rtt) in [(first, 20), (second, 200)] {
        relay.add_link(link, true);
        relay.set_view(NOW, link, &view(1_000_000, rtt));
    }
    for node in nodes {
        assert!(relay.set_routes(NOW, node, &both));
        assert!(relay.mark_polluting(NOW, node, first) && !relay.mark_polluting(NOW, node, first));
        assert_eq!(relay.route(node), Some(second));
    }
    let routes = |relay: &Relay| nodes.map(|node| relay.routes(node).collect::<Vec<_>>());
    relay.set_routes(NOW, nodes[0], &both);
    assert_eq!(routes(&relay), [[second], [second]]);
    // Without its route the path is forgotten.
    relay.set_routes(NOW, nodes[0], &[(second, 0)]);
    relay.set_routes(NOW, nodes[0], &both);
    assert_eq!(routes(&relay), [vec![first, second], vec![second]]);
    relay.set_route(NOW, nodes[1], first);
    assert!(!relay.mark_polluting(NOW, nodes[1], first), "it is still known");
    assert_eq!(relay.stats().polluting_paths, 2);
}

/// A report that is due although no packet left is made at once: it is no timer that stays due.
#[test]
fn packets_that_the_next_node_does_not_need_make_room() {
    let mut relay = two_link_relay();
    push(&mut relay, NOW, LINK_UP, &relayed(KEY, 5, 0, 40));
    while relay.next_report(NOW, LINK_UP, 0).is_some() {}
    let later = NOW + Duration::from_millis(20);
    let seen = view(1_000_000, 100);
    let report = BatchRank { first: 5, ranks: vec![], ..report(1_000) };
    relay.on_report(later, LINK_DOWN, &seen, &report);
    let mut out = Vec::new();
    assert!(relay.pull(later, LINK_DOWN, &seen, 1, &mut out).is_none());
    let mut reports = 0;
    while let Some(at) = relay.next_timeout().filter(|&at| at < later + Duration::from_secs(1)) {
        relay.handle_timeout(at);
        while relay.next_report(at, LINK_UP, 1).is_some() {
            reports += 1;
        }
    }
    let stats = relay.stats();
    assert_eq!((reports, stats.flows_stuck, stats.flows), (1, 0, 1));
}

/// A flow that waits for a slow link would otherwise cause a report in each interval: thousands of flows
/// would keep a processor busy, and fill the link to the previous node.
#[test]
fn flows_that_wait_cause_no_reports_until_a_packet_leaves() {
    const FLOWS: u32 = 100;
    let mut relay = two_link_relay();
    let key = |flow| FlowKey { flow, ..KEY };
    for number in 0..2 {
        for flow in 0..FLOWS {
            push(&mut relay, NOW, LINK_UP, &relayed(key(flow), 5, number, 40));
        }
    }
    let mut timeouts = 0;
    let mut reports = |relay: &mut Relay, until: Timestamp| {
        let mut reports = Vec::new();
        while let Some(at) = relay.next_timeout().filter(|&at| at <= until) {
            relay.handle_timeout(at);
            timeouts += 1;
            reports.extend(core::iter::from_fn(|| relay.next_report(at, LINK_UP, 1)));
        }
        reports.iter().map(|report| report.key).collect::<Vec<_>>()
    };
    let soon = NOW + Duration::from_millis(50);
    while relay.next_report(NOW, LINK_UP, 0).is_some() {}
    reports(&mut relay, soon);
    let later = soon + Duration::from_secs(1);
    assert_eq!(reports(&mut relay, later), []);

    let mut out = Vec::new();
    assert!(relay.pull(later, LINK_DOWN, &view(1_000_000, 100), 1, &mut out).is_some());
    let left = FlowHeader::decode(&mut Reader::new(&out)).unwrap().key;
    assert_eq!(reports(&mut relay, later + Duration::from_millis(50)), [left], "it has more room");
    // Each flow is checked in a round trip at most.
    assert!(timeouts < 30 * FLOWS, "{timeouts}");
}
