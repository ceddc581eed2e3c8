//! One link shared by competing bulk transfers of the protocol and of modelled TCP.

use core::time::Duration;

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput, Payload};
use bats_proto::{
    CongestionAlgorithm, ConnectionHandle, ConnectionStats, Endpoint, Event, Input, Output,
    Received, Timestamp, TransportConfig,
};
use bytes::Bytes;

use crate::endpoints::{client_config, endpoints};
use crate::host::Host;
use crate::packet::{Body, Packet};
use crate::tcp;

/// Protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// BRTP with this congestion controller.
    Brtp(CongestionAlgorithm),
    /// TCP with CUBIC.
    TcpCubic,
    /// TCP with BBRv1.
    TcpBbr,
}

/// A bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Protocol of the flow.
    pub kind: Kind,
    /// Start time, from the start of the run.
    pub start: Duration,
}

/// Flows over one link, all in the same direction.
#[derive(Clone, Debug)]
pub struct SharedLink {
    /// Link in the data direction.
    pub up: LinkConfig,
    /// Link in the reverse direction.
    pub down: LinkConfig,
    /// The competing flows.
    pub flows: Vec<Flow>,
    /// Duration of the run.
    pub duration: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// State of all flows, sampled every [`SharedLink::SAMPLE`].
#[derive(Clone, Debug)]
pub struct SharedLinkSample {
    /// Time since the start of the run.
    pub time: Duration,
    /// Bytes of each flow that the link delivered, headers and redundancy included.
    pub link_bytes: Vec<u64>,
    /// Bytes of each flow that its receiver has in order.
    pub received: Vec<u64>,
    /// Statistics of the BRTP senders; `None` for TCP flows.
    pub senders: Vec<Option<ConnectionStats>>,
    /// Link counters of the data direction.
    pub link: LinkStats,
}

impl SharedLink {
    /// Interval of the samples.
    pub const SAMPLE: Duration = Duration::from_millis(100);

    /// Runs all flows in virtual time.
    ///
    /// # Panics
    ///
    /// If an endpoint rejects the default configuration.
    pub fn run(&self) -> Vec<SharedLinkSample> {
        Run::new(self).go()
    }
}

/// A BRTP transfer. It has two endpoints of its own, so that its packets can be identified.
struct Brtp {
    endpoints: [Endpoint; 2],
    wake_at: [Option<Timestamp>; 2],
    client: ConnectionHandle,
    received: u64,
}

struct Tcp {
    sender: tcp::Sender,
    receiver: tcp::Receiver,
}

enum Active {
    Brtp(Box<Brtp>),
    Tcp(Box<Tcp>),
}

/// Message size in bytes.
const MESSAGE: usize = 16 << 10;

struct Run<'a> {
    shared: &'a SharedLink,
    now: Timestamp,
    links: [Link<Packet>; 2],
    flows: Vec<Option<Active>>,
    link_bytes: Vec<u64>,
    message: Bytes,
    buffer: Vec<u8>,
}

impl<'a> Run<'a> {
    fn new(shared: &'a SharedLink) -> Self {
        let count = shared.flows.len();
        let links = [(&shared.up, 0x51), (&shared.down, 0xd0)];
        Self {
            shared,
            now: Timestamp::from_millis(1),
            links: links.map(|(link, salt)| Link::new(link.clone(), shared.seed ^ salt)),
            flows: (0..count).map(|_| None).collect(),
            link_bytes: vec![0; count],
            message: vec![0; MESSAGE].into(),
            buffer: Vec::with_capacity(65_536),
        }
    }

    fn go(&mut self) -> Vec<SharedLinkSample> {
        let start = self.now;
        let end = start + self.shared.duration;
        let (mut samples, mut due) = (Vec::new(), start);
        while self.now < end {
            for index in 0..self.flows.len() {
                if self.flows[index].is_none() && start + self.shared.flows[index].start <= self.now
                {
                    self.start_flow(index);
                }
            }
            self.process_due();
            if due <= self.now {
                samples.push(self.sample(start));
                due += SharedLink::SAMPLE;
            }
            let event = self.next_event();
            let waiting = self.shared.flows.iter().zip(&self.flows);
            let starts =
                waiting.filter(|(_, active)| active.is_none()).map(|(f, _)| start + f.start);
            let next = starts.chain(event).chain([due, end]).min().unwrap_or(end);
            // All work that was due is done, so virtual time advances by at least 1 ns.
            self.now = next.max(self.now + Duration::from_nanos(1)).min(end);
        }
        samples
    }

    fn start_flow(&mut self, index: usize) {
        let seed = self.shared.seed.wrapping_add(1_000 * index as u64);
        let active = match self.shared.flows[index].kind {
            Kind::Brtp(congestion) => {
                let transport = TransportConfig { congestion, ..TransportConfig::default() };
                let mut endpoints = endpoints(&transport, seed);
                let config = client_config(&transport);
                let client = endpoints[0]
                    .connect(self.now, Host::Server.address(), "server", config)
                    .expect("a valid configuration");
                let wake_at = [Some(self.now); 2];
                Active::Brtp(Box::new(Brtp { endpoints, wake_at, client, received: 0 }))
            }
            Kind::TcpCubic => Self::tcp(Box::new(tcp::cubic::Cubic::default())),
            Kind::TcpBbr => Self::tcp(Box::new(tcp::bbr::Bbr::new(seed as usize % 7))),
        };
        self.flows[index] = Some(active);
    }

    fn tcp(control: Box<dyn tcp::Control>) -> Active {
        let receiver = tcp::Receiver::default();
        Active::Tcp(Box::new(Tcp { sender: tcp::Sender::new(control), receiver }))
    }

    /// Does all work that is due now.
    fn process_due(&mut self) {
        for index in 0..self.flows.len() {
            match &mut self.flows[index] {
                Some(Active::Brtp(brtp)) => {
                    for host in 0..2 {
                        if brtp.wake_at[host].is_some_and(|at| at <= self.now) {
                            brtp.endpoints[host].handle(self.now, Input::Timeout);
                            let work = (&mut self.links, &mut self.buffer, &self.message);
                            brtp.drive(self.now, index, host, work);
                        }
                    }
                }
                Some(Active::Tcp(tcp)) => tcp.settle(self.now, index, &mut self.links),
                None => {}
            }
        }
        for direction in 0..2 {
            while let LinkOutput::Deliver(packet) = self.links[direction].poll(self.now) {
                self.deliver(direction, packet);
            }
        }
    }

    fn deliver(&mut self, direction: usize, packet: Packet) {
        let Packet { flow, body, .. } = packet;
        if direction == 0 {
            self.link_bytes[flow] += body.len() as u64;
        }
        match (&mut self.flows[flow], body) {
            (Some(Active::Brtp(brtp)), Body::Datagram { mut bytes, ecn, .. }) => {
                let remote = if direction == 0 { Host::Client } else { Host::Server };
                let received =
                    Received { remote: remote.address(), local_ip: None, ecn, payload: &mut bytes };
                // Direction 0 leads from host 0 (client) to host 1 (server).
                let host = 1 - direction;
                brtp.endpoints[host].handle(self.now, Input::Datagram(received));
                let work = (&mut self.links, &mut self.buffer, &self.message);
                brtp.drive(self.now, flow, host, work);
            }
            (Some(Active::Tcp(tcp)), Body::Segment(segment)) => {
                if let Some(ack) = tcp.receiver.on_segment(self.now, segment) {
                    let body = Body::Ack(ack);
                    self.links[1].handle(self.now, Packet { flow, position: (), body });
                }
            }
            (Some(Active::Tcp(tcp)), Body::Ack(ack)) => {
                tcp.sender.on_ack(self.now, &ack);
                tcp.send(self.now, flow, &mut self.links[0]);
            }
            _ => {}
        }
    }

    fn next_event(&mut self) -> Option<Timestamp> {
        let now = self.now;
        let links = self.links.iter_mut().filter_map(|link| match link.poll(now) {
            LinkOutput::Timeout(at) => at,
            LinkOutput::Deliver(_) => None,
        });
        let timers = self.flows.iter().flatten().flat_map(|active| match active {
            Active::Brtp(brtp) => brtp.wake_at,
            Active::Tcp(tcp) => [tcp.sender.next_timer(), tcp.receiver.next_timer()],
        });
        links.chain(timers.flatten()).min()
    }

    fn sample(&mut self, start: Timestamp) -> SharedLinkSample {
        let now = self.now;
        // Asking for the queue length updates its integral over time.
        self.links[0].queue_bytes(now);
        let received = self.flows.iter().map(|active| match active {
            Some(Active::Brtp(brtp)) => brtp.received,
            Some(Active::Tcp(tcp)) => tcp.receiver.in_order() * tcp::SEGMENT,
            None => 0,
        });
        let received = received.collect();
        let senders = self.flows.iter_mut().map(|active| match active {
            Some(Active::Brtp(brtp)) => brtp.endpoints[0].stats(now, brtp.client),
            _ => None,
        });
        SharedLinkSample {
            time: now - start,
            link_bytes: self.link_bytes.clone(),
            received,
            senders: senders.collect(),
            link: self.links[0].stats(),
        }
    }
}

type Work<'a> = (&'a mut [Link<Packet>; 2], &'a mut Vec<u8>, &'a Bytes);

impl Brtp {
    /// Polls endpoint `host` (0 sends, 1 receives) until it has no more output.
    fn drive(&mut self, now: Timestamp, flow: usize, host: usize, work: Work<'_>) {
        let (links, buffer, message) = work;
        loop {
            match self.endpoints[host].poll(now, buffer) {
                Output::Transmit(transmit) => {
                    for segment in buffer[..transmit.len].chunks(transmit.segment_size) {
                        let body = Body::datagram(segment.to_vec(), transmit.ecn);
                        links[host].handle(now, Packet { flow, position: (), body });
                    }
                }
                Output::Event(handle, event) => match (host, event) {
                    (0, Event::Connected | Event::Writable) => {
                        while self.endpoints[0].send(now, handle, message.clone()).is_ok() {}
                    }
                    (1, Event::Readable) => {
                        while let Some(got) = self.endpoints[1].recv(now, handle) {
                            self.received += got.len() as u64;
                        }
                    }
                    _ => {}
                },
                Output::Timeout(at) => {
                    self.wake_at[host] = at;
                    return;
                }
            }
        }
    }
}

impl Tcp {
    fn settle(&mut self, now: Timestamp, flow: usize, links: &mut [Link<Packet>; 2]) {
        if let Some(ack) = self.receiver.poll(now) {
            links[1].handle(now, Packet { flow, position: (), body: Body::Ack(ack) });
        }
        self.send(now, flow, &mut links[0]);
    }

    fn send(&mut self, now: Timestamp, flow: usize, link: &mut Link<Packet>) {
        while let Some(segment) = self.sender.poll(now) {
            link.handle(now, Packet { flow, position: (), body: Body::Segment(segment) });
        }
    }
}
