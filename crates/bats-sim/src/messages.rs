//! Messages at fixed times: one way, or there and back, as interactive and real-time programs send
//! them.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::{ConnectionHandle, ConnectionStats, Event, Timestamp, TransportConfig};
use bytes::Bytes;

use crate::delays::Delays;
use crate::network::{Host, Network};
use crate::transfer;

/// Messages from a client to a server, which may send them back.
#[derive(Clone, Debug)]
pub struct Messages {
    /// The hops, alike in both directions.
    pub hops: Vec<LinkConfig>,
    /// Limits and behaviour of both ends.
    pub transport: TransportConfig,
    /// Bytes of a message, at least 8.
    pub size: usize,
    /// Time between two messages.
    pub interval: Duration,
    /// Messages that are measured.
    pub count: u64,
    /// Messages before them, which find out how the path is.
    pub warm_up: u64,
    /// The server sends them back.
    pub echo: bool,
    /// Decides every random choice.
    pub seed: u64,
}

/// What became of the messages.
#[derive(Clone, Debug)]
pub struct MessagesOutcome {
    /// From `send` to `recv` at the server, or of the echo at the client.
    pub delays: Delays,
    /// Their mean.
    pub mean: Duration,
    /// Messages measured that arrived.
    pub arrived: u64,
    /// From the client's `connect` to the arrival of the first message sent, which is handed in as
    /// soon as the connection takes it.
    pub first: Option<Duration>,
    /// The client's and the server's statistics at the end.
    pub stats: [ConnectionStats; 2],
    /// Messages delivered twice, altered, or never sent: none, or a defect.
    pub wrong: u64,
}

/// Time after the last message in which it may still arrive.
const PATIENCE: Duration = Duration::from_secs(5);

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
            echo: false,
            seed,
        }
    }

    /// Delay of a message over the hops if nothing is lost and nothing waits: propagation, and
    /// the transmission of its frame on each hop.
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
        let endpoints = transfer::endpoints(&self.transport, self.seed);
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
            delays: Delays::default(),
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
    /// Of each message by its number.
    sent_at: Vec<Timestamp>,
    arrived: Vec<bool>,
    delays: Delays,
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
                self.send(now);
                let more = (self.sent_at.len() as u64) < total;
                due = more.then_some(now + self.messages.interval);
                end = now + PATIENCE;
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
        // A message that finds no room is late, and counts as one that did not arrive.
        let _ = self.network.endpoint(Host::Client).send(now, self.client, message);
        self.network.touch(Host::Client);
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
        self.network.touch(host);
    }

    fn arrive(&mut self, now: Timestamp, message: &Bytes) {
        let number = message.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
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
