//! Bulk transfer of messages over one link, and its measurements.

use core::time::Duration;
use std::collections::VecDeque;

use bats_netem::{LinkConfig, LinkStats};
use bats_proto::{
    CloseReason, ConnectionHandle, ConnectionStats, Event, SendError, Timestamp, TransportConfig,
};
use bytes::Bytes;

use crate::delay_histogram::DelayHistogram;
use crate::host::Host;
use crate::network::Network;
use crate::recorder::Recorder;

pub use crate::endpoints::{client_config, endpoints, security_of};

/// A bulk transfer from a client to a server.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Link from the client to the server: the data direction.
    pub up: LinkConfig,
    /// Link from the server to the client.
    pub down: LinkConfig,
    /// Transport configuration of both ends.
    pub transport: TransportConfig,
    /// Message size in bytes.
    pub message_size: usize,
    /// Time from one message to the next; `None` to send as fast as the send budget allows.
    pub message_interval: Option<Duration>,
    /// Bytes to send in total; `None` to send until the end of the run.
    pub total_bytes: Option<u64>,
    /// Duration of the run from the established connection.
    pub duration: Duration,
    /// Time between two samples.
    pub sample_interval: Duration,
    /// Link changes during the run: (time from the start of the run, up, down).
    pub changes: Vec<(Duration, LinkConfig, LinkConfig)>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// A sample of the sender's state.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time since the connection was established.
    pub time: Duration,
    /// Statistics of the sender.
    pub sender: ConnectionStats,
    /// Bytes in the queue of the data direction.
    pub queue_bytes: usize,
    /// Link counters of the data direction.
    pub link: LinkStats,
    /// Message bytes delivered in order.
    pub delivered: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time at which the client's connection was established.
    pub established: Option<Timestamp>,
    /// Time at which the last message was delivered, if all were.
    pub finished: Option<Timestamp>,
    /// Messages delivered, intact and in order.
    pub messages: u64,
    /// Message bytes delivered.
    pub bytes: u64,
    /// Samples, one every [`Transfer::sample_interval`].
    pub samples: Vec<Sample>,
    /// Statistics of the receiver at the end.
    pub receiver: ConnectionStats,
    /// Close reason of the client's connection, if it was closed.
    pub closed: Option<CloseReason>,
    /// Delays of the messages received within [`Transfer::steady`], from the `send` that
    /// accepted a message to the `recv` that returned it. A sender that is never
    /// application-limited fills its send budget, and the time in that buffer counts.
    pub message_delays: DelayHistogram,
    /// Delays of the datagrams that arrived within [`Transfer::steady`], since they entered
    /// the link in the data direction.
    pub network_delays: DelayHistogram,
}

/// Message `number` of a run: the number, then bytes that derive from the number and the seed.
pub(crate) fn message(seed: u64, number: u64, size: usize) -> Bytes {
    let mut bytes = vec![0; size.max(8)];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let mut x = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes[8..].chunks_mut(8) {
        x = x.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(17) ^ number;
        let len = chunk.len();
        chunk.copy_from_slice(&x.to_le_bytes()[..len]);
    }
    bytes.into()
}

/// The number in the eight bytes of a message from `at` on, least significant byte first.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub fn number_at(message: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*message.get(at..)?.first_chunk()?))
}

impl Transfer {
    /// Interval of the samples, unless chosen.
    pub const SAMPLE: Duration = Duration::from_millis(10);

    /// A transfer of 16 KiB messages without a limit over `link`, the same in both directions.
    pub fn over(link: &LinkConfig, duration: Duration) -> Self {
        Self {
            up: link.clone(),
            down: link.clone(),
            transport: TransportConfig::default(),
            message_size: 16 << 10,
            message_interval: None,
            total_bytes: None,
            duration,
            sample_interval: Self::SAMPLE,
            changes: Vec::new(),
            seed: 1,
        }
    }

    /// Start and end of the steady part of a run, from the established connection: seconds 5 to 15,
    /// or the second half of shorter runs.
    pub fn steady(&self) -> (Duration, Duration) {
        let from = Duration::from_secs(5).min(self.duration / 2);
        (from, Duration::from_secs(15).min(self.duration))
    }

    /// Runs the transfer in virtual time.
    ///
    /// # Panics
    ///
    /// If a message arrives corrupted, twice or out of order, which the protocol must prevent.
    pub fn run(&self) -> Outcome {
        self.run_recorded(&mut Recorder::default())
    }

    /// Runs the transfer and records the events on the links.
    ///
    /// # Panics
    ///
    /// As [`Transfer::run`].
    pub fn run_recorded(&self, recorder: &mut Recorder) -> Outcome {
        // A server does not know how long its clients are ready to wait.
        let handshake_timeout = TransportConfig::default().handshake_timeout;
        let server = TransportConfig { handshake_timeout, ..self.transport.clone() };
        let endpoints = endpoints(&server, self.seed);
        let mut network = Network::new(endpoints, [self.up.clone(), self.down.clone()], self.seed);
        *network.recorder() = core::mem::take(recorder);
        let client = network.connect(&self.transport);
        let mut run = Run {
            transfer: self,
            network,
            client,
            server: None,
            sent: 0,
            sent_bytes: 0,
            next_message: Timestamp::ZERO,
            send_times: VecDeque::new(),
            measuring: Measuring::Not,
            finishing: false,
            outcome: Outcome {
                established: None,
                finished: None,
                messages: 0,
                bytes: 0,
                samples: Vec::new(),
                receiver: ConnectionStats::default(),
                closed: None,
                message_delays: DelayHistogram::default(),
                network_delays: DelayHistogram::default(),
            },
        };
        run.go();
        *recorder = core::mem::take(run.network.recorder());
        run.outcome
    }
}

/// Whether a run is before, in or after [`Transfer::steady`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measuring {
    Not,
    Now,
    Done,
}

struct Run<'a> {
    transfer: &'a Transfer,
    network: Network,
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    sent: u64,
    sent_bytes: u64,
    /// When the application sends again, if it sends at intervals.
    next_message: Timestamp,
    /// Send times of the messages that are not received yet; the send budget limits their number.
    send_times: VecDeque<Timestamp>,
    measuring: Measuring,
    finishing: bool,
    outcome: Outcome,
}

impl Run<'_> {
    fn go(&mut self) {
        let start = self.network.now();
        let mut end =
            start + self.transfer.transport.handshake_timeout.max(Duration::from_secs(20));
        let mut next_sample = None;
        let mut changes = self.transfer.changes.iter().peekable();
        while self.network.now() < end && !self.is_over() {
            let mut until = next_sample.unwrap_or(end).min(end);
            if let Some((after, _, _)) = changes.peek() {
                until = until.min(start + *after);
            }
            if self.outcome.established.is_some() && self.transfer.message_interval.is_some() {
                until = until.min(self.next_message);
            }
            self.network.step(until);
            self.take_events();
            let now = self.network.now();
            if self.transfer.message_interval.is_some()
                && self.outcome.established.is_some()
                && now >= self.next_message
            {
                self.send();
            }
            if let Some((after, up, down)) = changes.peek()
                && start + *after <= now
            {
                self.network.set_link(Host::Client, up.clone());
                self.network.set_link(Host::Server, down.clone());
                changes.next();
            }
            if let Some(at) = self.outcome.established {
                end = at + self.transfer.duration;
                let due = *next_sample.get_or_insert(at);
                if due <= now {
                    self.measure(now - at);
                    self.sample(now - at);
                    next_sample = Some(due + self.transfer.sample_interval);
                }
            }
        }
        self.end_measuring();
        let now = self.network.now();
        if let Some(server) = self.server
            && let Some(stats) = self.network.endpoint(Host::Server).stats(now, server)
        {
            self.outcome.receiver = stats;
        }
    }

    fn is_over(&self) -> bool {
        self.outcome.finished.is_some() || self.outcome.closed.is_some()
    }

    fn take_events(&mut self) {
        for (host, handle, event) in core::mem::take(&mut self.network.events) {
            match (host, event) {
                (Host::Client, Event::Connected) => {
                    self.outcome.established = Some(self.network.now());
                    self.send();
                }
                (Host::Client, Event::Writable) => self.send(),
                (Host::Client, Event::Closed(reason)) => self.outcome.closed = Some(reason),
                (Host::Server, Event::Accepted) => self.server = Some(handle),
                (Host::Server, Event::Readable) => self.receive(handle),
                _ => {}
            }
        }
    }

    fn send(&mut self) {
        let now = self.network.now();
        while !self.finishing {
            if let Some(interval) = self.transfer.message_interval {
                if self.next_message > now {
                    break;
                }
                self.next_message = now + interval;
            }
            if self.transfer.total_bytes.is_some_and(|total| self.sent_bytes >= total) {
                self.finishing = true;
                let _closed = self.network.endpoint(Host::Client).finish(now, self.client);
                break;
            }
            let message = message(self.transfer.seed, self.sent, self.transfer.message_size);
            let len = message.len() as u64;
            match self.network.endpoint(Host::Client).send(now, self.client, message) {
                Ok(()) => {
                    self.send_times.push_back(now);
                    self.sent += 1;
                    self.sent_bytes += len;
                }
                Err(SendError::Blocked(_)) => break,
                Err(_) => return,
            }
        }
        self.network.wake(Host::Client);
    }

    fn receive(&mut self, handle: ConnectionHandle) {
        let now = self.network.now();
        while let Some(got) = self.network.endpoint(Host::Server).recv(now, handle) {
            let number = self.outcome.messages;
            let want = message(self.transfer.seed, number, self.transfer.message_size);
            assert!(got == want, "message {number} arrived corrupted, twice or out of order");
            let sent = self.send_times.pop_front().unwrap_or(now);
            if self.measuring == Measuring::Now {
                self.outcome.message_delays.add(now - sent);
            }
            self.outcome.messages += 1;
            self.outcome.bytes += got.len() as u64;
        }
        if self.network.endpoint(Host::Server).is_finished(handle) {
            self.outcome.finished = Some(now);
        }
        self.network.wake(Host::Server);
    }

    /// Starts and stops the measurement of delays.
    fn measure(&mut self, time: Duration) {
        let (from, to) = self.transfer.steady();
        if self.measuring == Measuring::Not && time >= from {
            self.network.delays_from(Host::Client).clear();
            self.measuring = Measuring::Now;
        }
        if time >= to {
            self.end_measuring();
        }
    }

    fn end_measuring(&mut self) {
        if self.measuring == Measuring::Now {
            self.outcome.network_delays = self.network.delays_from(Host::Client).clone();
            self.measuring = Measuring::Done;
        }
    }

    fn sample(&mut self, time: Duration) {
        let now = self.network.now();
        let Some(sender) = self.network.endpoint(Host::Client).stats(now, self.client) else {
            return;
        };
        // Goodput counts bytes that became deliverable in order, not complete messages.
        let server = self.server;
        let delivered = server
            .and_then(|handle| self.network.endpoint(Host::Server).stats(now, handle))
            .map_or(0, |stats| stats.messages.bytes_received);
        let queue_bytes = self.network.link_from(Host::Client).queue_bytes(now);
        let link = self.network.link_stats(Host::Client);
        self.outcome.samples.push(Sample { time, sender, queue_bytes, link, delivered });
    }
}
