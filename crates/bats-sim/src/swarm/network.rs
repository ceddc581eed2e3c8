//! The network of a swarm run: client, server, and links that only forward or relays between them.

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

use super::fault::FaultKind;
use super::nodes::Nodes;
use super::plan::Plan;
use super::relay_monitor::{self, RelayMonitor};
use crate::capture::Capture;
use crate::endpoints::client_config;
use crate::host::Host;
use crate::link_event::LinkEventKind;
use crate::network::Network;
use crate::recorder::Recorder;
use crate::relay_network::{LinkDirection, RelayNetwork, RelayNetworkConfig, node_id};

/// Time for all links to be established before the run starts.
const SETUP_TIMEOUT: Duration = Duration::from_secs(120);
const HOSTS: [Host; 2] = [Host::Client, Host::Server];

/// The network of a run.
#[derive(Debug)]
pub(super) struct SwarmNetwork {
    kind: Kind,
    transport: TransportConfig,
    /// Number of NAT rebindings so far.
    rebindings: u16,
}

#[derive(Debug)]
enum Kind {
    Chain(Box<Network>),
    Nodes(Box<Relayed>),
}

#[derive(Debug)]
struct Relayed {
    network: RelayNetwork,
    nodes: Nodes,
    monitor: Rc<RefCell<RelayMonitor>>,
    /// Sessions that the client has started.
    started: BTreeSet<ConnectionHandle>,
    /// Whether links connect again when their connection ends.
    reconnects: bool,
}

fn endpoints(plan: &Plan) -> [Endpoint; 2] {
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: Arc::new(plan.transport.clone()),
        client_trust: None,
        retry_threshold: if plan.retry { 0 } else { usize::MAX },
        max_connections: 64,
    };
    [None, Some(server)].map(|server| {
        let mut bytes = [u8::from(server.is_some()); 32];
        bytes[..8].copy_from_slice(&plan.seed.to_le_bytes());
        let security = Security::DangerousPlain;
        let config = EndpointConfig { security, server, ..EndpointConfig::default() };
        Endpoint::new(config, bytes).expect("plain security needs no certificate")
    })
}

impl SwarmNetwork {
    /// The network of a plan. Links between nodes are established. `trace` enables the event hash.
    pub(super) fn new(plan: &Plan, trace: bool, capture: Option<Capture>) -> Result<Self, String> {
        let kind = match &plan.nodes {
            None => {
                let links = plan.links(Duration::ZERO);
                let mut network = Network::chain(endpoints(plan), links, plan.seed);
                if trace {
                    *network.recorder() = Recorder::tracing();
                }
                network.recorder().capture = capture;
                Kind::Chain(Box::new(network))
            }
            Some(nodes) => Kind::Nodes(Box::new(Relayed::new(plan, nodes, trace, capture)?)),
        };
        Ok(Self { kind, transport: plan.transport.clone(), rebindings: 0 })
    }

    pub(super) fn now(&self) -> Timestamp {
        match &self.kind {
            Kind::Chain(network) => network.now(),
            Kind::Nodes(relayed) => relayed.network.now(),
        }
    }

    /// Advances virtual time until the next event or `until`.
    pub(super) fn step(&mut self, until: Timestamp) {
        match &mut self.kind {
            Kind::Chain(network) => network.step(until),
            Kind::Nodes(relayed) => relayed.network.step(until),
        };
    }

    /// The endpoint of the client (0) or the server (1).
    pub(super) fn endpoint(&mut self, side: usize) -> &mut Endpoint {
        match &mut self.kind {
            Kind::Chain(network) => network.endpoint(HOSTS[side]),
            Kind::Nodes(relayed) => {
                let node = relayed.node(side);
                relayed.network.node(node)
            }
        }
    }

    /// Schedules the endpoint to be polled now, after it was changed.
    pub(super) fn wake(&mut self, side: usize) {
        match &mut self.kind {
            Kind::Chain(network) => network.wake(HOSTS[side]),
            Kind::Nodes(relayed) => relayed.network.wake(relayed.node(side)),
        }
    }

    /// Takes the events of client and server that concern their connections with each other.
    pub(super) fn take_events(&mut self) -> Vec<(usize, ConnectionHandle, Event)> {
        match &mut self.kind {
            Kind::Chain(network) => core::mem::take(&mut network.events)
                .into_iter()
                .map(|(host, handle, event)| (usize::from(host == Host::Server), handle, event))
                .collect(),
            Kind::Nodes(relayed) => relayed.take_events(),
        }
    }

    /// Starts a connection from the client to the server.
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
                let server = node_id(relayed.network.last());
                let handle =
                    relayed.network.node(0).connect_across(now, server, "server", config)?;
                relayed.started.insert(handle);
                Ok(handle)
            }
        }?;
        self.wake(0);
        Ok(handle)
    }

    /// Applies the changes of the plan after `since` up to `at`: link changes, NAT rebindings,
    /// relay restarts.
    pub(super) fn apply_changes(&mut self, plan: &Plan, at: Duration, since: Duration) {
        let directions = plan.links(at);
        match &mut self.kind {
            Kind::Chain(network) => {
                for (host, direction) in HOSTS.into_iter().zip(directions) {
                    network.set_links(host, direction);
                }
            }
            Kind::Nodes(relayed) => {
                for (direction, links) in
                    [LinkDirection::Forward, LinkDirection::Reverse].into_iter().zip(directions)
                {
                    for (link, config) in links.into_iter().enumerate() {
                        relayed.network.set_direction(link, direction, config);
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
                        Kind::Nodes(relayed) => relayed.network.rebind(fault.hop, port),
                    }
                }
                (FaultKind::Restart(node), Kind::Nodes(relayed)) if is_new(fault.until) => {
                    relayed.network.restart(node);
                }
                _ => {}
            }
        }
    }

    /// Checks the relays; `sessions` is the largest number of sessions so far.
    pub(super) fn check_relays(&self, sessions: usize) -> Result<(), String> {
        let Kind::Nodes(relayed) = &self.kind else { return Ok(()) };
        if let Some(violation) = &relayed.monitor.borrow().violation {
            let all = (0..=relayed.network.last()).map(|node| relayed.network.relay_stats(node));
            return Err(format!("{violation}: {:?}", all.collect::<Vec<_>>()));
        }
        for node in 0..=relayed.network.last() {
            let directions = relayed.nodes.of(node).count();
            relay_monitor::check(
                &relayed.nodes.relay,
                directions,
                sessions,
                &relayed.network.relay_stats(node),
            )
            .map_err(|what| format!("node {node}: {what}"))?;
        }
        Ok(())
    }

    /// Checks that relays have no state of the sessions, which ended long ago, and closes the
    /// links.
    pub(super) fn check_idle_relays(&mut self) -> Result<(), String> {
        let Kind::Nodes(relayed) = &mut self.kind else { return Ok(()) };
        for node in 0..=relayed.network.last() {
            relay_monitor::check_idle(&relayed.network.relay_stats(node))
                .map_err(|what| format!("node {node}: {what}"))?;
        }
        relayed.reconnects = false;
        let now = relayed.network.now();
        for (link, (node, _)) in relayed.nodes.edges.clone().into_iter().enumerate() {
            if let Some(handle) = relayed.network.link_connection(link) {
                relayed.network.node(node).close(now, handle, 0, "");
                relayed.network.wake(node);
            }
        }
        Ok(())
    }

    /// Idle time after which relays delete flows.
    pub(super) fn relay_idle_timeout(&self) -> Duration {
        match &self.kind {
            Kind::Chain(_) => Duration::ZERO,
            Kind::Nodes(relayed) => relayed.nodes.relay.idle_timeout,
        }
    }

    /// Number of remaining connections at the client and the server, or at each node.
    pub(super) fn connections(&mut self) -> Vec<usize> {
        match &mut self.kind {
            Kind::Chain(network) => {
                HOSTS.map(|host| network.endpoint(host).connection_count()).to_vec()
            }
            Kind::Nodes(relayed) => {
                let nodes = 0..=relayed.network.last();
                nodes.map(|node| relayed.network.node(node).connection_count()).collect()
            }
        }
    }

    /// Whether the network has nodes with links, and so connections besides the sessions.
    pub(super) fn has_links(&self) -> bool {
        matches!(self.kind, Kind::Nodes(_))
    }

    /// Number of packets sent to links.
    pub(super) fn packets(&self) -> u64 {
        match &self.kind {
            Kind::Chain(network) => HOSTS.map(|host| network.link_stats(host).offered).iter().sum(),
            Kind::Nodes(relayed) => relayed.monitor.borrow().packets,
        }
    }

    /// The hash of all link events, if it is enabled.
    pub(super) fn trace(&mut self) -> Option<String> {
        match &mut self.kind {
            Kind::Chain(network) => {
                network.recorder().trace.as_ref().map(|trace| trace.hash().to_string())
            }
            Kind::Nodes(relayed) => {
                relayed.monitor.borrow().trace.as_ref().map(|trace| trace.hash().to_string())
            }
        }
    }
}

impl Relayed {
    fn new(
        plan: &Plan,
        nodes: &Nodes,
        trace: bool,
        mut capture: Option<Capture>,
    ) -> Result<Self, String> {
        let [links, back] = plan.hops.clone();
        let config = RelayNetworkConfig {
            links,
            relay: nodes.relay.clone(),
            transport: plan.transport.clone(),
            seed: plan.seed,
        };
        let mut network = RelayNetwork::build(config, &back, nodes.edges.clone());
        let monitor = Rc::new(RefCell::new(RelayMonitor::new(nodes, trace)));
        let recording = monitor.clone();
        network.observe(Box::new(move |event| {
            if let (Some(capture), LinkEventKind::Sent(_)) = (&mut capture, event.kind) {
                capture.record_datagram(event.time, event.addresses(), event.ecn, event.payload);
            }
            recording.borrow_mut().record(event);
        }));
        let (started, nodes) = (BTreeSet::new(), nodes.clone());
        let mut relayed = Self { network, nodes, monitor, started, reconnects: true };
        let end = relayed.network.now() + SETUP_TIMEOUT;
        while !relayed.network.is_established() {
            if relayed.network.now() >= end {
                return Err(format!("the links were not established after {SETUP_TIMEOUT:?}"));
            }
            relayed.network.step(end);
            relayed.take_events();
        }
        Ok(relayed)
    }

    fn node(&self, side: usize) -> usize {
        if side == 0 { 0 } else { self.network.last() }
    }

    fn take_events(&mut self) -> Vec<(usize, ConnectionHandle, Event)> {
        let mut session_events = Vec::new();
        for (node, handle, event) in core::mem::take(&mut self.network.events) {
            if node == self.network.last() && self.network.is_session(node, handle) {
                session_events.push((1, handle, event));
            } else if node == 0 && self.started.contains(&handle) {
                session_events.push((0, handle, event));
            } else if let (Event::Closed(_), true) = (&event, self.reconnects)
                && let Some(link) = self.network.link_of(node, handle)
            {
                self.network.connect_link(link);
            }
        }
        session_events
    }
}
