//! Flows of several kinds between any hosts, which share links: everything is from end to end.

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

use super::carrier::{Carrier, Congestion};
use super::world::{End, Happened, Route};

/// Rounds of work at one moment; more are a loop without end.
const MAX_ROUNDS: u32 = 100_000;

/// Where a packet is.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Whether it goes towards the server.
    is_forth: bool,
    /// How many links it has crossed, the present one not counted.
    hop: usize,
}

impl Way {
    /// Of what leaves the client, and the server.
    const FORTH: Self = Self { is_forth: true, hop: 0 };
    const BACK: Self = Self { is_forth: false, hop: 0 };
}

type Packet = packet::Packet<Way>;

/// A flow that has begun.
enum Active {
    /// Two endpoints of its own, so that flows do not share a connection's state.
    Ours {
        ends: Box<[Endpoint; 2]>,
        wake: [Option<Timestamp>; 2],
    },
    Tcp {
        sender: Box<tcp::Sender>,
        receiver: tcp::Receiver,
    },
    Udp,
    /// A model's flow that has ended: what still arrives of it is nobody's.
    Over,
}

/// What is known of a model's sender and receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpState {
    /// Bytes that arrived in order.
    pub(super) delivered: u64,
    pub(super) cwnd_bytes: u64,
    pub(super) smoothed_rtt: Option<std::time::Duration>,
    /// Bits a second of data.
    pub(super) delivery_bps: Option<f64>,
    pub(super) pacing_bps: Option<f64>,
    /// Segments sent, and those of them that were sent again.
    pub(super) transmissions: (u64, u64),
}

/// Links between hosts, and the flows over them.
pub(super) struct Mesh {
    now: Timestamp,
    seed: u64,
    transport: TransportConfig,
    /// The way of each flow, towards its server.
    ways: Vec<Route>,
    /// Both directions of each link, forward first.
    links: Vec<[Link<Packet>; 2]>,
    /// Those of them that some flow uses.
    used: Vec<(usize, usize)>,
    flows: Vec<Option<Active>>,
    buffer: Vec<u8>,
    pub(super) events: Vec<Happened>,
    /// Datagrams that have arrived: the flow, and the bytes.
    pub(super) datagrams: VecDeque<(usize, Vec<u8>)>,
}

fn index(end: End) -> usize {
    usize::from(end == End::Server)
}

impl Mesh {
    /// Links, and the way of each flow over them.
    pub(super) fn new(
        links: &[[LinkConfig; 2]],
        ways: &[Route],
        transport: TransportConfig,
        seed: u64,
    ) -> Self {
        let used = |way: &Route| -> Vec<(usize, usize)> {
            way.iter().flat_map(|&(link, _)| [(link, 0), (link, 1)]).collect()
        };
        let mut all: Vec<(usize, usize)> = ways.iter().flat_map(used).collect();
        all.sort_unstable();
        all.dedup();
        let links = (0_u64..).zip(links).map(|(number, ways)| {
            let [there, back] = ways.clone();
            let seed = seed ^ number << 40;
            [Link::new(there, seed ^ 0x9e37_79b9), Link::new(back, seed ^ 0x7f4a_7c15_0000)]
        });
        Self {
            now: Timestamp::from_millis(1),
            seed,
            transport,
            ways: ways.to_vec(),
            links: links.collect(),
            used: all,
            flows: ways.iter().map(|_| None).collect(),
            buffer: Vec::with_capacity(65_536),
            events: Vec::new(),
            datagrams: VecDeque::new(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// A flow begins; the connection, where it has one.
    ///
    /// # Errors
    /// Where its settings are not for its endpoint.
    pub(super) fn begin(
        &mut self,
        flow: usize,
        carrier: Carrier,
    ) -> Result<Option<ConnectionHandle>> {
        let (active, handle) = match carrier {
            Carrier::Ours(mode) => {
                let (ends, handle) = self.connect(flow, mode)?;
                (Active::Ours { ends: Box::new(ends), wake: [Some(self.now); 2] }, Some(handle))
            }
            Carrier::Tcp(congestion) => (self.tcp(flow, congestion), None),
            Carrier::Udp => (Active::Udp, None),
        };
        if let Some(place) = self.flows.get_mut(flow) {
            *place = Some(active);
        }
        Ok(handle)
    }

    fn connect(&self, flow: usize, mode: Mode) -> Result<([Endpoint; 2], ConnectionHandle)> {
        let mut ends = endpoints(&self.transport, self.seed.wrapping_add(1_000 * flow as u64));
        let config = client_config(&TransportConfig { mode, ..self.transport.clone() });
        let handle = ends[0].connect(self.now, Host::Server.address(), "server", config);
        Ok((ends, handle.map_err(|error| anyhow::anyhow!("{error}"))?))
    }

    fn tcp(&self, flow: usize, congestion: Congestion) -> Active {
        let sender = Carrier::tcp(congestion, self.seed.wrapping_add(flow as u64));
        Active::Tcp { sender: Box::new(sender), receiver: tcp::Receiver::default() }
    }

    /// A flow of the model of TCP ends, as nobody else does who is not asked to send.
    pub(super) fn end(&mut self, flow: usize) {
        if let Some(place @ Some(Active::Tcp { .. })) = self.flows.get_mut(flow) {
            *place = Some(Active::Over);
        }
    }

    /// An end of a flow of this project's.
    pub(super) fn endpoint(&mut self, flow: usize, end: End) -> Option<&mut Endpoint> {
        match self.flows.get_mut(flow)?.as_mut()? {
            Active::Ours { ends, .. } => Some(&mut ends[index(end)]),
            _ => None,
        }
    }

    /// The endpoint has something new to say.
    pub(super) fn touch(&mut self, flow: usize, end: End) {
        if let Some(Some(Active::Ours { wake, .. })) = self.flows.get_mut(flow) {
            wake[index(end)] = Some(self.now);
        }
    }

    /// Sends a datagram of a flow of them.
    pub(super) fn send_datagram(&mut self, flow: usize, bytes: Vec<u8>) {
        let body = Body::datagram(bytes, 0);
        self.carry(Packet { flow, way: Way::FORTH, body });
    }

    /// The state of a model's sender.
    pub(super) fn tcp_state(&self, flow: usize) -> Option<TcpState> {
        let Active::Tcp { sender, receiver } = self.flows.get(flow)?.as_ref()? else { return None };
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

    /// Bytes that wait before each link on the way of the first flow.
    pub(super) fn queues(&mut self) -> Vec<usize> {
        let way = self.ways.first().cloned().unwrap_or_default();
        let now = self.now;
        let before = |(link, is_forward): (usize, bool)| {
            self.links
                .get_mut(link)
                .map_or(0, |ways| ways[usize::from(!is_forward)].queue_bytes(now))
        };
        way.into_iter().map(before).collect()
    }

    /// Makes all links behave otherwise.
    pub(super) fn set_links(&mut self, configs: &[[LinkConfig; 2]]) {
        for (link, configs) in self.links.iter_mut().zip(configs) {
            for (way, config) in link.iter_mut().zip(configs) {
                way.set_config(self.now, config.clone());
            }
        }
    }

    /// The link that a packet crosses next, if it has not arrived.
    fn next(&self, packet: &Packet) -> Option<(usize, usize)> {
        let way = self.ways.get(packet.flow)?;
        let (link, is_forward) = if packet.way.is_forth {
            *way.get(packet.way.hop)?
        } else {
            // Back by the same links.
            let (link, is_forward) = *way.get(way.len().checked_sub(packet.way.hop + 1)?)?;
            (link, !is_forward)
        };
        Some((link, usize::from(!is_forward)))
    }

    /// Hands a packet to its next link; it is its receiver's when there is none.
    fn carry(&mut self, packet: Packet) {
        match self.next(&packet) {
            Some((link, way)) => {
                self.links[link][way].handle(self.now, packet);
            }
            None => self.arrive(packet),
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let Packet { flow, way: Way { is_forth, .. }, body } = packet;
        let Some(Some(active)) = self.flows.get_mut(flow) else { return };
        match (active, body) {
            (Active::Ours { ends, .. }, Body::Datagram { mut bytes, ecn, .. }) => {
                let remote = if is_forth { Host::Client } else { Host::Server };
                let (remote, payload) = (remote.address(), &mut bytes[..]);
                let received = Received { remote, local_ip: None, ecn, payload };
                let host = usize::from(is_forth);
                ends[host].handle(self.now, Input::Datagram(received));
                self.drive(flow, host);
            }
            (Active::Tcp { receiver, .. }, Body::Segment(number)) => {
                let ack = receiver.on_segment(number);
                self.carry(Packet { flow, way: Way::BACK, body: Body::Ack(ack) });
            }
            (Active::Tcp { sender, .. }, Body::Ack(ack)) => {
                sender.on_ack(self.now, &ack);
                self.send_segments(flow);
            }
            // UDP's checksum finds what was changed.
            (Active::Udp, Body::Datagram { bytes, is_changed: false, .. }) => {
                self.datagrams.push_back((flow, bytes));
            }
            _ => {}
        }
    }

    /// Lets the sender of a model do what it may. True if it did something.
    fn send_segments(&mut self, flow: usize) -> bool {
        let mut has_sent = false;
        while let Some(Some(Active::Tcp { sender, .. })) = self.flows.get_mut(flow)
            && let Some(number) = sender.poll(self.now)
        {
            has_sent = true;
            self.carry(Packet { flow, way: Way::FORTH, body: Body::Segment(number) });
        }
        has_sent
    }

    /// Lets endpoint `host` (0 sends, 1 receives) of a flow do all that it has to.
    fn drive(&mut self, flow: usize, host: usize) {
        loop {
            let Some(Some(Active::Ours { ends, wake })) = self.flows.get_mut(flow) else { return };
            match ends[host].poll(self.now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    let segments: Vec<Vec<u8>> = self.buffer[..transmit.len]
                        .chunks(transmit.segment_size)
                        .map(<[u8]>::to_vec)
                        .collect();
                    for bytes in segments {
                        let way = if host == 0 { Way::FORTH } else { Way::BACK };
                        let body = Body::datagram(bytes, transmit.ecn);
                        self.carry(Packet { flow, way, body });
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

    /// Does what is to be done now; true if something is to be told.
    fn settle(&mut self) -> bool {
        for _ in 0..MAX_ROUNDS {
            let mut is_idle = true;
            for flow in 0..self.flows.len() {
                for host in 0..2 {
                    let now = self.now;
                    if let Some(Some(Active::Ours { ends, wake })) = self.flows.get_mut(flow)
                        && wake[host].is_some_and(|at| at <= now)
                    {
                        is_idle = false;
                        ends[host].handle(now, Input::Timeout);
                        self.drive(flow, host);
                    }
                }
                is_idle &= !self.send_segments(flow);
            }
            for used in 0..self.used.len() {
                let (link, way) = self.used[used];
                while let LinkOutput::Deliver(mut packet) = self.links[link][way].poll(self.now) {
                    is_idle = false;
                    packet.way.hop += 1;
                    self.carry(packet);
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
        let mut next: Option<Timestamp> = None;
        let mut note = |at: Option<Timestamp>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        };
        for &(link, way) in &self.used {
            if let LinkOutput::Timeout(at) = self.links[link][way].poll(now) {
                note(at);
            }
        }
        for flow in self.flows.iter().flatten() {
            match flow {
                Active::Ours { wake, .. } => wake.iter().for_each(|&at| note(at)),
                Active::Tcp { sender, .. } => note(sender.next_timer()),
                Active::Udp | Active::Over => {}
            }
        }
        next
    }

    /// Goes on until there is something to tell, or `until`.
    pub(super) fn step(&mut self, until: Timestamp) {
        loop {
            if self.settle() {
                return;
            }
            match self.next_event() {
                // What is due now has been settled, so time goes on by a nanosecond at the least.
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
