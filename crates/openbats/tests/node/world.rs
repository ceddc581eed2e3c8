//! Nodes with their certificates, and transfers between them whose content is checked.

use std::time::Duration;

use openbats::node::{
    Event, Events, Link, LinkOptions, LinkPolicy, Node, NodeBuilder, NodeId, RouteSet, Session,
};
use openbats::{ClientOptions, ConnectError, Fingerprint, Identity, Mode, TransportConfig};
use openbats::{Trust, Wait};

use crate::emulated::EmulatedLink;

/// Far above what a loaded machine needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// An identity for each node; node `n` has ID `n + 1`.
pub(crate) struct World {
    identities: Vec<Identity>,
}

pub(crate) fn id(index: usize) -> NodeId {
    NodeId(index as u32 + 1)
}

impl World {
    pub(crate) fn new(nodes: usize) -> Self {
        let identity = |index| Identity::generate(&[&format!("node{index}")]).unwrap();
        Self { identities: (0..nodes).map(identity).collect() }
    }

    pub(crate) fn identity(&self, index: usize) -> Identity {
        self.identities[index].clone()
    }

    pub(crate) fn print(&self, index: usize) -> Fingerprint {
        self.identities[index].fingerprint()
    }

    pub(crate) fn trust(&self, index: usize) -> Trust {
        Trust::fingerprint(self.print(index))
    }

    /// A node that listens on loopback and knows the other nodes of this world as peers.
    pub(crate) fn node(&self, index: usize) -> NodeBuilder {
        let builder =
            Node::builder(id(index), self.identity(index)).listen("127.0.0.1:0".parse().unwrap());
        let others = (0..self.identities.len()).filter(|&other| other != index);
        others.fold(builder, |builder, other| builder.peer(id(other), self.print(other)))
    }

    /// A link from one node to another, established.
    pub(crate) fn link(&self, from: &Node, to: &Node, via: Option<&EmulatedLink>) -> Link {
        let remote = via.map_or(to.local_addrs()[0], EmulatedLink::address);
        let index = to.id().0 as usize - 1;
        let options = LinkOptions::new(remote, self.trust(index)).policy(LinkPolicy::transit());
        let link = from.links().open(options).unwrap();
        link.established().wait_for(LIMIT).unwrap().unwrap();
        link
    }

    /// Opens a session and returns both ends.
    pub(crate) fn session(&self, from: &Node, to: &Node, mode: Mode) -> (Session, Session) {
        let opened = self.connect(from, to.id(), mode, LIMIT).unwrap();
        let accepted = to.accept().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!((opened.remote_node(), accepted.remote_node()), (to.id(), from.id()));
        (opened, accepted)
    }

    pub(crate) fn connect(
        &self,
        from: &Node,
        to: NodeId,
        mode: Mode,
        handshake_timeout: Duration,
    ) -> Result<Session, ConnectError> {
        let transport = TransportConfig { handshake_timeout, ..TransportConfig::default() };
        let trust = self.trust(to.0 as usize - 1);
        let options = ClientOptions::new(trust).transport(transport).mode(mode);
        from.connect_node(to, "node", options).wait_for(LIMIT).unwrap()
    }
}

/// A chain of nodes with a link between neighbours and routes between all. All relay.
pub(crate) struct Chain {
    pub(crate) world: World,
    pub(crate) nodes: Vec<Node>,
    _hops: Vec<EmulatedLink>,
}

impl Chain {
    pub(crate) fn start(count: usize, config: &bats_netem::LinkConfig) -> Self {
        let world = World::new(count);
        let start = |index: usize| {
            let builder = world.node(index).relaying(true);
            let builder = match index.checked_sub(1) {
                Some(left) => builder.neighbour(world.print(left), LinkPolicy::transit()),
                None => builder,
            };
            builder.start().unwrap()
        };
        let nodes: Vec<Node> = (0..count).map(start).collect();
        let mut hops = Vec::new();
        let mut links = Vec::new();
        for (index, pair) in nodes.windows(2).enumerate() {
            let hop = EmulatedLink::start(pair[1].local_addrs()[0], config, index as u64 + 7);
            hops.push(hop.unwrap());
            links.push(world.link(&pair[0], &pair[1], hops.last()));
        }
        for (index, node) in nodes.iter().enumerate() {
            let mut routes = RouteSet::new();
            for other in 0..count {
                if other > index {
                    routes.add(id(other), links[index].id(), 0);
                } else if other < index {
                    routes.add(id(other), world.print(index - 1), 0);
                }
            }
            node.routes().replace(routes).unwrap();
        }
        Self { world, nodes, _hops: hops }
    }

    pub(crate) fn ends(&self) -> (&Node, &Node) {
        (&self.nodes[0], &self.nodes[self.nodes.len() - 1])
    }
}

fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + number * 17 + at / 251) as u8).collect()
}

/// Sends messages and checks that they arrive, in order and unchanged.
pub(crate) fn transfer(from: Session, to: Session, messages: usize, bytes: usize) {
    let sending = std::thread::spawn(move || {
        let mut hash = blake3::Hasher::new();
        for number in 0..messages {
            let message = content(number, bytes);
            hash.update(&message);
            from.send(message).wait_for(LIMIT).unwrap().unwrap();
        }
        from.finish().wait_for(LIMIT).unwrap().unwrap();
        hash.finalize()
    });
    let mut hash = blake3::Hasher::new();
    let mut count = 0;
    while let Some(message) = to.recv().wait_for(LIMIT).unwrap().unwrap() {
        assert_eq!(message.len(), bytes);
        hash.update(&message);
        count += 1;
    }
    assert_eq!(count, messages);
    assert_eq!(hash.finalize(), sending.join().unwrap());
}

/// Waits for an event of this kind.
pub(crate) fn wait_event<T>(events: &Events, mut find: impl FnMut(&Event) -> Option<T>) -> T {
    loop {
        let event = events.next().wait_for(LIMIT).unwrap().expect("the node is not shut down");
        if let Some(found) = find(&event) {
            return found;
        }
    }
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..LIMIT.as_millis() / 20 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not within {LIMIT:?}: {what}");
}
