//! Routes that follow from those of the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bats_node::{
    Accepted, Fib, FibHop, FibRoute, Hop, Ignored, KernelRoutes, Link, MAX_HOPS, NoRoute, NodeId,
    Peer, Plan, State, reconcile, wanted, wanted_interfaces,
};
use proptest::prelude::*;
use proptest::test_runner::contextualize_config;

fn node(number: u8) -> NodeId {
    NodeId(Ipv4Addr::new(10, 255, 0, number))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hop(gateway: &str, interface: u32) -> FibHop {
    FibHop { gateway: Some(address(gateway)), interface, is_up: true }
}

fn link(remote: &str, print: u8) -> Link {
    Link { remote: remote.parse().unwrap(), local: None, interface: None, fingerprint: [print; 32] }
}

/// Node 1 with peers 2, 3 and 4 (fingerprints of the same numbers) and four links.
fn plan() -> Plan {
    let mut plan = Plan::new(node(1), [1; 32]);
    for (name, remote, print) in [
        ("two", "192.0.2.2:4900", 2),
        ("two-b", "198.51.100.2:4900", 2),
        ("three", "192.0.2.3:4900", 3),
        ("three-6", "[fe80::3%7]:4900", 3),
    ] {
        plan.links.insert(name.into(), link(remote, print));
        plan.neighbours.insert([print; 32], false.into());
    }
    for number in 2..5 {
        plan.peers.insert(node(number), Peer { fingerprint: [number; 32], prefixes: [].into() });
    }
    plan
}

fn fib(routes: &[(u8, &[FibHop])]) -> Fib {
    let mut fib = Fib::default();
    for (number, hops) in routes {
        let route = FibRoute { prefix_length: 32, hops: hops.to_vec() };
        fib.answers.insert(IpAddr::V4(node(*number).0), Ok(route));
    }
    fib
}

fn links(found: &KernelRoutes, to: u8) -> Vec<Hop> {
    found.routes.get(&node(to)).map(|hops| hops.keys().cloned().collect()).unwrap_or_default()
}

fn named(names: &[&str]) -> Vec<Hop> {
    names.iter().map(|name| Hop::Link((*name).to_owned())).collect()
}

#[test]
fn gateways_become_links_and_equal_costs_several() {
    let state = State::default();
    let routes: [(u8, &[FibHop]); 3] = [
        (2, &[hop("192.0.2.2", 3), hop("198.51.100.2", 4)]),
        (3, &[hop("fe80::3", 7)]),
        // Over a relay: the gateway is another node.
        (4, &[hop("192.0.2.3", 3)]),
    ];
    let found = KernelRoutes::find(&plan(), &state, &fib(&routes));
    assert_eq!(links(&found, 2), named(&["two", "two-b"]));
    assert_eq!(links(&found, 3), named(&["three-6"]));
    assert_eq!(links(&found, 4), named(&["three"]));
    assert_eq!(found.ignored, BTreeMap::new());
}

#[test]
fn what_is_not_used_is_reported_with_the_reason() {
    let down = FibHop { is_up: false, ..hop("192.0.2.2", 3) };
    let elsewhere = hop("fe80::3", 8);
    let unknown = hop("192.0.2.99", 3);
    let routes: [(u8, &[FibHop]); 2] =
        [(2, &[down, unknown, hop("198.51.100.2", 4)]), (3, &[elsewhere])];
    let mut fib = fib(&routes);
    fib.answers.insert(IpAddr::V4(node(4).0), Err(NoRoute::Unreachable));
    let found = KernelRoutes::find(&plan(), &State::default(), &fib);
    assert_eq!(found.routes.keys().collect::<Vec<_>>(), [&node(2)]);
    assert_eq!(links(&found, 2), named(&["two-b"]));
    let ignored = [
        (node(2), vec![Ignored::LinkDown(down), Ignored::NoLink(unknown)]),
        (node(3), vec![Ignored::NoLink(elsewhere)]),
        (node(4), vec![Ignored::NoRoute(NoRoute::Unreachable)]),
    ];
    assert_eq!(found.ignored, ignored.into());
    assert_eq!(found.ignored[&node(4)][0].to_string(), "the kernel's route is `unreachable`");
}

#[test]
fn links_that_are_bound_to_an_interface_are_used_over_it_alone() {
    let mut plan = plan();
    for (name, interface) in [("two", "eth3"), ("two-b", "eth4")] {
        let link = plan.links.get_mut(name).unwrap();
        (link.remote, link.interface) = ("192.0.2.2:4900".parse().unwrap(), Some(interface.into()));
    }
    plan.links.get_mut("three-6").unwrap().interface = Some("eth8".into());
    assert_eq!(wanted_interfaces(&plan), ["eth3", "eth4", "eth8"].map(String::from).into());
    let on_link = |interface| FibHop { gateway: None, interface, is_up: true };
    let mut fib = fib(&[(2, &[hop("192.0.2.2", 3)]), (3, &[hop("fe80::3", 7)])]);
    // The kernel sends to the neighbour over interface 3.
    let route = FibRoute { prefix_length: 24, hops: vec![on_link(3)] };
    fib.answers.insert(address("192.0.2.2"), Ok(route));
    fib.interfaces = [("eth3".to_owned(), 3), ("eth4".to_owned(), 4)].into();
    let set = |fib: &mut Fib, hop| {
        let route = FibRoute { prefix_length: 32, hops: vec![hop] };
        fib.answers.insert(IpAddr::V4(node(2).0), Ok(route));
    };
    for (hop, expected) in [
        (hop("192.0.2.2", 3), &["two"][..]),
        (hop("192.0.2.2", 4), &["two-b"]),
        (hop("192.0.2.2", 5), &[]),
        (on_link(3), &["two"]),
        (on_link(4), &["two-b"]),
    ] {
        set(&mut fib, hop);
        let found = KernelRoutes::find(&plan, &State::default(), &fib);
        assert_eq!(links(&found, 2), named(expected), "{hop:?}");
        assert_eq!(found.ignored[&node(3)], [Ignored::NoLink(self::hop("fe80::3", 7))]);
    }
    // Without its interface a link leads nowhere.
    fib.interfaces.remove("eth4");
    let found = KernelRoutes::find(&plan, &State::default(), &fib);
    assert_eq!(found.ignored[&node(2)], [Ignored::NoLink(on_link(4))]);
}

#[test]
fn nodes_on_the_link_are_reached_by_their_links_over_that_interface() {
    let on_link = FibHop { gateway: None, interface: 3, is_up: true };
    let mut fib = fib(&[(2, &[on_link])]);
    let over = |interface| {
        let hop = FibHop { gateway: None, interface, is_up: true };
        Ok(FibRoute { prefix_length: 24, hops: vec![hop] })
    };
    fib.answers.insert(address("192.0.2.2"), over(3));
    fib.answers.insert(address("198.51.100.2"), over(4));
    fib.answers.insert(address("192.0.2.3"), over(3));
    let found = KernelRoutes::find(&plan(), &State::default(), &fib);
    assert_eq!(links(&found, 2), named(&["two"]));
    assert_eq!(found.ignored, BTreeMap::new());
    fib.answers.remove(&address("192.0.2.2"));
    let found = KernelRoutes::find(&plan(), &State::default(), &fib);
    assert_eq!(found.ignored[&node(2)], [Ignored::NoLink(on_link)]);
    assert!(found.routes.is_empty());
}

#[test]
fn links_that_neighbours_opened_are_used_each_for_its_gateway() {
    let mut plan = plan();
    let mut state = State::default();
    let far = [(7, "203.0.113.2", 0), (8, "203.0.114.2", 0), (9, "fe80::2", 5)];
    for (number, at, scope) in far {
        let accepted = Accepted { fingerprint: [2; 32], address: address(at), scope };
        state.accepted.insert(number, accepted);
    }
    let routes: [(u8, &[FibHop]); 2] =
        [(2, &[hop("203.0.113.2", 3)]), (4, &[hop("203.0.114.2", 3), hop("fe80::2", 5)])];
    let found = KernelRoutes::find(&plan, &state, &fib(&routes));
    assert_eq!(links(&found, 2), [Hop::Accepted(7)]);
    assert_eq!(links(&found, 4), [Hop::Accepted(8), Hop::Accepted(9)]);
    // Both ends open one, and the neighbour's stays: it alone is used, and not its other links.
    plan.fingerprint = [9; 32];
    let accepted = Accepted { fingerprint: [2; 32], address: address("192.0.2.2"), scope: 0 };
    state.accepted.insert(10, accepted);
    let found = KernelRoutes::find(&plan, &state, &fib(&[(2, &[hop("192.0.2.2", 3)])]));
    assert_eq!(links(&found, 2), [Hop::Accepted(10)]);
}

#[test]
fn host_routes_to_other_nodes_are_routes_of_a_relay() {
    let mut fib = fib(&[]);
    let route = |gateway| FibRoute { prefix_length: 32, hops: vec![hop(gateway, 3)] };
    fib.hosts.insert(node(9).0, route("192.0.2.3"));
    fib.hosts.insert(node(8).0, route("192.0.2.99"));
    fib.hosts.insert(node(1).0, route("192.0.2.3"));
    let found = KernelRoutes::find(&plan(), &State::default(), &fib);
    assert_eq!(found.routes.keys().collect::<Vec<_>>(), [&node(9)]);
    assert_eq!(links(&found, 9), named(&["three"]));
    assert!(found.ignored.is_empty(), "most host routes are not about nodes");
}

#[test]
fn a_route_has_a_limited_number_of_links() {
    let mut plan = plan();
    let mut hops = Vec::new();
    for number in 0..=MAX_HOPS as u8 {
        plan.links.insert(format!("many{number}"), link(&format!("192.0.3.{number}:4900"), 2));
        hops.push(hop(&format!("192.0.3.{number}"), 3));
    }
    let found = KernelRoutes::find(&plan, &State::default(), &fib(&[(2, &hops)]));
    assert_eq!(links(&found, 2).len(), MAX_HOPS);
    assert_eq!(found.ignored[&node(2)], [Ignored::TooMany(hops[MAX_HOPS])]);
}

#[test]
fn wanted_addresses_are_those_of_peers_and_links() {
    let text = ["10.255.0.2", "10.255.0.3", "10.255.0.4", "192.0.2.2", "192.0.2.3", "198.51.100.2"];
    let addresses: BTreeSet<IpAddr> = text.into_iter().map(address).collect();
    assert_eq!(wanted(&plan(), &State::default()), addresses);
}

fn some_hop() -> impl Strategy<Value = FibHop> {
    (proptest::option::of(2u8..6), 1u32..4, any::<bool>()).prop_map(
        |(gateway, interface, is_up)| {
            let gateway = gateway.map(|host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)));
            FibHop { gateway, interface, is_up }
        },
    )
}

type Answers = BTreeMap<u8, Option<Vec<FibHop>>>;

fn answers() -> impl Strategy<Value = Answers> {
    let hops = proptest::collection::vec(some_hop(), 0..4);
    proptest::collection::btree_map(0u8..8, proptest::option::of(hops), 0..6)
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(1_000)))]

    /// Whatever the kernel answers, routes lead over links that exist to gateways that are their ends, and
    /// the node comes to rest with them.
    #[test]
    fn any_answers_give_routes_over_links_of_their_gateways(
        links in proptest::collection::btree_map(0u8..4, (2u8..6, 2u8..6), 0..4),
        opened in proptest::collection::btree_map(0u64..4, (2u8..6, 2u8..6), 0..3),
        steps in proptest::collection::vec((answers(), answers()), 1..4),
    ) {
        let mut plan = Plan::new(node(1), [3; 32]);
        for (name, (print, host)) in links {
            let remote = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)), 4900);
            plan.links.insert(format!("link{name}"), Link { remote, local: None, interface: None, fingerprint: [print; 32] });
            plan.neighbours.insert([print; 32], true.into());
        }
        for number in 2..6 {
            plan.peers.insert(node(number), Peer { fingerprint: [number; 32], prefixes: [].into() });
        }
        let mut state = State::default();
        for (peers, hosts) in steps {
            state.accepted = opened
                .iter()
                .filter(|(_, (print, _))| plan.neighbours.contains_key(&[*print; 32]))
                .map(|(&number, &(print, host))| {
                    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, host));
                    (number, Accepted { fingerprint: [print; 32], address, scope: 0 })
                })
                .collect();
            let mut fib = Fib::default();
            for (number, answer) in peers {
                let answer = answer.map(|hops| FibRoute { prefix_length: 32, hops });
                let answer = answer.ok_or(NoRoute::Missing);
                fib.answers.insert(IpAddr::V4(node(number).0), answer.clone());
                fib.answers.insert(IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)), answer);
            }
            for (number, hops) in hosts {
                let route = FibRoute { prefix_length: 32, hops: hops.unwrap_or_default() };
                fib.hosts.insert(node(number).0, route);
            }
            let found = KernelRoutes::find(&plan, &state, &fib);
            let mut followed = plan.clone();
            for (&to, hops) in &found.routes {
                prop_assert!(to != plan.id && !hops.is_empty() && hops.len() <= MAX_HOPS);
                let route = match plan.peers.contains_key(&to) {
                    true => fib.answers[&IpAddr::V4(to.0)].as_ref().unwrap(),
                    false => &fib.hosts[&to.0],
                };
                for over in hops.keys() {
                    let (address, print) = match over {
                        Hop::Link(name) => (plan.links[name].remote.ip(), plan.links[name].fingerprint),
                        Hop::Accepted(number) => {
                            (state.accepted[number].address, state.accepted[number].fingerprint)
                        }
                        Hop::Neighbour(_) => return Err(TestCaseError::fail("a link of any address")),
                    };
                    let leads = |hop: &FibHop| hop.is_up && match hop.gateway {
                        Some(gateway) => gateway == address,
                        None => plan.peers.get(&to).is_some_and(|peer| peer.fingerprint == print),
                    };
                    prop_assert!(route.hops.iter().any(leads), "{over:?} to {to} by {route:?}");
                }
                followed.routes.insert(to, hops.clone());
            }
            for action in reconcile(&followed, &state) {
                state.apply(&action);
            }
            prop_assert_eq!(reconcile(&followed, &state), vec![]);
            prop_assert_eq!(&state.routes, &found.routes);
        }
    }
}
