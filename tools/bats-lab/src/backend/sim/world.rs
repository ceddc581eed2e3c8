//! Two ends and what lies between them: links one behind the other, or nodes that relay.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result};
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
}

impl Between {
    /// Whether sessions are carried from node to node.
    pub(super) fn has_relays(&self) -> bool {
        self.recoding.is_some() && self.links.len() > 1
    }
}

enum Net {
    Chain(Box<Network>),
    Line(Box<Line>),
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
        }
    }

    /// Goes on until something happened at an end, or `until`.
    pub(super) fn step(&mut self, until: Timestamp) -> Vec<(End, ConnectionHandle, Event)> {
        match &mut self.net {
            Net::Chain(network) => {
                network.step(until);
                let end = |host| if host == Host::Client { End::Client } else { End::Server };
                let events = std::mem::take(&mut network.events);
                events.into_iter().map(|(host, handle, event)| (end(host), handle, event)).collect()
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
                        found.push((end, handle, event));
                    }
                }
                found
            }
        }
    }

    /// The client begins a connection.
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
        };
        self.sessions.insert((End::Client, handle));
        self.touch(End::Client);
        Ok(handle)
    }

    pub(super) fn endpoint(&mut self, end: End) -> &mut Endpoint {
        match (&mut self.net, end) {
            (Net::Chain(network), End::Client) => network.endpoint(Host::Client),
            (Net::Chain(network), End::Server) => network.endpoint(Host::Server),
            (Net::Line(line), End::Client) => line.node(0),
            (Net::Line(line), End::Server) => {
                let last = line.last();
                line.node(last)
            }
        }
    }

    /// The state of what paces a flow of the client: its connection, or where nodes relay that to the
    /// first of them, which all flows share.
    pub(super) fn sender(&mut self, handle: ConnectionHandle) -> Option<ConnectionStats> {
        match &mut self.net {
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
    pub(super) fn touch(&mut self, end: End) {
        match (&mut self.net, end) {
            (Net::Chain(network), End::Client) => network.touch(Host::Client),
            (Net::Chain(network), End::Server) => network.touch(Host::Server),
            (Net::Line(line), End::Client) => line.touch(0),
            (Net::Line(line), End::Server) => {
                let last = line.last();
                line.touch(last);
            }
        }
    }

    /// Octets that wait before each link towards the server.
    pub(super) fn queues(&mut self) -> Vec<usize> {
        match &mut self.net {
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
            Net::Chain(_) => Vec::new(),
            Net::Line(line) => (0..=line.last()).map(|node| line.relay_stats(node)).collect(),
        }
    }
}
