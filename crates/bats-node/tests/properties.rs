//! Properties of reconciliation, ownership and queues under random plans and traffic.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;

use bats_node::{
    Accepted, Action, FqCodel, Hop, Link, NeighbourPolicy, NodeId, Peer, Plan, State, reconcile,
};
use bats_types::Timestamp;
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::contextualize_config;

fn node(number: u8) -> NodeId {
    NodeId(Ipv4Addr::new(10, 0, 0, number))
}

fn address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, number))
}

/// Links that neighbours have opened, by number.
fn accepted(links: impl IntoIterator<Item = (u8, u8)>) -> BTreeMap<u64, Accepted> {
    let link =
        |(print, host)| Accepted { fingerprint: [print; 32], address: address(host), scope: 0 };
    (0..).zip(links.into_iter().map(link)).collect()
}

/// One of four policies.
fn policy(number: u64) -> NeighbourPolicy {
    NeighbourPolicy { transit: number > 0, rate: NonZeroU64::new(number / 2) }
}

/// Plans over few names, so that two of them have parts in common.
fn plan() -> impl Strategy<Value = Plan> {
    let link = (0u8..4, 1u8..5, 1u8..4);
    let route = (2u8..7, 0u8..4, 0u8..3, any::<bool>());
    (
        proptest::collection::vec(link, 0..4),
        proptest::collection::btree_map(1u8..5, 0u64..4, 0..4),
        proptest::collection::btree_map(2u8..7, (1u8..9, 0u8..200, 8u8..=32), 0..5),
        proptest::collection::vec(route, 0..6),
    )
        .prop_map(|(links, neighbours, peers, routes)| {
            let mut plan = Plan::new(node(1), [3; 32]);
            for (name, print, remote) in links {
                let remote = SocketAddr::new(address(remote), 4900);
                let link = Link { remote, local: None, interface: None, fingerprint: [print; 32] };
                plan.links.insert(format!("link{name}"), link);
            }
            plan.neighbours = neighbours.into_iter().map(|(n, t)| ([n; 32], policy(t))).collect();
            for (id, (print, host, length)) in peers {
                let prefix = IpNet::new(address(host), length).unwrap();
                let peer = Peer { fingerprint: [print; 32], prefixes: [prefix].into() };
                plan.peers.insert(node(id), peer);
            }
            for (to, over, tier, by_link) in routes {
                let hop = match by_link {
                    true => Hop::Link(format!("link{over}")),
                    false => Hop::Neighbour([over; 32]),
                };
                plan.routes.entry(node(to)).or_default().insert(hop, tier);
            }
            plan
        })
}

fn is_served(state: &State, hop: &Hop) -> bool {
    match hop {
        Hop::Link(name) => state.links.contains_key(name),
        Hop::Neighbour(print) => {
            state.neighbours.contains_key(print)
                || state.links.values().any(|link| link.fingerprint == *print)
        }
        Hop::Accepted(number) => state.accepted.contains_key(number),
    }
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(1_000)))]

    #[test]
    fn any_state_reaches_any_consistent_plan_and_then_rests(
        plans in proptest::collection::vec(plan(), 1..4),
        opened in proptest::collection::btree_set((1u8..5, 1u8..4), 0..3),
    ) {
        let mut state = State::default();
        for plan in plans.iter().filter(|plan| plan.check().is_ok()) {
            let is_admitted = |(print, _): &(u8, u8)| plan.neighbours.contains_key(&[*print; 32]);
            state.accepted = accepted(opened.iter().copied().filter(is_admitted));
            for action in reconcile(plan, &state) {
                if let Action::OpenLink(name, _) = &action {
                    prop_assert!(!state.links.contains_key(name), "a name has one link");
                }
                if let Action::CloseLink(name) = &action {
                    let used = state.routes.values().any(|hops| hops.contains_key(&Hop::Link(name.clone())));
                    prop_assert!(!used, "routes leave a link before it is closed");
                }
                state.apply(&action);
                for hops in state.routes.values() {
                    for hop in hops.keys() {
                        prop_assert!(is_served(&state, hop), "{hop:?} after {action:?}");
                    }
                }
            }
            prop_assert_eq!(reconcile(plan, &state), vec![]);
            prop_assert_eq!(&state.neighbours, &plan.neighbours);
            let wanted: BTreeMap<_, _> = plan.peers.iter().map(|(&id, peer)| (id, peer.fingerprint)).collect();
            prop_assert_eq!(&state.peers, &wanted);
            prop_assert_eq!(
                state.routes.keys().collect::<Vec<_>>(),
                plan.routes.keys().collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn one_node_at_most_may_send_from_an_address(plan in plan(), last: u8) {
        let Ok(owners) = plan.check() else { return Ok(()) };
        let source = address(last);
        let senders: Vec<NodeId> = plan.peers.keys().copied().filter(|&id| owners.may_send(id, source)).collect();
        prop_assert!(senders.len() <= 1);
        // The owner is the one with the longest prefix, by a search through all.
        let longest = plan
            .peers
            .iter()
            .flat_map(|(&id, peer)| peer.prefixes.iter().map(move |prefix| (prefix.prefix_len(), id, *prefix)))
            .filter(|(_, _, prefix)| prefix.contains(&source))
            .max_by_key(|(length, _, _)| *length);
        prop_assert_eq!(owners.owner(source), longest.map(|(_, id, _)| id));
    }

    #[test]
    fn queues_keep_the_order_of_flows_and_their_limit(
        steps in proptest::collection::vec((0u64..5, 1usize..65_536, 0u64..20, any::<bool>()), 1..400),
    ) {
        let limit = 1 << 20;
        let mut queue = FqCodel::new(limit);
        let mut now = Timestamp::ZERO;
        let mut last = BTreeMap::new();
        let (mut pushed, mut popped) = (0u64, 0u64);
        for (number, (flow, bytes, wait, pops)) in steps.into_iter().enumerate() {
            now += Duration::from_millis(wait);
            queue.push(now, flow, bytes, (flow, number));
            pushed += 1;
            prop_assert!(queue.stats().bytes <= limit as u64);
            if pops && let Some(packet) = queue.pop(now, |_| false) {
                popped += 1;
                let (flow, number) = packet.item;
                prop_assert!(last.insert(flow, number).is_none_or(|before| before < number));
            }
        }
        while queue.pop(now, |_| false).is_some() {
            popped += 1;
        }
        let stats = queue.stats();
        prop_assert_eq!((stats.packets, stats.bytes), (0, 0));
        prop_assert_eq!(pushed, popped + stats.dropped + stats.overflowed);
    }
}

#[test]
fn if_both_hosts_open_a_link_the_smaller_fingerprints_link_stays() {
    let mut plan = Plan::new(node(1), [3; 32]);
    for print in [1, 9] {
        let remote = SocketAddr::new(address(print), 4900);
        plan.links.insert(
            format!("to {print}"),
            Link { remote, local: None, interface: None, fingerprint: [print; 32] },
        );
        plan.neighbours.insert([print; 32], policy(0));
        plan.routes.insert(node(print + 1), [(Hop::Link(format!("to {print}")), 0)].into());
    }
    let mut state = State::default();
    reconcile(&plan, &state).iter().for_each(|action| state.apply(action));
    assert_eq!(state.links.len(), 2);
    state.accepted = accepted([(1, 1), (9, 9)]);
    reconcile(&plan, &state).iter().for_each(|action| state.apply(action));
    assert_eq!(state.links.keys().collect::<Vec<_>>(), ["to 9"]);
    assert_eq!(state.routes[&node(2)], [(Hop::Neighbour([1; 32]), 0)].into());
    // The neighbour's link ends: this node opens its own again.
    state.accepted.clear();
    reconcile(&plan, &state).iter().for_each(|action| state.apply(action));
    assert_eq!(state.links.len(), 2);
    // One that is bound to an interface is left to none.
    plan.links.get_mut("to 1").unwrap().interface = Some("eth1".into());
    state.accepted = accepted([(1, 1)]);
    reconcile(&plan, &state).iter().for_each(|action| state.apply(action));
    assert_eq!(state.links, plan.links);
}

#[test]
fn stale_links_are_opened_again_and_routes_leave_them_meanwhile() {
    let mut plan = Plan::new(node(1), [3; 32]);
    for name in ["a", "b"] {
        let link = Link {
            remote: SocketAddr::new(address(2), 4900),
            local: None,
            interface: None,
            fingerprint: [9; 32],
        };
        plan.links.insert(name.into(), link);
        plan.routes.entry(node(2)).or_default().insert(Hop::Link(name.into()), 0);
    }
    plan.neighbours.insert([9; 32], false.into());
    let mut state = State::default();
    reconcile(&plan, &state).iter().for_each(|action| state.apply(action));
    state.stale.insert("a".into());
    let actions = reconcile(&plan, &state);
    let over_b = [(node(2), [(Hop::Link("b".into()), 0)].into())].into();
    let wanted = [
        Action::SetRoutes(over_b),
        Action::CloseLink("a".into()),
        Action::OpenLink("a".into(), plan.links["a"].clone()),
        Action::SetRoutes(plan.routes.clone()),
    ];
    assert_eq!(actions, wanted);
    actions.iter().for_each(|action| state.apply(action));
    assert_eq!(reconcile(&plan, &state), []);
}

#[test]
fn thin_flow_does_not_wait_for_a_bulk_flow() {
    let mut queue = FqCodel::new(64 << 20);
    for _ in 0..500 {
        queue.push(Timestamp::ZERO, 1, 60_000, "bulk");
    }
    let now = Timestamp::ZERO + Duration::from_millis(1);
    queue.push(now, 2, 84, "ping");
    let order: Vec<_> = (0..4).filter_map(|_| queue.pop(now, |_| false)).map(|p| p.item).collect();
    assert!(order.contains(&"ping"), "{order:?}");
}

#[test]
fn standing_queue_is_marked_or_dropped_until_its_delay_is_at_the_target() {
    for can_mark in [false, true] {
        let mut queue = FqCodel::new(64 << 20);
        let mut now = Timestamp::ZERO;
        // A sender at twice the rate of the queue's exit for two seconds.
        for step in 0..2_000u32 {
            now += Duration::from_millis(1);
            queue.push(now, 7, 15_000, step);
            queue.push(now, 7, 15_000, step);
            queue.pop(now, |_| can_mark);
        }
        let stats = queue.stats();
        assert_eq!((stats.marked > 0, stats.dropped > 0), (can_mark, !can_mark), "{stats:?}");
    }
}
