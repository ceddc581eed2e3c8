//! The flows of the arena: what their applications do, and what sends their packets.

use core::time::Duration;

use bats_proto::testing::Application;
use bats_proto::{ConnectionHandle, Endpoint, Event, Mode, Timestamp, TransportConfig};
use bytes::Bytes;

use super::cell::{Algorithm, Work};
use crate::endpoints::endpoints;
use crate::flow_links::{self, FlowWorld, Traffic};
use crate::packet::Body;
use crate::{tcp, transfer};

/// Bytes of a message of a bulk transfer.
const MESSAGE: usize = 16 << 10;

/// Payload of a plain datagram in a full frame, and their rate where the flow has none.
const DATAGRAM: usize = 1_472;
const DATAGRAM_RATE: f64 = 10e6;
/// Bytes of a message while a bulk transfer is application-limited.
const LIMITED_MESSAGE: usize = 1_200;

/// Properties of its path that a flow needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Propagation delay of both directions.
    pub(super) rtt: Duration,
    /// Models of TCP are ECN-capable.
    pub(super) tcp_ecn: bool,
}

/// The flows that have begun and not ended, by their index.
pub(super) struct Flows(pub(super) Vec<Option<Active>>);

/// A running flow.
pub(super) enum Active {
    /// Of the protocol.
    Protocol(Box<Transfer>),
    /// Of the model of TCP.
    Tcp {
        /// What it has to send, if that is limited.
        bytes: Option<u64>,
    },
    /// Plain datagrams at a constant rate.
    Datagrams(Datagrams),
}

/// Plain datagrams at a constant rate.
pub(super) struct Datagrams {
    interval: Duration,
    next: Timestamp,
    received: u64,
}

/// The applications at both ends of a flow of the protocol.
pub(super) struct Transfer {
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    start: Timestamp,
    work: Work,
    message: Bytes,
    /// Bytes handed to the sender, and delivered in order.
    written: u64,
    received: u64,
    is_finished: bool,
    next_message: Option<Timestamp>,
    /// From the due time of a message to its delivery, of flows with a rate.
    pub(super) message_delays: Vec<Duration>,
}

/// Begins a flow of a world.
pub(super) fn begin(
    world: &mut FlowWorld,
    index: usize,
    algorithm: Algorithm,
    work: Work,
    path: Path,
    seed: u64,
) -> Active {
    let now = world.now;
    let bytes = match work {
        Work::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    let mut tcp = |control: Box<dyn tcp::Control>| {
        let mut sender = tcp::Sender::new(control);
        if path.tcp_ecn {
            sender = sender.with_ecn();
        }
        if let Some(bytes) = bytes {
            sender = sender.with_limit(bytes.div_ceil(tcp::SEGMENT));
        }
        world.links.start(now, index, flow_links::Tcp::traffic(sender));
        Active::Tcp { bytes }
    };
    let transport = match algorithm {
        Algorithm::Brtp(congestion) => TransportConfig { congestion, ..TransportConfig::default() },
        Algorithm::Btp(congestion) => {
            TransportConfig { congestion, mode: Mode::Btp, ..TransportConfig::default() }
        }
        Algorithm::Bare(algorithm) => {
            return tcp(Box::new(tcp::wrapped::Wrapped::new(algorithm, path.rtt, seed)));
        }
        Algorithm::Reno => return tcp(Box::<tcp::reno::Reno>::default()),
        Algorithm::Cubic => return tcp(Box::<tcp::cubic::Cubic>::default()),
        Algorithm::Copa => return tcp(Box::<tcp::copa::Copa>::default()),
        Algorithm::Bbr1 => return tcp(Box::new(tcp::bbr::Bbr::new(seed as usize % 7))),
        Algorithm::Udp => {
            world.links.start(now, index, Traffic::Datagrams);
            let rate = match work {
                Work::Rate { bits_per_second, .. } | Work::RateThenBulk { bits_per_second, .. } => {
                    bits_per_second
                }
                Work::Bulk | Work::Bytes(_) => DATAGRAM_RATE,
            };
            let interval = Duration::from_secs_f64(DATAGRAM as f64 * 8.0 / rate);
            let interval = interval.max(Duration::from_nanos(1));
            return Active::Datagrams(Datagrams { interval, next: now, received: 0 });
        }
    };
    let client = flow_links::connect(world, index, endpoints(&transport, seed), &transport)
        .expect("a valid configuration");
    Active::Protocol(Box::new(Transfer::new(now, client, work)))
}

impl Active {
    /// Bytes delivered in order; `flow` is that of the links.
    pub(super) fn received(&self, flow: &flow_links::Flow) -> u64 {
        match self {
            Self::Protocol(transfer) => transfer.received,
            Self::Tcp { .. } => flow.received(),
            Self::Datagrams(datagrams) => datagrams.received,
        }
    }

    /// Whether all that it had to send has arrived.
    pub(super) fn is_done(&self, flow: &flow_links::Flow) -> bool {
        let bytes = match self {
            Self::Protocol(transfer) => match transfer.work {
                Work::Bytes(bytes) => Some(bytes),
                _ => None,
            },
            Self::Tcp { bytes } => *bytes,
            Self::Datagrams(_) => None,
        };
        bytes.is_some_and(|bytes| self.received(flow) >= bytes)
    }

    /// The connections of both ends, of flows of the protocol.
    pub(super) fn connections(&self) -> [Option<ConnectionHandle>; 2] {
        match self {
            Self::Protocol(transfer) => [Some(transfer.client), transfer.server],
            Self::Tcp { .. } | Self::Datagrams(_) => [None; 2],
        }
    }

    /// When its application has something to send next.
    pub(super) fn next_message(&self) -> Option<Timestamp> {
        match self {
            Self::Protocol(transfer) => transfer.next_message,
            Self::Tcp { .. } => None,
            Self::Datagrams(datagrams) => Some(datagrams.next),
        }
    }

    /// Sends what is due.
    pub(super) fn send_due(&mut self, world: &mut FlowWorld, index: usize) {
        let now = world.now;
        match self {
            Self::Protocol(transfer) => {
                if let Some(client) = &mut world.nodes[2 * index]
                    && transfer.send_due(now, client)
                {
                    world.wake(2 * index);
                }
            }
            Self::Tcp { .. } => {}
            Self::Datagrams(datagrams) => {
                while datagrams.next <= now {
                    let body = Body::datagram(vec![0; DATAGRAM], 0);
                    world.links.send_body(now, index, true, body);
                    datagrams.next += datagrams.interval;
                }
            }
        }
    }
}

impl Flows {
    /// Takes the plain datagrams that have arrived.
    pub(super) fn take_datagrams(&mut self, world: &mut FlowWorld) {
        for (flow, bytes) in world.links.datagrams.drain(..) {
            if let Some(Active::Datagrams(datagrams)) = &mut self.0[flow] {
                datagrams.received += bytes.len() as u64;
            }
        }
    }
}

impl Application<Option<Endpoint>> for Flows {
    fn on_event(
        &mut self,
        now: Timestamp,
        (node, endpoint): (usize, &mut Option<Endpoint>),
        handle: ConnectionHandle,
        event: &Event,
    ) -> bool {
        if let (Some(Active::Protocol(transfer)), Some(endpoint)) =
            (&mut self.0[node / 2], endpoint)
        {
            match (node % 2, event) {
                (0, Event::Connected | Event::Writable) => transfer.write(now, endpoint),
                (1, Event::Accepted) => transfer.server = Some(handle),
                (1, Event::Readable) => transfer.read(now, endpoint, handle),
                _ => {}
            }
        }
        false
    }
}

impl Transfer {
    fn new(now: Timestamp, client: ConnectionHandle, work: Work) -> Self {
        let message = match work {
            Work::Rate { message, .. } => message,
            Work::Bulk | Work::Bytes(_) | Work::RateThenBulk { .. } => MESSAGE,
        };
        Self {
            client,
            server: None,
            start: now,
            work,
            message: vec![0; message.max(8)].into(),
            written: 0,
            received: 0,
            is_finished: false,
            next_message: None,
            message_delays: Vec::new(),
        }
    }

    /// Sends the messages that are due. Returns whether there were any.
    fn send_due(&mut self, now: Timestamp, client: &mut Endpoint) -> bool {
        let mut has_sent = false;
        while let (Some((bits_per_second, message)), Some(at)) =
            (self.message_rate(), self.next_message)
            && at <= now
        {
            has_sent = true;
            if self.is_bulk(at) {
                self.next_message = None;
                self.write(now, client);
                break;
            }
            let mut bytes = vec![0; message.max(8)];
            bytes[..8].copy_from_slice(&at.as_nanos().to_le_bytes());
            let _ = client.send(now, self.client, bytes.into());
            self.next_message =
                Some(at + Duration::from_secs_f64(message as f64 * 8.0 / bits_per_second));
        }
        has_sent
    }

    /// Bits per second and size of the messages of a flow that has a rate.
    fn message_rate(&self) -> Option<(f64, usize)> {
        match self.work {
            Work::Rate { bits_per_second, message } => Some((bits_per_second, message)),
            Work::RateThenBulk { bits_per_second, .. } => Some((bits_per_second, LIMITED_MESSAGE)),
            Work::Bulk | Work::Bytes(_) => None,
        }
    }

    /// Whether it sends as much as it can.
    fn is_bulk(&self, now: Timestamp) -> bool {
        match self.work {
            Work::Bulk => true,
            Work::RateThenBulk { after, .. } => now >= self.start + after,
            Work::Bytes(_) | Work::Rate { .. } => false,
        }
    }

    fn read(&mut self, now: Timestamp, server: &mut Endpoint, handle: ConnectionHandle) {
        while let Some(got) = server.recv(now, handle) {
            self.received += got.len() as u64;
            if let (Work::Rate { .. }, Some(due)) = (self.work, transfer::number_at(&got, 0)) {
                self.message_delays.push(now - Timestamp::from_nanos(due));
            }
        }
    }

    fn write(&mut self, now: Timestamp, client: &mut Endpoint) {
        match self.work {
            Work::Bulk => while client.send(now, self.client, self.message.clone()).is_ok() {},
            Work::Bytes(bytes) => {
                while self.written < bytes {
                    let len = (bytes - self.written).min(MESSAGE as u64) as usize;
                    if client.send(now, self.client, self.message.slice(..len)).is_err() {
                        return;
                    }
                    self.written += len as u64;
                }
                if !core::mem::replace(&mut self.is_finished, true) {
                    let _ = client.finish(now, self.client);
                }
            }
            Work::RateThenBulk { .. } if self.is_bulk(now) => {
                while client.send(now, self.client, self.message.clone()).is_ok() {}
            }
            Work::Rate { .. } | Work::RateThenBulk { .. } => {
                self.next_message.get_or_insert(now);
            }
        }
    }
}
