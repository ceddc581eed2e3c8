//! Link policies of neighbours at a relay, and sets of routes with tiers.

use core::time::Duration;
use std::collections::BTreeSet;

use super::tests::{KEY, LINK_DOWN, LINK_UP, symbol, view};
use super::*;
use bats_wire::coding::SourceHeader;

const NOW: Timestamp = Timestamp::from_millis(1);
const BACKUP: LinkId = LinkId(3);

fn relay(links: &[LinkId]) -> Relay {
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    for &link in links {
        relay.add_link(link, true);
        relay.set_view(NOW, link, &view(1_000_000, 20));
    }
    relay
}

fn packet(key: FlowKey, number: u64) -> Vec<u8> {
    let mut packet = vec![0; FLOW_HEADER_LEN + 4];
    let mut writer = Writer::new(&mut packet);
    FlowHeader { key, hop_limit: 9 }.encode(&mut writer).unwrap();
    SourceHeader::new(number).encode(&mut writer).unwrap();
    packet.extend(symbol(number));
    packet
}

fn receive(relay: &mut Relay, key: FlowKey, number: u64) -> bool {
    let payload = packet(key, number);
    relay.on_packet(NOW, LINK_UP, &view(1_000_000, 20), PacketKind::Source, &payload).is_some()
}

fn sends(relay: &mut Relay, link: LinkId, number: u64) -> bool {
    relay.pull(NOW, link, &view(1_000_000, 20), number, &mut Vec::new()).is_some()
}

#[test]
fn policy_of_a_link_limits_transit_sources_and_destinations() {
    let to_relay = FlowKey { destination: NodeId(1), ..KEY };
    let only = |node: NodeId| Some(BTreeSet::from([node]));
    let other = NodeId(55);
    let everything = LinkPolicy::default();
    for (policy, transits, arrives) in [
        (everything.clone(), true, true),
        (LinkPolicy { transit: false, ..everything.clone() }, false, true),
        (LinkPolicy { sources: only(KEY.source), ..everything.clone() }, true, true),
        (LinkPolicy { sources: only(other), ..everything.clone() }, false, false),
        (LinkPolicy { destinations: only(KEY.destination), ..everything.clone() }, true, false),
        (LinkPolicy { destinations: only(NodeId(1)), ..everything }, false, true),
    ] {
        let mut relay = relay(&[LINK_UP, LINK_DOWN]);
        assert!(relay.set_routes(NOW, KEY.destination, &[(LINK_DOWN, 0)]));
        relay.set_policy(NOW, LINK_UP, policy.clone());
        assert!(!receive(&mut relay, KEY, 1));
        assert_eq!(sends(&mut relay, LINK_DOWN, 1), transits, "{policy:?}");
        assert_eq!(receive(&mut relay, to_relay, 1), arrives, "{policy:?}");
        let refused = u64::from(!transits) + u64::from(!arrives);
        assert_eq!(relay.stats().dropped.refused, refused, "{policy:?}");
        let flows = u64::from(transits) + u64::from(arrives);
        assert_eq!(relay.stats().flows, flows, "no state for what is refused");
    }
}

#[test]
fn links_of_a_higher_tier_are_used_while_no_lower_one_responds() {
    let mut relay = relay(&[LINK_UP, LINK_DOWN, BACKUP]);
    let node = KEY.destination;
    assert!(relay.set_routes(NOW, node, &[(LINK_UP, 0), (LINK_DOWN, 0), (BACKUP, 1)]));
    let routes = |relay: &Relay| relay.routes(node).collect::<Vec<_>>();
    let silent = LinkView { alive: false, ..view(1_000_000, 20) };
    assert_eq!(routes(&relay), [LINK_UP, LINK_DOWN]);
    relay.set_view(NOW, LINK_UP, &silent);
    assert_eq!(routes(&relay), [LINK_UP, LINK_DOWN], "one of the tier responds");
    relay.set_view(NOW, LINK_DOWN, &silent);
    assert_eq!(routes(&relay), [BACKUP]);
    relay.set_view(NOW, LINK_UP, &view(1_000_000, 20));
    assert_eq!(routes(&relay), [LINK_UP, LINK_DOWN]);
    for link in [LINK_UP, LINK_DOWN, BACKUP] {
        relay.set_view(NOW, link, &silent);
    }
    assert_eq!(routes(&relay), [LINK_UP, LINK_DOWN, BACKUP], "no link responds");
}

#[test]
fn packets_move_to_the_backup_link_and_new_ones_return_to_the_first() {
    let mut relay = relay(&[LINK_DOWN, BACKUP]);
    relay.add_link(LINK_UP, true);
    assert!(relay.set_routes(NOW, KEY.destination, &[(LINK_DOWN, 0), (BACKUP, 1)]));
    assert!(!receive(&mut relay, KEY, 1));
    assert!(!sends(&mut relay, BACKUP, 1), "the backup is not used");
    let silent = LinkView { alive: false, ..view(1_000_000, 20) };
    relay.set_view(NOW, LINK_DOWN, &silent);
    assert!(sends(&mut relay, BACKUP, 2), "the waiting packet has moved");
    relay.set_view(NOW, LINK_DOWN, &view(1_000_000, 20));
    assert!(!receive(&mut relay, KEY, 2));
    assert!(sends(&mut relay, LINK_DOWN, 1));
}

#[test]
fn set_of_routes_is_replaced_at_once_and_limited() {
    let mut relay = relay(&[LINK_UP, LINK_DOWN, BACKUP]);
    let node = KEY.destination;
    assert!(relay.set_routes(NOW, node, &[(LINK_DOWN, 0)]));
    assert!(!receive(&mut relay, KEY, 1));
    assert!(relay.set_routes(NOW, node, &[(BACKUP, 0)]));
    assert!(!sends(&mut relay, LINK_DOWN, 1), "no route any more");
    assert!(sends(&mut relay, BACKUP, 1), "the waiting packet takes the new route");
    let too_many: Vec<_> = (0..=MAX_PATHS as u64).map(|link| (LinkId(link), 0)).collect();
    assert!(!relay.set_routes(NOW, node, &too_many));
    assert_eq!(relay.routes(node).collect::<Vec<_>>(), [BACKUP], "unchanged");
    assert!(relay.set_routes(NOW, node, &[]));
    assert_eq!(relay.route(node), None);
    assert_eq!(relay.pop_event(), None);
    assert!(!receive(&mut relay, FlowKey { flow: 8, ..KEY }, 2));
    assert_eq!(relay.pop_event(), Some(RelayEvent::Unroutable(node)));
}

#[test]
fn waiting_reports_of_missing_routes_are_limited() {
    let mut relay = relay(&[LINK_UP]);
    let mut now = NOW;
    for number in 0..4_000 {
        // 50 nodes in each second.
        now += Duration::from_millis(20);
        let key = FlowKey { destination: NodeId(1_000 + number), ..KEY };
        let payload = packet(key, 1);
        let kind = PacketKind::Source;
        assert!(relay.on_packet(now, LINK_UP, &view(1_000_000, 20), kind, &payload).is_none());
    }
    assert_eq!(relay.stats().dropped.unroutable, 4_000);
    let reported = core::iter::from_fn(|| relay.pop_event()).count();
    assert_eq!(reported, 1_024);
}
