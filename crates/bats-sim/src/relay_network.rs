//! A network of nodes and links in any topology. The end nodes communicate across the relays
//! between them, over all shortest paths at once.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput};
use bats_proto::relay::{LinkPolicy, RelayConfig, RelayStats};
use bats_proto::testing::{Application, Arrival, Delivery, Links, Turn, World};
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    ConnectionHandle, Endpoint, EndpointConfig, Event, Mode, ServerConfig, Timestamp, Transmit,
    TransportConfig,
};

use crate::endpoints::{client_config, security_of};
use crate::link_event::LinkEventKind;
use crate::network::{Datagram, next_of};

/// Time for the links to be established.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The port of every node, until a NAT rebinding changes it.
const PORT: u16 = 4_000;

/// Direction on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// From the first node of the link to the second: away from node 0.
    Forward,
    /// From the second node of the link to the first.
    Reverse,
}

const DIRECTIONS: [LinkDirection; 2] = [LinkDirection::Forward, LinkDirection::Reverse];

/// Configuration of a [`RelayNetwork`].
#[derive(Clone, Debug)]
pub struct RelayNetworkConfig {
    /// The links. A configuration applies to both directions unless a constructor says otherwise.
    pub links: Vec<LinkConfig>,
    /// Relay configuration of all nodes.
    pub relay: RelayConfig,
    /// Transport configuration of links and sessions.
    pub transport: TransportConfig,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The ID of node `index`.
pub fn node_id(index: usize) -> NodeId {
    NodeId(1 + index as u32)
}

/// Hook that may change a datagram before it is delivered; see [`RelayNetwork::tamper`].
pub type TamperHook = Box<dyn FnMut(usize, LinkDirection, &mut Vec<u8>)>;

/// An event of a datagram on a link; see [`RelayNetwork::observe`].
#[derive(Clone, Copy, Debug)]
pub struct RelayLinkEvent<'a> {
    /// Virtual time of the event.
    pub time: Timestamp,
    /// Index of the link.
    pub link: usize,
    /// Direction of the datagram.
    pub direction: LinkDirection,
    /// Whether the datagram was sent or delivered.
    pub kind: LinkEventKind,
    /// ECN bits of the datagram.
    pub ecn: u8,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl RelayLinkEvent<'_> {
    /// The addresses that the datagram comes from and goes to, without the effect of NAT rebinding.
    pub fn addresses(&self) -> (SocketAddrV4, SocketAddrV4) {
        let (first, second) = (address_v4(self.link, 0, PORT), address_v4(self.link, 1, PORT));
        match self.direction {
            LinkDirection::Forward => (first, second),
            LinkDirection::Reverse => (second, first),
        }
    }
}

/// Observer of all datagrams that are sent or delivered.
pub type LinkObserver = Box<dyn FnMut(&RelayLinkEvent<'_>)>;

/// Nodes and the links between them.
pub struct RelayNetwork {
    config: RelayNetworkConfig,
    world: World<RelayLinks>,
    neighbours: Neighbours,
    /// Whether sessions between the ends are direct ones.
    is_direct: bool,
    /// Events of the nodes that the caller has not taken: (node, connection, event).
    pub events: Vec<(usize, ConnectionHandle, Event)>,
}

/// The links between the nodes.
struct RelayLinks {
    /// The first and second node of each link.
    edges: Vec<(usize, usize)>,
    /// Both directions of each link.
    pairs: Vec<[Link<Datagram>; 2]>,
    /// The ports of both nodes of each link, as the other node sees them.
    ports: Vec<[u16; 2]>,
    tamper: Option<TamperHook>,
    observer: Option<LinkObserver>,
}

impl RelayLinks {
    fn observe(
        &mut self,
        time: Timestamp,
        (link, side): (usize, usize),
        (kind, ecn, payload): (LinkEventKind, u8, &[u8]),
    ) {
        let direction = DIRECTIONS[side];
        if let Some(observer) = &mut self.observer {
            observer(&RelayLinkEvent { time, link, direction, kind, ecn, payload });
        }
    }
}

/// Source `2 n + side` is what the node on this side of link n sends.
impl Links for RelayLinks {
    fn send(
        &mut self,
        now: Timestamp,
        _from: usize,
        transmit: &Transmit,
        segment: &[u8],
        bytes: Vec<u8>,
    ) {
        let (link, to) = parse(transmit.remote);
        let side = 1 - to;
        let fate = self.pairs[link][side].handle(now, Datagram::new(now, transmit, bytes));
        self.observe(now, (link, side), (LinkEventKind::Sent(fate), transmit.ecn, segment));
    }

    fn receive(&mut self, now: Timestamp, source: usize) -> Arrival {
        let (link, side) = (source / 2, source % 2);
        let LinkOutput::Deliver(datagram) = self.pairs[link][side].poll(now) else {
            return Arrival::Idle;
        };
        let Datagram { ecn, mut bytes, to, .. } = datagram;
        if to.port() != self.ports[link][1 - side] {
            return Arrival::Progress;
        }
        self.observe(now, (link, side), (LinkEventKind::Delivered, ecn, &bytes));
        if let Some(tamper) = &mut self.tamper {
            tamper(link, DIRECTIONS[side], &mut bytes);
        }
        let (first, second) = self.edges[link];
        let remote = address(link, side, self.ports[link][side]);
        Arrival::Delivery(Delivery {
            to: [second, first][side],
            remote,
            local_ip: None,
            ecn,
            bytes,
        })
    }

    fn next(&mut self, now: Timestamp) -> Option<Timestamp> {
        next_of(self.pairs.iter_mut().flatten(), now)
    }
}

/// Admits each neighbour to the relay when its connection is established, and routes over it.
struct Neighbours {
    /// The first and second node of each link.
    edges: Vec<(usize, usize)>,
    /// The connections of both nodes of each link.
    connections: Vec<[Option<ConnectionHandle>; 2]>,
    /// End-to-end sessions with an event so far: (node, session).
    sessions: BTreeSet<(usize, ConnectionHandle)>,
    /// Number of links on the shortest path between each pair of nodes.
    distances: Vec<Vec<usize>>,
}

impl Application for Neighbours {
    fn on_event(
        &mut self,
        now: Timestamp,
        (node, endpoint): (usize, &mut Endpoint),
        handle: ConnectionHandle,
        event: &Event,
    ) -> bool {
        if endpoint.remote_node(handle).is_some() {
            self.sessions.insert((node, handle));
            return true;
        }
        let side = match event {
            Event::Accepted => 1,
            Event::Connected => 0,
            _ => return true,
        };
        let Some(remote) = endpoint.remote(handle) else { return true };
        let (link, _) = parse(remote);
        // A neighbour that connects again has lost the state of its old connection.
        let old = self.connections[link][side].replace(handle).filter(|old| *old != handle);
        let (a, b) = self.edges[link];
        let next = if side == 0 { b } else { a };
        let mut policy = LinkPolicy::default();
        policy.neighbour = Some(node_id(next));
        assert!(endpoint.admit_with(now, handle, policy), "an established connection");
        for other in 0..self.distances.len() {
            if self.distances[next][other] < self.distances[node][other] {
                if let Some(old) = old {
                    endpoint.remove_route(now, node_id(other), old);
                }
                assert!(endpoint.add_route(now, node_id(other), handle));
            }
        }
        true
    }
}

impl core::fmt::Debug for RelayNetwork {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RelayNetwork")
            .field("now", &self.world.now)
            .field("nodes", &self.world.nodes.len())
            .finish()
    }
}

/// The address of the first (`side` 0) or second (1) node of a link.
fn address(link: usize, side: usize, port: u16) -> SocketAddr {
    address_v4(link, side, port).into()
}

fn address_v4(link: usize, side: usize, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, link as u8, side as u8 + 1), port)
}

/// The link and the side that an address belongs to: the inverse of `address`.
fn parse(address: SocketAddr) -> (usize, usize) {
    let SocketAddr::V4(address) = address else { panic!("{address} is not the address of a link") };
    let [_, _, link, side] = address.ip().octets();
    (usize::from(link), usize::from(side) - 1)
}

/// Number of links on the shortest path between each pair of nodes, `usize::MAX` without a path.
fn distances(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
    (0..nodes)
        .map(|from| {
            let mut found = vec![usize::MAX; nodes];
            found[from] = 0;
            for _ in 0..nodes {
                for &(a, b) in edges {
                    found[b] = found[b].min(found[a].saturating_add(1));
                    found[a] = found[a].min(found[b].saturating_add(1));
                }
            }
            found
        })
        .collect()
}

fn endpoint(config: &RelayNetworkConfig, node: usize, incarnation: u8) -> Endpoint {
    let (security, identity) = security_of(&config.transport);
    let server = ServerConfig {
        identity,
        transport: Arc::new(config.transport.clone()),
        client_trust: None,
        retry_threshold: usize::MAX,
        max_connections: 4_096,
    };
    let mut seed = [node as u8 + 1; 32];
    seed[..8].copy_from_slice(&config.seed.to_le_bytes());
    seed[8] = incarnation;
    let endpoint_config =
        EndpointConfig { security, server: Some(server), ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(endpoint_config, seed).expect("a valid configuration");
    let relay = RelayConfig { node: node_id(node), ..config.relay.clone() };
    endpoint.enable_relay(relay).expect("an endpoint without a relay");
    endpoint
}

impl RelayNetwork {
    /// Connects the nodes in a chain and waits until all links are established.
    ///
    /// # Panics
    ///
    /// If a link is not established within 30 s.
    pub fn new(config: RelayNetworkConfig) -> Self {
        let reverse = config.links.clone();
        Self::asymmetric(config, &reverse).expect("all links are established within 30 s")
    }

    /// Connects the nodes in a chain of asymmetric links: `config.links` are the forward directions
    /// and `reverse` the reverse ones. Returns `None` if a link is not established within 30 s.
    ///
    /// # Panics
    ///
    /// If the two lists differ in length.
    pub fn asymmetric(config: RelayNetworkConfig, reverse: &[LinkConfig]) -> Option<Self> {
        let edges = (0..config.links.len()).map(|link| (link, link + 1)).collect();
        Self::build_established(config, reverse, edges)
    }

    /// Connects the nodes by `edges`, a pair of nodes for each link, and waits until all links are
    /// established. The ends are node 0 and the node with the largest index.
    ///
    /// # Panics
    ///
    /// If a link is not established within 30 s, or if there are not as many edges as links.
    pub fn mesh(config: RelayNetworkConfig, edges: Vec<(usize, usize)>) -> Self {
        Self::try_mesh(config, edges).expect("all links are established within 30 s")
    }

    /// As [`RelayNetwork::mesh`], but returns `None` if a link is not established within 30 s.
    ///
    /// # Panics
    ///
    /// If there are not as many edges as links.
    pub fn try_mesh(config: RelayNetworkConfig, edges: Vec<(usize, usize)>) -> Option<Self> {
        let reverse = config.links.clone();
        Self::build_established(config, &reverse, edges)
    }

    fn build_established(
        config: RelayNetworkConfig,
        reverse: &[LinkConfig],
        edges: Vec<(usize, usize)>,
    ) -> Option<Self> {
        let mut network = Self::build(config, reverse, edges);
        let end = network.world.now + SETUP_TIMEOUT;
        while !network.is_established() {
            if network.world.now >= end {
                return None;
            }
            network.step(end);
        }
        network.events.clear();
        Some(network)
    }

    /// Connects the nodes by `edges` with asymmetric links, `config.links` forward and `reverse`
    /// reverse. Does not wait until the links are established: see
    /// [`RelayNetwork::is_established`].
    ///
    /// # Panics
    ///
    /// If there are not as many edges and reverse links as links.
    pub fn build(
        config: RelayNetworkConfig,
        reverse: &[LinkConfig],
        edges: Vec<(usize, usize)>,
    ) -> Self {
        assert_eq!(config.links.len(), edges.len(), "a pair of nodes for each link");
        assert_eq!(config.links.len(), reverse.len(), "a reverse direction for each link");
        let count = edges.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(0) + 1;
        let link = |(index, (forward, reverse)): (usize, (&LinkConfig, &LinkConfig))| {
            let seed = config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
            [
                Link::new(forward.clone(), seed ^ 0x5bd1),
                Link::new(reverse.clone(), seed ^ 0xa7f0_0000),
            ]
        };
        // The nodes, and then both directions of each link.
        let turns = (0..count).map(Turn::Node).chain((0..2 * edges.len()).map(Turn::Source));
        let links = RelayLinks {
            edges: edges.clone(),
            pairs: config.links.iter().zip(reverse).enumerate().map(link).collect(),
            ports: vec![[PORT; 2]; edges.len()],
            tamper: None,
            observer: None,
        };
        let nodes = (0..count).map(|node| endpoint(&config, node, 0)).collect();
        let world = World::new(Timestamp::from_millis(1), nodes, links, turns.collect());
        let neighbours = Neighbours {
            connections: vec![[None; 2]; edges.len()],
            sessions: BTreeSet::new(),
            distances: distances(count, &edges),
            edges,
        };
        let mut network = Self { config, world, neighbours, is_direct: false, events: Vec::new() };
        for link in 0..network.neighbours.edges.len() {
            network.connect_link(link);
        }
        network
    }

    /// Makes the first node of a link connect to the second. Also used to connect again after the
    /// connection has ended.
    pub fn connect_link(&mut self, link: usize) {
        let (now, client, node) =
            (self.world.now, client_config(&self.config.transport), self.neighbours.edges[link].0);
        let handle = self.world.nodes[node].connect(now, address(link, 1, PORT), "node", client);
        self.neighbours.connections[link][0] = Some(handle.expect("a valid configuration"));
        self.wake(node);
    }

    /// Whether all links have an established connection on both sides.
    pub fn is_established(&self) -> bool {
        self.neighbours.edges.iter().zip(&self.neighbours.connections).all(|(&(a, b), ends)| {
            [a, b].into_iter().zip(ends).all(|(node, handle)| {
                handle.is_some_and(|handle| {
                    let stats = self.world.nodes[node].stats(self.world.now, handle);
                    stats.is_some_and(|stats| stats.established.is_some())
                })
            })
        })
    }

    /// Restarts a node, which loses all state. Its neighbours and the node connect again.
    pub fn restart(&mut self, node: usize) {
        self.world.nodes[node] = endpoint(&self.config, node, self.world.now.as_micros() as u8 | 1);
        for link in 0..self.neighbours.edges.len() {
            let (a, b) = self.neighbours.edges[link];
            if a != node && b != node {
                continue;
            }
            let (now, ends) =
                (self.world.now, core::mem::take(&mut self.neighbours.connections[link]));
            // The first node of a link connects, so it closes its old connection first.
            if b == node
                && let Some(handle) = ends[0]
            {
                self.world.nodes[a].close(now, handle, 0, "the neighbour was restarted");
            }
            self.connect_link(link);
        }
        self.wake(node);
    }

    /// Makes the sessions that start from now on direct ones, for networks in which the ends are neighbours.
    pub fn use_direct_sessions(&mut self) {
        self.is_direct = true;
    }

    /// Starts an end-to-end session from node 0 to the last node.
    pub fn connect_ends(&mut self) -> ConnectionHandle {
        self.connect_ends_in(self.config.transport.mode)
    }

    /// Starts an end-to-end session in this mode from node 0 to the last node.
    pub fn connect_ends_in(&mut self, mode: Mode) -> ConnectionHandle {
        let last = node_id(self.world.nodes.len() - 1);
        let (now, mut client) = (self.world.now, client_config(&self.config.transport));
        client.transport = Arc::new(TransportConfig { mode, ..self.config.transport.clone() });
        let handle = match self.is_direct {
            true => self.world.nodes[0].connect_neighbour(now, last, client.transport),
            false => self.world.nodes[0].connect_across(now, last, "end", client),
        };
        self.wake(0);
        handle.expect("a valid configuration")
    }

    /// The virtual time.
    pub fn now(&self) -> Timestamp {
        self.world.now
    }

    /// The endpoint of a node. Call [`RelayNetwork::wake`] after changing it.
    pub fn node(&mut self, node: usize) -> &mut Endpoint {
        &mut self.world.nodes[node]
    }

    /// Index of the last node.
    pub fn last(&self) -> usize {
        self.world.nodes.len() - 1
    }

    /// The connection of the first node of a link to the second. In a chain, link `n` connects node
    /// `n` to node `n + 1`.
    pub fn link_connection(&self, link: usize) -> Option<ConnectionHandle> {
        self.neighbours.connections[link][0]
    }

    /// Sets how packets of node `source` to a group pass through `node`: the links that they come from, and those of
    /// each neighbour that they go to. Links have no connection before they are established, and are left out.
    ///
    /// # Panics
    ///
    /// If the entry is not valid.
    pub fn set_group_entry(
        &mut self,
        node: usize,
        (source, group): (usize, NodeId),
        incoming: &[usize],
        branches: &[&[usize]],
    ) {
        let handles = |links: &[usize]| -> Vec<ConnectionHandle> {
            let side = |link: usize| usize::from(self.neighbours.edges[link].1 == node);
            let ends = links.iter().map(|&link| self.neighbours.connections[link][side(link)]);
            ends.flatten().collect()
        };
        let branches: Vec<_> = branches.iter().map(|links| handles(links)).collect();
        let (now, incoming, source) = (self.world.now, handles(incoming), node_id(source));
        let endpoint = &mut self.world.nodes[node];
        let set = endpoint.set_group_entry(now, source, group, &incoming, &branches);
        set.expect("a valid entry");
        self.wake(node);
    }

    /// Sets what the packets of the first node of a link may do at the second.
    ///
    /// # Panics
    ///
    /// If the link is not established.
    pub fn set_policy(&mut self, link: usize, policy: LinkPolicy) {
        let (node, handle) = (self.neighbours.edges[link].1, self.neighbours.connections[link][1]);
        let handle = handle.expect("a connection");
        let now = self.world.now;
        assert!(self.world.nodes[node].admit_with(now, handle, policy), "an established link");
        self.wake(node);
    }

    /// The link to which this connection of its first node belongs.
    pub fn link_of(&self, node: usize, handle: ConnectionHandle) -> Option<usize> {
        let ends = self.neighbours.edges.iter().zip(&self.neighbours.connections);
        ends.enumerate()
            .find(|(_, (edge, ends))| edge.0 == node && ends[0] == Some(handle))
            .map(|(link, _)| link)
    }

    /// Whether this handle is or was an end-to-end session.
    pub fn is_session(&self, node: usize, handle: ConnectionHandle) -> bool {
        self.neighbours.sessions.contains(&(node, handle))
    }

    /// NAT rebinding: changes the port of the first node of a link. Datagrams in flight to the old
    /// port are lost.
    pub fn rebind(&mut self, link: usize, port: u16) {
        self.world.links.ports[link][0] = port;
    }

    /// Schedules a node to be polled now, after its endpoint was changed.
    pub fn wake(&mut self, node: usize) {
        self.world.wake(node);
    }

    /// Relay counters of a node.
    pub fn relay_stats(&self, node: usize) -> RelayStats {
        self.world.nodes[node].relay_stats().unwrap_or_default()
    }

    /// Counters of the forward direction of a link.
    pub fn link_stats(&self, link: usize) -> LinkStats {
        self.world.links.pairs[link][0].stats()
    }

    /// Changes the configuration of both directions of a link.
    pub fn set_link(&mut self, link: usize, config: &LinkConfig) {
        for each in &mut self.world.links.pairs[link] {
            each.set_config(self.world.now, config.clone());
        }
    }

    /// Changes the configuration of one direction of a link.
    pub fn set_direction(&mut self, link: usize, direction: LinkDirection, config: LinkConfig) {
        self.world.links.pairs[link][usize::from(direction == LinkDirection::Reverse)]
            .set_config(self.world.now, config);
    }

    /// Bytes in the queue of one direction of a link.
    pub fn queue_bytes(&mut self, link: usize, direction: LinkDirection) -> usize {
        self.world.links.pairs[link][usize::from(direction == LinkDirection::Reverse)]
            .queue_bytes(self.world.now)
    }

    /// Calls this before each delivery, with the link, the direction and the datagram.
    pub fn tamper(&mut self, hook: TamperHook) {
        self.world.links.tamper = Some(hook);
    }

    /// Calls this for each datagram that is sent or delivered.
    pub fn observe(&mut self, observer: LinkObserver) {
        self.world.links.observer = Some(observer);
    }

    /// Advances virtual time until `events` grows (returns true) or until `until` (returns false).
    pub fn step(&mut self, until: Timestamp) -> bool {
        let has_event = self.world.step(until, &mut self.neighbours);
        self.events.append(&mut self.world.events);
        has_event
    }
}
