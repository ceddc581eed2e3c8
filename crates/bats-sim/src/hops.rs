//! Bulk transfer across relays: what is left at the end of many lossy hops.

use core::time::Duration;

use bats_proto::relay::{RelayConfig, RelayStats};
use bats_proto::{ConnectionHandle, ConnectionStats, Event, SendError, Timestamp, TransportConfig};
use serde::Serialize;

use crate::line::{Line, LineConfig, node_id};
use crate::matrix::Cell;
use crate::transfer::message;

/// One line and what is sent along it.
#[derive(Clone, Debug)]
pub struct Hops {
    /// Number of links.
    pub hops: usize,
    /// Every link, and the length of the run.
    pub cell: Cell,
    /// Whether relays recode and repair, or forward and leave repair to the ends.
    pub recoding: bool,
    /// Bytes of a message.
    pub message_size: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct HopsOutcome {
    /// Time of the session's handshake.
    pub handshake: Option<Duration>,
    /// Message bytes delivered in order, at each [`Hops::SAMPLE`] from then on.
    pub delivered: Vec<u64>,
    /// The source's session at the end.
    pub sender: ConnectionStats,
    /// The destination's session at the end.
    pub receiver: ConnectionStats,
    /// What each node carried.
    pub relays: Vec<RelayStats>,
}

/// The figures of a line.
#[derive(Clone, Debug, Serialize)]
pub struct HopsFigures {
    /// Number of links.
    pub hops: usize,
    /// Loss of each, per cent.
    pub loss_percent: f64,
    /// Whether relays recode.
    pub recoding: bool,
    /// Goodput from the second third on, Mbit/s.
    pub goodput_mbps: f64,
    /// (1 - p) times the goodput over one hop without loss.
    pub bound_mbps: f64,
    /// Share of the bound.
    pub share: f64,
    /// (1 - p)^h times the goodput over one hop without loss: what forwarding alone leaves.
    pub forwarding_mbps: f64,
    /// Milliseconds of the handshake between the ends.
    pub handshake_ms: Option<f64>,
    /// Coded packets that the ends sent again, per cent of the symbols.
    pub end_repairs_percent: f64,
    /// Packets that relays and ends found useless, per cent of those they received.
    pub useless_percent: f64,
    /// Most KiB that a relay held.
    pub relay_kib: f64,
    /// Batches that relays gave up or dropped.
    pub batches_lost: u64,
}

impl Hops {
    /// Interval of the samples.
    pub const SAMPLE: Duration = Duration::from_millis(10);

    /// Bulk transfer of messages of 16 KiB.
    pub fn new(hops: usize, cell: Cell, recoding: bool) -> Self {
        Self { hops, cell, recoding, message_size: 16 << 10 }
    }

    /// The line.
    pub fn line(&self) -> LineConfig {
        LineConfig {
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
    /// If a message arrives altered, twice or out of order, or the links do not come up.
    pub fn run(&self) -> HopsOutcome {
        let mut line = Line::new(self.line());
        self.run_on(&mut line, |_, _| {})
    }

    /// Runs the transfer along a line that exists; `watch` is called at each sample.
    ///
    /// # Panics
    ///
    /// As [`Hops::run`].
    pub fn run_on(
        &self,
        line: &mut Line,
        mut watch: impl FnMut(&mut Line, Duration),
    ) -> HopsOutcome {
        let start = line.now();
        let mut run = Run {
            hops: self,
            client: line.connect_ends(),
            server: None,
            established: None,
            sent: 0,
            received: 0,
            bytes: 0,
        };
        let mut delivered = Vec::new();
        let mut next = start + Duration::from_secs(20);
        let mut end = next;
        while line.now() < end {
            line.step(next);
            run.take_events(line);
            if let Some(at) = run.established {
                end = at + self.cell.duration;
                let due = at + Self::SAMPLE * delivered.len() as u32;
                if due <= line.now() {
                    let now = line.now();
                    let bytes = run.server.and_then(|server| {
                        let last = line.last();
                        Some(line.node(last).stats(now, server)?.message_bytes_received)
                    });
                    delivered.push(bytes.unwrap_or(0));
                    watch(line, now - at);
                }
                next = at + Self::SAMPLE * delivered.len() as u32;
            }
        }
        let (now, last) = (line.now(), line.last());
        HopsOutcome {
            handshake: run.established.map(|at| at - start),
            delivered,
            sender: line.node(0).stats(now, run.client).unwrap_or_default(),
            receiver: run
                .server
                .and_then(|server| line.node(last).stats(now, server))
                .unwrap_or_default(),
            relays: (0..=last).map(|node| line.relay_stats(node)).collect(),
        }
    }

    /// The figures of a run; `lossless` is the goodput over one hop without loss.
    pub fn figures(&self, outcome: &HopsOutcome, lossless: f64) -> HopsFigures {
        let through = 1.0 - self.cell.loss;
        let goodput_mbps = outcome.goodput();
        let bound_mbps = through * lossless;
        let sum = |f: fn(&RelayStats) -> u64| outcome.relays.iter().map(f).sum::<u64>();
        let sources = outcome.sender.source_packets_sent.max(1);
        let repairs = outcome.sender.proactive_packets_sent + outcome.sender.top_up_packets_sent;
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
            useless_percent: sum(|s| s.useless + s.late) as f64 * 100.0
                / sum(|s| s.received).max(1) as f64,
            relay_kib: outcome.relays.iter().map(|s| s.bytes_peak).max().unwrap_or(0) as f64
                / 1024.0,
            batches_lost: sum(|s| s.batches_unrepaired + s.batches_dropped + s.batches_expired),
        }
    }
}

impl HopsOutcome {
    /// Mbit/s that became deliverable from the second third of the run on.
    pub fn goodput(&self) -> f64 {
        self.goodput_from(self.delivered.len() / 3)
    }

    /// Longest time in which nothing became deliverable, in steps of [`Hops::SAMPLE`].
    pub fn longest_gap(&self) -> Duration {
        let runs = self.delivered.chunk_by(|a, b| a == b).map(<[u64]>::len);
        Hops::SAMPLE * (runs.max().unwrap_or(1) as u32 - 1)
    }

    /// Mbit/s that became deliverable from this sample on.
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
    fn take_events(&mut self, line: &mut Line) {
        let last = line.last();
        for (node, handle, event) in core::mem::take(&mut line.events) {
            match event {
                Event::Connected if (node, handle) == (0, self.client) => {
                    self.established = Some(line.now());
                    self.send(line);
                }
                Event::Writable if (node, handle) == (0, self.client) => self.send(line),
                Event::Accepted
                    if node == last && line.node(last).remote_node(handle).is_some() =>
                {
                    self.server = Some(handle);
                }
                Event::Readable if Some(handle) == self.server && node == last => {
                    self.receive(line, handle);
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, line: &mut Line) {
        let now = line.now();
        loop {
            let message = message(self.hops.cell.seed, self.sent, self.hops.message_size);
            match line.node(0).send(now, self.client, message) {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked(_)) => break,
                Err(_) => return,
            }
        }
        line.touch(0);
    }

    fn receive(&mut self, line: &mut Line, handle: ConnectionHandle) {
        let (now, last) = (line.now(), line.last());
        while let Some(got) = line.node(last).recv(now, handle) {
            let want = message(self.hops.cell.seed, self.received, self.hops.message_size);
            assert!(got == want, "message {} arrived altered or out of order", self.received);
            self.received += 1;
            self.bytes += got.len() as u64;
        }
        line.touch(last);
    }
}
