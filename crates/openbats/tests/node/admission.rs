//! Who may open links and sessions, and what neighbours may send.

use std::num::NonZeroU64;
use std::time::Duration;

use openbats::node::{Event, LinkError, LinkOptions, LinkPolicy, Node, NodeId, RouteSet, codes};
use openbats::{
    ChannelError, ClientOptions, CloseReason, ConnectError, Connection, Endpoint, Identity, Mode,
    PresharedKey, RecvError, ServerOptions, TransportConfig, Trust, Wait,
};

use crate::world::{LIMIT, World, eventually, id, transfer, wait_event};

const SHORT: Duration = Duration::from_millis(500);

/// A relay between node 0 and node 2. Node 0 has this policy at the relay.
fn line(world: &World, relays: bool, policy: LinkPolicy) -> [Node; 3] {
    let near = world.node(0).start().unwrap();
    let relay = world.node(1).relaying(relays).neighbour(world.print(0), policy).start().unwrap();
    let far = world.node(2).neighbour(world.print(1), LinkPolicy::end()).start().unwrap();
    let link = world.link(&near, &relay, None).id();
    let onwards = world.link(&relay, &far, None).id();
    let routes = RouteSet::new().to(id(1), link).to(id(2), link);
    near.routes().replace(routes).unwrap();
    let routes = RouteSet::new().to(id(2), onwards).to(id(0), world.print(0));
    relay.routes().replace(routes).unwrap();
    let routes = RouteSet::new().to(id(0), world.print(1)).to(id(1), world.print(1));
    far.routes().replace(routes).unwrap();
    [near, relay, far]
}

fn is_cut_off(world: &World, near: &Node, relay: &Node) {
    let before = relay.relay_stats().dropped.refused;
    let error = world.connect(near, id(2), Mode::Brtp, SHORT).unwrap_err();
    assert_eq!(error, ConnectError::Closed(CloseReason::HandshakeTimeout));
    assert!(relay.relay_stats().dropped.refused > before, "the relay refuses the packets");
}

#[test]
fn neighbour_without_transit_reaches_the_relay_and_no_other_node() {
    let world = World::new(3);
    let [near, relay, far] = line(&world, true, LinkPolicy::end());
    let (from, to) = world.session(&near, &relay, Mode::Brtp);
    transfer(from, to, 3, 10_000);
    is_cut_off(&world, &near, &relay);
    assert_eq!(relay.relay_stats().forwarded, 0);
    // A new policy applies to the established link at once.
    relay.links().admit(world.print(0), LinkPolicy::transit());
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);
    relay.links().admit(world.print(0), LinkPolicy::transit().destinations([id(1)]));
    is_cut_off(&world, &near, &relay);
    relay.links().admit(world.print(0), LinkPolicy::transit().destinations([id(2)]));
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);
}

/// A bound from below on the time: no host is so fast that more than the rate passes.
#[test]
#[expect(clippy::disallowed_methods, reason = "the rate is one of real time")]
fn relay_forwards_no_more_than_the_rate_of_a_neighbour() {
    let (messages, bytes, bits_per_second) = (20, 10_000, 800_000);
    let world = World::new(3);
    let rate = NonZeroU64::new(bits_per_second).unwrap();
    let [near, relay, far] = line(&world, true, LinkPolicy::transit().rate(rate));
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let start = std::time::Instant::now();
    transfer(from, to, messages, bytes);
    let bits = (messages * bytes * 8) as f64;
    let least = bits / bits_per_second as f64 - 0.2;
    assert!(start.elapsed().as_secs_f64() >= least, "{:?}, {least} s", start.elapsed());
    assert_eq!(relay.relay_stats().batches.dropped, 0, "what is beyond the rate waits");
    // To the relay itself there is no limit, and a new policy applies at once.
    let (from, to) = world.session(&near, &relay, Mode::Brtp);
    transfer(from, to, 3, 10_000);
    relay.links().admit(world.print(0), LinkPolicy::transit());
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);
}

#[test]
fn node_that_does_not_relay_forwards_nothing_whatever_the_policy_is() {
    let world = World::new(3);
    let [near, relay, _far] = line(&world, false, LinkPolicy::transit());
    is_cut_off(&world, &near, &relay);
    let (from, to) = world.session(&near, &relay, Mode::Brtp);
    transfer(from, to, 3, 10_000);
}

#[test]
fn neighbour_cannot_use_the_id_of_another_node() {
    let world = World::new(3);
    let [near, relay, far] = line(&world, true, LinkPolicy::transit().sources([id(0)]));
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);
    // The same certificate, another ID: the relay drops its packets.
    let spoofing = Node::builder(NodeId(77), world.identity(0)).start().unwrap();
    let link = world.link(&spoofing, &relay, None);
    spoofing.routes().replace(RouteSet::new().to(id(2), link.id())).unwrap();
    is_cut_off(&world, &spoofing, &relay);
}

#[test]
fn neighbour_that_is_not_admitted_is_refused_with_a_reason() {
    let world = World::new(3);
    let node = world.node(0).neighbour(world.print(1), LinkPolicy::end()).start().unwrap();
    let (events, refused) = (node.events(), world.node(2).start().unwrap());
    let options = LinkOptions::new(node.local_addrs()[0], world.trust(0)).redial(false);
    let link = refused.links().open(options).unwrap();
    let (fingerprint, reason) = wait_event(&events, |event| match event {
        Event::LinkRefused { fingerprint, reason, .. } => Some((*fingerprint, reason.clone())),
        Event::LinkUp { .. } => panic!("it is not admitted"),
        _ => None,
    });
    assert_eq!(fingerprint, Some(world.print(2)));
    let expected = format!("node 1 does not admit the certificate {}", world.print(2));
    assert_eq!(reason, expected);
    let end = wait_event(&refused.events(), |event| match event {
        Event::LinkDown { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(end, CloseReason::Peer { code: codes::NOT_ADMITTED, reason: expected });
    eventually("the link is over", || link.status().is_some_and(|s| s.last_end.is_some()));
    assert!(node.links().list().is_empty());
    // The neighbour is admitted, and later no longer.
    node.links().admit(world.print(2), LinkPolicy::end());
    let link = world.link(&refused, &node, None);
    node.links().refuse(world.print(2));
    let end = wait_event(&refused.events(), |event| match event {
        Event::LinkDown { link: ended, reason, .. } if *ended == link.id() => Some(reason.clone()),
        _ => None,
    });
    assert!(matches!(end, CloseReason::Peer { code: codes::NOT_ADMITTED, .. }), "{end:?}");
}

#[test]
fn wrong_certificate_of_a_neighbour_refuses_the_link() {
    let world = World::new(2);
    let node = world.node(0).neighbour(world.print(1), LinkPolicy::end()).start().unwrap();
    let other = world.node(1).start().unwrap();
    let wrong = Trust::fingerprint(Identity::generate(&["another"]).unwrap().fingerprint());
    let link = other.links().open(LinkOptions::new(node.local_addrs()[0], wrong)).unwrap();
    let error = link.established().wait_for(LIMIT).unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Failed(CloseReason::Handshake(_))), "{error}");
    assert_eq!(link.status().unwrap().established, 0);
    link.close();
    assert!(link.status().is_none());
    let error = link.established().wait_for(LIMIT).unwrap().unwrap_err();
    assert_eq!(error, LinkError::Closed);
}

#[test]
fn node_with_the_certificate_of_another_gets_no_session() {
    let world = World::new(3);
    let far = world
        .node(1)
        .neighbour(world.print(0), LinkPolicy::end())
        .neighbour(world.print(2), LinkPolicy::end())
        .start()
        .unwrap();
    // Claims to be node 1 and has the certificate of node 3.
    let spoofing = Node::builder(id(0), world.identity(2)).start().unwrap();
    let link = world.link(&spoofing, &far, None);
    spoofing.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(2))).unwrap();
    let opened = world.connect(&spoofing, id(1), Mode::Brtp, LIMIT);
    let (node, reason) = wait_event(&far.events(), |event| match event {
        Event::SessionRefused { node, reason, .. } => Some((*node, reason.clone())),
        Event::SessionOpened { .. } => panic!("it is refused"),
        _ => None,
    });
    assert_eq!((node, &reason[..]), (id(0), "this is not the certificate of node 1"));
    let end = match opened {
        Err(ConnectError::Closed(end)) => end,
        Err(other) => panic!("{other}"),
        Ok(session) => end_of(session.as_ref()),
    };
    assert_eq!(end, CloseReason::Peer { code: codes::NOT_ADMITTED, reason });
    spoofing.terminate(0, "").wait_for(LIMIT).unwrap();
    eventually("its link has ended", || far.links().list().is_empty());
    // A node that is not a peer of this one.
    let unlisted = Node::builder(NodeId(99), world.identity(2)).start().unwrap();
    let link = world.link(&unlisted, &far, None);
    unlisted.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(NodeId(99), world.print(2))).unwrap();
    let _ = world.connect(&unlisted, id(1), Mode::Brtp, LIMIT);
    let reason = wait_event(&far.events(), |event| match event {
        Event::SessionRefused { node: NodeId(99), reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason, "node 2 has no sessions with node 99");
}

#[test]
fn connecting_node_refuses_a_node_that_answers_for_another() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    // Expects another certificate of node 2, although the session's own trust accepts the one that
    // comes.
    let another = Identity::generate(&["another"]).unwrap().fingerprint();
    let near = Node::builder(id(0), world.identity(0)).peer(id(1), another).start().unwrap();
    let link = world.link(&near, &far, None);
    near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let error = world.connect(&near, id(1), Mode::Brtp, LIMIT).unwrap_err();
    let expected = CloseReason::Handshake("this is not the certificate of node 2".to_owned());
    assert_eq!(error, ConnectError::Closed(expected));
}

#[test]
fn links_and_sessions_need_the_preshared_key() {
    let world = World::new(3);
    let key = |byte| PresharedKey::new([byte; PresharedKey::LEN]);
    let far = world.node(1).preshared_key(key(1)).any_neighbour(LinkPolicy::end());
    let far = far.start().unwrap();
    let near = world.node(0).preshared_key(key(1)).start().unwrap();
    let link = world.link(&near, &far, None);
    near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    transfer(from, to, 3, 10_000);

    let other = world.node(2).preshared_key(key(2)).start().unwrap();
    let transport = TransportConfig { handshake_timeout: SHORT, ..TransportConfig::default() };
    let options = LinkOptions::new(far.local_addrs()[0], world.trust(1)).transport(transport);
    let link = other.links().open(options).unwrap();
    let error = link.established().wait_for(LIMIT).unwrap().unwrap_err();
    assert_eq!(error, LinkError::Failed(CloseReason::HandshakeTimeout));
}

/// The key of a network changes node by node, and each node can reach the others all the time.
#[test]
fn preshared_keys_change_without_a_restart() {
    let world = World::new(2);
    let key = |byte| PresharedKey::new([byte; PresharedKey::LEN]);
    let far = world.node(1).preshared_key(key(1)).any_neighbour(LinkPolicy::end());
    let far = far.start().unwrap();
    let near = world.node(0).preshared_key(key(1)).start().unwrap();
    near.routes().replace(RouteSet::new().to(id(1), world.print(1))).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    for (far_keys, near_keys, connects) in
        [(&[1, 2][..], 1, true), (&[1, 2], 2, true), (&[2], 2, true), (&[2], 1, false)]
    {
        let keys: Vec<_> = far_keys.iter().map(|&byte| key(byte)).collect();
        far.set_preshared_keys(&keys).unwrap();
        near.set_preshared_keys(&[key(near_keys)]).unwrap();
        let transport = TransportConfig { handshake_timeout: SHORT, ..TransportConfig::default() };
        let options = LinkOptions::new(far.local_addrs()[0], world.trust(1)).transport(transport);
        let link = near.links().open(options).unwrap();
        let established = link.established().wait_for(LIMIT).unwrap();
        assert_eq!(established.is_ok(), connects, "{far_keys:?}, {near_keys}: {established:?}");
        if connects {
            let (from, to) = world.session(&near, &far, Mode::Brtp);
            transfer(from, to, 3, 10_000);
        }
        link.close();
    }
    assert!(far.set_preshared_keys(&[]).is_err());
    let without = world.node(0).start().unwrap();
    assert!(without.set_preshared_keys(&[key(1)]).is_err());
}

/// A program that connects to a node as to a server: the node treats it as a neighbour.
fn connect_directly(world: &World, node: &Node) -> Result<Connection, ConnectError> {
    connect_with(world, node, TransportConfig::default())
}

fn connect_with(
    world: &World,
    node: &Node,
    transport: TransportConfig,
) -> Result<Connection, ConnectError> {
    let endpoint = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(world.trust(0)).identity(world.identity(1));
    let options = options.transport(transport);
    endpoint.connect(node.local_addrs()[0], "node", options).wait_for(LIMIT).unwrap()
}

fn end_of(connection: &Connection) -> CloseReason {
    let RecvError::Closed(reason) = connection.recv().wait_for(LIMIT).unwrap().unwrap_err() else {
        panic!("it is closed")
    };
    reason
}

#[test]
fn neighbour_that_sends_messages_on_a_link_is_closed() {
    let world = World::new(2);
    let node = world.node(0).neighbour(world.print(1), LinkPolicy::end()).start().unwrap();
    let connection = connect_directly(&world, &node).unwrap();
    eventually("a link", || node.links().list().len() == 1);
    connection.send("a message").wait_for(LIMIT).unwrap().unwrap();
    let reason = "a link has no messages of its own".to_owned();
    assert_eq!(end_of(&connection), CloseReason::Peer { code: codes::MESSAGE, reason });
    eventually("the link has ended", || node.links().list().is_empty());
    assert!(node.accept().wait_for(Duration::ZERO).is_err(), "it is no session");
}

/// Channels that no one reads would use memory.
#[test]
fn neighbour_that_opens_a_channel_on_a_link_is_closed() {
    let world = World::new(2);
    let transport = || TransportConfig { channels: Some(10), ..TransportConfig::default() };
    for takes_messages in [false, true] {
        let node = world.node(0).neighbour(world.print(1), LinkPolicy::end());
        let node = node.link_messages(takes_messages).transport(transport()).start().unwrap();
        let connection = connect_with(&world, &node, transport()).unwrap();
        eventually("a link", || node.links().list().len() == 1);
        let channel = connection.open_channel().wait_for(LIMIT).unwrap().unwrap();
        channel.write_all(b"unread").wait_for(LIMIT).unwrap().unwrap();
        let reason = "a link has no channels".to_owned();
        assert_eq!(end_of(&connection), CloseReason::Peer { code: codes::MESSAGE, reason });
        eventually("the link has ended", || node.links().list().is_empty());
    }
}

#[test]
fn links_that_a_node_opens_have_no_channels() {
    let world = World::new(2);
    let transport = || TransportConfig { channels: Some(10), ..TransportConfig::default() };
    let server = ServerOptions::new(world.identity(1)).transport(transport());
    let server = server.client_trust(world.trust(0));
    let server =
        Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).server(server).start().unwrap();
    let node = world.node(0).start().unwrap();
    let options = LinkOptions::new(server.local_addr(), world.trust(1)).transport(transport());
    let link = node.links().open(options).unwrap();
    let accepted = server.accept().wait_for(LIMIT).unwrap().unwrap();
    let opened = accepted.open_channel().wait_for(LIMIT).unwrap();
    assert_eq!(opened.unwrap_err(), ChannelError::Unsupported);
    link.close();
}

#[test]
fn neighbour_opens_a_limited_number_of_links() {
    let world = World::new(2);
    let node = world.node(0).neighbour(world.print(1), LinkPolicy::end()).start().unwrap();
    let open: Vec<_> = (0..16).map(|_| connect_directly(&world, &node).unwrap()).collect();
    eventually("all links", || node.links().list().len() == 16);
    let end = match connect_directly(&world, &node) {
        Ok(connection) => end_of(&connection),
        Err(ConnectError::Closed(reason)) => reason,
        Err(other) => panic!("{other}"),
    };
    let reason = "a neighbour may open 16 links".to_owned();
    assert_eq!(end, CloseReason::Peer { code: codes::NOT_ADMITTED, reason });
    assert_eq!(node.links().list().len(), 16);
    // A link that ends makes room for another.
    open[0].close(0, "");
    eventually("room", || node.links().list().len() == 15);
    let next = connect_directly(&world, &node).unwrap();
    eventually("all links", || node.links().list().len() == 16);
    assert_eq!(next.close_reason(), None);
}

#[test]
fn messages_on_links_reach_nodes_that_accept_them_up_to_a_rate_and_a_length() {
    let world = World::new(2);
    let node = world.node(0).neighbour(world.print(1), LinkPolicy::end()).link_messages(true);
    let node = node.start().unwrap();
    let events = node.events();
    let near = world.node(1).link_messages(true).start().unwrap();
    let options = LinkOptions::new(node.local_addrs()[0], world.trust(0));
    let link = near.links().open(options).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    let next = || loop {
        let event = events.next().wait_for(Duration::from_millis(500)).ok()??;
        if let Event::LinkMessage { link, message, .. } = event {
            return Some((link, message));
        }
    };
    near.links().send(link.id(), "question").unwrap();
    let (back, message) = next().expect("the message");
    assert_eq!(&message[..], b"question");
    // The answer goes over the same link.
    node.links().send(back, "answer").unwrap();
    let answers = near.events();
    let answer = loop {
        let event = answers.next().wait_for(LIMIT).unwrap().unwrap();
        if let Event::LinkMessage { message, .. } = event {
            break message;
        }
    };
    assert_eq!(&answer[..], b"answer");
    for _ in 0..1_000 {
        near.links().send(link.id(), vec![7; 100]).unwrap();
    }
    let arrived = std::iter::from_fn(next).count();
    assert!((1..500).contains(&arrived), "{arrived} of 1000 messages in a burst");
    assert!(near.links().send(link.id(), vec![0; 1_025]).is_err());
    near.links().close(link.id());
    assert!(near.links().send(link.id(), "closed").is_err());
    // Another program does not keep to the length.
    let connection = connect_directly(&world, &node).unwrap();
    connection.send(vec![0; 1_025]).wait_for(LIMIT).unwrap().unwrap();
    let reason = "a message on a link has at most 1024 bytes".to_owned();
    assert_eq!(end_of(&connection), CloseReason::Peer { code: codes::MESSAGE, reason });
}
