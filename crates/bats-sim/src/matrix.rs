//! The matrix of bulk transfers over loss and delay, and the figures of each cell.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::{CongestionAlgorithm, TransportConfig};
use serde::Serialize;

use crate::delay_histogram::DelayHistogram;
use crate::links::{FRAME_OVERHEAD, queued};
use crate::recorder::Recorder;
use crate::transfer::{Outcome, Sample, Transfer};

/// Parameters of one cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Loss in both directions, 0 to 1.
    pub loss: f64,
    /// One-way delay.
    pub delay: Duration,
    /// Link rate in bits per second, frames included.
    pub rate_bps: u64,
    /// Queue length in BDP.
    pub queue: f64,
    /// Duration of the run.
    pub duration: Duration,
    /// Congestion controller of the sender.
    pub congestion: CongestionAlgorithm,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The figures of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Loss in per cent.
    pub loss_percent: f64,
    /// One-way delay in milliseconds.
    pub delay_ms: f64,
    /// Link rate in Mbit/s.
    pub rate_mbps: f64,
    /// Goodput over the first 10 s, in Mbit/s.
    pub goodput_mbps_10s: f64,
    /// Goodput over seconds 5 to 15, in Mbit/s.
    pub goodput_mbps_steady: f64,
    /// Efficiency over the first 10 s: goodput divided by the capacity at this loss.
    pub e_10s: f64,
    /// Efficiency over seconds 5 to 15.
    pub e_steady: f64,
    /// Coded packets that were not innovative, per cent of those received.
    pub waste_percent: f64,
    /// Packets dropped by the full queue from second 5 on, per cent of those sent.
    pub queue_loss_percent: f64,
    /// Packets dropped by the full queue in the first second, per cent of those sent.
    pub queue_loss_first_second_percent: f64,
    /// Mean queue from second 5 on, in BDP.
    pub queue_bdp: f64,
    /// Round trips from the established connection until the pacing rate reached 90 % of the link
    /// rate.
    pub rounds_to_rate: Option<f64>,
    /// Median message delay over seconds 5 to 15, in milliseconds, from the `send` that accepted
    /// the message to the `recv` that returned it. The sender is never application-limited, so most
    /// of this is the time to drain a full send budget.
    pub delay_p50_ms: Option<f64>,
    /// 95th percentile of the message delay, in milliseconds.
    pub delay_p95_ms: Option<f64>,
    /// 99th percentile of the message delay, in milliseconds.
    pub delay_p99_ms: Option<f64>,
    /// Median delay of the datagrams that arrived in seconds 5 to 15, in milliseconds, since they
    /// entered the link (queueing, transmission, propagation).
    pub network_delay_p50_ms: Option<f64>,
    /// 95th percentile of the datagram delay, in milliseconds.
    pub network_delay_p95_ms: Option<f64>,
    /// 99th percentile of the datagram delay, in milliseconds.
    pub network_delay_p99_ms: Option<f64>,
}

/// Shortest queue in bytes: two full frames, one in transmission and one waiting.
const MIN_QUEUE: usize = 2 * 1_514;

impl Cell {
    /// A cell with this rate, one-way delay, loss (0 to 1) and duration, a queue of one BDP, and
    /// the default controller.
    pub fn over(rate_mbps: u64, one_way_ms: u64, loss: f64, seconds: u64) -> Self {
        Self {
            congestion: CongestionAlgorithm::Ltcc,
            loss,
            delay: Duration::from_millis(one_way_ms),
            rate_bps: rate_mbps * 1_000_000,
            queue: 1.0,
            duration: Duration::from_secs(seconds),
            seed: 1,
        }
    }

    /// The link of one direction.
    pub fn link(&self) -> LinkConfig {
        let link = queued(self.rate_bps, self.delay, self.queue, self.loss);
        LinkConfig { queue_bytes: link.queue_bytes.map(|queue| queue.max(MIN_QUEUE)), ..link }
    }

    /// The transfer of this cell.
    pub fn transfer(&self) -> Transfer {
        let congestion = self.congestion;
        Transfer {
            transport: TransportConfig { congestion, ..TransportConfig::default() },
            seed: self.seed,
            ..Transfer::over(&self.link(), self.duration)
        }
    }

    /// Runs the cell.
    pub fn run(&self) -> (Figures, Outcome) {
        self.run_recorded(&mut Recorder::default())
    }

    /// Runs the cell and records the events on the links.
    pub fn run_recorded(&self, recorder: &mut Recorder) -> (Figures, Outcome) {
        let outcome = self.transfer().run_recorded(recorder);
        (self.figures(&outcome), outcome)
    }

    fn figures(&self, outcome: &Outcome) -> Figures {
        let percentile = |delays: &DelayHistogram, percent: f64| {
            delays.percentile(percent).map(|delay| delay.as_secs_f64() * 1e3)
        };
        let seconds = self.duration.as_secs_f64();
        let at = |second: f64| -> Option<&Sample> {
            outcome.samples.iter().find(|sample| sample.time.as_secs_f64() >= second - 1e-9)
        };
        let goodput = |from: f64, to: f64| -> f64 {
            let to = to.min(seconds);
            let (Some(a), Some(b)) = (at(from), at(to).or(outcome.samples.last())) else {
                return 0.0;
            };
            let time = (b.time - a.time).as_secs_f64();
            if time > 0.0 { (b.delivered - a.delivered) as f64 * 8.0 / time / 1e6 } else { 0.0 }
        };
        let (from, to) = self.transfer().steady();
        let steady_from = from.as_secs_f64();
        let first = goodput(0.0, 10.0);
        let steady = goodput(steady_from, to.as_secs_f64());
        let rate_mbps = self.rate_bps as f64 / 1e6;
        let possible = (1.0 - self.loss) * rate_mbps * 1_472.0 / 1_514.0;
        let queue_loss = |a: Option<&Sample>, b: Option<&Sample>| match (a, b) {
            (Some(a), Some(b)) if b.link.offered > a.link.offered => {
                (b.link.dropped_queue - a.link.dropped_queue) as f64 * 100.0
                    / (b.link.offered - a.link.offered) as f64
            }
            _ => 0.0,
        };
        let last = outcome.samples.last();
        let bdp = self.rate_bps as f64 / 8.0 * (self.delay * 2).as_secs_f64();
        let queue_bdp = match (at(steady_from), last) {
            (Some(a), Some(b)) if b.time > a.time => {
                (b.link.queue_byte_seconds - a.link.queue_byte_seconds)
                    / (b.time - a.time).as_secs_f64()
                    / bdp.max(1.0)
            }
            _ => 0.0,
        };
        let rounds_to_rate = outcome
            .samples
            .iter()
            .find(|sample| {
                let payload_fraction = 1_437.0 / (1_437.0 + FRAME_OVERHEAD as f64);
                sample.sender.congestion.pacing_bps as f64
                    >= 0.9 * self.rate_bps as f64 * payload_fraction
            })
            .map(|sample| sample.time.as_secs_f64() / (self.delay * 2).as_secs_f64());
        let received = outcome.receiver.coding.coded_packets_received.max(1);
        Figures {
            loss_percent: self.loss * 100.0,
            delay_ms: self.delay.as_secs_f64() * 1e3,
            rate_mbps,
            goodput_mbps_10s: first,
            goodput_mbps_steady: steady,
            e_10s: first / possible,
            e_steady: steady / possible,
            waste_percent: outcome.receiver.coding.wasted_packets_received as f64 * 100.0
                / received as f64,
            queue_loss_percent: queue_loss(at(steady_from), last),
            queue_loss_first_second_percent: queue_loss(outcome.samples.first(), at(1.0)),
            queue_bdp,
            rounds_to_rate,
            delay_p50_ms: percentile(&outcome.message_delays, 50.0),
            delay_p95_ms: percentile(&outcome.message_delays, 95.0),
            delay_p99_ms: percentile(&outcome.message_delays, 99.0),
            network_delay_p50_ms: percentile(&outcome.network_delays, 50.0),
            network_delay_p95_ms: percentile(&outcome.network_delays, 95.0),
            network_delay_p99_ms: percentile(&outcome.network_delays, 99.0),
        }
    }
}
