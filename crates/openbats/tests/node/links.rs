//! Links that fail, are established again, and have local addresses of their own.

use std::time::Duration;

use openbats::node::{
    Event, LinkError, LinkOptions, LinkPolicy, LinkState, Node, NodeId, RouteSet,
};
use openbats::{CloseReason, KnownHosts, Mode, StartError, Trust, Wait};

use crate::emulated::{EmulatedLink, lossy};
use crate::world::{LIMIT, World, eventually, id, transfer, wait_event};

#[test]
fn link_is_established_again_after_the_neighbour_was_restarted() {
    let world = World::new(2);
    let start = |address| {
        let builder = Node::builder(id(1), world.identity(1)).listen(address);
        let builder = builder.neighbour(world.print(0), LinkPolicy::end());
        let node = builder.peer(id(0), world.print(0)).start().unwrap();
        node.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
        node
    };
    let far = start("127.0.0.1:0".parse().unwrap());
    let address = far.local_addrs()[0];
    let near = world.node(0).start().unwrap();
    let link = world.link(&near, &far, None);
    near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);

    far.terminate(5, "restart").wait_for(LIMIT).unwrap();
    let events = near.events();
    let end = wait_event(&events, |event| match event {
        Event::LinkDown { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(end, CloseReason::Peer { .. }), "{end:?}");
    let far = start(address);
    wait_event(&events, |event| matches!(event, Event::LinkUp { .. }).then_some(()));
    assert_eq!(link.status().unwrap().established, 2, "the same link");
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);
}

/// The old process ends without a word and its port stays open, as when a host loses power and another
/// one takes over: nothing but the new process shows that the old one is gone.
#[test]
fn links_and_sessions_of_a_restarted_process_end_when_its_new_link_is_up() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let old = world.node(0).start().unwrap();
    let hop =
        EmulatedLink::start(far.local_addrs()[0], &lossy(50, Duration::from_millis(2), 0.0), 1);
    let hop = hop.unwrap();
    let link = world.link(&old, &far, Some(&hop));
    old.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    let (_from, to) = world.session(&old, &far, Mode::Brtp);
    hop.cut();

    let events = far.events();
    let new = world.node(0).start().unwrap();
    let link = world.link(&new, &far, None);
    let ends = |event: &Event| match event {
        Event::LinkDown { reason, .. } | Event::SessionClosed { reason, .. } => {
            Some(reason.to_string())
        }
        _ => None,
    };
    for _ in 0..2 {
        assert_eq!(wait_event(&events, ends), "connection lost: the peer was restarted");
    }
    assert!(to.recv().wait_for(LIMIT).unwrap().is_err());
    assert_eq!(far.links().list().len(), 1);
    new.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    let (from, to) = world.session(&new, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);
}

#[test]
fn silent_neighbour_is_noticed_and_used_again_when_it_answers() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    let config = lossy(50, Duration::from_millis(2), 0.0);
    let hop = EmulatedLink::start(far.local_addrs()[0], &config, 1).unwrap();
    let link = world.link(&near, &far, Some(&hop));
    near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let events = near.events();
    hop.cut();
    wait_event(&events, |event| matches!(event, Event::LinkSilent { .. }).then_some(()));
    assert_eq!(link.status().unwrap().state, LinkState::Silent);
    hop.set(&config);
    eventually("the link is up", || link.status().unwrap().state == LinkState::Up);
    transfer(from, to, 5, 50_000);
}

#[test]
fn links_leave_from_the_address_that_they_are_given() {
    let world = World::new(2);
    let addresses = ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().unwrap());
    let start = |index: usize| {
        let builder = Node::builder(id(index), world.identity(index));
        let builder = addresses.iter().fold(builder, |builder, at| builder.listen(*at));
        let other = world.print(1 - index);
        builder.neighbour(other, LinkPolicy::end()).peer(id(1 - index), other).start().unwrap()
    };
    let (near, far) = (start(0), start(1));
    let bound = near.local_addrs();
    assert_eq!(bound.iter().map(|at| at.ip()).collect::<Vec<_>>(), addresses.map(|at| at.ip()));
    let mut routes = RouteSet::new();
    for (from, to) in [(0, 0), (1, 1), (1, 0)] {
        let options = LinkOptions::new(far.local_addrs()[to], world.trust(1));
        let link = near.links().open(options.local_ip(bound[from].ip())).unwrap();
        link.established().wait_for(LIMIT).unwrap().unwrap();
        routes.add(id(1), link.id(), 0);
        let seen = |status: &openbats::node::LinkStatus| {
            status.remote == bound[from] && status.local_ip == Some(addresses[to].ip())
        };
        eventually("the other end sees it", || far.links().list().iter().any(seen));
    }
    near.routes().replace(routes).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    assert_eq!(far.routes().links_to(id(0)).len(), 3);
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 40, 100_000);
    for status in near.links().list() {
        let sent = status.stats.unwrap().packets.bytes_sent;
        assert!(sent > 20_000, "each of the links is used, {} for {sent} bytes", status.id);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_link_without_its_interface_waits_and_one_with_it_is_established() {
    let world = World::new(2);
    let (near, far) = (world.node(0), world.node(1).neighbour(world.print(0), LinkPolicy::end()));
    let (near, far) = (near.start().unwrap(), far.start().unwrap());
    let options = LinkOptions::new(far.local_addrs()[0], world.trust(1));
    let bound = near.links().open(options.clone().interface("lo")).unwrap();
    let waiting = near.links().open(options.clone().interface("bats-none")).unwrap();
    bound.established().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(bound.status().unwrap().interface.as_deref(), Some("lo"));
    let error = waiting.established().wait_for(LIMIT).unwrap().unwrap_err().to_string();
    assert!(error.contains("there is no interface bats-none"), "{error}");
    let status = waiting.status().unwrap();
    assert_eq!(status.state, LinkState::Waiting);
    assert!(matches!(status.last_end, Some(CloseReason::Interface(_))), "{status:?}");
    let once = near.links().open(options.interface("bats-none").redial(false)).unwrap_err();
    assert!(once.to_string().contains("there is no interface bats-none"), "{once}");
}

#[test]
fn unusable_options_are_refused_with_a_reason() {
    let world = World::new(1);
    let node = world.node(0).start().unwrap();
    let remote = "127.0.0.1:9".parse().unwrap();
    let open = |options: LinkOptions| node.links().open(options).unwrap_err().to_string();
    let elsewhere = LinkOptions::new(remote, Trust::dangerous_any());
    let error = open(elsewhere.clone().local_ip("127.0.0.9".parse().unwrap()));
    assert!(error.contains("the node does not listen at 127.0.0.9"), "{error}");
    #[cfg(target_os = "linux")]
    {
        let error = open(elsewhere.clone().interface("a/b"));
        assert!(error.contains("no name of an interface"), "{error}");
        let six = LinkOptions::new("[::1]:9".parse().unwrap(), Trust::dangerous_any());
        let error = open(six.interface("lo"));
        assert!(error.contains("listens at [::]"), "{error}");
        let anywhere = Node::builder(NodeId(6), world.identity(0)).start().unwrap();
        let options = elsewhere.interface("lo").local_ip("::1".parse().unwrap());
        let error = anywhere.links().open(options).unwrap_err().to_string();
        assert!(error.contains("local address of IPv6"), "{error}");
    }
    let known = KnownHosts::new(std::env::temp_dir().join("openbats-no-such-file"));
    let error = open(LinkOptions::new(remote, Trust::known_hosts(known)));
    assert!(error.contains("trust a fingerprint"), "{error}");

    let start = |addresses: &[&str]| {
        let builder = Node::builder(NodeId(5), world.identity(0));
        let listening = addresses.iter().fold(builder, |b, at| b.listen(at.parse().unwrap()));
        listening.start().map(drop)
    };
    for addresses in [["127.0.0.1:0", "127.0.0.1:0"], ["0.0.0.0:0", "127.0.0.1:0"]] {
        let error = start(&addresses).unwrap_err();
        assert!(matches!(&error, StartError::Configuration(_)), "{error}");
        assert!(error.to_string().contains("the same IP address"), "{error}");
    }
    let builder = Node::builder(NodeId(5), world.identity(0));
    let error = builder.modes([Mode::Quic]).start().map(drop).unwrap_err();
    assert!(error.to_string().contains("mode 12 does not go over relays"), "{error}");
}

#[test]
fn link_without_redialling_is_not_dialled_again() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    let options = LinkOptions::new(far.local_addrs()[0], world.trust(1)).redial(false);
    let link = near.links().open(options).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    far.terminate(0, "").wait_for(LIMIT).unwrap();
    eventually("it is closed", || link.status().unwrap().state == LinkState::Closed);
    near.shut_down(0, "");
    let error = link.established().wait_for(LIMIT).unwrap().unwrap_err();
    assert_eq!(error, LinkError::NodeClosed);
}
