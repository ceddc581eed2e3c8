//! `faults`: what faults cost, with the bound beside the figure.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_sim::delays::Delays;
use bats_sim::links::{capacity, link};
use bats_sim::messages::Messages;
use bats_sim::transfer::{Outcome, Transfer};
use clap::Parser;

use super::parallel;
use crate::{Failure, in_range, say};

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
Each line is one fault, and a figure with its bound; '<=' bounds from above, '>=' from below. \
Shares are of what the path carries in full frames at its loss. Figures are the worst of all \
seeds. The exit status is 1 if a bound is not kept.";

#[derive(Parser)]
pub(crate) struct Faults {
    /// Seeds of each scenario
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Handshakes of each kind
    #[arg(long, default_value_t = 1_000)]
    handshakes: u64,
    /// Only faults whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// A scenario: what it is, its unit, its bound, and the figure of a seed.
struct Scenario {
    name: &'static str,
    unit: &'static str,
    bound: Bound,
    figure: fn(&Faults, u64) -> f64,
    /// One seed is many runs.
    once: bool,
}

#[derive(Clone, Copy)]
enum Bound {
    Most(f64),
    Least(f64),
}

impl Bound {
    fn worse(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Most(_) => a.max(b),
            Self::Least(_) => a.min(b),
        }
    }

    fn keeps(self, figure: f64) -> bool {
        match self {
            Self::Most(most) => figure <= most,
            Self::Least(least) => figure >= least,
        }
    }
}

fn lossy(loss: f64, link: LinkConfig) -> LinkConfig {
    LinkConfig { loss: Loss::Iid(loss), ..link }
}

/// A transfer over `link` that changes as told at the seconds told.
fn transfer(link: &LinkConfig, seconds: u64, seed: u64, changes: &[(f64, LinkConfig)]) -> Transfer {
    let change =
        |(at, link): &(f64, LinkConfig)| (Duration::from_secs_f64(*at), link.clone(), link.clone());
    Transfer {
        changes: changes.iter().map(change).collect(),
        seed,
        ..Transfer::over(link, Duration::from_secs(seconds))
    }
}

/// Mbit/s between two seconds of the run.
fn goodput(outcome: &Outcome, from: f64, to: f64) -> f64 {
    outcome.goodput(outcome.since_connected(from), outcome.since_connected(to))
}

/// Seconds after a second of the run until `least` Mbit/s come again.
fn recovery(outcome: &Outcome, change: f64, least: f64) -> f64 {
    outcome.recovery(outcome.since_connected(change), least)
}

fn finish(run: &Transfer) -> f64 {
    run.run().finished.map_or(f64::INFINITY, |at| at.as_secs_f64())
}

/// 99th percentile of the time to the first message, in seconds.
fn handshakes(count: u64, link: &LinkConfig) -> f64 {
    let mut delays = Delays::default();
    for seed in 0..count {
        match Messages::one(link, seed).run().first {
            Some(first) => delays.add(first),
            None => return f64::INFINITY,
        }
    }
    delays.percentile(99.0).map_or(f64::INFINITY, |delay| delay.as_secs_f64())
}

fn hole_then(seed: u64, loss: f64) -> f64 {
    let whole = lossy(loss, link(100, 20));
    let hole = LinkConfig { black_hole: true, ..whole.clone() };
    let run = transfer(&whole, 14, seed, &[(6.0, hole), (8.0, whole.clone())]);
    recovery(&run.run(), 8.0, 0.85 * capacity(&whole))
}

fn satellite(seed: u64, loss: f64) -> f64 {
    let mut run = transfer(&lossy(loss, link(250, 300)), 60, seed, &[]);
    run.down = lossy(loss, link(3, 300));
    run.total_bytes = Some(100_000_000);
    finish(&run)
}

fn share_at(seed: u64, loss: f64) -> f64 {
    let link = lossy(loss, link(100, 20));
    goodput(&transfer(&link, 15, seed, &[]).run(), 5.0, 15.0) / capacity(&link)
}

fn scenarios() -> Vec<Scenario> {
    let many = |name, unit, bound, figure| Scenario { name, unit, bound, figure, once: false };
    let once = |name, unit, bound, figure| Scenario { name, unit, bound, figure, once: true };
    vec![
        once("handshake at 30 % loss, p99", "s", Bound::Most(1.0), |arguments, _| {
            handshakes(arguments.handshakes, &lossy(0.3, link(10, 15)))
        }),
        once("handshake at 30 % corruption, p99", "s", Bound::Most(1.0), |arguments, _| {
            handshakes(arguments.handshakes, &LinkConfig { corrupt: 0.3, ..link(10, 15) })
        }),
        many("30 % loss, share", "", Bound::Least(0.9), |_, seed| share_at(seed, 0.3)),
        many("50 % loss, share", "", Bound::Least(0.8), |_, seed| share_at(seed, 0.5)),
        many("90 % loss, 0.5 MB at 20 Mbit/s", "s", Bound::Most(60.0), |_, seed| {
            let clean = link(20, 10);
            let run = transfer(&clean, 120, seed, &[(0.06, lossy(0.9, clean.clone()))]);
            finish(&Transfer { total_bytes: Some(500_000), ..run })
        }),
        many("30 % loss ends, 90 % of the rate after", "s", Bound::Most(0.4), |_, seed| {
            let clean = link(100, 20);
            let before = lossy(0.3, clean.clone());
            let run = transfer(&before, 16, seed, &[(10.0, clean.clone())]);
            recovery(&run.run(), 10.0, 0.9 * capacity(&clean))
        }),
        many("black hole of 2 s, 85 % after", "s", Bound::Most(0.5), |_, s| hole_then(s, 0.0)),
        many("the same at 5 % loss", "s", Bound::Most(0.5), |_, s| hole_then(s, 0.05)),
        many("satellite, 100 MB", "s", Bound::Most(5.3), |_, seed| satellite(seed, 0.0)),
        many("satellite at 1 % loss, 100 MB", "s", Bound::Most(6.0), |_, s| satellite(s, 0.01)),
        many("six holes of 250 ms, 10 MiB at 50 Mbit/s", "s", Bound::Most(3.5), |_, seed| {
            let whole = link(50, 15);
            let hole = LinkConfig { black_hole: true, ..whole.clone() };
            let at = |number: u32| f64::from(number) * 0.5 + 0.2;
            let changes: Vec<_> = (0..6)
                .flat_map(|n| [(at(n), hole.clone()), (at(n) + 0.25, whole.clone())])
                .collect();
            let run = transfer(&whole, 60, seed, &changes);
            finish(&Transfer { total_bytes: Some(10 << 20), ..run })
        }),
        many("MTU falls to 1,300, share after 3 s", "", Bound::Least(0.85), |_, seed| {
            let whole = link(100, 20);
            let narrow = LinkConfig { mtu: Some(1_300), ..whole.clone() };
            let run = transfer(&whole, 12, seed, &[(4.0, narrow)]).run();
            let share = 1_300.0 / 1_342.0 * 1_514.0 / 1_472.0;
            goodput(&run, 7.0, 12.0) / (capacity(&whole) * share)
        }),
        many("keys change every 64 packets, share", "", Bound::Least(0.9), |_, seed| {
            let link = lossy(0.05, link(50, 20));
            let mut run = transfer(&link, 8, seed, &[]);
            run.transport.key_update_packets = 64;
            goodput(&run.run(), 3.0, 8.0) / capacity(&link)
        }),
    ]
}

pub(crate) fn run(arguments: &Faults) -> Result<(), Failure> {
    in_range("seeds", arguments.seeds as f64, 1.0, 1e6).map_err(Failure::Usage)?;
    in_range("handshakes", arguments.handshakes as f64, 1.0, 1e6).map_err(Failure::Usage)?;
    let mut scenarios = scenarios();
    scenarios.retain(|scenario| scenario.name.contains(&arguments.only));
    if scenarios.is_empty() {
        return Err(Failure::Usage(format!("no fault's name contains {:?}", arguments.only)));
    }
    let jobs: Vec<(usize, u64)> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(index, scenario)| {
            let last = if scenario.once { 1 } else { arguments.seeds };
            (1..=last).map(move |seed| (index, seed))
        })
        .collect();
    let figures = parallel(&jobs, |&(index, seed)| (scenarios[index].figure)(arguments, seed));
    say(&format!("{:44} {:>10}  {:>10}", "fault", "figure", "bound"))?;
    let mut missed = 0;
    for (index, scenario) in scenarios.iter().enumerate() {
        let own = jobs.iter().zip(&figures).filter(|((job, _), _)| *job == index);
        let Some(worst) = own.map(|(_, figure)| *figure).reduce(|a, b| scenario.bound.worse(a, b))
        else {
            continue;
        };
        let keeps = scenario.bound.keeps(worst);
        missed += usize::from(!keeps);
        let bound = match scenario.bound {
            Bound::Most(most) => format!("<= {most:.2}"),
            Bound::Least(least) => format!(">= {least:.2}"),
        };
        let (name, unit) = (scenario.name, scenario.unit);
        let verdict = if keeps { "" } else { "missed" };
        say(&format!("{name:44} {worst:>10.3}  {bound:>10} {unit:2} {verdict}"))?;
    }
    if missed > 0 {
        return Err(Failure::Verdict(format!("{missed} bounds are not kept")));
    }
    Ok(())
}
