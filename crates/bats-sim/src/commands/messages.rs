//! Command `messages`: round-trip times of small messages, and of the first one of a connection.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::Mode;
use bats_sim::jobs::parallel;
use bats_sim::links::FRAME_OVERHEAD;
use bats_sim::messages::{Messages, MessagesOutcome};
use bats_sim::resumption::ResumptionRun;
use clap::Parser;

use super::ms;
use crate::{Failure, in_range, print_line};

/// Explanation of the columns.
pub(crate) const LEGEND: &str = "\
The server echoes each message. Times are in ms from send() to the recv() of the echo. 'base': \
round-trip time of the path without loss and queueing. 'bound': goal of p99, 1.15 times the base \
on one hop, 1.3 times on several. 'first RTTs': mean time from connect() to the echo of the first \
message on new connections, in base round trips; the goal is below 2.1. Several hops are links in \
a row without relays.
The second table is for resumed TLS sessions. The first message, BTP with early data, travels in \
the client's first flight; the goal for the mean time to its echo is below 1.1 base round trips. \
'early': connections on which the server had the message when the handshake was complete. \
'echoes': echoes that arrived.";

#[derive(Parser)]
pub(crate) struct MessagesCommand {
    /// Loss rates of each hop in per cent, applied in both directions
    #[arg(long, value_delimiter = ',', default_values_t = [5.0])]
    loss: Vec<f64>,
    /// One-way delay of each hop in milliseconds
    #[arg(long, default_value_t = 10.0)]
    delay: f64,
    /// Rate of each hop in Mbit/s, frames included
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Numbers of hops
    #[arg(long, value_delimiter = ',', default_values_t = [1, 3])]
    hops: Vec<u32>,
    /// Messages per second
    #[arg(long, default_value_t = 100.0)]
    per_second: f64,
    /// Message size in bytes
    #[arg(long, default_value_t = 512)]
    size: usize,
    /// Number of messages measured
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// Number of connections for the figure of the first message
    #[arg(long, default_value_t = 15)]
    connections: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Bytes of a frame in addition to the message.
const OVERHEAD: usize = FRAME_OVERHEAD + 9 + 4 + 10 + 16;
/// Goal for the mean time to the first echo on resumed connections, in base round trips.
const RESUMED_BOUND: f64 = 1.1;
/// Messages sent before the measurement, so that the sender has a loss estimate.
const WARM_UP: u64 = 500;

struct Row {
    mode: Mode,
    hops: u32,
    loss: f64,
    steady: Messages,
    first: Vec<Messages>,
}

impl Row {
    fn run(&self) -> (MessagesOutcome, Option<Duration>) {
        let firsts: Vec<_> = self.first.iter().map(|run| run.run().first).collect();
        let all: Option<Duration> = firsts.iter().copied().sum();
        let mean = all.map(|all| all / u32::try_from(firsts.len().max(1)).unwrap_or(u32::MAX));
        (self.steady.run(), mean)
    }
}

impl MessagesCommand {
    fn row(&self, mode: Mode, hops: u32, loss: f64) -> Result<Row, String> {
        let delay = in_range("delay", self.delay, 0.01, 5_000.0)?;
        let rate = in_range("rate", self.rate, 0.01, 100_000.0)? * 1e6;
        let per_second = in_range("per-second", self.per_second, 0.01, 1e6)?;
        in_range("hops", f64::from(hops), 1.0, 64.0)?;
        in_range("size", self.size as f64, 8.0, (1 << 20) as f64)?;
        in_range("count", self.count as f64, 1.0, 1e8)?;
        in_range("connections", self.connections as f64, 1.0, 1e6)?;
        let link = LinkConfig {
            rate_bps: Some(rate as u64),
            queue_bytes: Some((rate * delay * 2e-3 / 8.0) as usize + 3_028),
            delay: Duration::from_secs_f64(delay / 1e3),
            loss: Loss::Iid(in_range("loss", loss, 0.0, 90.0)? / 100.0),
            frame_overhead: FRAME_OVERHEAD,
            ..LinkConfig::default()
        };
        let steady = Messages {
            hops: vec![link; hops as usize],
            transport: TransportConfig { mode, ..TransportConfig::default() },
            size: self.size,
            interval: Duration::from_secs_f64(1.0 / per_second),
            count: self.count,
            warm_up: WARM_UP,
            burst: 0,
            echo: true,
            seed: self.seed,
        };
        let first = |seed| Messages { count: 1, warm_up: 0, seed, ..steady.clone() };
        let seeds = (0..self.connections).map(|number| self.seed.wrapping_add(number));
        Ok(Row { mode, hops, loss, first: seeds.map(first).collect(), steady })
    }
}

pub(crate) fn run(arguments: &MessagesCommand) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for mode in [Mode::Btp, Mode::Brtp] {
        for &hops in &arguments.hops {
            for &loss in &arguments.loss {
                rows.push(arguments.row(mode, hops, loss).map_err(Failure::Usage)?);
            }
        }
    }
    let outcomes = parallel(&rows, 0, Row::run);
    let resumed_runs: Vec<_> = rows
        .iter()
        .filter(|row| row.mode == Mode::Btp)
        .flat_map(|row| row.first.iter().map(resumed))
        .collect();
    let resumed_outcomes = parallel(&resumed_runs, 0, ResumptionRun::run);
    print_line(
        "mode  hops  loss %  arrived %     base      p50      p90      p99    bound    p99.9      \
         max  first RTTs  wrong",
    )?;
    for (row, (outcome, first)) in rows.iter().zip(&outcomes) {
        let base = row.steady.path_delay(OVERHEAD) * 2;
        let at = |percent| ms(outcome.delays.percentile(percent).unwrap_or_default());
        let bound = if row.hops == 1 { 1.15 } else { 1.3 } * ms(base);
        let first = first.map_or("none".to_owned(), |first| {
            format!("{:.2}", first.as_secs_f64() / base.as_secs_f64())
        });
        print_line(&format!(
            "{:5} {:4} {:7.1} {:10.3} {:8.2} {:8.2} {:8.2} {:8.2} {bound:8.2} {:8.2} {:8.2} \
             {first:>11} {:6}",
            format!("{:?}", row.mode).to_lowercase(),
            row.hops,
            row.loss,
            100.0 * outcome.arrived as f64 / row.steady.count as f64,
            ms(base),
            at(50.0),
            at(90.0),
            at(99.0),
            at(99.9),
            at(100.0),
            outcome.wrong,
        ))?;
    }
    print_line(
        "\nfirst messages on resumed connections (BTP, early data), echo in base round trips",
    )?;
    print_line(
        "hops  loss %  connections  resumed  early  echoes     mean    bound    worst  wrong",
    )?;
    let each = usize::try_from(arguments.connections).unwrap_or(usize::MAX);
    let own_rows = rows.iter().filter(|row| row.mode == Mode::Btp);
    for (row, outcomes) in own_rows.zip(resumed_outcomes.chunks(each)) {
        let outcomes: Vec<_> = outcomes.iter().flatten().collect();
        let base = (row.steady.path_delay(OVERHEAD) * 2).as_secs_f64();
        let trips: Vec<f64> = outcomes
            .iter()
            .filter_map(|outcome| Some(outcome.first?.as_secs_f64() / base))
            .collect();
        let trips = Some(trips).filter(|all| !all.is_empty());
        let text = |value: Option<f64>| value.map_or("none".to_owned(), |v| format!("{v:.2}"));
        let mean = trips.as_ref().map(|all| all.iter().sum::<f64>() / all.len() as f64);
        let worst = trips.as_ref().map(|all| all.iter().copied().fold(0.0, f64::max));
        print_line(&format!(
            "{:4} {:7.1} {:12} {:8} {:6} {:7} {:>8} {:8.2} {:>8} {:6}",
            row.hops,
            row.loss,
            outcomes.len(),
            outcomes.iter().filter(|outcome| outcome.resumed).count(),
            outcomes.iter().filter(|outcome| outcome.accepted > 0).count(),
            trips.as_ref().map_or(0, Vec::len),
            text(mean),
            RESUMED_BOUND,
            text(worst),
            outcomes.iter().map(|outcome| outcome.wrong).sum::<u64>(),
        ))?;
    }
    Ok(())
}

/// The same path for a client that resumes a session.
fn resumed(fresh: &Messages) -> ResumptionRun {
    let Messages { hops, size, seed, .. } = fresh;
    ResumptionRun { hops: hops.clone(), size: *size, count: 1, restart: false, seed: *seed }
}
