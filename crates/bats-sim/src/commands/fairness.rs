//! `bats-sim fairness`.

use bats_sim::fairness::{Verdict, scenes};
use clap::Parser;

use super::parallel;
use crate::{Failure, say};

pub(crate) const LEGEND: &str = "\
A link of 100 Mbit/s and 20 ms one way, measured for 30 s from 10 s after the last flow began. \
'share': what the first flow takes of what the link carries, its redundancy counted as its own. \
'Jain': index of the goodputs, 1 for equal ones. 'queue': mean, as a share of its length. TCP is a \
model: acknowledgements clock data out, selective acknowledgements, CUBIC after RFC 9438 or BBR v1. \
The exit status is 1 if a bound is not kept.";

#[derive(Parser)]
pub(crate) struct Fairness {
    /// Only scenes whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print an array of objects
    #[arg(long)]
    json: bool,
    /// Print every second of every scene: Mbit/s and state of each flow, and the mean queue
    #[arg(long, conflicts_with = "json")]
    trace: bool,
}

fn line(verdict: &Verdict) -> String {
    let rates: Vec<String> = verdict.carried_mbps.iter().map(|rate| format!("{rate:.1}")).collect();
    let met = match (verdict.bound.as_str(), verdict.is_met) {
        ("-", _) => "",
        (_, true) => "met",
        (_, false) => "MISSED",
    };
    format!(
        "{:34} {:5.1} {:5.1} {:6.3} {:6.3} {:6.3} {:8.2} {:6.3}  {:18} {:6} {}",
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
    )
}

fn seconds(samples: &[bats_sim::shared::SharedSample]) -> Vec<String> {
    let every: Vec<_> = samples.iter().step_by(10).collect();
    let lines = every.windows(2).map(|pair| {
        let (a, b) = (pair[0], pair[1]);
        let time = (b.time - a.time).as_secs_f64();
        let queue = (b.link.queue_byte_seconds - a.link.queue_byte_seconds) / time / 1e3;
        let flows = b.carried.iter().zip(&a.carried).zip(&b.senders).map(|((b, a), sender)| {
            let state = sender.as_ref().map_or("", |sender| sender.controller_state);
            format!("{:7.1} {state:10}", (b - a) as f64 * 8e-6 / time)
        });
        let flows: Vec<String> = flows.collect();
        format!("{:5.1} s  queue {queue:6.0} kB  {}", b.time.as_secs_f64(), flows.join(" "))
    });
    lines.collect()
}

pub(crate) fn run(arguments: &Fairness) -> Result<(), Failure> {
    let mut chosen = scenes(arguments.seed);
    chosen.retain(|scene| scene.name.contains(&arguments.only));
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("--only {}: no scene has this name", arguments.only)));
    }
    if arguments.trace {
        for scene in &chosen {
            say(&format!("{}, queue {} BDP", scene.name, scene.queue))?;
            seconds(&scene.samples()).iter().try_for_each(|line| say(line))?;
        }
        return Ok(());
    }
    let verdicts = parallel(&chosen, |scene| scene.run());
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&verdicts).map_err(|error| Failure::Io(error.into()))?;
        return say(&text);
    }
    say("scene                              queue loss%  share   Jain  queue  q-loss%   used  \
         bound                     Mbit/s of each")?;
    verdicts.iter().try_for_each(|verdict| say(&line(verdict)))?;
    match verdicts.iter().filter(|verdict| !verdict.is_met).count() {
        0 => Ok(()),
        missed => Err(Failure::Verdict(format!("{missed} bounds are not kept"))),
    }
}
