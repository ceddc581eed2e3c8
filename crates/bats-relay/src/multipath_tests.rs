//! Multipath: several links to a node, the choice of a link, and the move of packets to another
//! link.

use core::time::Duration;

use super::tests::{KEY, LINK_DOWN, LINK_UP, symbol, view};
use super::*;
use bats_wire::coding::SourceHeader;

const NOW: Timestamp = Timestamp::from_millis(1);

/// A relay with two links of 80 Mbit/s and 20 ms, and no routes.
fn with_equal_links() -> Relay {
    let mut relay = Relay::new(RelayConfig::new(NodeId(0)), 1);
    for link in [LINK_UP, LINK_DOWN] {
        relay.add_link(link, true);
        relay.set_view(NOW, link, &view(10_000_000, 20));
    }
    relay
}

#[test]
fn slow_link_is_worthwhile_only_with_a_long_backlog() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    for (link, rate, rtt) in [(LINK_UP, 1_000_000, 200), (LINK_DOWN, 10_000_000, 20)] {
        relay.add_link(link, true);
        relay.set_view(now, link, &view(rate, rtt));
        assert!(relay.add_route(now, KEY.destination, link));
    }
    assert_eq!(relay.route(KEY.destination), Some(LINK_DOWN), "the fastest link");
    let path_set = relay.path_set(KEY.destination);
    assert_eq!((path_set.links, path_set.rate, path_set.slowest.as_millis()), (2, 11_000_000, 200));
    // 90 ms at the fast link's rate of 10 MB/s.
    assert!(!relay.is_worthwhile(KEY.destination, LINK_UP, 899_999));
    assert!(relay.is_worthwhile(KEY.destination, LINK_UP, 900_000));
    assert!(relay.is_worthwhile(KEY.destination, LINK_DOWN, 0));
    // An unresponsive link is not used; the other one is the fastest then.
    relay.set_view(now, LINK_DOWN, &LinkView { alive: false, ..view(10_000_000, 20) });
    assert!(relay.is_worthwhile(KEY.destination, LINK_UP, 0));
    assert!(!relay.is_worthwhile(KEY.destination, LINK_DOWN, u64::MAX));
    assert_eq!(relay.route(KEY.destination), Some(LINK_UP));
    assert_eq!(relay.path_set(KEY.destination).links, 1);
}

/// A potentially failed link is avoided if there is another one, but not given up if it is the only
/// one.
#[test]
fn potentially_failed_link_is_left_only_for_another_link() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    let seen = view(10_000_000, 20);
    let potentially_failed = LinkView { potentially_failed: true, ..seen };
    relay.add_link(LINK_DOWN, true);
    assert!(relay.add_route(now, KEY.destination, LINK_DOWN));
    relay.set_view(now, LINK_DOWN, &potentially_failed);
    assert!(relay.is_alive(LINK_DOWN), "the only link");
    assert_eq!(relay.pop_lost(), None);
    relay.set_view(now, LINK_DOWN, &seen);
    relay.add_link(LINK_UP, true);
    assert!(relay.add_route(now, KEY.destination, LINK_UP));
    relay.set_view(now, LINK_UP, &view(1_000_000, 200));
    relay.set_view(now, LINK_DOWN, &potentially_failed);
    assert!(!relay.is_alive(LINK_DOWN));
    assert_eq!((relay.pop_lost(), relay.pop_lost()), (Some(LINK_DOWN), None));
    assert_eq!(relay.route(KEY.destination), Some(LINK_UP));
    // The other link fails potentially, too. It stays in use as the last one.
    relay.set_view(now, LINK_UP, &LinkView { potentially_failed: true, ..view(1_000_000, 200) });
    assert!(relay.is_alive(LINK_UP));
    relay.set_view(now, LINK_DOWN, &seen);
    assert!(relay.is_alive(LINK_DOWN), "it responds again");
    assert_eq!(relay.pop_lost(), None);
}

/// A polluting link is no alternative to a potentially failed one.
#[test]
fn potentially_failed_link_is_not_left_for_a_polluting_or_unrelated_link() {
    let now = Timestamp::from_millis(1);
    let (seen, potentially_failed) =
        (view(10_000_000, 20), LinkView { potentially_failed: true, ..view(10_000_000, 20) });
    for pollutes in [false, true] {
        let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
        for link in [LINK_UP, LINK_DOWN] {
            relay.add_link(link, true);
            relay.set_view(now, link, &seen);
            assert!(relay.add_route(now, KEY.destination, link));
        }
        if pollutes {
            assert!(relay.mark_polluting(now, KEY.destination, LINK_UP));
        } else {
            assert!(
                relay.add_route(now, NodeId(777), LINK_DOWN),
                "a node that the other link does not lead to"
            );
        }
        relay.set_view(now, LINK_DOWN, &potentially_failed);
        assert!(relay.is_alive(LINK_DOWN), "pollutes: {pollutes}");
        assert_eq!(relay.pop_lost(), None);
    }
}

/// Both links become unresponsive, one after the other. The packets of the second one move to the
/// first one that responds.
#[test]
fn packets_held_without_responsive_link_use_the_first_that_recovers() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(0)), 1);
    let seen = view(10_000_000, 20);
    for link in [LINK_UP, LINK_DOWN] {
        relay.add_link(link, true);
        relay.set_view(now, link, &seen);
        assert!(relay.add_route(now, KEY.destination, link));
    }
    relay.set_view(now, LINK_DOWN, &LinkView { alive: false, ..seen });
    for number in 0..5 {
        let mut packet = vec![0; 4];
        SourceHeader::new(number).encode(&mut Writer::new(&mut packet)).unwrap();
        packet.extend(symbol(number));
        relay.queue_coded(now, KEY, LINK_UP, PacketKind::Source, &packet);
    }
    relay.set_view(now, LINK_UP, &LinkView { alive: false, ..seen });
    relay.set_view(now, LINK_DOWN, &seen);
    let (mut out, mut sent) = (Vec::new(), 0);
    for number in 2..20 {
        sent += u64::from(relay.pull(now, LINK_DOWN, &seen, number, &mut out).is_some());
    }
    assert_eq!(sent, 5);
}

#[test]
fn number_of_links_to_a_node_is_limited() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    for link in 0..=MAX_PATHS as u64 {
        relay.add_link(LinkId(link), true);
        assert_eq!(relay.add_route(now, KEY.destination, LinkId(link)), link < MAX_PATHS as u64);
    }
    assert!(relay.add_route(now, KEY.destination, LinkId(0)), "added before");
    relay.remove_route(now, KEY.destination, LinkId(0));
    assert!(relay.add_route(now, KEY.destination, LinkId(MAX_PATHS as u64)));
    assert_eq!(relay.routes(KEY.destination).count(), MAX_PATHS);
}

/// Packets queued for an unresponsive or removed link move to the other one, and memory is
/// accounted for.
#[test]
fn undelivered_packets_of_a_failed_link_move_to_another() {
    for is_removed in [false, true] {
        let (mut relay, now) = (with_equal_links(), NOW);
        for link in [LINK_UP, LINK_DOWN] {
            assert!(relay.add_route(now, KEY.destination, link));
        }
        for number in 0..5 {
            let mut packet = vec![0; 4];
            SourceHeader::new(number).encode(&mut Writer::new(&mut packet)).unwrap();
            packet.extend(symbol(number));
            relay.queue_coded(now, KEY, LINK_UP, PacketKind::Source, &packet);
        }
        let held = relay.stats().memory.bytes_held;
        let mut out = Vec::new();
        let seen = view(10_000_000, 20);
        assert!(relay.pull(now, LINK_UP, &seen, 1, &mut out).is_some(), "sent, and lost");
        assert!(relay.pull(now, LINK_DOWN, &seen, 1, &mut out).is_none());
        if is_removed {
            relay.remove_link(now, LINK_UP);
        } else {
            relay.set_view(now, LINK_UP, &LinkView { alive: false, ..seen });
        }
        assert_eq!(relay.stats().memory.bytes_held, held);
        let mut forwarded = 0;
        for number in 2..20 {
            forwarded += u64::from(relay.pull(now, LINK_DOWN, &seen, number, &mut out).is_some());
        }
        assert_eq!(forwarded, 5, "all five, including the one in flight");
        relay.handle_timeout(now + Duration::from_secs(400));
        assert_eq!(relay.stats().memory.bytes_held, 0);
    }
}

/// End-to-end packets that a failed or removed link has not sent go over the other one.
#[test]
fn end_to_end_packets_of_a_failed_link_move_to_another() {
    for is_removed in [false, true] {
        let (mut relay, now) = (with_equal_links(), NOW);
        assert!(relay.add_route(now, KEY.destination, LINK_UP));
        for number in 0..3 {
            relay.send_opaque(now, KEY, &[number; 40]);
        }
        assert!(relay.add_route(now, KEY.destination, LINK_DOWN));
        if is_removed {
            relay.remove_link(now, LINK_UP);
        } else {
            relay.set_view(now, LINK_UP, &LinkView { alive: false, ..view(10_000_000, 20) });
        }
        let mut numbers = Vec::new();
        let mut out = Vec::new();
        while let Some(kind) = relay.pull(now, LINK_DOWN, &view(10_000_000, 20), 1, &mut out) {
            assert_eq!((kind, out.len()), (PacketKind::Control, FLOW_HEADER_LEN + 40));
            numbers.push(out[FLOW_HEADER_LEN]);
            out.clear();
        }
        assert_eq!(numbers, [0, 1, 2]);
    }
}

/// Whether there is another link is not asked for each packet, but after each change.
#[test]
fn potentially_failed_link_is_used_again_when_the_others_are_gone() {
    type Change = fn(&mut Relay);
    let node = KEY.destination;
    let seen = view(10_000_000, 20);
    let potentially_failed = LinkView { potentially_failed: true, ..seen };
    let changes: [(&str, Change); 9] = [
        ("removed", |relay| relay.remove_link(NOW, LINK_UP)),
        ("unresponsive", |relay| {
            relay.set_view(NOW, LINK_UP, &LinkView { alive: false, ..LinkView::default() });
        }),
        ("polluting", |relay| assert!(relay.mark_polluting(NOW, KEY.destination, LINK_UP))),
        ("demoted", |relay| relay.demote(NOW, LINK_UP, true)),
        ("no route", |relay| relay.remove_route(NOW, KEY.destination, LINK_UP)),
        ("one route", |relay| relay.set_route(NOW, KEY.destination, LINK_DOWN)),
        ("one of a list", |relay| {
            assert!(relay.set_routes(NOW, KEY.destination, &[(LINK_DOWN, 0)]));
        }),
        ("the only one to another node", |relay| {
            assert!(relay.add_route(NOW, NodeId(77), LINK_DOWN));
        }),
        ("the only one of a list", |relay| {
            assert!(relay.set_routes(NOW, NodeId(77), &[(LINK_DOWN, 0)]));
        }),
    ];
    for (name, change) in changes {
        let mut relay = with_equal_links();
        for link in [LINK_UP, LINK_DOWN] {
            assert!(relay.add_route(NOW, node, link));
        }
        for _ in 0..2 {
            relay.set_view(NOW, LINK_DOWN, &potentially_failed);
            assert!(!relay.is_alive(LINK_DOWN), "there is another one");
        }
        change(&mut relay);
        relay.set_view(NOW, LINK_DOWN, &potentially_failed);
        assert!(relay.is_alive(LINK_DOWN), "{name}");
    }
    // And left again for a new one.
    let mut relay = with_equal_links();
    relay.remove_link(NOW, LINK_UP);
    assert!(relay.add_route(NOW, node, LINK_DOWN));
    relay.set_view(NOW, LINK_DOWN, &potentially_failed);
    assert!(relay.is_alive(LINK_DOWN));
    assert!(relay.add_route(NOW, node, LINK_UP), "before the link is there");
    relay.set_view(NOW, LINK_DOWN, &potentially_failed);
    assert!(relay.is_alive(LINK_DOWN));
    relay.add_link(LINK_UP, true);
    relay.set_view(NOW, LINK_DOWN, &potentially_failed);
    assert!(!relay.is_alive(LINK_DOWN));
}
