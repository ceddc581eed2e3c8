//! Messages at fixed intervals, with or without echo, as interactive and real-time applications
//! send them.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::{ConnectionHandle, ConnectionStats, Event, Timestamp, TransportConfig};
use bytes::Bytes;

use crate::delay_histogram::DelayHistogram;
use crate::endpoints::endpoints;
use crate::host::Host;
use crate::network::Network;
use crate::transfer;

/// Messages from a client to a server, which echoes them on request.
#[derive(Clone, Debug)]
pub struct Messages {
    /// Links in a row without relays, the same in both directions.
    pub hops: Vec<LinkConfig>,
    /// Transport configuration of both ends.
    pub transport: TransportConfig,
    /// Message size in bytes, at least 8.
    pub size: usize,
    /// Time between two messages.
    pub interval: Duration,
    /// Number of messages measured.
    pub count: u64,
    /// Number of messages sent before the measurement, so that the path is known.
    pub warm_up: u64,
    /// How many of these are sent at once at the beginning: the path limits them, not the interval.
    pub burst: u64,
    /// Whether the server echoes the messages.
    pub echo: bool,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct MessagesOutcome {
    /// Delays from `send` to `recv` at the server, or to `recv` of the echo at the client.
    pub delays: DelayHistogram,
    /// Mean of the delays.
    pub mean: Duration,
    /// Number of measured messages that arrived.
    pub arrived: u64,
    /// Time from the client's `connect` to the arrival of the first message, which is sent as soon
    /// as the connection accepts it.
    pub first: Option<Duration>,
    /// Statistics of the client and the server at the end.
    pub stats: [ConnectionStats; 2],
    /// Messages delivered twice, corrupted, or never sent. Any is a defect of the protocol.
    pub wrong: u64,
}

/// Time that the last message has to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);

impl Messages {
    /// One message of 100 bytes on a fresh connection over `link`.
    pub fn one(link: &LinkConfig, seed: u64) -> Self {
        Self {
            hops: vec![link.clone()],
            transport: TransportConfig::default(),
            size: 100,
            interval: Duration::from_millis(10),
            count: 1,
            warm_up: 0,
            burst: 0,
            echo: false,
            seed,
        }
    }

    /// Delay of a message without loss and queueing: propagation and transmission on each hop.
    /// `overhead` are the bytes of a frame in addition to the message.
    pub fn path_delay(&self, overhead: usize) -> Duration {
        let frame = (self.size + overhead) as f64 * 8.0;
        self.hops
            .iter()
            .map(|hop| {
                let rate = hop.rate_bps.map_or(0.0, |rate| frame / rate as f64);
                hop.delay + Duration::from_secs_f64(rate)
            })
            .sum()
    }

    /// Runs in virtual time.
    pub fn run(&self) -> MessagesOutcome {
        let endpoints = endpoints(&self.transport, self.seed);
        let back = self.hops.iter().rev().cloned().collect();
        let mut network = Network::chain(endpoints, [self.hops.clone(), back], self.seed);
        let now = network.now();
        let client = network.connect(&self.transport);
        let run = Run {
            messages: self,
            network,
            client,
            server: None,
            began: now,
            sent_at: Vec::new(),
            arrived: Vec::new(),
            delays: DelayHistogram::default(),
            sum: Duration::ZERO,
            first: None,
            wrong: 0,
        };
        run.go()
    }
}

struct Run<'a> {
    messages: &'a Messages,
    network: Network,
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    began: Timestamp,
    /// Send time of each message, by its number.
    sent_at: Vec<Timestamp>,
    arrived: Vec<bool>,
    delays: DelayHistogram,
    sum: Duration,
    first: Option<Duration>,
    wrong: u64,
}

impl Run<'_> {
    fn go(mut self) -> MessagesOutcome {
        let total = self.messages.warm_up + self.messages.count;
        let mut due = None;
        let mut end = self.network.now() + Duration::from_secs(30);
        while self.network.now() < end {
            self.network.step(due.map_or(end, |due: Timestamp| due.min(end)));
            let now = self.network.now();
            for (host, handle, event) in core::mem::take(&mut self.network.events) {
                match (host, event) {
                    (Host::Client, Event::Connected) => due = Some(now),
                    (Host::Server, Event::Accepted) => self.server = Some(handle),
                    (_, Event::Readable) => self.receive(host, handle),
                    _ => {}
                }
            }
            if due.is_some_and(|due| due <= now) {
                let is_first = self.sent_at.is_empty();
                for _ in 0..if is_first { self.messages.burst.max(1) } else { 1 } {
                    self.send(now);
                }
                let more = (self.sent_at.len() as u64) < total;
                due = more.then_some(now + self.messages.interval);
                end = now + ARRIVAL_TIMEOUT;
            }
            if self.sent_at.len() as u64 == total && self.arrived.iter().all(|&arrived| arrived) {
                break;
            }
        }
        self.outcome()
    }

    fn outcome(mut self) -> MessagesOutcome {
        let now = self.network.now();
        let from = (self.messages.warm_up as usize).min(self.arrived.len());
        let arrived = self.arrived[from..].iter().filter(|&&arrived| arrived).count() as u64;
        let mut stats = |host, handle: Option<ConnectionHandle>| {
            let endpoint = self.network.endpoint(host);
            handle.and_then(|handle| endpoint.stats(now, handle)).unwrap_or_default()
        };
        MessagesOutcome {
            stats: [stats(Host::Client, Some(self.client)), stats(Host::Server, self.server)],
            mean: self.sum / u32::try_from(arrived.max(1)).unwrap_or(u32::MAX),
            delays: self.delays,
            arrived,
            first: self.first,
            wrong: self.wrong,
        }
    }

    fn content(&self, number: u64) -> Bytes {
        transfer::message(self.messages.seed, number, self.messages.size)
    }

    fn send(&mut self, now: Timestamp) {
        let message = self.content(self.sent_at.len() as u64);
        self.sent_at.push(now);
        self.arrived.push(false);
        // A message that the send budget rejects counts as not arrived.
        let _ = self.network.endpoint(Host::Client).send(now, self.client, message);
        self.network.wake(Host::Client);
    }

    fn receive(&mut self, host: Host, handle: ConnectionHandle) {
        let now = self.network.now();
        while let Some(message) = self.network.endpoint(host).recv(now, handle) {
            if host == Host::Server && self.messages.echo {
                let _ = self.network.endpoint(host).send(now, handle, message);
            } else {
                self.arrive(now, &message);
            }
        }
        self.network.wake(host);
    }

    fn arrive(&mut self, now: Timestamp, message: &Bytes) {
        let number = transfer::number_at(message, 0).unwrap_or(u64::MAX);
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let fresh = self.arrived.get(index).is_some_and(|arrived| !arrived);
        if !fresh || *message != self.content(number) {
            self.wrong += 1;
            return;
        }
        self.arrived[index] = true;
        if index == 0 {
            self.first = Some(now - self.began);
        }
        if number >= self.messages.warm_up {
            let delay = now - self.sent_at[index];
            self.delays.add(delay);
            self.sum += delay;
        }
    }
}
