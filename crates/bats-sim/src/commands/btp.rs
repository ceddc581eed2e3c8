//! `btp`: what arrives in time without being asked for again, and what that costs.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::{Goal, Mode};
use bats_sim::matrix::FRAME_OVERHEAD;
use bats_sim::messages::Messages;
use clap::Parser;

use super::{ms, parallel};
use crate::{Failure, in_range, say};

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
Messages of one symbol go one way at the load. 'lost %': symbols that neither arrived nor were \
repaired. 'sent x': coded packets per symbol; 'bound x' is 1/(1 - loss), which nothing can stay \
below that lets all arrive. 'late': mean delay beyond that of the path, in times between two \
symbols, of all symbols and of the fastest 99 per cent; 'repaired': the mean of those that came by repair, p99 and max of the delay \
beyond the path's, in ms. The first fifth of the messages, from which the sender learns of the \
loss, is not counted for delays; for losses it is.";

#[derive(Parser)]
pub(crate) struct Btp {
    /// Losses in per cent, both directions
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0])]
    loss: Vec<f64>,
    /// Mean lengths of bursts in packets; 1 for independent losses
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 4.0])]
    burst: Vec<f64>,
    /// One-way delay in milliseconds
    #[arg(long, default_value_t = 30.0)]
    delay: f64,
    /// Rate in Mbit/s of frames
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Messages in Mbit/s
    #[arg(long, default_value_t = 20.0)]
    load: f64,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// What redundancy favours: latency, balanced, throughput
    #[arg(long, default_value = "balanced", value_parser = goal)]
    goal: Goal,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn goal(text: &str) -> Result<Goal, String> {
    match text {
        "latency" => Ok(Goal::Latency),
        "balanced" => Ok(Goal::Balanced),
        "throughput" => Ok(Goal::Throughput),
        _ => Err("latency, balanced or throughput".to_owned()),
    }
}

/// Octets of a message that fills one symbol at an MTU of 1,500.
const SIZE: usize = 1_390;
/// Octets of a frame beside the message: lower layers, hop and coding header, frame, tag.
const OVERHEAD: usize = FRAME_OVERHEAD + 9 + 4 + 10 + 16;

pub(crate) fn run(arguments: &Btp) -> Result<(), Failure> {
    let cell = |loss: f64, burst: f64| -> Result<(f64, f64, Messages), String> {
        let p = in_range("loss", loss, 0.0, 90.0)? / 100.0;
        let burst = in_range("burst", burst, 1.0, 1_000.0)?;
        let rate = in_range("rate", arguments.rate, 0.01, 100_000.0)? * 1e6;
        let load = in_range("load", arguments.load, 0.001, arguments.rate)? * 1e6;
        let seconds = in_range("seconds", arguments.seconds, 0.1, 3_600.0)?;
        let delay = in_range("delay", arguments.delay, 0.01, 5_000.0)?;
        let interval = Duration::from_secs_f64(SIZE as f64 * 8.0 / load);
        let total = (seconds / interval.as_secs_f64()) as u64;
        let link = LinkConfig {
            rate_bps: Some(rate as u64),
            queue_bytes: Some((rate * delay * 2e-3 / 8.0) as usize + 3_028),
            delay: Duration::from_secs_f64(delay / 1e3),
            loss: if burst > 1.0 { Loss::bursts(p, burst) } else { Loss::Iid(p) },
            frame_overhead: FRAME_OVERHEAD,
            ..LinkConfig::default()
        };
        let transport =
            TransportConfig { mode: Mode::Btp, goal: arguments.goal, ..TransportConfig::default() };
        let run = Messages {
            hops: vec![link],
            transport,
            size: SIZE,
            interval,
            warm_up: total / 5,
            count: total - total / 5,
            echo: false,
            seed: arguments.seed,
        };
        Ok((loss, burst, run))
    };
    let pairs = arguments.burst.iter().flat_map(|&b| arguments.loss.iter().map(move |&p| (p, b)));
    let cells: Vec<_> =
        pairs.map(|(p, b)| cell(p, b)).collect::<Result<_, _>>().map_err(Failure::Usage)?;
    let outcomes = parallel(&cells, |(_, _, run)| run.run());
    say(
        " loss %  burst   lost %   sent x  bound x   late  late 99%  repaired ms   p99 ms   max ms  wrong",
    )?;
    for ((loss, burst, run), outcome) in cells.iter().zip(&outcomes) {
        let [sender, receiver] = &outcome.stats;
        let source = sender.source_packets_sent.max(1) as f64;
        let coded = source + sender.proactive_packets_sent as f64;
        let path = run.path_delay(OVERHEAD);
        let beyond = |percent| {
            let delay = outcome.delays.percentile(percent).unwrap_or_default();
            ms(delay.saturating_sub(path))
        };
        let in_intervals =
            |mean: Duration| mean.saturating_sub(path).as_secs_f64() / run.interval.as_secs_f64();
        let late = in_intervals(outcome.mean);
        let fastest = in_intervals(outcome.delays.mean_of_shortest(99.0).unwrap_or_default());
        let repaired = receiver.symbols_repaired.max(1) as f64;
        say(&format!(
            "{loss:7.1} {burst:6.1} {:8.3} {:8.3} {:8.3} {late:6.2} {fastest:9.2} {:12.2} {:8.2} {:8.2} {:6}",
            100.0 * receiver.symbols_lost as f64 / source,
            coded / source,
            1.0 / (1.0 - loss / 100.0),
            ms(receiver.repair_delay) / repaired,
            beyond(99.0),
            beyond(100.0),
            outcome.wrong,
        ))?;
    }
    Ok(())
}
