//! Routes that are missing, replaced under traffic, or have backup links.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openbats::node::{Event, LinkPolicy, LinkState, NodeId, RouteSet};
use openbats::{CloseReason, ConnectError, Mode, Wait};

use crate::emulated::{EmulatedLink, lossy};
use crate::world::{LIMIT, World, eventually, id, transfer, wait_event};

/// Two relays between two ends; the routes of the ends flip from one relay to the other.
#[test]
fn routes_are_replaced_under_traffic_and_all_content_arrives() {
    let world = World::new(4);
    let relay = |index| {
        let builder = world.node(index).relaying(true);
        builder.neighbour(world.print(0), LinkPolicy::transit()).start().unwrap()
    };
    let (near, relays) = (world.node(0).start().unwrap(), [relay(1), relay(2)]);
    let far = world
        .node(3)
        .neighbour(world.print(1), LinkPolicy::end())
        .neighbour(world.print(2), LinkPolicy::end())
        .start()
        .unwrap();
    let mut hops = Vec::new();
    let mut links = Vec::new();
    for (index, relay) in relays.iter().enumerate() {
        let config = lossy(50, Duration::from_millis(3), 0.02);
        let hop = EmulatedLink::start(relay.local_addrs()[0], &config, index as u64).unwrap();
        links.push(world.link(&near, relay, Some(&hop)).id());
        hops.push(hop);
        let onwards = world.link(relay, &far, None).id();
        let routes = RouteSet::new().to(id(3), onwards).to(id(0), world.print(0));
        relay.routes().replace(routes).unwrap();
    }
    let set = |relay: usize| {
        near.routes().replace(RouteSet::new().to(id(3), links[relay])).unwrap();
        far.routes().replace(RouteSet::new().to(id(0), world.print(relay + 1))).unwrap();
        assert_eq!(near.routes().links_to(id(3)), [(links[relay], 0)]);
    };
    set(0);
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let ends = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let flips = scope.spawn(|| {
            let mut flips = 0;
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                flips += 1;
                set(flips % 2);
            }
            flips
        });
        transfer(from, to, 160, 50_000);
        ends.store(true, Ordering::Relaxed);
        assert!(flips.join().unwrap() >= 4);
    });
    for relay in &relays {
        assert!(relay.relay_stats().forwarded > 100, "each relay was used");
    }
    for node in [&near, &far] {
        assert_eq!(node.relay_stats().dropped.unroutable, 0, "there always was a route");
    }
}

#[test]
fn session_without_a_route_fails_at_once_and_a_relay_reports_the_missing_one() {
    let world = World::new(3);
    let relay = world.node(1).relaying(true).neighbour(world.print(0), LinkPolicy::transit());
    let (near, relay) = (world.node(0).start().unwrap(), relay.start().unwrap());
    let error = world.connect(&near, id(2), Mode::Brtp, LIMIT).unwrap_err();
    assert_eq!(error, ConnectError::NoRoute { node: id(2) });
    assert_eq!(error.to_string(), "no route leads to node 3: add one before opening a session");
    let error = world.connect(&near, id(0), Mode::Brtp, LIMIT).unwrap_err();
    assert!(matches!(error, ConnectError::Configuration(_)), "{error}");

    let link = world.link(&near, &relay, None);
    near.routes().replace(RouteSet::new().to(id(2), link.id())).unwrap();
    relay.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let error = world.connect(&near, id(2), Mode::Brtp, LIMIT).unwrap_err();
    let reason = CloseReason::Lost("node 2 has no route to node 3".to_owned());
    assert_eq!(error, ConnectError::Closed(reason), "before the handshake times out");
    let events = relay.events();
    let missing = wait_event(&events, |event| match event {
        Event::NoRoute { destination, .. } => Some(*destination),
        _ => None,
    });
    assert_eq!(missing, id(2));
    // A route appears that leads nowhere: the link is not there.
    let routes = RouteSet::new().to(id(2), world.print(2));
    relay.routes().replace(routes.clone()).unwrap();
    assert_eq!(relay.routes().get(), routes);
    assert_eq!(relay.routes().links_to(id(2)), []);
}

#[test]
fn backup_link_takes_over_while_the_first_one_is_silent() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    let config = lossy(50, Duration::from_millis(3), 0.0);
    let address = far.local_addrs()[0];
    let hops = [1, 2].map(|seed| EmulatedLink::start(address, &config, seed).unwrap());
    let links = [0, 1].map(|hop| world.link(&near, &far, Some(&hops[hop])));
    let routes = RouteSet::new().to(id(1), links[0].id()).backup(id(1), links[1].id(), 1);
    near.routes().replace(routes).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let bytes = |index: usize| links[index].status().unwrap().stats.unwrap().packets.bytes_sent;

    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let before = [bytes(0), bytes(1)];
    let first = from.clone();
    first.send(vec![7; 2_000_000]).wait_for(LIMIT).unwrap().unwrap();
    first.flush().wait_for(LIMIT).unwrap().unwrap();
    assert!(bytes(0) - before[0] >= 2_000_000);
    assert!(bytes(1) - before[1] < 200_000, "the backup carries no data");

    hops[0].cut();
    let before = bytes(1);
    first.send(vec![8; 2_000_000]).wait_for(LIMIT).unwrap().unwrap();
    first.flush().wait_for(LIMIT).unwrap().unwrap();
    assert!(bytes(1) - before >= 1_500_000, "the backup takes over");
    eventually("the first link is out of use", || {
        links[0].status().unwrap().state != LinkState::Up
    });

    // The first one works again.
    hops[0].set(&config);
    eventually("the first link is up", || links[0].status().unwrap().state == LinkState::Up);
    for expected in [7, 8] {
        let got = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert_eq!((got.len(), got[0]), (2_000_000, expected));
    }
    transfer(from, to, 4, 100_000);
}

#[test]
fn routes_over_unknown_links_are_refused_and_leave_the_others_unchanged() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    let link = world.link(&near, &far, None);
    let good = RouteSet::new().to(NodeId(77), link.id());
    near.routes().replace(good.clone()).unwrap();
    link.close();
    let error = near.routes().replace(RouteSet::new().to(NodeId(78), link.id())).unwrap_err();
    assert!(error.to_string().contains("which this node does not have"), "{error}");
    assert_eq!(near.routes().get(), good);
    assert_eq!(near.routes().links_to(NodeId(77)), []);
}
