//! End-to-end flows of different transports between any hosts, over shared links.

use std::collections::VecDeque;

use anyhow::Result;
use bats_netem::{Link, LinkConfig, Output as LinkOutput};
use bats_proto::{
    ConnectionHandle, Endpoint, Input, Mode, Output, Received, Timestamp, TransportConfig,
};
use bats_sim::network::Host;
use bats_sim::packet::{self, Body};
use bats_sim::tcp;
use bats_sim::transfer::{client_config, endpoints};

use super::ends::{End, EndEvent, LinkPath};
use super::transport::{Congestion, SimTransport};

/// Limit of processing rounds at one instant, against endless loops.
const MAX_ROUNDS: u32 = 100_000;

/// The position of a packet on its path.
#[derive(Clone, Copy, Debug)]
struct PathPosition {
    /// Whether it travels towards the server.
    to_server: bool,
    /// Number of links that it has crossed, without the present one.
    hop: usize,
}

impl PathPosition {
    /// Positions of a packet that leaves the client, and of one that leaves the server.
    const FROM_CLIENT: Self = Self { to_server: true, hop: 0 };
    const FROM_SERVER: Self = Self { to_server: false, hop: 0 };
}

type Packet = packet::Packet<PathPosition>;

/// A flow that has started.
enum ActiveFlow {
    /// A flow with its own pair of endpoints, so that flows share no connection state.
    OpenBats {
        ends: Box<[Endpoint; 2]>,
        wake: [Option<Timestamp>; 2],
    },
    Tcp {
        sender: Box<tcp::Sender>,
        receiver: tcp::Receiver,
    },
    Udp,
    /// A flow of a TCP model that has ended; packets still in flight are discarded.
    Ended,
}

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
    now: Timestamp,
    seed: u64,
    transport: TransportConfig,
    /// The path of each flow, towards its server.
    paths: Vec<LinkPath>,
    /// Both directions of each link, forward first.
    links: Vec<[Link<Packet>; 2]>,
    /// Link and direction of those that some flow uses.
    used: Vec<(usize, usize)>,
    flows: Vec<Option<ActiveFlow>>,
    buffer: Vec<u8>,
    pub(super) events: Vec<EndEvent>,
    /// Datagrams that have arrived: flow and bytes.
    pub(super) datagrams: VecDeque<(usize, Vec<u8>)>,
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
        let used = |path: &LinkPath| -> Vec<(usize, usize)> {
            path.iter().flat_map(|&(link, _)| [(link, 0), (link, 1)]).collect()
        };
        let mut all: Vec<(usize, usize)> = paths.iter().flat_map(used).collect();
        all.sort_unstable();
        all.dedup();
        let links = (0_u64..).zip(links).map(|(number, directions)| {
            let [there, back] = directions.clone();
            let seed = seed ^ number << 40;
            [Link::new(there, seed ^ 0x9e37_79b9), Link::new(back, seed ^ 0x7f4a_7c15_0000)]
        });
        Self {
            now: Timestamp::from_millis(1),
            seed,
            transport,
            paths: paths.to_vec(),
            links: links.collect(),
            used: all,
            flows: paths.iter().map(|_| None).collect(),
            buffer: Vec::with_capacity(65_536),
            events: Vec::new(),
            datagrams: VecDeque::new(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
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
        let (active, handle) = match transport {
            SimTransport::OpenBats(mode) => {
                let (ends, handle) = self.connect(flow, mode)?;
                (
                    ActiveFlow::OpenBats { ends: Box::new(ends), wake: [Some(self.now); 2] },
                    Some(handle),
                )
            }
            SimTransport::Tcp(congestion) => (self.tcp(flow, congestion), None),
            SimTransport::Udp => (ActiveFlow::Udp, None),
        };
        if let Some(slot) = self.flows.get_mut(flow) {
            *slot = Some(active);
        }
        Ok(handle)
    }

    fn connect(&self, flow: usize, mode: Mode) -> Result<([Endpoint; 2], ConnectionHandle)> {
        let mut ends = endpoints(&self.transport, self.seed.wrapping_add(1_000 * flow as u64));
        let config = client_config(&TransportConfig { mode, ..self.transport.clone() });
        let handle = ends[0].connect(self.now, Host::Server.address(), "server", config);
        Ok((ends, handle.map_err(|error| anyhow::anyhow!("{error}"))?))
    }

    fn tcp(&self, flow: usize, congestion: Congestion) -> ActiveFlow {
        let sender = SimTransport::tcp(congestion, self.seed.wrapping_add(flow as u64));
        ActiveFlow::Tcp { sender: Box::new(sender), receiver: tcp::Receiver::default() }
    }

    /// Ends a flow of the TCP model; other flows end when they send no more.
    pub(super) fn end_tcp_flow(&mut self, flow: usize) {
        if let Some(slot @ Some(ActiveFlow::Tcp { .. })) = self.flows.get_mut(flow) {
            *slot = Some(ActiveFlow::Ended);
        }
    }

    /// One endpoint of a flow of this project.
    pub(super) fn endpoint(&mut self, flow: usize, end: End) -> Option<&mut Endpoint> {
        match self.flows.get_mut(flow)?.as_mut()? {
            ActiveFlow::OpenBats { ends, .. } => Some(&mut ends[index(end)]),
            _ => None,
        }
    }

    /// Polls the endpoint at the present time.
    pub(super) fn request_poll(&mut self, flow: usize, end: End) {
        if let Some(Some(ActiveFlow::OpenBats { wake, .. })) = self.flows.get_mut(flow) {
            wake[index(end)] = Some(self.now);
        }
    }

    /// Sends a datagram of a UDP flow.
    pub(super) fn send_datagram(&mut self, flow: usize, bytes: Vec<u8>) {
        let body = Body::datagram(bytes, 0);
        self.forward(Packet { flow, position: PathPosition::FROM_CLIENT, body });
    }

    /// The state of a flow of the TCP model.
    pub(super) fn tcp_state(&self, flow: usize) -> Option<TcpState> {
        let ActiveFlow::Tcp { sender, receiver } = self.flows.get(flow)?.as_ref()? else {
            return None;
        };
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
        let now = self.now;
        let queued = |(link, is_forward): (usize, bool)| {
            self.links
                .get_mut(link)
                .map_or(0, |directions| directions[usize::from(!is_forward)].queue_bytes(now))
        };
        path.into_iter().map(queued).collect()
    }

    /// Changes the settings of all links.
    pub(super) fn set_links(&mut self, configs: &[[LinkConfig; 2]]) {
        for (link, configs) in self.links.iter_mut().zip(configs) {
            for (direction, config) in link.iter_mut().zip(configs) {
                direction.set_config(self.now, config.clone());
            }
        }
    }

    /// The next link of a packet and its direction, unless the packet has arrived.
    fn next_link(&self, packet: &Packet) -> Option<(usize, usize)> {
        let path = self.paths.get(packet.flow)?;
        let (link, is_forward) = if packet.position.to_server {
            *path.get(packet.position.hop)?
        } else {
            // The return path uses the same links.
            let (link, is_forward) = *path.get(path.len().checked_sub(packet.position.hop + 1)?)?;
            (link, !is_forward)
        };
        Some((link, usize::from(!is_forward)))
    }

    /// Hands a packet to its next link, or to the receiver after the last link.
    fn forward(&mut self, packet: Packet) {
        match self.next_link(&packet) {
            Some((link, direction)) => {
                self.links[link][direction].handle(self.now, packet);
            }
            None => self.arrive(packet),
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let Packet { flow, position: PathPosition { to_server, .. }, body } = packet;
        let Some(Some(active)) = self.flows.get_mut(flow) else { return };
        match (active, body) {
            (ActiveFlow::OpenBats { ends, .. }, Body::Datagram { mut bytes, ecn, .. }) => {
                let remote = if to_server { Host::Client } else { Host::Server };
                let (remote, payload) = (remote.address(), &mut bytes[..]);
                let received = Received { remote, local_ip: None, ecn, payload };
                let host = usize::from(to_server);
                ends[host].handle(self.now, Input::Datagram(received));
                self.poll_endpoint(flow, host);
            }
            (ActiveFlow::Tcp { receiver, .. }, Body::Segment(segment)) => {
                if let Some(ack) = receiver.on_segment(self.now, segment) {
                    self.forward(Packet {
                        flow,
                        position: PathPosition::FROM_SERVER,
                        body: Body::Ack(ack),
                    });
                }
            }
            (ActiveFlow::Tcp { sender, .. }, Body::Ack(ack)) => {
                sender.on_ack(self.now, &ack);
                self.send_segments(flow);
            }
            // The UDP checksum discards corrupted datagrams.
            (ActiveFlow::Udp, Body::Datagram { bytes, is_corrupted: false, .. }) => {
                self.datagrams.push_back((flow, bytes));
            }
            _ => {}
        }
    }

    /// Sends the segments and delayed acknowledgements that the TCP model permits now. Returns
    /// whether it sent any.
    fn send_segments(&mut self, flow: usize) -> bool {
        let mut has_sent = false;
        if let Some(Some(ActiveFlow::Tcp { receiver, .. })) = self.flows.get_mut(flow)
            && let Some(ack) = receiver.poll(self.now)
        {
            has_sent = true;
            let body = Body::Ack(ack);
            self.forward(Packet { flow, position: PathPosition::FROM_SERVER, body });
        }
        while let Some(Some(ActiveFlow::Tcp { sender, .. })) = self.flows.get_mut(flow)
            && let Some(segment) = sender.poll(self.now)
        {
            has_sent = true;
            self.forward(Packet {
                flow,
                position: PathPosition::FROM_CLIENT,
                body: Body::Segment(segment),
            });
        }
        has_sent
    }

    /// Polls endpoint `host` (0: client, 1: server) of a flow until it is idle.
    fn poll_endpoint(&mut self, flow: usize, host: usize) {
        loop {
            let Some(Some(ActiveFlow::OpenBats { ends, wake })) = self.flows.get_mut(flow) else {
                return;
            };
            match ends[host].poll(self.now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    let segments: Vec<Vec<u8>> = self.buffer[..transmit.len]
                        .chunks(transmit.segment_size)
                        .map(<[u8]>::to_vec)
                        .collect();
                    for bytes in segments {
                        let position = if host == 0 {
                            PathPosition::FROM_CLIENT
                        } else {
                            PathPosition::FROM_SERVER
                        };
                        let body = Body::datagram(bytes, transmit.ecn);
                        self.forward(Packet { flow, position, body });
                    }
                }
                Output::Event(handle, event) => {
                    let end = if host == 0 { End::Client } else { End::Server };
                    self.events.push((flow, end, handle, event));
                }
                Output::Timeout(at) => {
                    wake[host] = at;
                    return;
                }
            }
        }
    }

    /// Processes everything that is due now. Returns whether events or datagrams are pending.
    fn process_due(&mut self) -> bool {
        for _ in 0..MAX_ROUNDS {
            let mut is_idle = true;
            for flow in 0..self.flows.len() {
                for host in 0..2 {
                    let now = self.now;
                    if let Some(Some(ActiveFlow::OpenBats { ends, wake })) =
                        self.flows.get_mut(flow)
                        && wake[host].is_some_and(|at| at <= now)
                    {
                        is_idle = false;
                        ends[host].handle(now, Input::Timeout);
                        self.poll_endpoint(flow, host);
                    }
                }
                is_idle &= !self.send_segments(flow);
            }
            for used in 0..self.used.len() {
                let (link, direction) = self.used[used];
                while let LinkOutput::Deliver(mut packet) =
                    self.links[link][direction].poll(self.now)
                {
                    is_idle = false;
                    packet.position.hop += 1;
                    self.forward(packet);
                }
            }
            if is_idle {
                break;
            }
        }
        !self.events.is_empty() || !self.datagrams.is_empty()
    }

    fn next_event(&mut self) -> Option<Timestamp> {
        let now = self.now;
        let mut earliest: Option<Timestamp> = None;
        let mut note = |at: Option<Timestamp>| {
            if let Some(at) = at {
                earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
            }
        };
        for &(link, direction) in &self.used {
            if let LinkOutput::Timeout(at) = self.links[link][direction].poll(now) {
                note(at);
            }
        }
        for flow in self.flows.iter().flatten() {
            match flow {
                ActiveFlow::OpenBats { wake, .. } => wake.iter().for_each(|&at| note(at)),
                ActiveFlow::Tcp { sender, receiver } => {
                    note(sender.next_timer());
                    note(receiver.next_timer());
                }
                ActiveFlow::Udp | ActiveFlow::Ended => {}
            }
        }
        earliest
    }

    /// Advances until there are events or datagrams, or to `until`.
    pub(super) fn step(&mut self, until: Timestamp) {
        loop {
            if self.process_due() {
                return;
            }
            match self.next_event() {
                // Everything due now is processed, so time advances by at least 1 ns.
                Some(at) if at <= until && self.now < until => {
                    self.now = at.max(self.now + std::time::Duration::from_nanos(1));
                }
                _ => {
                    self.now = until.max(self.now);
                    return;
                }
            }
        }
    }
}
