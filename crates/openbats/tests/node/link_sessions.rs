//! The sessions of links themselves: channels that use one link, without a relay.

use std::time::Duration;

use bats_netem::LinkConfig;
use openbats::node::{Link, LinkOptions, LinkPolicy, Node, NodeBuilder, RouteSet, Session, codes};
use openbats::{Channel, ChannelError, CloseReason, Mode, TransportConfig, Wait};

use crate::emulated::{EmulatedLink, lossy};
use crate::world::{LIMIT, World, eventually, id};

const CHANNELS: u32 = 8;
const BUDGET: usize = 16 << 20;

fn with_channels(builder: NodeBuilder) -> NodeBuilder {
    let transport = TransportConfig { channels: Some(CHANNELS), ..TransportConfig::default() };
    builder.link_channels(CHANNELS, BUDGET).transport(transport)
}

/// Two nodes with a link between them, and routes over it.
struct Pair {
    world: World,
    near: Node,
    far: Node,
    link: Link,
    _path: Option<EmulatedLink>,
}

impl Pair {
    fn start(config: Option<&LinkConfig>) -> Self {
        let world = World::new(2);
        let far = with_channels(world.node(1)).neighbour(world.print(0), LinkPolicy::end());
        let (near, far) = (with_channels(world.node(0)).start().unwrap(), far.start().unwrap());
        let to = far.local_addrs()[0];
        let path = config.map(|config| EmulatedLink::start(to, config, 3).unwrap());
        let link = world.link(&near, &far, path.as_ref());
        near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
        far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
        eventually("a link at the far node", || far.links().list().len() == 1);
        Self { world, near, far, link, _path: path }
    }

    /// The two ends of the link's session.
    fn sessions(&self) -> [Session; 2] {
        let far = self.far.links().list()[0].id;
        let near = self.near.links().session(self.link.id()).unwrap();
        [near, self.far.links().session(far).unwrap()]
    }
}

/// A channel with these bytes, and its other end.
fn open(from: &Session, to: &Session) -> [Channel; 2] {
    let opened = from.open_channel().wait_for(LIMIT).unwrap().unwrap();
    opened.write_all(b"a channel").wait_for(LIMIT).unwrap().unwrap();
    let accepted = to.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    let (mut bytes, mut length) = ([0; 9], 0);
    while length < bytes.len() {
        length += accepted.read(&mut bytes[length..]).wait_for(LIMIT).unwrap().unwrap();
    }
    assert_eq!(&bytes, b"a channel");
    [opened, accepted]
}

#[test]
fn both_ends_of_a_link_open_channels_and_no_flow_of_a_relay_has_part_in_them() {
    let pair = Pair::start(Some(&lossy(50, Duration::from_millis(5), 0.05)));
    let [near, far] = pair.sessions();
    assert_eq!((near.remote_node(), far.remote_node()), (id(1), id(0)));
    assert_eq!((near.link(), near.is_direct()), (Some((pair.link.id(), 1)), false));
    assert_eq!(near.peer_fingerprint(), Some(pair.world.print(1)));
    for (from, to) in [(&near, &far), (&far, &near)] {
        let [opened, accepted] = open(from, to);
        let writes = std::thread::spawn(move || {
            opened.write_all(&[5; 300_000]).wait_for(LIMIT).unwrap().unwrap();
            opened.finish().unwrap();
            opened
        });
        let (mut bytes, mut total) = (vec![0; 1 << 16], 0);
        loop {
            let length = accepted.read(&mut bytes).wait_for(LIMIT).unwrap().unwrap();
            assert!(bytes[..length].iter().all(|&byte| byte == 5));
            total += length;
            if length == 0 {
                break;
            }
        }
        assert_eq!(total, 300_000);
        drop(writes.join().unwrap());
    }
    assert!(pair.near.flows().is_empty() && pair.far.flows().is_empty());
    // Each call is for the same session, which exists at both ends without one.
    assert!(pair.far.accept().wait_for(Duration::ZERO).is_err(), "it is not accepted");
}

#[test]
fn a_dropped_session_leaves_the_link_and_a_held_one_does_not_keep_the_node() {
    let pair = Pair::start(None);
    drop((open(&pair.sessions()[0], &pair.sessions()[1]), pair.sessions()));
    let sessions = pair.sessions();
    drop(open(&sessions[1], &sessions[0]));
    assert_eq!(pair.near.links().list()[0].established, 1);
    let Pair { near, far, link, .. } = pair;
    drop((near, link));
    let [near, _far] = sessions;
    assert!(near.accept_channel().wait_for(LIMIT).unwrap().is_err(), "the node has ended");
    eventually("the link has ended", || far.links().list().is_empty());
}

#[test]
fn a_session_ends_with_its_link_and_a_new_link_has_a_new_one() {
    let pair = Pair::start(None);
    let old = pair.sessions();
    let [opened, accepted] = open(&old[0], &old[1]);
    pair.link.close();
    assert!(old[1].accept_channel().wait_for(LIMIT).unwrap().is_err());
    assert!(accepted.read(&mut [0]).wait_for(LIMIT).unwrap().is_err());
    assert!(old[0].open_channel().wait_for(LIMIT).unwrap().is_err());
    assert!(opened.write_all(b"lost").wait_for(LIMIT).unwrap().is_err());
    assert!(pair.near.links().session(pair.link.id()).is_none());
    let link = pair.world.link(&pair.near, &pair.far, None);
    eventually("one link", || pair.far.links().list().len() == 1);
    let new = Pair { link, ..pair };
    let sessions = new.sessions();
    open(&sessions[0], &sessions[1]);
    assert!(old[0].close_reason().is_some() && sessions[0].close_reason().is_none());
}

/// No one would read the channels. The link stays: the neighbour may only not know yet that this node has no session with it.
#[test]
fn a_link_without_a_node_that_its_certificate_identifies_has_no_session() {
    let world = World::new(2);
    let far = Node::builder(id(1), world.identity(1)).listen("127.0.0.1:0".parse().unwrap());
    let far = with_channels(far).any_neighbour(LinkPolicy::end()).start().unwrap();
    let near = with_channels(world.node(0)).start().unwrap();
    let options = LinkOptions::new(far.local_addrs()[0], world.trust(1)).redial(false);
    let link = near.links().open(options).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    eventually("a link at the far node", || far.links().list().len() == 1);
    assert!(far.links().session(far.links().list()[0].id).is_none());
    let session = near.links().session(link.id()).unwrap();
    assert_eq!(near.links().sessions().len(), 1);
    assert!(far.links().sessions().is_empty());
    // More than may be open at once.
    for _ in 0..3 * CHANNELS {
        let channel = session.open_channel().wait_for(LIMIT).unwrap().unwrap();
        eventually("the channel is stopped", || {
            let written = channel.write_all(b"unread").wait_for(LIMIT).unwrap();
            written == Err(ChannelError::Stopped { code: codes::NO_SESSION })
        });
        let read = channel.read(&mut [0]).wait_for(LIMIT).unwrap();
        assert_eq!(read, Err(ChannelError::Reset { code: codes::NO_SESSION }));
    }
    assert!(session.close_reason().is_none() && far.links().list().len() == 1);
}

#[test]
fn links_have_sessions_and_channels_only_where_both_nodes_want_them_and_know_each_other() {
    let world = World::new(2);
    let far = with_channels(world.node(1)).neighbour(world.print(0), LinkPolicy::end());
    let far = far.start().unwrap();
    let plain = world.node(0).start().unwrap();
    let link = world.link(&plain, &far, None);
    assert!(plain.links().session(link.id()).is_none() && plain.links().sessions().is_empty());
    drop((link, plain));
    // Who is behind such a link is not known when its limits are set.
    let near = with_channels(world.node(0)).start().unwrap();
    let options = LinkOptions::new(far.local_addrs()[0], openbats::Trust::dangerous_any());
    let link = near.links().open(options).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    eventually("the session of the new link", || {
        let [ref session] = far.links().sessions()[..] else { return false };
        let opened = session.open_channel().wait_for(LIMIT).unwrap();
        opened.is_err_and(|error| error == ChannelError::Unsupported)
    });
}

/// The number of bytes that arrive in a channel until the other one has brought this many, both in use all the time.
fn shares(pair: &Pair, of_link: [Channel; 2], over_routes: [Channel; 2]) -> [u64; 2] {
    const ENOUGH: u64 = 4_000_000;
    let total = |channel: &Channel| channel.stats().unwrap().bytes_received;
    let [writers, readers]: [Vec<Channel>; 2] = {
        let ([first, second], [third, fourth]) = (of_link, over_routes);
        [vec![first, third], vec![second, fourth]]
    };
    std::thread::scope(|scope| {
        for writer in &writers {
            scope.spawn(
                move || {
                    while let Ok(Ok(())) = writer.write_all(&[1; 20_000]).wait_for(LIMIT) {}
                },
            );
        }
        for reader in &readers {
            scope.spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(Ok(1..)) = reader.read(&mut bytes).wait_for(LIMIT) {}
            });
        }
        eventually("enough bytes", || readers.iter().map(total).sum::<u64>() > ENOUGH);
        let all = [total(&readers[0]), total(&readers[1])];
        pair.near.shut_down(0, "measured");
        all
    })
}

/// A session over routes would starve if the link asked its own session first.
#[test]
fn the_session_of_a_link_and_those_over_routes_take_turns() {
    let pair = Pair::start(Some(&lossy(20, Duration::from_millis(5), 0.0)));
    let sessions = pair.sessions();
    let of_link = open(&sessions[0], &sessions[1]);
    let transport = TransportConfig { channels: Some(CHANNELS), ..TransportConfig::default() };
    let options = openbats::ClientOptions::new(pair.world.trust(1)).transport(transport);
    let connecting = pair.near.connect_node(id(1), "node", options.mode(Mode::Brtp));
    let near = connecting.wait_for(LIMIT).unwrap().unwrap();
    let far = pair.far.accept().wait_for(LIMIT).unwrap().unwrap();
    let over_routes = open(&near, &far);
    let [of_link, over_routes] = shares(&pair, of_link, over_routes);
    let share = over_routes as f64 / (of_link + over_routes) as f64;
    println!("{share:.3} of the bytes are of the session over routes");
    // Half of them if both always have packets, which a busy machine may prevent.
    assert!((0.25..0.75).contains(&share), "{over_routes} of {}", of_link + over_routes);
}

/// Sessions end before the links, so that the peer receives their close.
#[test]
fn a_node_that_shuts_down_closes_sessions_over_routes_before_its_links() {
    let pair = Pair::start(None);
    let held = pair.sessions();
    let (_near, far) = pair.world.session(&pair.near, &pair.far, Mode::Brtp);
    pair.near.shut_down(7, "the end");
    let reason = loop {
        if far.recv().wait_for(LIMIT).unwrap().is_err() {
            break far.close_reason().unwrap();
        }
    };
    assert_eq!(reason, CloseReason::Peer { code: 7, reason: "the end".to_owned() });
    assert!(held[0].accept_channel().wait_for(LIMIT).unwrap().is_err());
    assert!(held[1].accept_channel().wait_for(LIMIT).unwrap().is_err());
}
