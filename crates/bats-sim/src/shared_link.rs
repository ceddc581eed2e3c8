//! One link shared by competing bulk transfers of the protocol and of modelled TCP.

use core::time::Duration;

use bats_netem::{Link, LinkConfig, LinkStats};
use bats_proto::testing::Application;
use bats_proto::{
    CongestionAlgorithm, ConnectionHandle, ConnectionStats, Endpoint, Event, Timestamp,
    TransportConfig,
};
use bytes::Bytes;

use crate::endpoints::endpoints;
use crate::flow_links::{self, FlowLinks, FlowWorld, TICK, Tcp};
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

/// Message size in bytes.
const MESSAGE: usize = 16 << 10;

struct Run<'a> {
    shared: &'a SharedLink,
    world: FlowWorld,
    transfers: Transfers,
    has_started: Vec<bool>,
}

/// The applications: the clients of BRTP send as much as they can, the servers count.
struct Transfers {
    message: Bytes,
    clients: Vec<Option<ConnectionHandle>>,
    received: Vec<u64>,
}

impl Application<Option<Endpoint>> for Transfers {
    fn on_event(
        &mut self,
        now: Timestamp,
        (node, endpoint): (usize, &mut Option<Endpoint>),
        handle: ConnectionHandle,
        event: &Event,
    ) -> bool {
        let (Some(endpoint), flow) = (endpoint, node / 2) else { return false };
        match (node % 2, event) {
            (0, Event::Connected | Event::Writable) => {
                while endpoint.send(now, handle, self.message.clone()).is_ok() {}
            }
            (1, Event::Readable) => {
                while let Some(got) = endpoint.recv(now, handle) {
                    self.received[flow] += got.len() as u64;
                }
            }
            _ => {}
        }
        false
    }
}

impl<'a> Run<'a> {
    fn new(shared: &'a SharedLink) -> Self {
        let count = shared.flows.len();
        let links = [(&shared.up, 0x51), (&shared.down, 0xd0)];
        let links = links.map(|(link, salt)| Link::new(link.clone(), shared.seed ^ salt)).into();
        let flows = (0..count).map(|_| flow_links::Flow::new([vec![0], vec![1]])).collect();
        let (clients, received) = (vec![None; count], vec![0; count]);
        Self {
            shared,
            world: FlowLinks::world(Timestamp::from_millis(1), links, flows, 0..2),
            transfers: Transfers { message: vec![0; MESSAGE].into(), clients, received },
            has_started: vec![false; count],
        }
    }

    fn go(&mut self) -> Vec<SharedLinkSample> {
        let start = self.world.now;
        let end = start + self.shared.duration;
        let (mut samples, mut due) = (Vec::new(), start);
        while self.world.now < end {
            for index in 0..self.shared.flows.len() {
                let at = start + self.shared.flows[index].start;
                if !self.has_started[index] && at <= self.world.now {
                    self.start_flow(index);
                }
            }
            while self.world.round(&mut self.transfers) {}
            if due <= self.world.now {
                samples.push(self.sample(start));
                due += SharedLink::SAMPLE;
            }
            let event = self.world.next_time();
            let waiting = self.shared.flows.iter().zip(&self.has_started);
            let starts = waiting.filter(|(_, has)| !**has).map(|(flow, _)| start + flow.start);
            let next = starts.chain(event).chain([due, end]).min().unwrap_or(end);
            self.world.advance(next.max(self.world.now + TICK).min(end));
        }
        samples
    }

    fn start_flow(&mut self, index: usize) {
        self.has_started[index] = true;
        let seed = self.shared.seed.wrapping_add(1_000 * index as u64);
        let now = self.world.now;
        let traffic = match self.shared.flows[index].kind {
            Kind::Brtp(congestion) => {
                let transport = TransportConfig { congestion, ..TransportConfig::default() };
                let ends = endpoints(&transport, seed);
                let handle = flow_links::connect(&mut self.world, index, ends, &transport);
                self.transfers.clients[index] = Some(handle.expect("a valid configuration"));
                return;
            }
            Kind::TcpCubic => Tcp::traffic(tcp::Sender::new(Box::<tcp::cubic::Cubic>::default())),
            Kind::TcpBbr => {
                let control = Box::new(tcp::bbr::Bbr::new(seed as usize % 7));
                Tcp::traffic(tcp::Sender::new(control))
            }
        };
        self.world.links.start(now, index, traffic);
    }

    fn sample(&mut self, start: Timestamp) -> SharedLinkSample {
        let FlowWorld { now, nodes, links, .. } = &mut self.world;
        // Asking for the queue length updates its integral over time.
        links.all[0].queue_bytes(*now);
        let received = self.transfers.received.iter().zip(links.flows());
        let clients = self.transfers.clients.iter().enumerate();
        let sender = |(flow, client): (usize, &Option<ConnectionHandle>)| {
            nodes[2 * flow].as_ref()?.stats(*now, (*client)?)
        };
        SharedLinkSample {
            time: *now - start,
            received: received.map(|(bytes, flow)| bytes + flow.received()).collect(),
            link_bytes: links.flows().iter().map(|flow| flow.link_bytes).collect(),
            senders: clients.map(sender).collect(),
            link: links.all[0].stats(),
        }
    }
}
