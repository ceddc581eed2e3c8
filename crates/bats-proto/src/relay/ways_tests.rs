//! Several links towards a node: which one a packet takes, when one is left for another, and what becomes
//! of what it held.

use super::tests::{KEY, LINK_DOWN, LINK_UP, symbol, view};
use super::*;
use crate::wire::coding::SourceHeader;

#[test]
fn a_detour_is_worth_it_for_a_long_queue_only() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    for (link, rate, rtt) in [(LINK_UP, 1_000_000, 200), (LINK_DOWN, 10_000_000, 20)] {
        relay.add_link(link, true);
        relay.set_view(now, link, &view(rate, rtt));
        assert!(relay.add_route(now, KEY.destination, link));
    }
    assert_eq!(relay.route(KEY.destination), Some(LINK_DOWN), "the fastest");
    let way = relay.way(KEY.destination);
    assert_eq!((way.links, way.rate, way.slowest.as_millis()), (2, 11_000_000, 200));
    // 90 ms of the fast link's 10 MB/s.
    assert!(!relay.is_worthwhile(KEY.destination, LINK_UP, 899_999));
    assert!(relay.is_worthwhile(KEY.destination, LINK_UP, 900_000));
    assert!(relay.is_worthwhile(KEY.destination, LINK_DOWN, 0));
    // A silent link is left out, and the other is the fastest then.
    relay.set_view(now, LINK_DOWN, &LinkView { alive: false, ..view(10_000_000, 20) });
    assert!(relay.is_worthwhile(KEY.destination, LINK_UP, 0));
    assert!(!relay.is_worthwhile(KEY.destination, LINK_DOWN, u64::MAX));
    assert_eq!(relay.route(KEY.destination), Some(LINK_UP));
    assert_eq!(relay.way(KEY.destination).links, 1);
}

/// Doubt is enough to prefer another link, and not enough to give up the only one.
#[test]
fn a_quiet_link_is_left_only_for_another() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    let seen = view(10_000_000, 20);
    let quiet = LinkView { quiet: true, ..seen };
    relay.add_link(LINK_DOWN, true);
    assert!(relay.add_route(now, KEY.destination, LINK_DOWN));
    relay.set_view(now, LINK_DOWN, &quiet);
    assert!(relay.is_alive(LINK_DOWN), "there is no other");
    assert_eq!(relay.pop_lost(), None);
    relay.set_view(now, LINK_DOWN, &seen);
    relay.add_link(LINK_UP, true);
    assert!(relay.add_route(now, KEY.destination, LINK_UP));
    relay.set_view(now, LINK_UP, &view(1_000_000, 200));
    relay.set_view(now, LINK_DOWN, &quiet);
    assert!(!relay.is_alive(LINK_DOWN));
    assert_eq!((relay.pop_lost(), relay.pop_lost()), (Some(LINK_DOWN), None));
    assert_eq!(relay.route(KEY.destination), Some(LINK_UP));
    // The other one, too: it stays, as the last that is left.
    relay.set_view(now, LINK_UP, &LinkView { quiet: true, ..view(1_000_000, 200) });
    assert!(relay.is_alive(LINK_UP));
    relay.set_view(now, LINK_DOWN, &seen);
    assert!(relay.is_alive(LINK_DOWN), "it was heard");
    assert_eq!(relay.pop_lost(), None);
}

/// A link that altered what it carried is not an other one: a moment's silence is no reason to trust it.
#[test]
fn a_quiet_link_is_not_left_for_one_that_lies_nor_for_one_that_leads_elsewhere() {
    let now = Timestamp::from_millis(1);
    let (seen, quiet) = (view(10_000_000, 20), LinkView { quiet: true, ..view(10_000_000, 20) });
    for lies in [false, true] {
        let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
        for link in [LINK_UP, LINK_DOWN] {
            relay.add_link(link, true);
            relay.set_view(now, link, &seen);
            assert!(relay.add_route(now, KEY.destination, link));
        }
        if lies {
            assert!(relay.distrust(now, KEY.destination, LINK_UP));
        } else {
            assert!(relay.add_route(now, NodeId(777), LINK_DOWN), "where the other does not lead");
        }
        relay.set_view(now, LINK_DOWN, &quiet);
        assert!(relay.is_alive(LINK_DOWN), "lies: {lies}");
        assert_eq!(relay.pop_lost(), None);
    }
}

/// Both fall silent, one after the other: what the second one held leaves by the first that is heard.
#[test]
fn what_was_held_when_no_link_was_heard_leaves_by_the_first_that_is() {
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
        relay.send_coded(now, KEY, LINK_UP, PacketKind::Source, &packet);
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
fn there_is_a_limit_to_links_used_together() {
    let now = Timestamp::from_millis(1);
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    for link in 0..=MAX_PATHS as u64 {
        relay.add_link(LinkId(link), true);
        assert_eq!(relay.add_route(now, KEY.destination, LinkId(link)), link < MAX_PATHS as u64);
    }
    assert!(relay.add_route(now, KEY.destination, LinkId(0)), "it is one of them already");
    relay.remove_route(now, KEY.destination, LinkId(0));
    assert!(relay.add_route(now, KEY.destination, LinkId(MAX_PATHS as u64)));
    assert_eq!(relay.routes(KEY.destination).count(), MAX_PATHS);
}

/// What waits for a link that falls silent, or goes, leaves by the other; memory is accounted for.
#[test]
fn what_a_link_has_not_brought_over_moves_to_another() {
    for goes in [false, true] {
        let now = Timestamp::from_millis(1);
        let mut relay = Relay::new(RelayConfig::new(NodeId(0)), 1);
        for link in [LINK_UP, LINK_DOWN] {
            relay.add_link(link, true);
            relay.set_view(now, link, &view(10_000_000, 20));
            assert!(relay.add_route(now, KEY.destination, link));
        }
        for number in 0..5 {
            let mut packet = vec![0; 4];
            SourceHeader::new(number).encode(&mut Writer::new(&mut packet)).unwrap();
            packet.extend(symbol(number));
            relay.send_coded(now, KEY, LINK_UP, PacketKind::Source, &packet);
        }
        let held = relay.stats().bytes_held;
        let mut out = Vec::new();
        let seen = view(10_000_000, 20);
        assert!(relay.pull(now, LINK_UP, &seen, 1, &mut out).is_some(), "sent, and lost");
        assert!(relay.pull(now, LINK_DOWN, &seen, 1, &mut out).is_none());
        if goes {
            relay.remove_link(now, LINK_UP);
        } else {
            relay.set_view(now, LINK_UP, &LinkView { alive: false, ..seen });
        }
        assert_eq!(relay.stats().bytes_held, held);
        let mut forwarded = 0;
        for number in 2..20 {
            forwarded += u64::from(relay.pull(now, LINK_DOWN, &seen, number, &mut out).is_some());
        }
        assert_eq!(forwarded, 5, "all five, the one under way among them");
        relay.handle_timeout(now + Duration::from_secs(400));
        assert_eq!(relay.stats().bytes_held, 0);
    }
}
