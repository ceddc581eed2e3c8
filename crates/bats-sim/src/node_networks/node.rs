//! A node in virtual time, with what the worker of `batsd` does around the core: it reconciles at each event and each
//! second, keeps a session open to each peer, and gives the host packets only of peers that own their sources.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bats_node::{Control, Fib, FibHop, FibRoute, Hop, Link, NodeId, Owners, Peer, Plan, wanted};
use bats_proto::{Mode, Timestamp, TransportConfig};
use openbats::node::virtual_time::{Start, VirtualNode, identity};
use openbats::node::{Node, Session};
use openbats::{ClientOptions, Fingerprint, Trust};

use super::config::{World, print};

/// As the worker's: time between attempts to open a session, time-out of its handshake, and idle timeout.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
const HANDSHAKE: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// As the worker's: interval of reconciliations without an event.
const CHECK: Duration = Duration::from_secs(1);
/// Bytes of a message: the node that made it, its source address, the time.
const MESSAGE: usize = 13;

pub(super) fn id(node: usize) -> NodeId {
    NodeId(Ipv4Addr::new(10, 255, 0, node as u8 + 1))
}

fn library_id(node: usize) -> openbats::node::NodeId {
    openbats::node::NodeId(id(node).0.to_bits())
}

pub(super) fn index(id: openbats::node::NodeId) -> usize {
    (id.0 & 0xff) as usize - 1
}

/// The address of a node in the tunnel.
fn inner(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 66, node as u8, 1)
}

/// The address of an end of an edge.
pub(super) fn address(edge: usize, side: usize) -> SocketAddr {
    ([10, 0, edge as u8, side as u8 + 1], 4_900).into()
}

fn name(edge: usize) -> String {
    format!("edge{edge}")
}

/// A message that a peer has sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// The node that made it.
    pub(super) origin: usize,
    /// The node whose address it has as its source.
    pub(super) source: usize,
    pub(super) made: Timestamp,
    /// The peer of the session.
    pub(super) peer: usize,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Session, openbats::ConnectError>>>>;

enum Outgoing {
    Waiting(Timestamp, Duration),
    Connecting(Connecting, Duration),
    Open(Session),
}

pub(super) struct SimulatedNode {
    index: usize,
    virtual_node: VirtualNode,
    plan: Plan,
    owners: Owners,
    control: Control,
    /// The kernel's routes, by destination: edges with their gateways.
    kernel: BTreeMap<usize, Vec<usize>>,
    next_check: Timestamp,
    outgoing: BTreeMap<usize, Outgoing>,
    incoming: BTreeMap<usize, Session>,
    pub(super) wake_at: Option<Timestamp>,
    /// What was wrong.
    pub(super) violation: Option<String>,
}

impl SimulatedNode {
    pub(super) fn start(
        now: Timestamp,
        seed: u64,
        node: usize,
        instance: u64,
        world: &World,
    ) -> Self {
        let claims = world.nodes[node].claims;
        let builder = Node::builder(library_id(claims), identity(&[node as u8]))
            .relaying(true)
            .link_messages(true);
        let mut random = [node as u8; 32];
        random[..8].copy_from_slice(&seed.to_le_bytes());
        random[8..16].copy_from_slice(&instance.to_le_bytes());
        let addresses = vec![SocketAddr::from(([0, 0, 0, 0], 4_900))];
        let start = Start { now, seed: random, instance, addresses };
        let virtual_node = VirtualNode::start(builder, start).expect("a valid configuration");
        let mut started = Self {
            index: node,
            virtual_node,
            plan: Plan::new(id(claims), print(node)),
            owners: Owners::default(),
            control: Control::default(),
            kernel: BTreeMap::new(),
            next_check: now,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            wake_at: Some(now),
            violation: None,
        };
        started.configure(now, world);
        started
    }

    /// Takes over the configuration.
    pub(super) fn configure(&mut self, now: Timestamp, world: &World) {
        let config = &world.nodes[self.index];
        let mut plan = Plan::new(id(config.claims), print(self.index));
        for (&neighbour, &transit) in &config.transit {
            plan.neighbours.insert(print(neighbour), transit.into());
        }
        for &edge in &config.dials {
            let side = world.edges[edge].side(self.index).expect("an own edge");
            let fingerprint = print(world.other(edge, self.index));
            let remote = address(edge, 1 - side);
            let link = Link { remote, local: None, interface: None, fingerprint };
            plan.links.insert(name(edge), link);
        }
        for &peer in &config.peers {
            let prefixes = [format!("10.66.{peer}.0/24").parse().expect("a prefix")].into();
            plan.peers.insert(id(peer), Peer { fingerprint: print(peer), prefixes });
        }
        self.kernel.clear();
        for (&to, edges) in config.routes.iter().filter(|(to, _)| **to != config.claims) {
            if config.follows_kernel {
                self.kernel.insert(to, edges.iter().copied().collect());
                continue;
            }
            let hop = |&edge: &usize| {
                let neighbour = world.other(edge, self.index);
                let is_admitted = config.transit.contains_key(&neighbour);
                match config.dials.contains(&edge) {
                    true => Some((Hop::Link(name(edge)), 0)),
                    false => is_admitted.then(|| (Hop::Neighbour(print(neighbour)), 0)),
                }
            };
            let hops: BTreeMap<Hop, u8> = edges.iter().filter_map(hop).collect();
            if !hops.is_empty() {
                plan.routes.insert(id(to), hops);
            }
        }
        self.owners = plan.check().expect("a consistent configuration");
        self.plan = plan;
        self.virtual_node.set_time(now);
        self.reconcile(now, world);
        self.outgoing.retain(|peer, _| config.peers.contains(peer));
        for &peer in &config.peers {
            self.outgoing.entry(peer).or_insert(Outgoing::Waiting(now, RETRY.0));
        }
        self.wake_at = Some(now);
    }

    /// The kernel's routes.
    fn fib(&self, world: &World) -> Fib {
        let mut fib = Fib::default();
        if !world.nodes[self.index].follows_kernel {
            return fib;
        }
        let hop = |edge: usize, is_gateway: bool| {
            let side = world.edges[edge].side(self.index).expect("an own edge");
            let gateway = is_gateway.then(|| address(edge, 1 - side).ip());
            FibHop { gateway, interface: edge as u32 + 1, is_up: !world.edges[edge].is_cut }
        };
        let route = |to: usize| {
            let edges = self.kernel.get(&to)?;
            let hops: Vec<FibHop> = edges.iter().map(|&edge| hop(edge, true)).collect();
            (!hops.is_empty()).then_some(FibRoute { prefix_length: 32, hops })
        };
        for wanted in wanted(&self.plan, self.control.state()) {
            let IpAddr::V4(v4) = wanted else { continue };
            let answer = match v4.octets() {
                [10, 255, 0, node] => route(usize::from(node) - 1),
                [10, 0, edge, _] => {
                    let hops = vec![hop(edge.into(), false)];
                    Some(FibRoute { prefix_length: 24, hops })
                }
                _ => None,
            };
            fib.answers.insert(wanted, answer.ok_or(bats_node::NoRoute::Missing));
        }
        for &to in self.kernel.keys().filter(|to| !self.plan.peers.contains_key(&id(**to))) {
            fib.hosts.extend(route(to).map(|route| (id(to).0, route)));
        }
        fib
    }

    fn reconcile(&mut self, now: Timestamp, world: &World) {
        let mut network = self.virtual_node.node();
        self.control.observe(&network);
        let fib = Arc::new(self.fib(world));
        let done = self.control.reconcile(now, &self.plan, fib, &mut network);
        for node in done.dismissed {
            if let Some(session) = self.incoming.remove(&(usize::from(node.0.octets()[3]) - 1)) {
                session.close(1, "no longer configured");
            }
        }
        self.violation = self.violation.take().or_else(|| done.errors.into_iter().next());
        self.next_check = now + CHECK;
    }

    pub(super) fn receive(&mut self, now: Timestamp, datagram: bats_proto::Received<'_>) {
        self.virtual_node.receive(now, datagram);
        self.wake_at = Some(now);
    }

    /// Does what is due: the next datagrams, or `None`.
    pub(super) fn poll(
        &mut self,
        now: Timestamp,
        world: &World,
        buffer: &mut Vec<u8>,
    ) -> Option<bats_proto::Transmit> {
        loop {
            match self.virtual_node.poll(now, buffer) {
                Ok(transmit) => return Some(transmit),
                Err(at) => {
                    let mut has_event = now >= self.next_check;
                    while self.virtual_node.node().events().try_next().is_some() {
                        has_event = true;
                    }
                    if has_event {
                        self.reconcile(now, world);
                        continue;
                    }
                    self.wake_at = at.into_iter().chain([self.next_check]).min();
                    return None;
                }
            }
        }
    }

    /// Opens, accepts and checks sessions, and takes what arrived.
    pub(super) fn serve(&mut self, now: Timestamp, messages: &mut Vec<Message>) {
        self.virtual_node.set_time(now);
        let mut context = Context::from_waker(Waker::noop());
        let node = self.virtual_node.node();
        for (&peer, outgoing) in &mut self.outgoing {
            let next = match outgoing {
                Outgoing::Waiting(at, retry) if *at <= now => {
                    let transport = TransportConfig {
                        keep_alive: Some(KEEP_ALIVE),
                        idle_timeout: IDLE,
                        handshake_timeout: HANDSHAKE,
                        ..TransportConfig::default()
                    };
                    let options = ClientOptions::new(Trust::fingerprint(Fingerprint(print(peer))))
                        .transport(transport)
                        .mode(Mode::Brtp);
                    let node = node.clone();
                    let connects =
                        async move { node.connect_node(library_id(peer), "node", options).await };
                    Some(Outgoing::Connecting(Box::pin(connects), *retry))
                }
                Outgoing::Connecting(future, retry) => match future.as_mut().poll(&mut context) {
                    Poll::Pending => None,
                    Poll::Ready(Ok(session)) => Some(Outgoing::Open(session)),
                    Poll::Ready(Err(_)) => {
                        Some(Outgoing::Waiting(now + *retry, (*retry * 2).min(RETRY.1)))
                    }
                },
                Outgoing::Open(session) if session.close_reason().is_some() => {
                    Some(Outgoing::Waiting(now + RETRY.0, RETRY.0 * 2))
                }
                _ => None,
            };
            if let Some(next) = next {
                *outgoing = next;
            }
            if let Outgoing::Open(session) = outgoing
                && session.close_reason().is_none()
                && session.peer_fingerprint() != Some(Fingerprint(print(peer)))
            {
                let other = session.peer_fingerprint();
                self.violation = Some(format!("a session with {} has {other:?}", id(peer)));
            }
        }
        let mut accepts = Box::pin(node.accept());
        while let Poll::Ready(Ok(session)) = accepts.as_mut().poll(&mut context) {
            let peer = index(session.remote_node());
            let is_open = session.close_reason().is_none();
            if is_open && session.peer_fingerprint() != Some(Fingerprint(print(peer))) {
                let other = session.peer_fingerprint();
                self.violation = Some(format!("{} has opened a session with {other:?}", id(peer)));
            }
            if !self.plan.peers.contains_key(&id(peer)) {
                session.close(1, "not configured here");
            } else if let Some(old) = self.incoming.insert(peer, session) {
                old.close(0, "replaced by a new session");
            }
            accepts = Box::pin(node.accept());
        }
        drop(accepts);
        for (&peer, session) in &self.incoming {
            while let Some(bytes) = session.try_recv() {
                let Ok(&[origin, a, b, c, d, ref time @ ..]) =
                    <&[u8; MESSAGE]>::try_from(&bytes[..])
                else {
                    self.violation = Some(format!("a message of {} bytes", bytes.len()));
                    continue;
                };
                let source = Ipv4Addr::new(a, b, c, d);
                if self.owners.may_send(id(peer), source.into()) {
                    messages.push(Message {
                        origin: origin.into(),
                        source: c.into(),
                        made: Timestamp::ZERO + Duration::from_nanos(u64::from_le_bytes(*time)),
                        peer,
                    });
                }
            }
        }
        self.wake_at = Some(now);
    }

    /// Sends a message to each peer that has a session; `source` is the node whose address it has.
    pub(super) fn send(&mut self, now: Timestamp, source: usize) {
        self.virtual_node.set_time(now);
        let mut message = vec![self.index as u8];
        message.extend(inner(source).octets());
        message.extend(now.as_nanos().to_le_bytes());
        for outgoing in self.outgoing.values() {
            if let Outgoing::Open(session) = outgoing {
                // Without room, or after the end, another one follows.
                let _ = session.try_send(message.clone());
            }
        }
        self.wake_at = Some(now);
    }

    pub(super) fn describe(&self) -> String {
        let links = self.virtual_node.node().links().list();
        let links: Vec<_> =
            links.iter().map(|l| (l.remote, l.is_opened_here, l.state, l.failures)).collect();
        let sessions: Vec<_> = self
            .outgoing
            .iter()
            .map(|(peer, out)| {
                (
                    peer,
                    match out {
                        Outgoing::Waiting(..) => "waiting",
                        Outgoing::Connecting(..) => "connecting",
                        Outgoing::Open(_) => "open",
                    },
                )
            })
            .collect();
        format!(
            "node {}: links {links:?}, sessions {sessions:?}, routes {:?}",
            self.index,
            self.control.state().routes
        )
    }
}
