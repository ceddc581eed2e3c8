//! The flows of the arena: endpoints of the protocol and models of TCP.

use core::time::Duration;

use bats_proto::{
    ConnectionHandle, ConnectionStats, Endpoint, Event, Input, Mode, Output, Received, Timestamp,
    TransportConfig,
};
use bytes::Bytes;

use super::cell::{Algorithm, Work};
use crate::endpoints::{client_config, endpoints};
use crate::host::Host;
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

/// A running flow.
pub(super) enum Active {
    Protocol(Box<Protocol>),
    Tcp(Box<Tcp>),
    Datagrams(Datagrams),
}

/// Plain datagrams at a constant rate.
pub(super) struct Datagrams {
    interval: Duration,
    next: Timestamp,
    received: u64,
}

/// Packets that a flow hands to the network: `true` for the direction of its data.
pub(super) type Sent = Vec<(bool, Body)>;

/// Two endpoints of the protocol.
pub(super) struct Protocol {
    endpoints: [Endpoint; 2],
    wake: [Option<Timestamp>; 2],
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
    buffer: Vec<u8>,
    /// From the due time of a message to its delivery, of flows with a rate.
    pub(super) message_delays: Vec<Duration>,
}

/// A sender and a receiver of the model of TCP.
pub(super) struct Tcp {
    sender: tcp::Sender,
    receiver: tcp::Receiver,
    bytes: Option<u64>,
}

impl Active {
    pub(super) fn new(
        now: Timestamp,
        algorithm: Algorithm,
        work: Work,
        path: Path,
        seed: u64,
    ) -> Self {
        let tcp = |control: Box<dyn tcp::Control>| {
            let mut sender = tcp::Sender::new(control);
            if path.tcp_ecn {
                sender = sender.with_ecn();
            }
            let bytes = match work {
                Work::Bytes(bytes) => Some(bytes),
                _ => None,
            };
            let sender = match bytes {
                Some(bytes) => sender.with_limit(bytes.div_ceil(tcp::SEGMENT)),
                None => sender,
            };
            Self::Tcp(Box::new(Tcp { sender, receiver: tcp::Receiver::default(), bytes }))
        };
        match algorithm {
            Algorithm::Brtp(congestion) => {
                let transport = TransportConfig { congestion, ..TransportConfig::default() };
                Self::Protocol(Box::new(Protocol::new(now, &transport, work, seed)))
            }
            Algorithm::Btp(congestion) => {
                let transport =
                    TransportConfig { congestion, mode: Mode::Btp, ..TransportConfig::default() };
                Self::Protocol(Box::new(Protocol::new(now, &transport, work, seed)))
            }
            Algorithm::Bare(algorithm) => {
                tcp(Box::new(tcp::wrapped::Wrapped::new(algorithm, path.rtt, seed)))
            }
            Algorithm::Reno => tcp(Box::<tcp::reno::Reno>::default()),
            Algorithm::Cubic => tcp(Box::<tcp::cubic::Cubic>::default()),
            Algorithm::Copa => tcp(Box::<tcp::copa::Copa>::default()),
            Algorithm::Bbr1 => tcp(Box::new(tcp::bbr::Bbr::new(seed as usize % 7))),
            Algorithm::Udp => {
                let rate = match work {
                    Work::Rate { bits_per_second, .. }
                    | Work::RateThenBulk { bits_per_second, .. } => bits_per_second,
                    Work::Bulk | Work::Bytes(_) => DATAGRAM_RATE,
                };
                let interval = Duration::from_secs_f64(DATAGRAM as f64 * 8.0 / rate);
                Self::Datagrams(Datagrams { interval, next: now, received: 0 })
            }
        }
    }

    /// Bytes delivered in order.
    pub(super) fn received(&self) -> u64 {
        match self {
            Self::Protocol(protocol) => protocol.received,
            Self::Tcp(tcp) => tcp.receiver.in_order() * tcp::SEGMENT,
            Self::Datagrams(datagrams) => datagrams.received,
        }
    }

    /// Whether all that it had to send has arrived.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Protocol(protocol) => match protocol.work {
                Work::Bytes(bytes) => protocol.received >= bytes,
                _ => false,
            },
            Self::Tcp(tcp) => tcp.bytes.is_some_and(|bytes| self.received() >= bytes),
            Self::Datagrams(_) => false,
        }
    }

    /// State of the sender, of the protocol's flows.
    pub(super) fn stats(&mut self, now: Timestamp) -> Option<ConnectionStats> {
        match self {
            Self::Protocol(protocol) => protocol.endpoints[0].stats(now, protocol.client),
            Self::Tcp(_) | Self::Datagrams(_) => None,
        }
    }

    /// State of the receiver, of the protocol's flows.
    pub(super) fn receiver_stats(&mut self, now: Timestamp) -> Option<ConnectionStats> {
        match self {
            Self::Protocol(protocol) => protocol.endpoints[1].stats(now, protocol.server?),
            Self::Tcp(_) | Self::Datagrams(_) => None,
        }
    }

    /// When it wants to be called at the latest.
    pub(super) fn next_timer(&self) -> Option<Timestamp> {
        match self {
            Self::Protocol(protocol) => {
                protocol.wake.into_iter().chain([protocol.next_message]).flatten().min()
            }
            Self::Tcp(tcp) => {
                tcp.sender.next_timer().into_iter().chain(tcp.receiver.next_timer()).min()
            }
            Self::Datagrams(datagrams) => Some(datagrams.next),
        }
    }

    /// Does what is due.
    pub(super) fn on_timer(&mut self, now: Timestamp, out: &mut Sent) {
        match self {
            Self::Protocol(protocol) => protocol.on_timer(now, out),
            Self::Tcp(tcp) => tcp.send(now, out),
            Self::Datagrams(datagrams) => {
                while datagrams.next <= now {
                    out.push((true, Body::datagram(vec![0; DATAGRAM], 0)));
                    datagrams.next += datagrams.interval.max(Duration::from_nanos(1));
                }
            }
        }
    }

    /// A packet arrived; `forward` in the direction of the data.
    pub(super) fn on_packet(&mut self, now: Timestamp, forward: bool, body: Body, out: &mut Sent) {
        match (self, body) {
            (Self::Protocol(protocol), Body::Datagram { mut bytes, ecn, .. }) => {
                let remote = if forward { Host::Client } else { Host::Server };
                let received =
                    Received { remote: remote.address(), local_ip: None, ecn, payload: &mut bytes };
                let host = usize::from(forward);
                protocol.endpoints[host].handle(now, Input::Datagram(received));
                protocol.drive(now, host, out);
            }
            (Self::Tcp(tcp), Body::Segment(segment)) => {
                let ack = tcp.receiver.on_segment(now, segment);
                out.extend(ack.map(|ack| (false, Body::Ack(ack))));
            }
            (Self::Tcp(tcp), Body::Ack(ack)) => {
                tcp.sender.on_ack(now, &ack);
                tcp.send(now, out);
            }
            (Self::Datagrams(datagrams), Body::Datagram { bytes, is_corrupted: false, .. }) => {
                datagrams.received += bytes.len() as u64;
            }
            _ => {}
        }
    }
}

impl Protocol {
    fn new(now: Timestamp, transport: &TransportConfig, work: Work, seed: u64) -> Self {
        let mut endpoints = endpoints(transport, seed);
        let config = client_config(transport);
        let client = endpoints[0]
            .connect(now, Host::Server.address(), "server", config)
            .expect("a valid configuration");
        let message = match work {
            Work::Rate { message, .. } => message,
            Work::Bulk | Work::Bytes(_) | Work::RateThenBulk { .. } => MESSAGE,
        };
        Self {
            endpoints,
            wake: [Some(now); 2],
            client,
            server: None,
            start: now,
            work,
            message: vec![0; message.max(8)].into(),
            written: 0,
            received: 0,
            is_finished: false,
            next_message: None,
            buffer: Vec::with_capacity(65_536),
            message_delays: Vec::new(),
        }
    }

    fn on_timer(&mut self, now: Timestamp, out: &mut Sent) {
        while let (Some((bits_per_second, message)), Some(at)) =
            (self.message_rate(), self.next_message)
            && at <= now
        {
            if self.is_bulk(at) {
                self.next_message = None;
                self.write(now, self.client);
                self.wake[0] = Some(now);
                break;
            }
            let mut bytes = vec![0; message.max(8)];
            bytes[..8].copy_from_slice(&at.as_nanos().to_le_bytes());
            let _ = self.endpoints[0].send(now, self.client, bytes.into());
            self.next_message =
                Some(at + Duration::from_secs_f64(message as f64 * 8.0 / bits_per_second));
            self.wake[0] = Some(now);
        }
        for host in 0..2 {
            if self.wake[host].is_some_and(|at| at <= now) {
                self.endpoints[host].handle(now, Input::Timeout);
                self.drive(now, host, out);
            }
        }
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

    /// Lets endpoint `host` (0 sends the data) do all that it has to.
    fn drive(&mut self, now: Timestamp, host: usize, out: &mut Sent) {
        loop {
            match self.endpoints[host].poll(now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    for segment in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                        out.push((host == 0, Body::datagram(segment.to_vec(), transmit.ecn)));
                    }
                }
                Output::Event(handle, event) => match (host, event) {
                    (0, Event::Connected | Event::Writable) => self.write(now, handle),
                    (1, Event::Accepted) => self.server = Some(handle),
                    (1, Event::Readable) => {
                        while let Some(got) = self.endpoints[1].recv(now, handle) {
                            self.received += got.len() as u64;
                            if let (Work::Rate { .. }, Some(due)) =
                                (self.work, transfer::number_at(&got, 0))
                            {
                                let due = Timestamp::from_nanos(due);
                                self.message_delays.push(now - due);
                            }
                        }
                    }
                    _ => {}
                },
                Output::Timeout(at) => {
                    self.wake[host] = at;
                    return;
                }
            }
        }
    }

    fn write(&mut self, now: Timestamp, handle: ConnectionHandle) {
        match self.work {
            Work::Bulk => {
                while self.endpoints[0].send(now, handle, self.message.clone()).is_ok() {}
            }
            Work::Bytes(bytes) => {
                while self.written < bytes {
                    let len = (bytes - self.written).min(MESSAGE as u64) as usize;
                    let message = self.message.slice(..len);
                    if self.endpoints[0].send(now, handle, message).is_err() {
                        return;
                    }
                    self.written += len as u64;
                }
                if !core::mem::replace(&mut self.is_finished, true) {
                    let _ = self.endpoints[0].finish(now, handle);
                }
            }
            Work::RateThenBulk { .. } if self.is_bulk(now) => {
                while self.endpoints[0].send(now, handle, self.message.clone()).is_ok() {}
            }
            Work::Rate { .. } | Work::RateThenBulk { .. } => {
                self.next_message.get_or_insert(now);
            }
        }
    }
}

impl Tcp {
    fn send(&mut self, now: Timestamp, out: &mut Sent) {
        out.extend(self.receiver.poll(now).map(|ack| (false, Body::Ack(ack))));
        while let Some(segment) = self.sender.poll(now) {
            out.push((true, Body::Segment(segment)));
        }
    }
}
