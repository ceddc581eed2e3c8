//! End-to-end flows of different transports between any hosts, over shared links.

use std::collections::BTreeSet;

use anyhow::Result;
use bats_netem::{Link, LinkConfig};
use bats_proto::{ConnectionHandle, Endpoint, Mode, Timestamp, TransportConfig};
use bats_sim::flow_links::{self, Flow, FlowLinks, FlowWorld, Tcp, Traffic};
use bats_sim::packet::Body;
use bats_sim::tcp;
use bats_sim::transfer::endpoints;

use super::ends::{End, EndEvent, LinkPath};
use super::transport::SimTransport;

/// State of sender and receiver of a TCP model.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpState {
    /// Bytes that arrived in order.
    pub(super) delivered: u64,
    pub(super) cwnd_bytes: u64,
    pub(super) smoothed_rtt: Option<std::time::Duration>,
    /// Delivery rate of data, in bits per second.
    pub(super) delivery_bps: Option<f64>,
    pub(super) pacing_bps: Option<f64>,
    /// Segments sent, and retransmitted segments among them.
    pub(super) transmissions: (u64, u64),
}

/// The links between hosts and the flows over them.
pub(super) struct Mesh {
    seed: u64,
    transport: TransportConfig,
    /// The path of each flow, towards its server.
    paths: Vec<LinkPath>,
    /// Link `2 n` is the first direction of link n, link `2 n + 1` the other one.
    world: FlowWorld,
}

fn index(end: End) -> usize {
    usize::from(end == End::Server)
}

impl Mesh {
    /// A mesh of these links, with the path of each flow.
    pub(super) fn new(
        links: &[[LinkConfig; 2]],
        paths: &[LinkPath],
        transport: TransportConfig,
        seed: u64,
    ) -> Self {
        let there = |&(link, is_forward): &(usize, bool)| 2 * link + usize::from(!is_forward);
        // The return path uses the same links.
        let back = |at: &(usize, bool)| there(at) ^ 1;
        let routes = |path: &LinkPath| {
            [path.iter().map(there).collect(), path.iter().rev().map(back).collect()]
        };
        let flows: Vec<[Vec<usize>; 2]> = paths.iter().map(routes).collect();
        let used: BTreeSet<usize> = flows.iter().flatten().flatten().copied().collect();
        let links = (0_u64..).zip(links).map(|(number, directions)| {
            let [there, back] = directions.clone();
            let seed = seed ^ number << 40;
            [Link::new(there, seed ^ 0x9e37_79b9), Link::new(back, seed ^ 0x7f4a_7c15_0000)]
        });
        let flows = flows.into_iter().map(Flow::new).collect();
        let (now, links) = (Timestamp::from_millis(1), links.flatten().collect());
        let world = FlowLinks::world(now, links, flows, used.into_iter());
        Self { seed, transport, paths: paths.to_vec(), world }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.world.now
    }

    /// Starts a flow. Returns its connection, if the transport has one.
    ///
    /// # Errors
    /// If the endpoint rejects the configuration.
    pub(super) fn start_flow(
        &mut self,
        flow: usize,
        transport: SimTransport,
    ) -> Result<Option<ConnectionHandle>> {
        let traffic = match transport {
            SimTransport::OpenBats(mode) => return self.connect(flow, mode).map(Some),
            SimTransport::Tcp(congestion) => {
                Tcp::traffic(SimTransport::tcp(congestion, self.seed.wrapping_add(flow as u64)))
            }
            SimTransport::Udp => Traffic::Datagrams,
        };
        self.world.links.start(self.world.now, flow, traffic);
        Ok(None)
    }

    fn connect(&mut self, flow: usize, mode: Mode) -> Result<ConnectionHandle> {
        let ends = endpoints(&self.transport, self.seed.wrapping_add(1_000 * flow as u64));
        let transport = TransportConfig { mode, ..self.transport.clone() };
        let handle = flow_links::connect(&mut self.world, flow, ends, &transport);
        handle.map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Ends a flow of the TCP model; other flows end when they send no more.
    pub(super) fn end_tcp_flow(&mut self, flow: usize) {
        if matches!(self.world.links.flows()[flow].traffic, Traffic::Tcp(_)) {
            self.world.links.start(self.world.now, flow, Traffic::Nothing);
        }
    }

    /// One endpoint of a flow of this project.
    pub(super) fn endpoint(&mut self, flow: usize, end: End) -> Option<&mut Endpoint> {
        self.world.nodes.get_mut(2 * flow + index(end))?.as_mut()
    }

    /// Polls the endpoint at the present time.
    pub(super) fn request_poll(&mut self, flow: usize, end: End) {
        self.world.wake(2 * flow + index(end));
    }

    /// Sends a datagram of a UDP flow.
    pub(super) fn send_datagram(&mut self, flow: usize, bytes: Vec<u8>) {
        self.world.links.send_body(self.world.now, flow, true, Body::datagram(bytes, 0));
    }

    /// UDP datagrams that have arrived: flow and bytes.
    pub(super) fn datagrams(&mut self) -> Vec<(usize, Vec<u8>)> {
        self.world.links.datagrams.drain(..).collect()
    }

    /// The state of a flow of the TCP model.
    pub(super) fn tcp_state(&self, flow: usize) -> Option<TcpState> {
        let Traffic::Tcp(flow) = &self.world.links.flows()[flow].traffic else { return None };
        let Tcp { sender, receiver } = &**flow;
        let bits = |segments: f64| segments * tcp::SEGMENT as f64 * 8.0;
        Some(TcpState {
            delivered: receiver.in_order() * tcp::SEGMENT,
            cwnd_bytes: sender.control().window().saturating_mul(tcp::SEGMENT),
            smoothed_rtt: sender.smoothed_rtt(),
            delivery_bps: sender.delivery_rate().map(bits),
            pacing_bps: sender.control().pace().map(bits),
            transmissions: sender.transmissions(),
        })
    }

    /// Bytes queued in front of each link on the path of the first flow.
    pub(super) fn queues(&mut self) -> Vec<usize> {
        let path = self.paths.first().cloned().unwrap_or_default();
        let (now, links) = (self.world.now, &mut self.world.links.all);
        let queued = |(link, is_forward): (usize, bool)| {
            links
                .get_mut(2 * link + usize::from(!is_forward))
                .map_or(0, |link| link.queue_bytes(now))
        };
        path.into_iter().map(queued).collect()
    }

    /// Changes the settings of all links.
    pub(super) fn set_links(&mut self, configs: &[[LinkConfig; 2]]) {
        for (link, config) in self.world.links.all.iter_mut().zip(configs.iter().flatten()) {
            link.set_config(self.world.now, config.clone());
        }
    }

    /// Advances until there are events or datagrams, or to `until`. Returns the events.
    pub(super) fn step(&mut self, until: Timestamp) -> Vec<EndEvent> {
        self.world.step(until, &mut ());
        let end_event = |(node, handle, event)| {
            let end = if node % 2 == 0 { End::Client } else { End::Server };
            (node / 2, end, handle, event)
        };
        self.world.events.drain(..).map(end_event).collect()
    }
}
