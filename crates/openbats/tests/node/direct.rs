//! Direct sessions with a neighbour: over all links with it, without a route.

use std::time::Duration;

use openbats::node::{Event, Link, LinkOptions, LinkPolicy, Node};
use openbats::{CloseReason, ConnectError, Mode, PresharedKey, TransportConfig, Wait};

use crate::emulated::{EmulatedLink, lossy};
use crate::world::{LIMIT, World, eventually, id, transfer, wait_event};

const SECOND: &str = "127.0.0.2:0";

fn transport(mode: Mode) -> TransportConfig {
    TransportConfig { mode, ..TransportConfig::default() }
}

fn connect(
    from: &Node,
    to: &Node,
    mode: Mode,
) -> Result<(openbats::node::Session, openbats::node::Session), ConnectError> {
    let opened = from.connect_neighbour(to.id(), transport(mode)).wait_for(LIMIT).unwrap()?;
    let accepted = to.accept().wait_for(LIMIT).unwrap()?;
    assert_eq!((opened.remote_node(), accepted.remote_node()), (to.id(), from.id()));
    assert!(opened.is_direct() && accepted.is_direct());
    Ok((opened, accepted))
}

/// Bytes that a node has sent over a link.
fn bytes_sent(link: &Link) -> u64 {
    let stats = link.status().and_then(|status| status.stats);
    stats.map_or(0, |stats| stats.packets.bytes_sent)
}

/// Two nodes with a link over each of two loopback addresses.
struct TwoAddresses {
    world: World,
    near: Node,
    far: Node,
    paths: Vec<EmulatedLink>,
}

impl TwoAddresses {
    fn start() -> Self {
        let world = World::new(2);
        let second = SECOND.parse().unwrap();
        let far = world.node(1).listen(second).neighbour(world.print(0), LinkPolicy::end());
        let (near, far) = (world.node(0).listen(second).start().unwrap(), far.start().unwrap());
        let config = lossy(100, Duration::from_millis(5), 0.01);
        let path = |(seed, address)| EmulatedLink::start(address, &config, seed).unwrap();
        let paths = (1..).zip(far.local_addrs()).map(path).collect();
        Self { world, near, far, paths }
    }

    fn link(&self, index: usize) -> Link {
        let local = self.near.local_addrs()[index].ip();
        let options = LinkOptions::new(self.paths[index].address(), self.world.trust(1));
        let link = self.near.links().open(options.local_ip(local)).unwrap();
        link.established().wait_for(LIMIT).unwrap().unwrap();
        link
    }
}

#[test]
fn a_direct_session_uses_both_addresses_and_survives_the_cut_of_one() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        let set = TwoAddresses::start();
        let links = [set.link(0), set.link(1)];
        let (from, to) = connect(&set.near, &set.far, mode).unwrap();
        assert_eq!((from.mode(), to.mode()), (mode, mode));
        let prints = [set.world.print(1), set.world.print(0)];
        assert_eq!([from.peer_fingerprint(), to.peer_fingerprint()], prints.map(Some));
        transfer(from.clone(), to.clone(), 40, 100_000);
        let sent = [bytes_sent(&links[0]), bytes_sent(&links[1])];
        assert!(sent.iter().all(|&bytes| bytes > 200_000), "both are used: {sent:?}");
        // The end of the first transfer has finished this direction.
        let (from, to) = connect(&set.near, &set.far, mode).unwrap();
        let sending = std::thread::spawn(move || transfer(from, to, 60, 100_000));
        std::thread::sleep(Duration::from_millis(150));
        set.paths[1].cut();
        sending.join().unwrap();
        let stats = set.far.relay_stats();
        assert_eq!((stats.dropped.refused, stats.dropped.unroutable), (0, 0), "{stats:?}");
    }
}

#[test]
fn a_further_link_joins_an_open_session() {
    let set = TwoAddresses::start();
    let first = set.link(0);
    let (from, to) = connect(&set.near, &set.far, Mode::Brtp).unwrap();
    let second = set.link(1);
    transfer(from.clone(), to, 40, 100_000);
    let sent = [bytes_sent(&first), bytes_sent(&second)];
    assert!(sent.iter().all(|&bytes| bytes > 200_000), "both are used: {sent:?}");
    // The other direction, after the first link has gone.
    let (from, to) = connect(&set.far, &set.near, Mode::Brtp).unwrap();
    first.close();
    transfer(from, to, 20, 100_000);
}

#[test]
fn direct_sessions_need_certificates_that_are_tied_to_the_nodes() {
    let world = World::new(3);
    // The far node admits the near one, but knows no node by its certificate.
    let far = Node::builder(id(1), world.identity(1))
        .listen("127.0.0.1:0".parse().unwrap())
        .neighbour(world.print(0), LinkPolicy::transit())
        .any_peer();
    let (near, far) = (world.node(0).start().unwrap(), far.start().unwrap());
    let attempt = |timeout: u64| {
        let handshake_timeout = Duration::from_millis(timeout);
        let transport = TransportConfig { handshake_timeout, ..TransportConfig::default() };
        near.connect_neighbour(id(1), transport).wait_for(LIMIT).unwrap()
    };
    assert_eq!(attempt(100).unwrap_err(), ConnectError::NoLink { node: id(1) });
    let _link = world.link(&near, &far, None);
    let error = attempt(300).unwrap_err();
    assert_eq!(error, ConnectError::Closed(CloseReason::HandshakeTimeout));
    assert!(far.relay_stats().dropped.refused > 2, "{:?}", far.relay_stats());

    // A changed table applies to the link that is there.
    far.set_peer(id(0), [world.print(0)]);
    let (from, to) = connect(&near, &far, Mode::Brtp).unwrap();
    transfer(from, to, 3, 10_000);
    // One certificate of two nodes identifies none of them.
    far.set_peer(id(2), [world.print(0)]);
    assert!(attempt(300).is_err());
    far.set_peer(id(2), [world.print(2)]);
    let (from, to) = connect(&near, &far, Mode::Brtp).unwrap();
    // The link is not one with the node any more: the open session stalls, and new ones are refused.
    far.set_peer(id(0), [world.print(2)]);
    let refused = far.relay_stats().dropped.refused;
    from.send("late").wait_for(LIMIT).unwrap().unwrap();
    eventually("its packets are refused", || far.relay_stats().dropped.refused > refused);
    assert_eq!(to.try_recv(), None);
    near.set_peer(id(1), []);
    assert_eq!(attempt(100).unwrap_err(), ConnectError::NoLink { node: id(1) });
}

#[test]
fn a_direct_session_takes_no_key_of_its_own_and_none_with_itself() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end());
    let key = PresharedKey::new([7; 32]);
    let far = far.preshared_key(key.clone()).start().unwrap();
    let near = world.node(0).preshared_key(key.clone()).start().unwrap();
    let _link = world.link(&near, &far, None);
    let with_key = TransportConfig { psk: Some(key), ..TransportConfig::default() };
    for (node, transport) in [(id(1), with_key), (id(0), TransportConfig::default())] {
        let error = near.connect_neighbour(node, transport).wait_for(LIMIT).unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Configuration(_)), "{error}");
    }
    // The links of both nodes are in PSK mode.
    let (from, to) = connect(&near, &far, Mode::Brtp).unwrap();
    transfer(from, to, 3, 10_000);
    wait_event(&far.events(), |event| {
        matches!(event, Event::SessionOpened { node, .. } if *node == id(0)).then_some(())
    });
}
