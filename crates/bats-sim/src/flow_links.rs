//! Flows over links that they share: flows of the protocol, of the TCP model, and of plain datagrams.

use core::time::Duration;
use std::collections::VecDeque;

use bats_netem::{Link, Output as LinkOutput};
use bats_proto::testing::{Arrival, Delivery, Links, Turn, World};
use bats_proto::{ConnectError, ConnectionHandle, Endpoint, Timestamp, Transmit, TransportConfig};

use crate::delay_histogram::DelayHistogram;
use crate::endpoints::client_config;
use crate::host::Host;
use crate::network::next_of;
use crate::packet::{Body, Packet};
use crate::tcp;

/// Time advances at least so far where a timer of the TCP model has no effect. Each step may be one such call, so
/// a timer that stays due is not found by the bound on work at one time.
pub const TICK: Duration = Duration::from_nanos(1);

/// A world of flows. A flow of the protocol has two nodes of its own, so that its packets can be identified:
/// node `2 n + host`, which exists from [`connect`] on.
pub type FlowWorld = World<FlowLinks, Option<Endpoint>>;

/// What sends the packets of a flow.
pub enum Traffic {
    /// Nothing yet, or nothing more: packets in flight are discarded.
    Nothing,
    /// Two nodes of the world.
    Endpoints,
    /// The TCP model.
    Tcp(Box<Tcp>),
    /// Datagrams that the caller sends and takes: see [`FlowLinks::datagrams`].
    Datagrams,
}

/// A sender and a receiver of the TCP model.
pub struct Tcp {
    /// The sender.
    pub sender: tcp::Sender,
    /// The receiver.
    pub receiver: tcp::Receiver,
}

/// The links, and the flows that are not nodes.
#[derive(Default)]
pub struct FlowLinks {
    /// Links, each for one direction.
    pub all: Vec<Link<Packet>>,
    flows: Vec<Flow>,
    /// Datagrams of [`Traffic::Datagrams`] that have arrived: flow and bytes.
    pub datagrams: VecDeque<(usize, Vec<u8>)>,
    /// Delays count from this time on.
    pub delays_from: Timestamp,
}

/// A flow and its counters.
pub struct Flow {
    /// The links that its packets cross, by their index: data, and what is sent in return.
    routes: [Vec<usize>; 2],
    /// What sends its packets.
    pub traffic: Traffic,
    /// When the traffic is called next, if it is no node.
    timer: Option<Timestamp>,
    /// Bytes of the packets of data that have arrived, headers and redundancy included.
    pub link_bytes: u64,
    /// Packets sent in the direction of the data.
    pub sent: u64,
    /// Propagation delay of the data's route.
    pub propagation: Duration,
    /// How much longer the packets of data have taken from sending to arrival.
    pub delays: DelayHistogram,
}

impl Flow {
    /// A flow that has not begun.
    ///
    /// # Panics
    ///
    /// If a route has no link.
    pub fn new(routes: [Vec<usize>; 2]) -> Self {
        assert!(routes.iter().all(|route| !route.is_empty()), "a route has at least one link");
        Self {
            routes,
            traffic: Traffic::Nothing,
            timer: None,
            link_bytes: 0,
            sent: 0,
            propagation: Duration::ZERO,
            delays: DelayHistogram::default(),
        }
    }

    /// Bytes in order at the receiver, of traffic that is no node.
    pub fn received(&self) -> u64 {
        match &self.traffic {
            Traffic::Tcp(tcp) => tcp.receiver.in_order() * tcp::SEGMENT,
            Traffic::Nothing | Traffic::Endpoints | Traffic::Datagrams => 0,
        }
    }
}

impl Tcp {
    /// The traffic of a sender with its receiver.
    pub fn traffic(sender: tcp::Sender) -> Traffic {
        Traffic::Tcp(Box::new(Self { sender, receiver: tcp::Receiver::default() }))
    }

    /// Acknowledgements and segments that are due, with their direction.
    fn poll(&mut self, now: Timestamp, out: &mut Vec<(bool, Body)>) {
        out.extend(self.receiver.poll(now).map(|ack| (false, Body::Ack(ack))));
        out.extend(core::iter::from_fn(|| Some((true, Body::Segment(self.sender.poll(now)?)))));
    }
}

impl FlowLinks {
    /// A world of flows over these links, by the index of each. `order`: of the links.
    pub fn world(
        now: Timestamp,
        links: Vec<Link<Packet>>,
        flows: Vec<Flow>,
        order: impl Iterator<Item = usize>,
    ) -> FlowWorld {
        let nodes = flows.iter().flat_map(|_| [None, None]).collect();
        let turns = |flow| [Turn::Node(2 * flow), Turn::Node(2 * flow + 1), Turn::Source(flow)];
        let turns = (0..flows.len()).flat_map(turns);
        let turns = turns.chain(order.map(|link| Turn::Source(flows.len() + link))).collect();
        World::new(now, nodes, Self { all: links, flows, ..Self::default() }, turns)
    }

    /// The flows.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Starts the traffic of a flow that is no node, or ends it.
    pub fn start(&mut self, now: Timestamp, flow: usize, traffic: Traffic) {
        self.flows[flow].traffic = traffic;
        self.flows[flow].timer = Some(now);
    }

    /// Sends a packet of a flow, in the direction of its data or not.
    pub fn send_body(&mut self, now: Timestamp, flow: usize, is_data: bool, body: Body) {
        self.flows[flow].sent += u64::from(is_data);
        self.forward(now, Packet { flow, is_data, position: 0, sent: now, body });
    }

    /// Passes a packet to the next link of its route. Returns it if it has arrived.
    fn forward(&mut self, now: Timestamp, packet: Packet) -> Option<Packet> {
        let route = &self.flows[packet.flow].routes[usize::from(!packet.is_data)];
        let Some(&link) = route.get(packet.position) else { return Some(packet) };
        self.all[link].handle(now, Packet { position: packet.position + 1, ..packet });
        None
    }

    /// Calls the traffic of a flow at its time.
    fn poll(&mut self, now: Timestamp, index: usize) -> Arrival {
        let flow = &mut self.flows[index];
        if flow.timer.is_none_or(|at| at > now) {
            return Arrival::Idle;
        }
        let mut out = Vec::new();
        match &mut flow.traffic {
            Traffic::Tcp(tcp) => tcp.poll(now, &mut out),
            Traffic::Nothing | Traffic::Endpoints | Traffic::Datagrams => flow.timer = None,
        }
        self.hand_over(now, index, out);
        Arrival::Progress
    }

    fn hand_over(&mut self, now: Timestamp, index: usize, out: Vec<(bool, Body)>) {
        for (is_data, body) in out {
            self.send_body(now, index, is_data, body);
        }
        let flow = &mut self.flows[index];
        if let Traffic::Tcp(tcp) = &flow.traffic {
            let timers = [tcp.sender.next_timer(), tcp.receiver.next_timer()];
            flow.timer = timers.into_iter().flatten().min().map(|at| at.max(now + TICK));
        }
    }

    fn arrive(&mut self, now: Timestamp, packet: Packet) -> Arrival {
        let Packet { flow: index, is_data, sent, body, .. } = packet;
        let flow = &mut self.flows[index];
        if is_data {
            flow.link_bytes += bats_netem::Payload::len(&body) as u64;
            if now >= self.delays_from {
                flow.delays.add((now - sent).saturating_sub(flow.propagation));
            }
        }
        let mut out = Vec::new();
        match (&mut flow.traffic, body) {
            (Traffic::Endpoints, Body::Datagram { bytes, ecn, .. }) => {
                let remote = Host::ALL[usize::from(!is_data)].address();
                let to = 2 * index + usize::from(is_data);
                return Arrival::Delivery(Delivery { to, remote, local_ip: None, ecn, bytes });
            }
            (Traffic::Tcp(tcp), Body::Segment(segment)) => {
                let ack = tcp.receiver.on_segment(now, segment);
                out.extend(ack.map(|ack| (false, Body::Ack(ack))));
            }
            (Traffic::Tcp(tcp), Body::Ack(ack)) => {
                tcp.sender.on_ack(now, &ack);
                tcp.poll(now, &mut out);
            }
            // The UDP checksum discards corrupted datagrams.
            (Traffic::Datagrams, Body::Datagram { bytes, is_corrupted: false, .. }) => {
                self.datagrams.push_back((index, bytes));
            }
            _ => {}
        }
        self.hand_over(now, index, out);
        Arrival::Progress
    }
}

/// Starts a flow of the protocol: the first endpoint connects to the second.
///
/// # Errors
/// The endpoint rejects the configuration.
pub fn connect(
    world: &mut FlowWorld,
    flow: usize,
    mut ends: [Endpoint; 2],
    transport: &TransportConfig,
) -> Result<ConnectionHandle, ConnectError> {
    let config = client_config(transport);
    let handle = ends[0].connect(world.now, Host::Server.address(), "server", config)?;
    for (node, end) in (2 * flow..).zip(ends) {
        world.nodes[node] = Some(end);
        world.wake(node);
    }
    world.links.start(world.now, flow, Traffic::Endpoints);
    Ok(handle)
}

/// The sources are the flows that are no nodes, and then the links.
impl Links for FlowLinks {
    fn send(
        &mut self,
        now: Timestamp,
        from: usize,
        transmit: &Transmit,
        _segment: &[u8],
        bytes: Vec<u8>,
    ) {
        self.send_body(now, from / 2, from.is_multiple_of(2), Body::datagram(bytes, transmit.ecn));
    }

    fn receive(&mut self, now: Timestamp, source: usize) -> Arrival {
        let Some(link) = source.checked_sub(self.flows.len()) else {
            return self.poll(now, source);
        };
        let LinkOutput::Deliver(packet) = self.all[link].poll(now) else { return Arrival::Idle };
        match self.forward(now, packet) {
            Some(arrived) => self.arrive(now, arrived),
            None => Arrival::Progress,
        }
    }

    fn next(&mut self, now: Timestamp) -> Option<Timestamp> {
        let timers = self.flows.iter().filter_map(|flow| flow.timer);
        next_of(self.all.iter_mut(), now).into_iter().chain(timers).min()
    }

    fn is_waiting(&self) -> bool {
        !self.datagrams.is_empty()
    }
}
