//! Command `fairness`: competing flows on one link.

use bats_sim::fairness::{Verdict, scenarios};
use bats_sim::jobs::parallel;
use clap::Parser;

use crate::{Failure, print_line};

pub(crate) const LEGEND: &str = "\
A link of 100 Mbit/s with a one-way delay of 20 ms, measured for 30 s, from 10 s after the last \
flow started. A line without TCP is of the worst of its seeds: one that misses \
a bound, or else that with the least Jain index; one with TCP is of the first seed alone. 'share': \
throughput share of the first flow, its redundancy included. 'Jain': fairness index of the goodputs, \
1 if all are equal. 'queue': mean queue as a fraction of its \
length. TCP is a model: ACK clocking, selective acknowledgements, CUBIC (RFC 9438) or BBRv1. \
A goal at the end of a line is withdrawn: the bound is weaker (ADR 0024). The exit status is 1 if \
a bound is missed.";

#[derive(Parser)]
pub(crate) struct Fairness {
    /// Run only scenarios whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// First seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds of each scenario without TCP
    #[arg(long, default_value_t = 4, conflicts_with = "trace")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Print the figures as a JSON array of objects
    #[arg(long)]
    json: bool,
    /// Print each second of each scenario: Mbit/s and state of each flow, and the mean queue
    #[arg(long, conflicts_with = "json")]
    trace: bool,
}

fn line(verdict: &Verdict) -> String {
    let rates: Vec<String> =
        verdict.throughput_mbps.iter().map(|rate| format!("{rate:.1}")).collect();
    let met = match (verdict.bound.as_str(), verdict.is_met) {
        ("-", _) => "",
        (_, true) => "met",
        (_, false) => "MISSED",
    };
    let goal = match verdict.withdrawn_goal.as_str() {
        "" => String::new(),
        goal => format!("  goal: {goal}"),
    };
    format!(
        "{:34} {:5.1} {:5.1} {:6.3} {:6.3} {:6.3} {:8.2} {:6.3}  {:18} {:6} {}  seed {}{goal}",
        verdict.name,
        verdict.queue_bdp,
        verdict.loss_percent,
        verdict.share,
        verdict.jain,
        verdict.queue_mean,
        verdict.queue_loss_percent,
        verdict.utilisation,
        verdict.bound,
        met,
        rates.join(" "),
        verdict.seed,
    )
}

fn seconds(samples: &[bats_sim::shared_link::SharedLinkSample]) -> Vec<String> {
    let every: Vec<_> = samples.iter().step_by(10).collect();
    let lines = every.windows(2).map(|pair| {
        let (a, b) = (pair[0], pair[1]);
        let time = (b.time - a.time).as_secs_f64();
        let queue = (b.link.queue_byte_seconds - a.link.queue_byte_seconds) / time / 1e3;
        let flows =
            b.link_bytes.iter().zip(&a.link_bytes).zip(&b.senders).map(|((b, a), sender)| {
                let state = sender.as_ref().map_or("", |sender| sender.congestion.controller_state);
                format!("{:7.1} {state:10}", (b - a) as f64 * 8e-6 / time)
            });
        let flows: Vec<String> = flows.collect();
        format!("{:5.1} s  queue {queue:6.0} kB  {}", b.time.as_secs_f64(), flows.join(" "))
    });
    lines.collect()
}

pub(crate) fn run(arguments: &Fairness) -> Result<(), Failure> {
    let mut chosen = scenarios(arguments.seed);
    chosen.retain(|scenario| scenario.name.contains(&arguments.only));
    if chosen.is_empty() {
        return Err(Failure::Usage(format!(
            "--only {}: no scenario name contains this text",
            arguments.only
        )));
    }
    if arguments.trace {
        for scenario in &chosen {
            print_line(&format!("{}, queue {} BDP", scenario.name, scenario.queue))?;
            seconds(&scenario.samples()).iter().try_for_each(|line| print_line(line))?;
        }
        return Ok(());
    }
    let verdicts = parallel(&chosen, 0, |scenario| scenario.worst_of(arguments.seeds));
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&verdicts).map_err(|error| Failure::Io(error.into()))?;
        return print_line(&text);
    }
    print_line(
        "scenario                           queue loss%  share   Jain  queue  q-loss%   used  \
         bound                     Mbit/s of each",
    )?;
    verdicts.iter().try_for_each(|verdict| print_line(&line(verdict)))?;
    match verdicts.iter().filter(|verdict| !verdict.is_met).count() {
        0 => Ok(()),
        missed => Err(Failure::CheckFailed(format!("{missed} scenarios miss a bound"))),
    }
}
