//! Nodes joined by links, in a line or as one likes: the ends speak across the relays between them.
//! Where several links lead on, all of them are used.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput};
use bats_proto::config::Security;
use bats_proto::relay::{RelayConfig, RelayStats};
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    ConnectionHandle, Endpoint, EndpointConfig, Event, Identity, Input, Mode, Output, Received,
    ServerConfig, Timestamp, TransportConfig,
};

use crate::network::Datagram;
use crate::record::What;
use crate::transfer::client_config;

/// Time that the links of a line have to come up.
const SET_UP: Duration = Duration::from_secs(30);
/// Rounds of work, and answers of a node, at one moment; more are a loop without end.
const MAX_ROUNDS: u32 = 100_000;
const MAX_POLLS: u32 = 4_000_000;
/// The port of every node, until a NAT gives it another.
const PORT: u16 = 4_000;
/// Buffers of datagrams kept for reuse.
const MAX_SPARE: usize = 4_096;

/// Direction along a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From node 0 on.
    Forth,
    /// Towards node 0.
    Back,
}

/// What a line is made of.
#[derive(Clone, Debug)]
pub struct LineConfig {
    /// Both directions of each link.
    pub links: Vec<LinkConfig>,
    /// What nodes do with what they carry.
    pub relay: RelayConfig,
    /// Limits and behaviour of links and sessions.
    pub transport: TransportConfig,
    /// Decides every random choice.
    pub seed: u64,
}

/// The name of node `index`.
pub fn node_id(index: usize) -> NodeId {
    NodeId(1 + index as u32)
}

/// Changes a datagram on its way, or not; see [`Line::tamper`].
pub type Tamper = Box<dyn FnMut(usize, Way, &mut Vec<u8>)>;

/// What happened to a datagram on a link; see [`Line::watch`].
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    /// When.
    pub time: Timestamp,
    /// Which link.
    pub link: usize,
    /// In which direction.
    pub way: Way,
    /// It left, or arrived.
    pub what: What,
    /// Its ECN bits.
    pub ecn: u8,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// Is told of each datagram that leaves or arrives.
pub type Watch = Box<dyn FnMut(&Passage<'_>)>;

/// Nodes and the links between them.
pub struct Line {
    now: Timestamp,
    config: LineConfig,
    nodes: Vec<Endpoint>,
    /// The nodes that each link joins.
    edges: Vec<(usize, usize)>,
    /// Both directions of each link.
    links: Vec<[Link<Datagram>; 2]>,
    wake: Vec<Option<Timestamp>>,
    /// The connections at both ends of each link.
    ends: Vec<[Option<ConnectionHandle>; 2]>,
    /// The ports of both ends of each link, as the other end sees them.
    ports: Vec<[u16; 2]>,
    /// Sessions across relays that a node has accepted.
    sessions: BTreeSet<(usize, ConnectionHandle)>,
    /// Links from each node to each other one.
    distances: Vec<Vec<usize>>,
    /// Answers of nodes at this moment.
    polls: u32,
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// Called with each datagram that arrives: the link, the direction, the bytes.
    pub tamper: Option<Tamper>,
    /// Called with each datagram that leaves or arrives.
    pub watch: Option<Watch>,
    /// What the nodes said: (node, connection, event).
    pub events: Vec<(usize, ConnectionHandle, Event)>,
}

impl core::fmt::Debug for Line {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Line").field("now", &self.now).field("nodes", &self.nodes.len()).finish()
    }
}

/// The address of one end of a link: its first node, or the other.
fn address(link: usize, side: usize, port: u16) -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, link as u8, side as u8 + 1), port).into()
}

/// The link and the end that an address is of.
fn parse(address: SocketAddr) -> (usize, usize) {
    let SocketAddr::V4(address) = address else { panic!("{address} is of no link") };
    let [_, _, link, side] = address.ip().octets();
    (usize::from(link), usize::from(side) - 1)
}

/// Links between each two nodes on the shortest way, `usize::MAX` if there is none.
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

fn endpoint(config: &LineConfig, node: usize, incarnation: u8) -> Endpoint {
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: Arc::new(config.transport.clone()),
        retry_threshold: usize::MAX,
        max_connections: 4_096,
    };
    let mut seed = [node as u8 + 1; 32];
    seed[..8].copy_from_slice(&config.seed.to_le_bytes());
    seed[8] = incarnation;
    let endpoint_config = EndpointConfig {
        security: Security::DangerousPlain,
        server: Some(server),
        ..EndpointConfig::default()
    };
    let mut endpoint =
        Endpoint::new(endpoint_config, seed).expect("the stand-in needs no certificate");
    let relay = RelayConfig { node: node_id(node), ..config.relay.clone() };
    endpoint.enable_relay(relay).expect("a fresh endpoint");
    endpoint
}

impl Line {
    /// Joins the nodes in a line and lets all links come up.
    ///
    /// # Panics
    ///
    /// If they do not within 30 s.
    pub fn new(config: LineConfig) -> Self {
        let back = config.links.clone();
        Self::with_back(config, &back).expect("the links come up")
    }

    /// Joins the nodes in a line by links that behave otherwise on the way back, one for each of
    /// `config.links`, which are those of the way forth; `None` if the links do not come up within
    /// 30 s.
    ///
    /// # Panics
    ///
    /// If there are not as many of them.
    pub fn with_back(config: LineConfig, back: &[LinkConfig]) -> Option<Self> {
        let edges = (0..config.links.len()).map(|link| (link, link + 1)).collect();
        Self::join_all(config, back, edges)
    }

    /// Joins the nodes as `edges` says, a pair for each link, and lets all links come up. Node 0 and
    /// the last one are the ends.
    ///
    /// # Panics
    ///
    /// If they do not within 30 s, or if there are not as many edges as links.
    pub fn mesh(config: LineConfig, edges: Vec<(usize, usize)>) -> Self {
        Self::try_mesh(config, edges).expect("the links come up")
    }

    /// The same; `None` if the links do not come up within 30 s.
    ///
    /// # Panics
    ///
    /// If there are not as many edges as links.
    pub fn try_mesh(config: LineConfig, edges: Vec<(usize, usize)>) -> Option<Self> {
        let back = config.links.clone();
        Self::join_all(config, &back, edges)
    }

    fn join_all(
        config: LineConfig,
        back: &[LinkConfig],
        edges: Vec<(usize, usize)>,
    ) -> Option<Self> {
        let mut line = Self::begin(config, back, edges);
        let end = line.now + SET_UP;
        while !line.is_joined() {
            if line.now >= end {
                return None;
            }
            line.step(end);
        }
        line.events.clear();
        Some(line)
    }

    /// Joins the nodes as `edges` says by links that behave as `back` says on the way back, and does
    /// not wait for the links to come up: see [`Line::is_joined`].
    ///
    /// # Panics
    ///
    /// If there are not as many edges and ways back as links.
    pub fn begin(config: LineConfig, back: &[LinkConfig], edges: Vec<(usize, usize)>) -> Self {
        assert_eq!(config.links.len(), edges.len(), "a pair of nodes for each link");
        assert_eq!(config.links.len(), back.len(), "a way back for each link");
        let count = edges.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(0) + 1;
        let link = |(index, (forth, back)): (usize, (&LinkConfig, &LinkConfig))| {
            let seed = config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
            [Link::new(forth.clone(), seed ^ 0x5bd1), Link::new(back.clone(), seed ^ 0xa7f0_0000)]
        };
        let mut line = Self {
            now: Timestamp::from_millis(1),
            nodes: (0..count).map(|node| endpoint(&config, node, 0)).collect(),
            links: config.links.iter().zip(back).enumerate().map(link).collect(),
            wake: vec![Some(Timestamp::ZERO); count],
            ends: vec![[None; 2]; edges.len()],
            ports: vec![[PORT; 2]; edges.len()],
            sessions: BTreeSet::new(),
            distances: distances(count, &edges),
            edges,
            polls: 0,
            buffer: Vec::with_capacity(65_536),
            spare: Vec::new(),
            tamper: None,
            watch: None,
            events: Vec::new(),
            config,
        };
        for link in 0..line.edges.len() {
            line.join(link);
        }
        line
    }

    /// The first node of a link connects to the other, for the first time or because the connection
    /// before has ended.
    pub fn join(&mut self, link: usize) {
        let (now, client, node) =
            (self.now, client_config(&self.config.transport), self.edges[link].0);
        let handle = self.nodes[node].connect(now, address(link, 1, PORT), "node", client);
        self.ends[link][0] = Some(handle.expect("a valid configuration"));
        self.touch(node);
    }

    /// Whether both ends of all links have a connection.
    pub fn is_joined(&self) -> bool {
        self.edges.iter().zip(&self.ends).all(|(&(a, b), ends)| {
            [a, b].into_iter().zip(ends).all(|(node, handle)| {
                handle.is_some_and(|handle| {
                    let stats = self.nodes[node].stats(self.now, handle);
                    stats.is_some_and(|stats| stats.established.is_some())
                })
            })
        })
    }

    /// A neighbour's connection is up: it may have packets carried, and routes lead over it.
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
        // A neighbour that has come anew has forgotten the connection of before.
        let old = self.ends[link][side].replace(handle).filter(|old| *old != handle);
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

    /// Node `node` loses everything and comes back; its neighbours notice when they hear of it.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node] = endpoint(&self.config, node, self.now.as_micros() as u8 | 1);
        for link in 0..self.edges.len() {
            let (a, b) = self.edges[link];
            if a != node && b != node {
                continue;
            }
            let (now, ends) = (self.now, core::mem::take(&mut self.ends[link]));
            // Who waits to be connected to hears of it; who connects does so anew.
            if b == node
                && let Some(handle) = ends[0]
            {
                self.nodes[a].close(now, handle, 0, "the neighbour was restarted");
            }
            self.join(link);
        }
        self.touch(node);
    }

    /// Node 0 begins a session with the last node.
    pub fn connect_ends(&mut self) -> ConnectionHandle {
        self.connect_ends_as(self.config.transport.mode)
    }

    /// The same, in a mode of one's choice.
    pub fn connect_ends_as(&mut self, mode: Mode) -> ConnectionHandle {
        let last = node_id(self.nodes.len() - 1);
        let (now, mut client) = (self.now, client_config(&self.config.transport));
        client.transport = Arc::new(TransportConfig { mode, ..self.config.transport.clone() });
        let handle = self.nodes[0].connect_across(now, last, "end", client);
        self.touch(0);
        handle.expect("a valid configuration")
    }

    /// The virtual time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// A node. Whoever changes it calls [`Line::touch`] afterwards.
    pub fn node(&mut self, node: usize) -> &mut Endpoint {
        &mut self.nodes[node]
    }

    /// Index of the last node.
    pub fn last(&self) -> usize {
        self.nodes.len() - 1
    }

    /// The connection of the first node of a link to the other: in a line, of node `node` to the next.
    pub fn downlink(&self, node: usize) -> Option<ConnectionHandle> {
        self.ends[node][0]
    }

    /// The link whose connection at its first node this is.
    pub fn link_of(&self, node: usize, handle: ConnectionHandle) -> Option<usize> {
        let ends = self.edges.iter().zip(&self.ends);
        ends.enumerate()
            .find(|(_, (edge, ends))| edge.0 == node && ends[0] == Some(handle))
            .map(|(link, _)| link)
    }

    /// Whether this connection is or was a session across relays that is established.
    pub fn is_session(&self, node: usize, handle: ConnectionHandle) -> bool {
        self.sessions.contains(&(node, handle))
    }

    /// A NAT gives the first node of a link another port: what is under way to the old one is lost.
    pub fn rebind(&mut self, link: usize, port: u16) {
        self.ports[link][0] = port;
    }

    /// The node has something new to say.
    pub fn touch(&mut self, node: usize) {
        self.wake[node] = Some(self.now);
    }

    /// Counters of what a node carries.
    pub fn relay_stats(&self, node: usize) -> RelayStats {
        self.nodes[node].relay_stats().unwrap_or_default()
    }

    /// Counters of a link, away from node 0.
    pub fn link_stats(&self, link: usize) -> LinkStats {
        self.links[link][0].stats()
    }

    /// Changes both directions of a link.
    pub fn set_link(&mut self, link: usize, config: &LinkConfig) {
        for direction in &mut self.links[link] {
            direction.set_config(self.now, config.clone());
        }
    }

    /// Changes one direction of a link.
    pub fn set_way(&mut self, link: usize, way: Way, config: LinkConfig) {
        self.links[link][usize::from(way == Way::Back)].set_config(self.now, config);
    }

    /// Bytes that wait in the queue before a link.
    pub fn queue_bytes(&mut self, link: usize, way: Way) -> usize {
        self.links[link][usize::from(way == Way::Back)].queue_bytes(self.now)
    }

    /// Goes on until something was noted in `events`, nothing can happen any more, or `until`;
    /// false in the latter cases.
    pub fn step(&mut self, until: Timestamp) -> bool {
        loop {
            if self.settle() {
                return true;
            }
            let now = self.now;
            let links = self.links.iter_mut().flatten().filter_map(|link| match link.poll(now) {
                LinkOutput::Timeout(at) => at,
                LinkOutput::Deliver(_) => None,
            });
            match links.chain(self.wake.iter().copied().flatten()).min() {
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

    /// Does what is to be done now; true if an event was noted.
    fn settle(&mut self) -> bool {
        let before = self.events.len();
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "time stands still at {:?}", self.now);
            let mut idle = true;
            for node in 0..self.nodes.len() {
                if self.wake[node].is_some_and(|at| at <= self.now) {
                    idle = false;
                    self.nodes[node].handle(self.now, Input::Timeout);
                    self.drive(node);
                }
            }
            for index in 0..self.links.len() {
                for (side, way) in [Way::Forth, Way::Back].into_iter().enumerate() {
                    while let LinkOutput::Deliver(mut datagram) =
                        self.links[index][side].poll(self.now)
                    {
                        idle = false;
                        if datagram.to.port() != self.ports[index][1 - side] {
                            continue;
                        }
                        let to = match way {
                            Way::Forth => self.edges[index].1,
                            Way::Back => self.edges[index].0,
                        };
                        if let Some(watch) = &mut self.watch {
                            watch(&Passage {
                                time: self.now,
                                link: index,
                                way,
                                what: What::Delivered,
                                ecn: datagram.ecn,
                                payload: &datagram.bytes,
                            });
                        }
                        if let Some(tamper) = &mut self.tamper {
                            tamper(index, way, &mut datagram.bytes);
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
            assert!(self.polls < MAX_POLLS, "node {node} never falls silent at {:?}", self.now);
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
                        if let Some(watch) = &mut self.watch {
                            watch(&Passage {
                                time: self.now,
                                link,
                                way: if side == 0 { Way::Forth } else { Way::Back },
                                what: What::Sent(fate),
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
                    self.wake[node] = at;
                    return;
                }
            }
        }
    }
}
