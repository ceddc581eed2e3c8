//! Two ends and what lies between them: links one behind the other, or nodes that relay.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bats_netem::LinkConfig;
use bats_proto::relay::{RelayConfig, RelayStats};
use bats_proto::{
    ClientConfig, ConnectionHandle, ConnectionStats, Endpoint, Event, Mode, PeerTrust, Timestamp,
    TransportConfig,
};
use bats_sim::capture::Capture;
use bats_sim::line::{Line, LineConfig, Way, node_id};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;

use super::carrier::Carrier;
use super::mesh::{Mesh, TcpState};

/// Links in order: their numbers, and whether each is crossed from its first host to its second.
pub(super) type Route = Vec<(usize, bool)>;

/// What happened: the number of a flow where flows have endpoints of their own (0 where they do not),
/// where, of which connection, what.
pub(super) type Happened = (usize, End, ConnectionHandle, Event);

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Client,
    Server,
}

/// What lies between the ends.
#[derive(Clone, Debug)]
pub(super) struct Between {
    /// Towards the server and back, of each link in the order of the way; at least one.
    pub(super) links: Vec<[LinkConfig; 2]>,
    /// What hosts on the way do: `Some(true)` recodes, `Some(false)` relays without; without any
    /// they forward packets as routers do.
    pub(super) recoding: Option<bool>,
    pub(super) seed: u64,
    /// Where flows are of several kinds or between several hosts: the way of each. `links` are then
    /// those of the whole network, forward and backward, and nobody on the way does anything.
    pub(super) ways: Vec<Route>,
}

impl Between {
    /// Whether sessions are carried from node to node.
    pub(super) fn has_relays(&self) -> bool {
        self.ways.is_empty() && self.recoding.is_some() && self.links.len() > 1
    }
}

enum Net {
    Chain(Box<Network>),
    Line(Box<Line>),
    Mesh(Box<Mesh>),
}

/// Both ends, in virtual time.
pub(super) struct World {
    net: Net,
    transport: TransportConfig,
    /// Connections between the ends, unlike those between neighbours.
    sessions: BTreeSet<(End, ConnectionHandle)>,
}

fn transport() -> TransportConfig {
    let modes = vec![Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent];
    TransportConfig { also_accepted: modes, ..TransportConfig::default() }
}

impl World {
    /// Builds it; with relays their links come up first. A capture holds the client's packets.
    ///
    /// # Errors
    /// Where the links do not come up.
    pub(super) fn new(between: &Between, capture: Option<Capture>) -> Result<Self> {
        let transport = transport();
        if !between.ways.is_empty() {
            let mesh = Mesh::new(&between.links, &between.ways, transport.clone(), between.seed);
            let (net, sessions) = (Net::Mesh(Box::new(mesh)), BTreeSet::new());
            return Ok(Self { net, transport, sessions });
        }
        let [forth, back] = [0, 1].map(|way| -> Vec<LinkConfig> {
            between.links.iter().map(|link| link[way].clone()).collect()
        });
        let net = if let Some(recoding) = between.recoding.filter(|_| between.has_relays()) {
            let config = LineConfig {
                links: forth,
                relay: RelayConfig { recoding, ..RelayConfig::new(node_id(0)) },
                transport: transport.clone(),
                seed: between.seed,
            };
            let line = Line::with_back(config, &back);
            Net::Line(Box::new(line.context("the links between the relays do not come up")?))
        } else {
            let ends = endpoints(&transport, between.seed);
            let back = back.into_iter().rev().collect();
            let mut network = Network::chain(ends, [forth, back], between.seed);
            network.recorder().capture = capture;
            Net::Chain(Box::new(network))
        };
        Ok(Self { net, transport, sessions: BTreeSet::new() })
    }

    /// Writes down what was captured.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(super) fn finish_capture(&mut self) -> Result<()> {
        if let Net::Chain(network) = &mut self.net
            && let Some(capture) = network.recorder().capture.take()
        {
            capture.finish().context("cannot write the capture")?;
        }
        Ok(())
    }

    pub(super) fn now(&self) -> Timestamp {
        match &self.net {
            Net::Chain(network) => network.now(),
            Net::Line(line) => line.now(),
            Net::Mesh(mesh) => mesh.now(),
        }
    }

    /// Goes on until something happened at an end, or `until`.
    pub(super) fn step(&mut self, until: Timestamp) -> Vec<Happened> {
        match &mut self.net {
            Net::Chain(network) => {
                network.step(until);
                let end = |host| if host == Host::Client { End::Client } else { End::Server };
                let events = std::mem::take(&mut network.events);
                let told = |(host, handle, event)| (0, end(host), handle, event);
                events.into_iter().map(told).collect()
            }
            Net::Line(line) => {
                line.step(until);
                let last = line.last();
                let mut found = Vec::new();
                for (node, handle, event) in std::mem::take(&mut line.events) {
                    let end = match node {
                        0 => End::Client,
                        _ if node == last => End::Server,
                        _ => continue,
                    };
                    if event == Event::Accepted && line.node(node).remote_node(handle).is_some() {
                        self.sessions.insert((end, handle));
                    }
                    if self.sessions.contains(&(end, handle)) {
                        found.push((0, end, handle, event));
                    }
                }
                found
            }
            Net::Mesh(mesh) => {
                mesh.step(until);
                std::mem::take(&mut mesh.events)
            }
        }
    }

    /// Datagrams of flows that are nothing else, which have arrived: the flow, and the bytes.
    pub(super) fn datagrams(&mut self) -> Vec<(usize, Vec<u8>)> {
        match &mut self.net {
            Net::Mesh(mesh) => mesh.datagrams.drain(..).collect(),
            Net::Chain(_) | Net::Line(_) => Vec::new(),
        }
    }

    /// Sends a datagram of a flow that is nothing else.
    pub(super) fn send_datagram(&mut self, flow: usize, bytes: Vec<u8>) {
        if let Net::Mesh(mesh) = &mut self.net {
            mesh.send_datagram(flow, bytes);
        }
    }

    /// The state of a flow that is a model of TCP.
    pub(super) fn tcp_state(&self, flow: usize) -> Option<TcpState> {
        match &self.net {
            Net::Mesh(mesh) => mesh.tcp_state(flow),
            Net::Chain(_) | Net::Line(_) => None,
        }
    }

    /// A flow without a connection ends.
    pub(super) fn end(&mut self, flow: usize) {
        if let Net::Mesh(mesh) = &mut self.net {
            mesh.end(flow);
        }
    }

    /// The number by which events and endpoints of a flow go.
    pub(super) fn pair(&self, flow: usize) -> usize {
        if matches!(self.net, Net::Mesh(_)) { flow } else { 0 }
    }

    /// A flow begins: the client's connection, unless it has none.
    ///
    /// # Errors
    /// Where its settings are not for this endpoint, or nothing here carries such a flow.
    pub(super) fn begin(
        &mut self,
        flow: usize,
        carrier: Carrier,
    ) -> Result<Option<ConnectionHandle>> {
        if let Net::Mesh(mesh) = &mut self.net {
            return mesh.begin(flow, carrier);
        }
        match carrier {
            Carrier::Ours(mode) => self.connect(mode).map(Some),
            Carrier::Tcp(_) | Carrier::Udp => bail!("models and datagrams have ways of their own"),
        }
    }

    /// The client begins a connection of the only pair of endpoints.
    ///
    /// # Errors
    /// Where its settings are not for this endpoint.
    pub(super) fn connect(&mut self, mode: Mode) -> Result<ConnectionHandle> {
        let handle = match &mut self.net {
            Net::Chain(network) => {
                let config = ClientConfig {
                    trust: PeerTrust::DangerousAcceptAny,
                    identity: None,
                    transport: Arc::new(TransportConfig { mode, ..self.transport.clone() }),
                };
                let now = network.now();
                let to = Host::Server.address();
                let client = network.endpoint(Host::Client);
                let handle = client.connect(now, to, "server", config);
                handle.map_err(|error| anyhow::anyhow!("{error}"))?
            }
            Net::Line(line) => line.connect_ends_as(mode),
            Net::Mesh(_) => bail!("flows over several ways begin by their numbers"),
        };
        self.sessions.insert((End::Client, handle));
        self.touch(0, End::Client);
        Ok(handle)
    }

    /// An endpoint; none of a flow that has not begun or has no connection.
    pub(super) fn endpoint(&mut self, pair: usize, end: End) -> Option<&mut Endpoint> {
        Some(match (&mut self.net, end) {
            (Net::Chain(network), End::Client) => network.endpoint(Host::Client),
            (Net::Chain(network), End::Server) => network.endpoint(Host::Server),
            (Net::Line(line), End::Client) => line.node(0),
            (Net::Line(line), End::Server) => {
                let last = line.last();
                line.node(last)
            }
            (Net::Mesh(mesh), end) => return mesh.endpoint(pair, end),
        })
    }

    /// The state of what paces a flow of the client: its connection, or where nodes relay that to the
    /// first of them, which all flows share.
    pub(super) fn sender(
        &mut self,
        pair: usize,
        handle: ConnectionHandle,
    ) -> Option<ConnectionStats> {
        match &mut self.net {
            Net::Mesh(mesh) => {
                let now = mesh.now();
                mesh.endpoint(pair, End::Client)?.stats(now, handle)
            }
            Net::Chain(network) => {
                let now = network.now();
                network.endpoint(Host::Client).stats(now, handle)
            }
            Net::Line(line) => {
                let (now, link) = (line.now(), line.downlink(0)?);
                line.node(0).stats(now, link)
            }
        }
    }

    /// Whether all flows share what paces them.
    pub(super) fn is_line(&self) -> bool {
        matches!(self.net, Net::Line(_))
    }

    /// The endpoint has something new to say.
    pub(super) fn touch(&mut self, pair: usize, end: End) {
        match (&mut self.net, end) {
            (Net::Chain(network), End::Client) => network.touch(Host::Client),
            (Net::Chain(network), End::Server) => network.touch(Host::Server),
            (Net::Line(line), End::Client) => line.touch(0),
            (Net::Line(line), End::Server) => {
                let last = line.last();
                line.touch(last);
            }
            (Net::Mesh(mesh), end) => mesh.touch(pair, end),
        }
    }

    /// Bytes that wait before each link towards the server, of the first flow.
    pub(super) fn queues(&mut self) -> Vec<usize> {
        match &mut self.net {
            Net::Mesh(mesh) => mesh.queues(),
            Net::Chain(network) => network.queues(Host::Client),
            Net::Line(line) => {
                let hops = line.last();
                (0..hops).map(|link| line.queue_bytes(link, Way::Forth)).collect()
            }
        }
    }

    /// Makes the links behave otherwise.
    pub(super) fn set_links(&mut self, links: &[[LinkConfig; 2]]) {
        match &mut self.net {
            Net::Mesh(mesh) => mesh.set_links(links),
            Net::Chain(network) => {
                network.set_links(Host::Client, links.iter().map(|link| link[0].clone()).collect());
                let back = links.iter().rev().map(|link| link[1].clone()).collect();
                network.set_links(Host::Server, back);
            }
            Net::Line(line) => {
                for (index, link) in links.iter().enumerate().take(line.last()) {
                    line.set_way(index, Way::Forth, link[0].clone());
                    line.set_way(index, Way::Back, link[1].clone());
                }
            }
        }
    }

    /// What each node carried; nothing without relays.
    pub(super) fn relays(&self) -> Vec<RelayStats> {
        match &self.net {
            Net::Chain(_) | Net::Mesh(_) => Vec::new(),
            Net::Line(line) => (0..=line.last()).map(|node| line.relay_stats(node)).collect(),
        }
    }
}
