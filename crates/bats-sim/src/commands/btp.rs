//! Command `btp`: residual loss, overhead and delay of messages that are repaired proactively only.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::{Goal, Mode};
use bats_sim::ideal::mean_delay;
use bats_sim::jobs::parallel;
use bats_sim::links::FRAME_OVERHEAD;
use bats_sim::messages::Messages;
use clap::Parser;

use super::ms;
use crate::{Failure, in_range, print_line};

/// Explanation of the columns.
pub(crate) const LEGEND: &str = "\
Messages of one symbol are sent in one direction at the given load. 'lost %': symbols that \
neither arrived nor were repaired. 'sent x': coded packets per symbol. 'least x': 1/(1 - loss), \
the minimum for complete delivery. 'late': mean delay in excess of the path delay, in symbol \
intervals, of all symbols ('late') and of the fastest 99 per cent ('late 99%'). 'ideal': the mean \
for an ideal code with as many repairs at independent losses. 'repaired': mean excess delay of \
repaired symbols in ms. 'p99' and 'max': excess delay of all symbols in ms. The first fifth of \
the messages is the warm-up, in which the sender estimates the loss: it counts for losses and not \
for delays.

A bound follows its figure ('<='). Bounds are goals for independent losses of up to 30 per cent: \
lost at most 0.1 per cent for losses up to 10 per cent, and 1 per cent above; sent at most 1.13 \
times the minimum, which is 1.61 at 30 per cent; late at most 3 symbol intervals, or 1.15 times \
what the ideal code needs if that is more (ADR 0024). For bursts and \
higher losses the only bound is that no message is wrong. The exit status is 1 if a bound is \
missed.";

#[derive(Parser)]
pub(crate) struct Btp {
    /// Loss rates in per cent, applied in both directions
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0])]
    loss: Vec<f64>,
    /// Mean lengths of loss bursts in packets; 1 for independent losses
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 4.0])]
    burst: Vec<f64>,
    /// One-way delay in milliseconds
    #[arg(long, default_value_t = 30.0)]
    delay: f64,
    /// Link rate in Mbit/s, frames included
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Rate of message data in Mbit/s
    #[arg(long, default_value_t = 20.0)]
    load: f64,
    /// Duration of a run in seconds
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Goal of the redundancy: latency, balanced or throughput
    #[arg(long, default_value = "balanced", value_parser = goal)]
    goal: Goal,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn goal(text: &str) -> Result<Goal, String> {
    match text {
        "latency" => Ok(Goal::Latency),
        "balanced" => Ok(Goal::Balanced),
        "throughput" => Ok(Goal::Throughput),
        _ => Err("use latency, balanced or throughput".to_owned()),
    }
}

/// Bytes of a message that fills one symbol at an MTU of 1,500.
const SIZE: usize = 1_390;
/// Bytes of a frame in addition to the message: lower layers, hop and coding header, frame, tag.
const OVERHEAD: usize = FRAME_OVERHEAD + 9 + 4 + 10 + 16;

/// Most delay in excess of the path's, compared with an ideal code.
const OVER_IDEAL: f64 = 1.15;

/// Upper bounds of the figures at one loss rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    lost_percent: f64,
    sent: f64,
    /// In symbol intervals, or 1.15 times the delay of an ideal code if that is more.
    late: f64,
}

/// The bounds for a loss in per cent in bursts of this mean length, `None` where there is no goal.
fn bounds(loss: f64, burst: f64) -> Option<Bounds> {
    let lost_percent = match loss {
        _ if burst > 1.0 || loss > 30.0 => return None,
        _ if loss <= 10.0 => 0.1,
        _ => 1.0,
    };
    Some(Bounds { lost_percent, sent: 1.13 / (1.0 - loss / 100.0), late: 3.0 })
}

/// The missed bounds, "met" if none is missed, or an empty string if there are no bounds.
fn verdict(
    bounds: Option<Bounds>,
    [lost_percent, sent, late]: [f64; 3],
    ideal: Option<f64>,
    wrong: u64,
) -> String {
    let mut missed = Vec::new();
    if let Some(bounds) = bounds {
        missed.extend((lost_percent > bounds.lost_percent).then_some("lost"));
        missed.extend((sent > bounds.sent).then_some("sent"));
        let most = bounds.late.max(OVER_IDEAL * ideal.unwrap_or(0.0));
        missed.extend((late > most).then_some("late"));
    }
    missed.extend((wrong > 0).then_some("wrong"));
    match (missed.is_empty(), bounds) {
        (true, Some(_)) => "met".to_owned(),
        (true, None) => String::new(),
        (false, _) => format!("MISSED: {}", missed.join(", ")),
    }
}

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
            burst: 0,
            count: total - total / 5,
            echo: false,
            seed: arguments.seed,
        };
        Ok((loss, burst, run))
    };
    let pairs = arguments.burst.iter().flat_map(|&b| arguments.loss.iter().map(move |&p| (p, b)));
    let cells: Vec<_> =
        pairs.map(|(p, b)| cell(p, b)).collect::<Result<_, _>>().map_err(Failure::Usage)?;
    let outcomes = parallel(&cells, 0, |(_, _, run)| run.run());
    print_line(
        " loss %  burst   lost %  bound   sent x  bound  least x   late bound  ideal  late 99%  repaired ms   \
         p99 ms   max ms  wrong",
    )?;
    let mut missed = 0;
    for ((loss, burst, run), outcome) in cells.iter().zip(&outcomes) {
        let [sender, receiver] = &outcome.stats;
        let source = sender.coding.source_packets_sent.max(1) as f64;
        let lost = 100.0 * receiver.coding.symbols_lost as f64 / source;
        let sent = (source + sender.coding.proactive_packets_sent as f64) / source;
        let path = run.path_delay(OVERHEAD);
        let beyond = |percent| {
            let delay = outcome.delays.percentile(percent).unwrap_or_default();
            ms(delay.saturating_sub(path))
        };
        let in_intervals =
            |mean: Duration| mean.saturating_sub(path).as_secs_f64() / run.interval.as_secs_f64();
        let late = in_intervals(outcome.mean);
        let fastest = in_intervals(outcome.delays.mean_of_shortest(99.0).unwrap_or_default());
        let repaired = receiver.coding.symbols_repaired.max(1) as f64;
        let ideal = (*burst <= 1.0).then(|| mean_delay(loss / 100.0, sent, arguments.seed));
        let bounds = bounds(*loss, *burst);
        let verdict = verdict(bounds, [lost, sent, late], ideal, outcome.wrong);
        let ideal = ideal.map_or("-".to_owned(), |ideal| format!("{ideal:.2}"));
        missed += usize::from(verdict.starts_with("MISSED"));
        let most = |of: fn(Bounds) -> f64, digits: usize| {
            bounds.map_or("-".to_owned(), |bounds| format!("<={:.digits$}", of(bounds)))
        };
        print_line(&format!(
            "{loss:7.1} {burst:6.1} {lost:8.3} {:>6} {sent:8.3} {:>6} {:8.3} {late:6.2} {:>5} {ideal:>6} \
             {fastest:9.2} {:12.2} {:8.2} {:8.2} {:6}  {verdict}",
            most(|bounds| bounds.lost_percent, 1),
            most(|bounds| bounds.sent, 2),
            1.0 / (1.0 - loss / 100.0),
            most(|bounds| bounds.late, 0),
            ms(receiver.coding.repair_delay) / repaired,
            beyond(99.0),
            beyond(100.0),
            outcome.wrong,
        ))?;
    }
    match missed {
        0 => Ok(()),
        missed => Err(Failure::CheckFailed(format!("{missed} lines miss a bound"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_exist_for_independent_losses_up_to_thirty_per_cent() {
        let of = |loss| bounds(loss, 1.0).expect("a goal");
        assert_eq!((of(10.0).lost_percent, of(10.1).lost_percent), (0.1, 1.0));
        assert!((of(30.0).sent - 1.13 / 0.7).abs() < 1e-9);
        assert_eq!((bounds(30.1, 1.0), bounds(10.0, 1.5)), (None, None));
    }

    #[test]
    fn the_verdict_names_missed_bounds() {
        let bounds = bounds(30.0, 1.0);
        assert_eq!(verdict(bounds, [1.0, 1.6, 3.0], Some(1.0), 0), "met");
        assert_eq!(
            verdict(bounds, [1.1, 1.62, 3.1], Some(1.0), 1),
            "MISSED: lost, sent, late, wrong"
        );
        assert_eq!(verdict(bounds, [0.0, 1.5, 3.1], None, 0), "MISSED: late");
        assert_eq!(verdict(bounds, [0.0, 1.5, 4.5], Some(4.0), 0), "met");
        assert_eq!(verdict(bounds, [0.0, 1.5, 4.7], Some(4.0), 0), "MISSED: late");
        assert_eq!(verdict(None, [9.0; 3], None, 0), "");
        assert_eq!(verdict(None, [0.0, 1.0, 0.0], None, 1), "MISSED: wrong");
    }
}
