//! A network of nodes and links in any topology. The end nodes communicate across the relays
//! between them, over all shortest paths at once.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput};
use bats_proto::relay::{LinkPolicy, RelayConfig, RelayStats};
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    ConnectionHandle, Endpoint, EndpointConfig, Event, Input, Mode, Output, Received, ServerConfig,
    Timestamp, TransportConfig,
};

use crate::endpoints::{client_config, security_of};
use crate::link_event::LinkEventKind;
use crate::network::Datagram;

/// Time for the links to be established.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum rounds of work at one point in virtual time; more indicate an infinite loop.
const MAX_ROUNDS: u32 = 100_000;
/// Maximum polls of nodes at one point in virtual time; more indicate an infinite loop.
const MAX_POLLS: u32 = 4_000_000;
/// The port of every node, until a NAT rebinding changes it.
const PORT: u16 = 4_000;
/// Maximum number of datagram buffers kept for reuse.
const MAX_SPARE: usize = 4_096;

/// Direction on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// From the first node of the link to the second: away from node 0.
    Forward,
    /// From the second node of the link to the first.
    Reverse,
}

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

/// An event of a datagram on a link; see [`RelayNetwork::observer`].
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
    now: Timestamp,
    config: RelayNetworkConfig,
    nodes: Vec<Endpoint>,
    /// The first and second node of each link.
    edges: Vec<(usize, usize)>,
    /// Both directions of each link.
    links: Vec<[Link<Datagram>; 2]>,
    wake_at: Vec<Option<Timestamp>>,
    /// The connections of both nodes of each link.
    connections: Vec<[Option<ConnectionHandle>; 2]>,
    /// The ports of both nodes of each link, as the other node sees them.
    ports: Vec<[u16; 2]>,
    /// End-to-end sessions with an event so far: (node, session).
    sessions: BTreeSet<(usize, ConnectionHandle)>,
    /// Number of links on the shortest path between each pair of nodes.
    distances: Vec<Vec<usize>>,
    /// Polls of nodes since the virtual time last advanced.
    polls: u32,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// Called before each delivery, with the link, the direction and the datagram.
    pub tamper: Option<TamperHook>,
    /// Called for each datagram that is sent or delivered.
    pub observer: Option<LinkObserver>,
    /// Events of the nodes that the caller has not taken: (node, connection, event).
    pub events: Vec<(usize, ConnectionHandle, Event)>,
}

impl core::fmt::Debug for RelayNetwork {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RelayNetwork")
            .field("now", &self.now)
            .field("nodes", &self.nodes.len())
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
        let end = network.now + SETUP_TIMEOUT;
        while !network.is_established() {
            if network.now >= end {
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
        let mut network = Self {
            now: Timestamp::from_millis(1),
            nodes: (0..count).map(|node| endpoint(&config, node, 0)).collect(),
            links: config.links.iter().zip(reverse).enumerate().map(link).collect(),
            wake_at: vec![Some(Timestamp::ZERO); count],
            connections: vec![[None; 2]; edges.len()],
            ports: vec![[PORT; 2]; edges.len()],
            sessions: BTreeSet::new(),
            distances: distances(count, &edges),
            edges,
            polls: 0,
            buffer: Vec::with_capacity(65_536),
            spare: Vec::new(),
            tamper: None,
            observer: None,
            events: Vec::new(),
            config,
        };
        for link in 0..network.edges.len() {
            network.connect_link(link);
        }
        network
    }

    /// Makes the first node of a link connect to the second. Also used to connect again after the
    /// connection has ended.
    pub fn connect_link(&mut self, link: usize) {
        let (now, client, node) =
            (self.now, client_config(&self.config.transport), self.edges[link].0);
        let handle = self.nodes[node].connect(now, address(link, 1, PORT), "node", client);
        self.connections[link][0] = Some(handle.expect("a valid configuration"));
        self.wake(node);
    }

    /// Whether all links have an established connection on both sides.
    pub fn is_established(&self) -> bool {
        self.edges.iter().zip(&self.connections).all(|(&(a, b), ends)| {
            [a, b].into_iter().zip(ends).all(|(node, handle)| {
                handle.is_some_and(|handle| {
                    let stats = self.nodes[node].stats(self.now, handle);
                    stats.is_some_and(|stats| stats.established.is_some())
                })
            })
        })
    }

    /// Admits a neighbour to the relay when its connection is established, and routes over it.
    fn on_event(&mut self, node: usize, handle: ConnectionHandle, event: &Event) {
        let (now, endpoint) = (self.now, &mut self.nodes[node]);
        if endpoint.remote_node(handle).is_some() {
            self.sessions.insert((node, handle));
            return;
        }
        let side = match event {
            Event::Accepted => 1,
            Event::Connected => 0,
            _ => return,
        };
        let Some(remote) = endpoint.remote(handle) else { return };
        let (link, _) = parse(remote);
        // A neighbour that connects again has lost the state of its old connection.
        let old = self.connections[link][side].replace(handle).filter(|old| *old != handle);
        assert!(endpoint.admit(handle), "an established connection");
        let (a, b) = self.edges[link];
        let next = if side == 0 { b } else { a };
        for other in 0..self.distances.len() {
            if self.distances[next][other] < self.distances[node][other] {
                if let Some(old) = old {
                    endpoint.remove_route(now, node_id(other), old);
                }
                assert!(endpoint.add_route(now, node_id(other), handle));
            }
        }
    }

    /// Restarts a node, which loses all state. Its neighbours and the node connect again.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node] = endpoint(&self.config, node, self.now.as_micros() as u8 | 1);
        for link in 0..self.edges.len() {
            let (a, b) = self.edges[link];
            if a != node && b != node {
                continue;
            }
            let (now, ends) = (self.now, core::mem::take(&mut self.connections[link]));
            // The first node of a link connects, so it closes its old connection first.
            if b == node
                && let Some(handle) = ends[0]
            {
                self.nodes[a].close(now, handle, 0, "the neighbour was restarted");
            }
            self.connect_link(link);
        }
        self.wake(node);
    }

    /// Starts an end-to-end session from node 0 to the last node.
    pub fn connect_ends(&mut self) -> ConnectionHandle {
        self.connect_ends_in(self.config.transport.mode)
    }

    /// Starts an end-to-end session in this mode from node 0 to the last node.
    pub fn connect_ends_in(&mut self, mode: Mode) -> ConnectionHandle {
        let last = node_id(self.nodes.len() - 1);
        let (now, mut client) = (self.now, client_config(&self.config.transport));
        client.transport = Arc::new(TransportConfig { mode, ..self.config.transport.clone() });
        let handle = self.nodes[0].connect_across(now, last, "end", client);
        self.wake(0);
        handle.expect("a valid configuration")
    }

    /// The virtual time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The endpoint of a node. Call [`RelayNetwork::wake`] after changing it.
    pub fn node(&mut self, node: usize) -> &mut Endpoint {
        &mut self.nodes[node]
    }

    /// Index of the last node.
    pub fn last(&self) -> usize {
        self.nodes.len() - 1
    }

    /// The connection of the first node of a link to the second. In a chain, link `n` connects node
    /// `n` to node `n + 1`.
    pub fn link_connection(&self, link: usize) -> Option<ConnectionHandle> {
        self.connections[link][0]
    }

    /// Sets what the packets of the first node of a link may do at the second.
    ///
    /// # Panics
    ///
    /// If the link is not established.
    pub fn set_policy(&mut self, link: usize, policy: LinkPolicy) {
        let (node, handle) = (self.edges[link].1, self.connections[link][1]);
        let handle = handle.expect("a connection");
        assert!(self.nodes[node].admit_with(handle, policy), "an established link");
        self.wake(node);
    }

    /// The link to which this connection of its first node belongs.
    pub fn link_of(&self, node: usize, handle: ConnectionHandle) -> Option<usize> {
        let ends = self.edges.iter().zip(&self.connections);
        ends.enumerate()
            .find(|(_, (edge, ends))| edge.0 == node && ends[0] == Some(handle))
            .map(|(link, _)| link)
    }

    /// Whether this handle is or was an end-to-end session.
    pub fn is_session(&self, node: usize, handle: ConnectionHandle) -> bool {
        self.sessions.contains(&(node, handle))
    }

    /// NAT rebinding: changes the port of the first node of a link. Datagrams in flight to the old
    /// port are lost.
    pub fn rebind(&mut self, link: usize, port: u16) {
        self.ports[link][0] = port;
    }

    /// Schedules a node to be polled now, after its endpoint was changed.
    pub fn wake(&mut self, node: usize) {
        self.wake_at[node] = Some(self.now);
    }

    /// Relay counters of a node.
    pub fn relay_stats(&self, node: usize) -> RelayStats {
        self.nodes[node].relay_stats().unwrap_or_default()
    }

    /// Counters of the forward direction of a link.
    pub fn link_stats(&self, link: usize) -> LinkStats {
        self.links[link][0].stats()
    }

    /// Changes the configuration of both directions of a link.
    pub fn set_link(&mut self, link: usize, config: &LinkConfig) {
        for each in &mut self.links[link] {
            each.set_config(self.now, config.clone());
        }
    }

    /// Changes the configuration of one direction of a link.
    pub fn set_direction(&mut self, link: usize, direction: LinkDirection, config: LinkConfig) {
        self.links[link][usize::from(direction == LinkDirection::Reverse)]
            .set_config(self.now, config);
    }

    /// Bytes in the queue of one direction of a link.
    pub fn queue_bytes(&mut self, link: usize, direction: LinkDirection) -> usize {
        self.links[link][usize::from(direction == LinkDirection::Reverse)].queue_bytes(self.now)
    }

    /// Advances virtual time until `events` grows (returns true) or until `until` (returns false).
    pub fn step(&mut self, until: Timestamp) -> bool {
        loop {
            if self.process_due() {
                return true;
            }
            let now = self.now;
            let links = self.links.iter_mut().flatten().filter_map(|link| match link.poll(now) {
                LinkOutput::Timeout(at) => at,
                LinkOutput::Deliver(_) => None,
            });
            match links.chain(self.wake_at.iter().copied().flatten()).min() {
                Some(at) if at <= until => {
                    self.polls = if at > self.now { 0 } else { self.polls };
                    self.now = at.max(self.now);
                }
                _ => {
                    self.polls = if until > self.now { 0 } else { self.polls };
                    self.now = until;
                    return false;
                }
            }
        }
    }

    /// Does all work that is due now. True if an event was added.
    fn process_due(&mut self) -> bool {
        let before = self.events.len();
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(
                rounds < MAX_ROUNDS,
                "virtual time does not advance at {:?}: infinite loop",
                self.now
            );
            let mut idle = true;
            for node in 0..self.nodes.len() {
                if self.wake_at[node].is_some_and(|at| at <= self.now) {
                    idle = false;
                    self.nodes[node].handle(self.now, Input::Timeout);
                    self.drive(node);
                }
            }
            for index in 0..self.links.len() {
                for (side, direction) in
                    [LinkDirection::Forward, LinkDirection::Reverse].into_iter().enumerate()
                {
                    while let LinkOutput::Deliver(mut datagram) =
                        self.links[index][side].poll(self.now)
                    {
                        idle = false;
                        if datagram.to.port() != self.ports[index][1 - side] {
                            continue;
                        }
                        let to = match direction {
                            LinkDirection::Forward => self.edges[index].1,
                            LinkDirection::Reverse => self.edges[index].0,
                        };
                        if let Some(observer) = &mut self.observer {
                            observer(&RelayLinkEvent {
                                time: self.now,
                                link: index,
                                direction,
                                kind: LinkEventKind::Delivered,
                                ecn: datagram.ecn,
                                payload: &datagram.bytes,
                            });
                        }
                        if let Some(tamper) = &mut self.tamper {
                            tamper(index, direction, &mut datagram.bytes);
                        }
                        let received = Received {
                            remote: address(index, side, self.ports[index][side]),
                            local_ip: None,
                            ecn: datagram.ecn,
                            payload: &mut datagram.bytes,
                        };
                        self.nodes[to].handle(self.now, Input::Datagram(received));
                        if self.spare.len() < MAX_SPARE {
                            self.spare.push(datagram.bytes);
                        }
                        self.drive(to);
                    }
                }
            }
            if idle {
                return self.events.len() > before;
            }
        }
    }

    fn drive(&mut self, node: usize) {
        loop {
            self.polls += 1;
            assert!(
                self.polls < MAX_POLLS,
                "virtual time does not advance at {:?}: node {node} is polled without end",
                self.now
            );
            match self.nodes[node].poll(self.now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    let (link, to) = parse(transmit.remote);
                    let side = 1 - to;
                    for segment in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                        let mut bytes = self.spare.pop().unwrap_or_default();
                        bytes.clear();
                        bytes.extend_from_slice(segment);
                        let datagram = Datagram {
                            bytes,
                            ecn: transmit.ecn,
                            sent: self.now,
                            to: transmit.remote,
                        };
                        let fate = self.links[link][side].handle(self.now, datagram);
                        if let Some(observer) = &mut self.observer {
                            observer(&RelayLinkEvent {
                                time: self.now,
                                link,
                                direction: if side == 0 {
                                    LinkDirection::Forward
                                } else {
                                    LinkDirection::Reverse
                                },
                                kind: LinkEventKind::Sent(fate),
                                ecn: transmit.ecn,
                                payload: segment,
                            });
                        }
                    }
                }
                Output::Event(handle, event) => {
                    self.on_event(node, handle, &event);
                    self.events.push((node, handle, event));
                }
                Output::Timeout(at) => {
                    self.wake_at[node] = at;
                    return;
                }
            }
        }
    }
}
