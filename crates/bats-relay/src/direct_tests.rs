//! Direct flows: between two neighbours, over the links between them alone.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{LINK_DOWN, LINK_UP, NOW, relayed, symbol, view};
use super::*;
use bats_wire::coding::SourceHeader;
use bats_wire::flow::DIRECT_FLOW;

const HERE: NodeId = NodeId(1);
const PEER: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);

/// The direct flow from here to a neighbour.
fn to(neighbour: NodeId) -> FlowKey {
    FlowKey { destination: neighbour, source: HERE, flow: 7 | DIRECT_FLOW }
}

fn policy(neighbour: Option<NodeId>) -> LinkPolicy {
    LinkPolicy { neighbour, ..LinkPolicy::default() }
}

fn relay(links: &[(LinkId, Option<NodeId>)]) -> Relay {
    let mut relay = Relay::new(RelayConfig::new(HERE), 1);
    for &(link, neighbour) in links {
        relay.add_link(link, true);
        relay.set_view(NOW, link, &view(10_000_000, 20));
        relay.set_policy(NOW, link, policy(neighbour));
    }
    relay
}

fn coded(number: u64) -> Vec<u8> {
    let mut packet = vec![0; 4];
    SourceHeader::new(number).encode(&mut Writer::new(&mut packet)).unwrap();
    packet.extend(symbol(number));
    packet
}

/// The flows of all packets that a link sends now.
fn sent(relay: &mut Relay, link: LinkId) -> Vec<FlowKey> {
    let (mut keys, mut out) = (Vec::new(), Vec::new());
    while relay.pull(NOW, link, &view(10_000_000, 20), keys.len() as u64, &mut out).is_some() {
        keys.push(FlowKey::decode(&mut bats_wire::varint::Reader::new(&out)).unwrap());
        assert!(keys.len() < 1_000, "it does not end");
    }
    keys
}

fn node() -> impl Strategy<Value = NodeId> {
    (1_u32..5).prop_map(NodeId)
}

/// A step of a node whose links have neighbours that change.
#[derive(Clone, Debug)]
enum Step {
    Admit(u64, Option<NodeId>),
    Remove(u64),
    Alive(u64, bool),
    Use(NodeId, bool),
    Route(NodeId, u64),
    Control(NodeId, bool),
    Coded(u64, NodeId, bool),
    Receive(u64, FlowKey),
}

fn step() -> impl Strategy<Value = Step> {
    let link = || 0_u64..4;
    let flow = prop_oneof![Just(7), Just(7 | DIRECT_FLOW)];
    let key = (node(), node(), flow).prop_map(|(destination, source, flow)| FlowKey {
        destination,
        source,
        flow,
    });
    let other = || node().prop_filter("not this node", |node| *node != HERE);
    prop_oneof![
        4 => (link(), prop::option::of(node())).prop_map(|(link, node)| Step::Admit(link, node)),
        1 => link().prop_map(Step::Remove),
        2 => (link(), any::<bool>()).prop_map(|(link, alive)| Step::Alive(link, alive)),
        3 => (other(), any::<bool>()).prop_map(|(node, is_used)| Step::Use(node, is_used)),
        2 => (other(), link()).prop_map(|(node, link)| Step::Route(node, link)),
        3 => (other(), any::<bool>()).prop_map(|(node, direct)| Step::Control(node, direct)),
        6 => (link(), other(), any::<bool>())
            .prop_map(|(link, node, direct)| Step::Coded(link, node, direct)),
        4 => (link(), key).prop_map(|(link, key)| Step::Receive(link, key)),
    ]
}

proptest! {
    /// Whatever links there are, packets of direct flows are taken from the neighbour that is their source, and sent to
    /// the neighbour that is their destination. Others are refused before they take state.
    #[test]
    fn direct_packets_cross_only_links_with_their_other_end(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut relay = relay(&[]);
        let mut neighbours: BTreeMap<LinkId, Option<NodeId>> = BTreeMap::new();
        let seen = view(10_000_000, 20);
        let (mut next, mut refused) = (0, 0);
        for step in steps {
            match step {
                Step::Admit(link, neighbour) => {
                    relay.add_link(LinkId(link), true);
                    relay.set_policy(NOW, LinkId(link), policy(neighbour));
                    neighbours.insert(LinkId(link), neighbour);
                }
                Step::Remove(link) => {
                    relay.remove_link(NOW, LinkId(link));
                    neighbours.remove(&LinkId(link));
                }
                Step::Alive(link, alive) => {
                    relay.set_view(NOW, LinkId(link), &LinkView { alive, ..seen });
                }
                Step::Use(node, is_used) => relay.set_direct(NOW, node, is_used),
                Step::Route(node, link) => {
                    relay.add_route(NOW, node, LinkId(link));
                }
                Step::Control(node, direct) => {
                    let flow = if direct { to(node) } else { FlowKey { flow: 7, ..to(node) } };
                    relay.send_opaque(NOW, flow, &coded(next));
                    next += 1;
                }
                Step::Coded(link, node, direct) => {
                    let flow = if direct { to(node) } else { FlowKey { flow: 7, ..to(node) } };
                    if relay.has_room(NOW, flow, LinkId(link)) {
                        relay.queue_coded(NOW, flow, LinkId(link), PacketKind::Source, &coded(next));
                        next += 1;
                    }
                }
                Step::Receive(link, key) => {
                    let flows = relay.stats().flows;
                    let is_known = relay.flows(NOW).any(|flow| flow.key == key);
                    let payload = relayed(key, 9, next, 40);
                    next += 1;
                    let kind = PacketKind::Control;
                    let delivery = relay.on_packet(NOW, LinkId(link), &seen, kind, &payload);
                    let is_delivered = delivery.is_some();
                    let neighbour = neighbours.get(&LinkId(link)).copied();
                    if neighbour.is_some() && key.is_direct() && key.source != HERE {
                        let is_its_own = key.destination == HERE && neighbour == Some(Some(key.source));
                        prop_assert_eq!(is_delivered, is_its_own);
                        refused += u64::from(!is_its_own);
                        prop_assert!(is_its_own || relay.stats().flows == flows, "no state");
                        prop_assert!(is_known || is_its_own == (relay.stats().flows == flows + 1));
                    }
                }
            }
            prop_assert_eq!(relay.stats().dropped.refused, refused);
            prop_assert_eq!(relay.pop_event().filter(|event| {
                matches!(event, RelayEvent::Unroutable(node) if *node == HERE)
            }), None);
            for link in (0..4).map(LinkId) {
                let mut out = Vec::new();
                if relay.pull(NOW, link, &view(10_000_000, 20), next, &mut out).is_some() {
                    let key = FlowKey::decode(&mut bats_wire::varint::Reader::new(&out)).unwrap();
                    let neighbour = neighbours.get(&link).copied().flatten();
                    prop_assert!(!key.is_direct() || neighbour == Some(key.destination), "{key:?}");
                    prop_assert!(!key.is_direct() || key.source == HERE, "forwarded: {key:?}");
                }
            }
        }
        prop_assert!(relay.stats().memory.bytes_held <= RelayConfig::new(HERE).total_bytes as u64);
        relay.handle_timeout(NOW + Duration::from_secs(400));
        prop_assert_eq!(relay.stats().memory.bytes_held, 0);
    }
}

/// A route to the neighbour, or a policy that allows everything else, does not help.
#[test]
fn packets_of_a_direct_flow_are_refused_unless_they_come_from_the_neighbour_itself() {
    let from_peer = to(PEER).reversed();
    let from_other = FlowKey { source: OTHER, ..from_peer };
    let onward = FlowKey { destination: OTHER, ..from_peer };
    for (neighbour, key, is_taken) in [
        (Some(PEER), from_peer, true),
        (None, from_peer, false),
        (Some(OTHER), from_peer, false),
        (Some(PEER), from_other, false),
        (Some(PEER), onward, false),
    ] {
        let mut relay = relay(&[(LINK_UP, neighbour), (LINK_DOWN, Some(OTHER))]);
        relay.set_route(NOW, OTHER, LINK_DOWN);
        relay.set_direct(NOW, OTHER, true);
        for (kind, number) in [(PacketKind::Control, 1), (PacketKind::Source, 2)] {
            let payload = relayed(key, 9, number, 60);
            let seen = view(10_000_000, 20);
            let delivery = relay.on_packet(NOW, LINK_UP, &seen, kind, &payload);
            assert_eq!(delivery.is_some(), is_taken, "{neighbour:?} {key:?}");
        }
        let stats = relay.stats();
        assert_eq!(stats.dropped.refused, if is_taken { 0 } else { 2 }, "{neighbour:?} {key:?}");
        assert_eq!(stats.flows, u64::from(is_taken), "no state for what is refused");
        assert_eq!(sent(&mut relay, LINK_DOWN), [], "nothing is forwarded");
    }
}

#[test]
fn a_policy_changes_what_a_link_takes_at_once() {
    let mut relay = relay(&[(LINK_UP, Some(PEER))]);
    let mut number = 0;
    let mut takes = |relay: &mut Relay| {
        number += 1;
        let payload = relayed(to(PEER).reversed(), 9, number, 60);
        relay.on_packet(NOW, LINK_UP, &view(10_000_000, 20), PacketKind::Source, &payload).is_some()
    };
    assert!(takes(&mut relay));
    relay.set_policy(NOW, LINK_UP, policy(None));
    assert!(!takes(&mut relay));
    relay.set_policy(NOW, LINK_UP, policy(Some(PEER)));
    assert!(takes(&mut relay));
}

#[test]
fn direct_sessions_use_each_link_as_soon_as_it_is_admitted() {
    let mut relay = relay(&[(LINK_UP, Some(PEER)), (LINK_DOWN, None)]);
    let links = |relay: &Relay| relay.routes(to(PEER)).collect::<Vec<_>>();
    assert_eq!(links(&relay), [], "there is no direct session yet");
    relay.set_direct(NOW, PEER, true);
    assert_eq!(links(&relay), [LINK_UP]);
    assert_eq!(relay.routes(PEER).count(), 0, "it is no route for other sessions");
    relay.queue_coded(NOW, to(PEER), LINK_UP, PacketKind::Source, &coded(0));
    while relay.pop_ready().is_some() {}
    relay.set_policy(NOW, LINK_DOWN, policy(Some(PEER)));
    assert_eq!(links(&relay), [LINK_UP, LINK_DOWN]);
    assert_eq!(relay.pop_ready(), Some(LINK_UP));
    assert_eq!(relay.pop_ready(), Some(LINK_DOWN), "the new link is woken");
    relay.remove_link(NOW, LINK_UP);
    assert_eq!(links(&relay), [LINK_DOWN]);
    assert_eq!(sent(&mut relay, LINK_DOWN)[0], to(PEER), "what waited moves to the other link");
    relay.set_direct(NOW, PEER, false);
    assert_eq!(links(&relay), []);
}

/// Control packets are dropped without a link, as the ends repeat them; coded packets wait.
#[test]
fn a_direct_flow_without_a_link_waits_for_one_and_reports_no_missing_route() {
    let mut relay = relay(&[(LINK_UP, Some(PEER))]);
    relay.set_direct(NOW, PEER, true);
    relay.queue_coded(NOW, to(PEER), LINK_UP, PacketKind::Source, &coded(0));
    relay.remove_link(NOW, LINK_UP);
    relay.send_opaque(NOW, to(PEER), &[1; 40]);
    assert_eq!((relay.pop_event(), relay.stats().dropped.unroutable), (None, 1));
    relay.add_link(LINK_DOWN, true);
    relay.set_policy(NOW, LINK_DOWN, policy(Some(PEER)));
    assert_eq!(sent(&mut relay, LINK_DOWN), [to(PEER)]);
}

/// What waits for a link whose certificate turns out to be that of another node does not go there.
#[test]
fn packets_leave_a_link_with_its_neighbour() {
    for after in [None, Some(OTHER)] {
        let mut relay = relay(&[(LINK_UP, Some(PEER)), (LINK_DOWN, Some(PEER))]);
        relay.set_direct(NOW, PEER, true);
        relay.set_view(NOW, LINK_DOWN, &view(10_000_000, 200));
        relay.queue_coded(NOW, to(PEER), LINK_UP, PacketKind::Source, &coded(0));
        relay.send_opaque(NOW, to(PEER), &[1; 40]);
        relay.send_opaque(NOW, FlowKey { flow: 7, ..to(PEER) }, &[2; 40]);
        relay.set_policy(NOW, LINK_UP, policy(after));
        assert_eq!(relay.pop_lost(), Some(LINK_UP), "sessions release its symbols");
        assert_eq!(sent(&mut relay, LINK_UP), [], "{after:?}");
        assert_eq!(sent(&mut relay, LINK_DOWN).len(), 2, "{after:?}");
    }
}

#[test]
fn at_most_as_many_links_with_a_neighbour_as_routes_are_used_and_others_replace_them() {
    let mut relay = relay(&[]);
    relay.set_direct(NOW, PEER, true);
    for link in 0..=MAX_PATHS as u64 {
        relay.add_link(LinkId(link), true);
        relay.set_policy(NOW, LinkId(link), policy(Some(PEER)));
    }
    let links = |relay: &Relay| relay.routes(to(PEER)).map(|link| link.0).collect::<Vec<_>>();
    assert_eq!(links(&relay), (0..MAX_PATHS as u64).collect::<Vec<_>>());
    relay.remove_link(NOW, LinkId(3));
    let expected: Vec<_> = (0..=MAX_PATHS as u64).filter(|link| *link != 3).collect();
    assert_eq!(links(&relay), expected);
    // A link that does not answer leaves its place to a new one.
    relay.set_view(NOW, LinkId(5), &LinkView { alive: false, ..LinkView::default() });
    relay.add_link(LinkId(99), true);
    relay.set_policy(NOW, LinkId(99), policy(Some(PEER)));
    assert!(links(&relay).contains(&99) && !links(&relay).contains(&5));
}

/// A reset for a flow without a session, for instance.
#[test]
fn answers_in_direct_flows_leave_over_a_link_with_the_neighbour() {
    let mut relay = relay(&[(LINK_UP, Some(PEER)), (LINK_DOWN, Some(OTHER))]);
    relay.send_opaque(NOW, to(PEER), b"reset");
    relay.send_opaque(NOW, to(NodeId(4)), b"reset");
    assert_eq!((sent(&mut relay, LINK_DOWN), sent(&mut relay, LINK_UP)), (vec![], vec![to(PEER)]));
}

/// Node 4 is reached over both links. A direct session with the neighbour of one of them, which it may open, does not
/// hold the packets to node 4 there.
#[test]
fn direct_session_does_not_hold_other_flows_on_a_failing_link() {
    let failing = LinkView { potentially_failed: true, ..view(10_000_000, 20) };
    for has_direct in [false, true] {
        let mut relay = relay(&[(LINK_UP, Some(PEER)), (LINK_DOWN, Some(OTHER))]);
        assert!(relay.set_routes(NOW, NodeId(4), &[(LINK_UP, 0), (LINK_DOWN, 0)]));
        relay.set_direct(NOW, PEER, has_direct);
        relay.set_view(NOW, LINK_UP, &failing);
        assert!(!relay.is_alive(LINK_UP), "{has_direct}");
    }
    let mut relay = relay(&[(LINK_UP, Some(PEER))]);
    relay.set_direct(NOW, PEER, true);
    relay.set_view(NOW, LINK_UP, &failing);
    assert!(relay.is_alive(LINK_UP), "it is the only one with the neighbour");
}

#[test]
fn no_report_of_a_direct_flow_goes_to_a_former_neighbour() {
    for before in [true, false] {
        let mut relay = relay(&[(LINK_UP, Some(PEER))]);
        let payload = relayed(to(PEER).reversed(), 9, 1, 60);
        let seen = view(10_000_000, 20);
        assert!(relay.on_packet(NOW, LINK_UP, &seen, PacketKind::Source, &payload).is_some());
        let later = NOW + Duration::from_secs(1);
        if before {
            relay.set_policy(NOW, LINK_UP, policy(None));
        }
        relay.handle_timeout(later);
        if !before {
            assert!(relay.has_report(LINK_UP));
            relay.set_policy(later, LINK_UP, policy(Some(OTHER)));
        }
        assert!(relay.next_report(later, LINK_UP, 1).is_none(), "{before}");
    }
}
