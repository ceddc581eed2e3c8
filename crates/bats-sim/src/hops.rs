//! Bulk transfer across relays: goodput at the end of several lossy hops.

use core::time::Duration;

use bats_proto::relay::{RelayConfig, RelayStats};
use bats_proto::{ConnectionHandle, ConnectionStats, Event, SendError, Timestamp, TransportConfig};
use serde::Serialize;

use crate::matrix::Cell;
use crate::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use crate::transfer::message;

/// A bulk transfer over a chain of links with relays between them.
#[derive(Clone, Debug)]
pub struct Hops {
    /// Number of links.
    pub hops: usize,
    /// Parameters of each link, and the duration of the run.
    pub cell: Cell,
    /// Whether relays recode and repair. Otherwise they forward, and the ends repair.
    pub recoding: bool,
    /// Message size in bytes.
    pub message_size: usize,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct HopsOutcome {
    /// Duration of the session's handshake.
    pub handshake: Option<Duration>,
    /// Message bytes delivered in order since the handshake, sampled every [`Hops::SAMPLE`].
    pub delivered: Vec<u64>,
    /// Session statistics of the source at the end.
    pub sender: ConnectionStats,
    /// Session statistics of the destination at the end.
    pub receiver: ConnectionStats,
    /// Relay counters of each node at the end.
    pub relays: Vec<RelayStats>,
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct HopsFigures {
    /// Number of links.
    pub hops: usize,
    /// Loss of each link in per cent.
    pub loss_percent: f64,
    /// Whether relays recode.
    pub recoding: bool,
    /// Goodput after the first third of the run, in Mbit/s.
    pub goodput_mbps: f64,
    /// (1 - p) times the goodput over one lossless hop, in Mbit/s.
    pub bound_mbps: f64,
    /// Goodput divided by the bound.
    pub share: f64,
    /// (1 - p)^h times the goodput over one lossless hop: what remains with forwarding only.
    pub forwarding_mbps: f64,
    /// Duration of the end-to-end handshake in milliseconds.
    pub handshake_ms: Option<f64>,
    /// Repairs sent by the source, per cent of its symbols.
    pub end_repairs_percent: f64,
    /// Packets that were not innovative for the relay or end that received them, per cent.
    pub non_innovative_percent: f64,
    /// Most memory held by a node, in KiB.
    pub relay_kib: f64,
    /// Batches that relays did not repair, dropped, or let expire.
    pub batches_lost: u64,
}

impl Hops {
    /// Interval of the samples.
    pub const SAMPLE: Duration = Duration::from_millis(10);

    /// A bulk transfer of messages of 16 KiB.
    pub fn new(hops: usize, cell: Cell, recoding: bool) -> Self {
        Self { hops, cell, recoding, message_size: 16 << 10 }
    }

    /// Configuration of the relay network.
    pub fn network_config(&self) -> RelayNetworkConfig {
        RelayNetworkConfig {
            links: vec![self.cell.link(); self.hops],
            relay: RelayConfig { recoding: self.recoding, ..RelayConfig::new(node_id(0)) },
            transport: TransportConfig::default(),
            seed: self.cell.seed,
        }
    }

    /// Runs the transfer in virtual time.
    ///
    /// # Panics
    ///
    /// If a message arrives corrupted, twice or out of order, or if a link is not established.
    pub fn run(&self) -> HopsOutcome {
        let mut network = RelayNetwork::new(self.network_config());
        self.run_on(&mut network, |_, _| {})
    }

    /// Runs the transfer over an existing network and calls `watch` at each sample.
    ///
    /// # Panics
    ///
    /// As [`Hops::run`].
    pub fn run_on(
        &self,
        network: &mut RelayNetwork,
        mut watch: impl FnMut(&mut RelayNetwork, Duration),
    ) -> HopsOutcome {
        let start = network.now();
        let mut run = Run {
            hops: self,
            client: network.connect_ends(),
            server: None,
            established: None,
            sent: 0,
            received: 0,
            bytes: 0,
        };
        let mut delivered = Vec::new();
        let mut next = start + Duration::from_secs(20);
        let mut end = next;
        while network.now() < end {
            network.step(next);
            run.take_events(network);
            if let Some(at) = run.established {
                end = at + self.cell.duration;
                let due = at + Self::SAMPLE * delivered.len() as u32;
                if due <= network.now() {
                    let now = network.now();
                    let bytes = run.server.and_then(|server| {
                        let last = network.last();
                        Some(network.node(last).stats(now, server)?.messages.bytes_received)
                    });
                    delivered.push(bytes.unwrap_or(0));
                    watch(network, now - at);
                }
                next = at + Self::SAMPLE * delivered.len() as u32;
            }
        }
        let (now, last) = (network.now(), network.last());
        HopsOutcome {
            handshake: run.established.map(|at| at - start),
            delivered,
            sender: network.node(0).stats(now, run.client).unwrap_or_default(),
            receiver: run
                .server
                .and_then(|server| network.node(last).stats(now, server))
                .unwrap_or_default(),
            relays: (0..=last).map(|node| network.relay_stats(node)).collect(),
        }
    }

    /// The figures of a run; `lossless` is the goodput over one lossless hop in Mbit/s.
    pub fn figures(&self, outcome: &HopsOutcome, lossless: f64) -> HopsFigures {
        let through = 1.0 - self.cell.loss;
        let goodput_mbps = outcome.goodput();
        let bound_mbps = through * lossless;
        let sum = |f: fn(&RelayStats) -> u64| outcome.relays.iter().map(f).sum::<u64>();
        let sources = outcome.sender.coding.source_packets_sent.max(1);
        let repairs = outcome.sender.coding.proactive_packets_sent
            + outcome.sender.coding.top_up_packets_sent;
        HopsFigures {
            hops: self.hops,
            loss_percent: self.cell.loss * 100.0,
            recoding: self.recoding,
            goodput_mbps,
            bound_mbps,
            share: goodput_mbps / bound_mbps,
            forwarding_mbps: through.powi(self.hops as i32) * lossless,
            handshake_ms: outcome.handshake.map(|time| time.as_secs_f64() * 1e3),
            end_repairs_percent: repairs as f64 * 100.0 / sources as f64,
            non_innovative_percent: sum(|s| s.dropped.non_innovative + s.dropped.late) as f64
                * 100.0
                / sum(|s| s.received).max(1) as f64,
            relay_kib: outcome.relays.iter().map(|s| s.memory.bytes_peak).max().unwrap_or(0) as f64
                / 1024.0,
            batches_lost: sum(|s| s.batches.unrepaired + s.batches.dropped + s.batches.expired),
        }
    }
}

impl HopsOutcome {
    /// Goodput after the first third of the run, in Mbit/s.
    pub fn goodput(&self) -> f64 {
        self.goodput_from(self.delivered.len() / 3)
    }

    /// Longest time without progress in delivery, in steps of [`Hops::SAMPLE`].
    pub fn longest_gap(&self) -> Duration {
        let runs = self.delivered.chunk_by(|a, b| a == b).map(<[u64]>::len);
        Hops::SAMPLE * (runs.max().unwrap_or(1) as u32 - 1)
    }

    /// Goodput from this sample on, in Mbit/s.
    pub fn goodput_from(&self, from: usize) -> f64 {
        let (Some(first), Some(last)) = (self.delivered.get(from), self.delivered.last()) else {
            return 0.0;
        };
        let samples = self.delivered.len() - 1 - from;
        let time = Hops::SAMPLE.as_secs_f64() * samples as f64;
        if samples > 0 { (last - first) as f64 * 8e-6 / time } else { 0.0 }
    }
}

struct Run<'a> {
    hops: &'a Hops,
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    established: Option<Timestamp>,
    sent: u64,
    received: u64,
    bytes: u64,
}

impl Run<'_> {
    fn take_events(&mut self, network: &mut RelayNetwork) {
        let last = network.last();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected if (node, handle) == (0, self.client) => {
                    self.established = Some(network.now());
                    self.send(network);
                }
                Event::Writable if (node, handle) == (0, self.client) => self.send(network),
                Event::Accepted
                    if node == last && network.node(last).remote_node(handle).is_some() =>
                {
                    self.server = Some(handle);
                }
                Event::Readable if Some(handle) == self.server && node == last => {
                    self.receive(network, handle);
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, network: &mut RelayNetwork) {
        let now = network.now();
        loop {
            let message = message(self.hops.cell.seed, self.sent, self.hops.message_size);
            match network.node(0).send(now, self.client, message) {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked(_)) => break,
                Err(_) => return,
            }
        }
        network.wake(0);
    }

    fn receive(&mut self, network: &mut RelayNetwork, handle: ConnectionHandle) {
        let (now, last) = (network.now(), network.last());
        while let Some(got) = network.node(last).recv(now, handle) {
            let want = message(self.hops.cell.seed, self.received, self.hops.message_size);
            assert!(got == want, "message {} arrived corrupted or out of order", self.received);
            self.received += 1;
            self.bytes += got.len() as u64;
        }
        network.wake(last);
    }
}
