//! A simulated client and server, and the network between them: links in series, relays, or a mesh.

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
use bats_sim::network::{Host, Network};
use bats_sim::relay_network::{LinkDirection, RelayNetwork, RelayNetworkConfig, node_id};
use bats_sim::transfer::endpoints;

use super::ends::{End, EndEvent, LinkPath};
use super::mesh::{Mesh, TcpState};
use super::transport::SimTransport;

/// The simulated network between client and server.
#[derive(Clone, Debug)]
pub(super) struct SimNetwork {
    /// Settings towards the server and back, for each link in the order of the path; at least one.
    pub(super) links: Vec<[LinkConfig; 2]>,
    /// `Some(true)`: relays recode; `Some(false)`: relays forward coded packets; `None`: hosts
    /// forward IP packets as routers do.
    pub(super) recoding: Option<bool>,
    pub(super) seed: u64,
    /// The path of each flow if flows differ in transport or hosts, else empty. `links` then has
    /// all links of the network, forward and backward, and there are no relays.
    pub(super) paths: Vec<LinkPath>,
}

impl SimNetwork {
    /// Whether sessions cross relays.
    pub(super) fn has_relays(&self) -> bool {
        self.paths.is_empty() && self.recoding.is_some() && self.links.len() > 1
    }
}

enum Topology {
    Chain(Box<Network>),
    Line(Box<RelayNetwork>),
    Mesh(Box<Mesh>),
}

/// A client and a server in virtual time.
pub(super) struct Simulation {
    topology: Topology,
    transport: TransportConfig,
    /// End-to-end sessions, as opposed to links between neighbours.
    sessions: BTreeSet<(End, ConnectionHandle)>,
    /// The settings of the links, and when their schedules begin.
    links: Vec<[LinkConfig; 2]>,
    epoch: Timestamp,
}

fn transport() -> TransportConfig {
    let modes = vec![Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent];
    TransportConfig { also_accepted: modes, ..TransportConfig::default() }
}

impl Simulation {
    /// Builds the network; with relays, waits until their links are up. `capture` records the
    /// packets of the client.
    ///
    /// # Errors
    /// If the links do not come up.
    pub(super) fn new(network_config: &SimNetwork, capture: Option<Capture>) -> Result<Self> {
        let transport = transport();
        if !network_config.paths.is_empty() {
            let mesh = Mesh::new(
                &network_config.links,
                &network_config.paths,
                transport.clone(),
                network_config.seed,
            );
            return Ok(Self {
                topology: Topology::Mesh(Box::new(mesh)),
                transport,
                sessions: BTreeSet::new(),
                links: network_config.links.clone(),
                epoch: Timestamp::ZERO,
            });
        }
        let [forth, back] = [0, 1].map(|direction| -> Vec<LinkConfig> {
            network_config.links.iter().map(|link| link[direction].clone()).collect()
        });
        let topology = if let Some(recoding) =
            network_config.recoding.filter(|_| network_config.has_relays())
        {
            let config = RelayNetworkConfig {
                links: forth,
                relay: RelayConfig { recoding, ..RelayConfig::new(node_id(0)) },
                transport: transport.clone(),
                seed: network_config.seed,
            };
            let line = RelayNetwork::asymmetric(config, &back);
            Topology::Line(Box::new(line.context("the links between the relays do not come up")?))
        } else {
            let ends = endpoints(&transport, network_config.seed);
            let back = back.into_iter().rev().collect();
            let mut network = Network::chain(ends, [forth, back], network_config.seed);
            network.recorder().capture = capture;
            Topology::Chain(Box::new(network))
        };
        let links = network_config.links.clone();
        Ok(Self { topology, transport, sessions: BTreeSet::new(), links, epoch: Timestamp::ZERO })
    }

    /// Writes the capture to its file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn finish_capture(&mut self) -> Result<()> {
        if let Topology::Chain(network) = &mut self.topology
            && let Some(capture) = network.recorder().capture.take()
        {
            capture.finish().context("cannot write the capture")?;
        }
        Ok(())
    }

    pub(super) fn now(&self) -> Timestamp {
        match &self.topology {
            Topology::Chain(network) => network.now(),
            Topology::Line(line) => line.now(),
            Topology::Mesh(mesh) => mesh.now(),
        }
    }

    /// Advances until an event occurs at one end, or to `until`.
    pub(super) fn step(&mut self, until: Timestamp) -> Vec<EndEvent> {
        match &mut self.topology {
            Topology::Chain(network) => {
                network.step(until);
                let end = |host| if host == Host::Client { End::Client } else { End::Server };
                let events = std::mem::take(&mut network.events);
                let to_end_event = |(host, handle, event)| (0, end(host), handle, event);
                events.into_iter().map(to_end_event).collect()
            }
            Topology::Line(line) => {
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
            Topology::Mesh(mesh) => mesh.step(until),
        }
    }

    /// UDP datagrams that have arrived: flow and bytes.
    pub(super) fn datagrams(&mut self) -> Vec<(usize, Vec<u8>)> {
        match &mut self.topology {
            Topology::Mesh(mesh) => mesh.datagrams(),
            Topology::Chain(_) | Topology::Line(_) => Vec::new(),
        }
    }

    /// Sends a datagram of a UDP flow.
    pub(super) fn send_datagram(&mut self, flow: usize, bytes: Vec<u8>) {
        if let Topology::Mesh(mesh) = &mut self.topology {
            mesh.send_datagram(flow, bytes);
        }
    }

    /// The state of a flow of the TCP model.
    pub(super) fn tcp_state(&self, flow: usize) -> Option<TcpState> {
        match &self.topology {
            Topology::Mesh(mesh) => mesh.tcp_state(flow),
            Topology::Chain(_) | Topology::Line(_) => None,
        }
    }

    /// Ends a flow of the TCP model.
    pub(super) fn end_tcp_flow(&mut self, flow: usize) {
        if let Topology::Mesh(mesh) = &mut self.topology {
            mesh.end_tcp_flow(flow);
        }
    }

    /// The index that events and endpoints of a flow have.
    pub(super) fn pair(&self, flow: usize) -> usize {
        if matches!(self.topology, Topology::Mesh(_)) { flow } else { 0 }
    }

    /// Starts a flow. Returns the connection of the client, if the transport has one.
    ///
    /// # Errors
    /// If the endpoint rejects the configuration, or this network does not support the transport.
    pub(super) fn start_flow(
        &mut self,
        flow: usize,
        transport: SimTransport,
    ) -> Result<Option<ConnectionHandle>> {
        if let Topology::Mesh(mesh) = &mut self.topology {
            return mesh.start_flow(flow, transport);
        }
        match transport {
            SimTransport::OpenBats(mode) => self.connect(mode).map(Some),
            SimTransport::Tcp(_) | SimTransport::Udp => {
                bail!("TCP models and plain datagrams need the mesh network")
            }
        }
    }

    /// Connects the client to the server.
    ///
    /// # Errors
    /// If the endpoint rejects the configuration.
    pub(super) fn connect(&mut self, mode: Mode) -> Result<ConnectionHandle> {
        let handle = match &mut self.topology {
            Topology::Chain(network) => {
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
            Topology::Line(line) => line.connect_ends_in(mode),
            Topology::Mesh(_) => bail!("flows of a mesh network are started by index"),
        };
        self.sessions.insert((End::Client, handle));
        self.request_poll(0, End::Client);
        Ok(handle)
    }

    /// The endpoint at one end; `None` for a flow that has not started or has no endpoints.
    pub(super) fn endpoint(&mut self, pair: usize, end: End) -> Option<&mut Endpoint> {
        Some(match (&mut self.topology, end) {
            (Topology::Chain(network), End::Client) => network.endpoint(Host::Client),
            (Topology::Chain(network), End::Server) => network.endpoint(Host::Server),
            (Topology::Line(line), End::Client) => line.node(0),
            (Topology::Line(line), End::Server) => {
                let last = line.last();
                line.node(last)
            }
            (Topology::Mesh(mesh), end) => return mesh.endpoint(pair, end),
        })
    }

    /// Statistics of the connection that paces a flow of the client: its own connection, or with
    /// relays the link to the first relay, which all flows share.
    pub(super) fn sender(
        &mut self,
        pair: usize,
        handle: ConnectionHandle,
    ) -> Option<ConnectionStats> {
        match &mut self.topology {
            Topology::Mesh(mesh) => {
                let now = mesh.now();
                mesh.endpoint(pair, End::Client)?.stats(now, handle)
            }
            Topology::Chain(network) => {
                let now = network.now();
                network.endpoint(Host::Client).stats(now, handle)
            }
            Topology::Line(line) => {
                let (now, link) = (line.now(), line.link_connection(0)?);
                line.node(0).stats(now, link)
            }
        }
    }

    /// Whether all flows share one paced link.
    pub(super) fn is_line(&self) -> bool {
        matches!(self.topology, Topology::Line(_))
    }

    /// Polls the endpoint at the present time.
    pub(super) fn request_poll(&mut self, pair: usize, end: End) {
        match (&mut self.topology, end) {
            (Topology::Chain(network), End::Client) => network.wake(Host::Client),
            (Topology::Chain(network), End::Server) => network.wake(Host::Server),
            (Topology::Line(line), End::Client) => line.wake(0),
            (Topology::Line(line), End::Server) => {
                let last = line.last();
                line.wake(last);
            }
            (Topology::Mesh(mesh), end) => mesh.request_poll(pair, end),
        }
    }

    /// Bytes queued in front of each link towards the server, for the first flow.
    pub(super) fn queues(&mut self) -> Vec<usize> {
        match &mut self.topology {
            Topology::Mesh(mesh) => mesh.queues(),
            Topology::Chain(network) => network.queues(Host::Client),
            Topology::Line(line) => {
                let hops = line.last();
                (0..hops).map(|link| line.queue_bytes(link, LinkDirection::Forward)).collect()
            }
        }
    }

    /// Starts the schedules of the links now.
    pub(super) fn start_schedules(&mut self) {
        self.epoch = self.now();
        let links = self.links.clone();
        self.set_links(&links);
    }

    /// Changes the settings of the links. Schedules continue.
    pub(super) fn set_links(&mut self, links: &[[LinkConfig; 2]]) {
        self.links = links.to_vec();
        let epoch = self.epoch;
        let links: Vec<[LinkConfig; 2]> = links
            .iter()
            .map(|link| link.clone().map(|direction| LinkConfig { epoch, ..direction }))
            .collect();
        let links = links.as_slice();
        match &mut self.topology {
            Topology::Mesh(mesh) => mesh.set_links(links),
            Topology::Chain(network) => {
                network.set_links(Host::Client, links.iter().map(|link| link[0].clone()).collect());
                let back = links.iter().rev().map(|link| link[1].clone()).collect();
                network.set_links(Host::Server, back);
            }
            Topology::Line(line) => {
                for (index, link) in links.iter().enumerate().take(line.last()) {
                    line.set_direction(index, LinkDirection::Forward, link[0].clone());
                    line.set_direction(index, LinkDirection::Reverse, link[1].clone());
                }
            }
        }
    }

    /// Relay statistics of each node; empty without relays.
    pub(super) fn relays(&self) -> Vec<RelayStats> {
        match &self.topology {
            Topology::Chain(_) | Topology::Mesh(_) => Vec::new(),
            Topology::Line(line) => (0..=line.last()).map(|node| line.relay_stats(node)).collect(),
        }
    }
}
