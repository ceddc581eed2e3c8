//! Client and server with what lies between them: links that only forward, or nodes that relay.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use bats_proto::config::{Mode, Security};
use bats_proto::{
    ConnectError, ConnectionHandle, Endpoint, EndpointConfig, Event, Identity, ServerConfig,
    Timestamp, TransportConfig,
};

use super::plan::{FaultKind, Nodes, Plan};
use super::relays::{self, Watcher};
use crate::line::{Line, LineConfig, Way, node_id};
use crate::network::{Host, Network};
use crate::record::Recorder;
use crate::transfer::client_config;

/// Time in which links that never fail for long come up.
const SET_UP: Duration = Duration::from_secs(120);
const HOSTS: [Host; 2] = [Host::Client, Host::Server];

/// What a run has to do with.
#[derive(Debug)]
pub(super) struct Net {
    kind: Kind,
    transport: TransportConfig,
    /// Addresses that NATs have given out.
    rebindings: u16,
}

#[derive(Debug)]
enum Kind {
    Chain(Box<Network>),
    Nodes(Box<Relayed>),
}

#[derive(Debug)]
struct Relayed {
    line: Line,
    nodes: Nodes,
    watcher: Rc<RefCell<Watcher>>,
    /// Sessions that the client has begun.
    begun: BTreeSet<ConnectionHandle>,
    /// Links whose connections end are to come up again.
    rejoin: bool,
}

fn endpoints(plan: &Plan) -> [Endpoint; 2] {
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: Arc::new(plan.transport.clone()),
        retry_threshold: if plan.retry { 0 } else { usize::MAX },
        max_connections: 64,
    };
    [None, Some(server)].map(|server| {
        let mut bytes = [u8::from(server.is_some()); 32];
        bytes[..8].copy_from_slice(&plan.seed.to_le_bytes());
        let security = Security::DangerousPlain;
        let config = EndpointConfig { security, server, ..EndpointConfig::default() };
        Endpoint::new(config, bytes).expect("the stand-in needs no certificate")
    })
}

impl Net {
    /// The network of a plan, its links between nodes up; `trace` asks for the hash.
    pub(super) fn new(plan: &Plan, trace: bool) -> Result<Self, String> {
        let kind = match &plan.nodes {
            None => {
                let links = plan.links(Duration::ZERO);
                let mut network = Network::chain(endpoints(plan), links, plan.seed);
                if trace {
                    *network.recorder() = Recorder::tracing();
                }
                Kind::Chain(Box::new(network))
            }
            Some(nodes) => Kind::Nodes(Box::new(Relayed::new(plan, nodes, trace)?)),
        };
        Ok(Self { kind, transport: plan.transport.clone(), rebindings: 0 })
    }

    pub(super) fn now(&self) -> Timestamp {
        match &self.kind {
            Kind::Chain(network) => network.now(),
            Kind::Nodes(relayed) => relayed.line.now(),
        }
    }

    /// Goes on until something happened, or until then.
    pub(super) fn step(&mut self, until: Timestamp) {
        match &mut self.kind {
            Kind::Chain(network) => network.step(until),
            Kind::Nodes(relayed) => relayed.line.step(until),
        };
    }

    /// The client (0) or the server (1).
    pub(super) fn endpoint(&mut self, side: usize) -> &mut Endpoint {
        match &mut self.kind {
            Kind::Chain(network) => network.endpoint(HOSTS[side]),
            Kind::Nodes(relayed) => {
                let node = relayed.node(side);
                relayed.line.node(node)
            }
        }
    }

    /// The endpoint has something new to say.
    pub(super) fn touch(&mut self, side: usize) {
        match &mut self.kind {
            Kind::Chain(network) => network.touch(HOSTS[side]),
            Kind::Nodes(relayed) => relayed.line.touch(relayed.node(side)),
        }
    }

    /// What client and server said of their connections with each other.
    pub(super) fn take_events(&mut self) -> Vec<(usize, ConnectionHandle, Event)> {
        match &mut self.kind {
            Kind::Chain(network) => core::mem::take(&mut network.events)
                .into_iter()
                .map(|(host, handle, event)| (usize::from(host == Host::Server), handle, event))
                .collect(),
            Kind::Nodes(relayed) => relayed.take_events(),
        }
    }

    /// The client begins a connection.
    pub(super) fn connect(&mut self, mode: Mode) -> Result<ConnectionHandle, ConnectError> {
        let transport = TransportConfig { mode, ..self.transport.clone() };
        let config = client_config(&transport);
        let now = self.now();
        let handle = match &mut self.kind {
            Kind::Chain(network) => {
                let client = network.endpoint(Host::Client);
                client.connect(now, Host::Server.address(), "server", config)
            }
            Kind::Nodes(relayed) => {
                let server = node_id(relayed.line.last());
                let handle = relayed.line.node(0).connect_across(now, server, "server", config)?;
                relayed.begun.insert(handle);
                Ok(handle)
            }
        }?;
        self.touch(0);
        Ok(handle)
    }

    /// The time of the plan has come to `at`: links change, clients move, relays come back.
    pub(super) fn change(&mut self, plan: &Plan, at: Duration, since: Duration) {
        let ways = plan.links(at);
        match &mut self.kind {
            Kind::Chain(network) => {
                for (host, way) in HOSTS.into_iter().zip(ways) {
                    network.set_links(host, way);
                }
            }
            Kind::Nodes(relayed) => {
                for (way, links) in [Way::Forth, Way::Back].into_iter().zip(ways) {
                    for (link, config) in links.into_iter().enumerate() {
                        relayed.line.set_way(link, way, config);
                    }
                }
            }
        }
        let is_new = |time: Duration| since < time && time <= at;
        for fault in &plan.faults {
            match (fault.kind, &mut self.kind) {
                (FaultKind::Rebind, kind) if is_new(fault.from) => {
                    self.rebindings += 1;
                    let port = 50_000 + self.rebindings;
                    match kind {
                        Kind::Chain(network) => {
                            let ip = Ipv4Addr::new(10, 0, fault.hop as u8, 1);
                            network.rebind(Host::Client, SocketAddr::from((ip, port)));
                        }
                        Kind::Nodes(relayed) => relayed.line.rebind(fault.hop, port),
                    }
                }
                (FaultKind::Restart(node), Kind::Nodes(relayed)) if is_new(fault.until) => {
                    relayed.line.restart(node);
                }
                _ => {}
            }
        }
    }

    /// Looks at the relays; `sessions` is how many there were at most.
    pub(super) fn look(&self, sessions: usize) -> Result<(), String> {
        let Kind::Nodes(relayed) = &self.kind else { return Ok(()) };
        if let Some(violation) = &relayed.watcher.borrow().violation {
            let all = (0..=relayed.line.last()).map(|node| relayed.line.relay_stats(node));
            return Err(format!("{violation}: {:?}", all.collect::<Vec<_>>()));
        }
        for node in 0..=relayed.line.last() {
            let ways = relayed.nodes.of(node).count();
            relays::check(&relayed.nodes.relay, ways, sessions, &relayed.line.relay_stats(node))
                .map_err(|what| format!("node {node}: {what}"))?;
        }
        Ok(())
    }

    /// All sessions are over for long: relays have forgotten them. The links end now.
    pub(super) fn fall_silent(&mut self) -> Result<(), String> {
        let Kind::Nodes(relayed) = &mut self.kind else { return Ok(()) };
        for node in 0..=relayed.line.last() {
            relays::check_idle(&relayed.line.relay_stats(node))
                .map_err(|what| format!("node {node}: {what}"))?;
        }
        relayed.rejoin = false;
        let now = relayed.line.now();
        for (link, (node, _)) in relayed.nodes.edges.clone().into_iter().enumerate() {
            if let Some(handle) = relayed.line.downlink(link) {
                relayed.line.node(node).close(now, handle, 0, "");
                relayed.line.touch(node);
            }
        }
        Ok(())
    }

    /// Time after which relays forget what is silent.
    pub(super) fn forgetting(&self) -> Duration {
        match &self.kind {
            Kind::Chain(_) => Duration::ZERO,
            Kind::Nodes(relayed) => relayed.nodes.relay.idle_timeout,
        }
    }

    /// Connections that are left: at the client and the server, or at all nodes.
    pub(super) fn connections(&mut self) -> Vec<usize> {
        match &mut self.kind {
            Kind::Chain(network) => {
                HOSTS.map(|host| network.endpoint(host).connection_count()).to_vec()
            }
            Kind::Nodes(relayed) => {
                let nodes = 0..=relayed.line.last();
                nodes.map(|node| relayed.line.node(node).connection_count()).collect()
            }
        }
    }

    /// Connections at all nodes that are no sessions, or no longer.
    pub(super) fn has_links(&self) -> bool {
        matches!(self.kind, Kind::Nodes(_))
    }

    /// Packets handed to links.
    pub(super) fn packets(&self) -> u64 {
        match &self.kind {
            Kind::Chain(network) => HOSTS.map(|host| network.link_stats(host).offered).iter().sum(),
            Kind::Nodes(relayed) => relayed.watcher.borrow().packets,
        }
    }

    /// The hash of all that happened.
    pub(super) fn trace(&mut self) -> Option<String> {
        match &mut self.kind {
            Kind::Chain(network) => {
                network.recorder().trace.as_ref().map(|trace| trace.hash().to_string())
            }
            Kind::Nodes(relayed) => {
                relayed.watcher.borrow().trace.as_ref().map(|trace| trace.hash().to_string())
            }
        }
    }
}

impl Relayed {
    fn new(plan: &Plan, nodes: &Nodes, trace: bool) -> Result<Self, String> {
        let [links, back] = plan.hops.clone();
        let config = LineConfig {
            links,
            relay: nodes.relay.clone(),
            transport: plan.transport.clone(),
            seed: plan.seed,
        };
        let mut line = Line::begin(config, &back, nodes.edges.clone());
        let watcher = Rc::new(RefCell::new(Watcher::new(nodes, trace)));
        let notes = watcher.clone();
        line.watch = Some(Box::new(move |passage| notes.borrow_mut().note(passage)));
        let (begun, nodes) = (BTreeSet::new(), nodes.clone());
        let mut relayed = Self { line, nodes, watcher, begun, rejoin: true };
        let end = relayed.line.now() + SET_UP;
        while !relayed.line.is_joined() {
            if relayed.line.now() >= end {
                return Err(format!("the links were not up after {SET_UP:?}"));
            }
            relayed.line.step(end);
            relayed.take_events();
        }
        Ok(relayed)
    }

    fn node(&self, side: usize) -> usize {
        if side == 0 { 0 } else { self.line.last() }
    }

    fn take_events(&mut self) -> Vec<(usize, ConnectionHandle, Event)> {
        let mut of_sessions = Vec::new();
        for (node, handle, event) in core::mem::take(&mut self.line.events) {
            if node == self.line.last() && self.line.is_session(node, handle) {
                of_sessions.push((1, handle, event));
            } else if node == 0 && self.begun.contains(&handle) {
                of_sessions.push((0, handle, event));
            } else if let (Event::Closed(_), true) = (&event, self.rejoin)
                && let Some(link) = self.line.link_of(node, handle)
            {
                self.line.join(link);
            }
        }
        of_sessions
    }
}
