//! Command `faults`: the effect of network faults, each figure with its bound.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_sim::delay_histogram::DelayHistogram;
use bats_sim::jobs::parallel;
use bats_sim::links::{capacity, link};
use bats_sim::messages::Messages;
use bats_sim::transfer::{Outcome, Transfer};
use clap::Parser;

use crate::{Failure, in_range, print_line};

/// Explanation of the columns.
pub(crate) const LEGEND: &str = "\
Each line is one fault with a figure and its bound: '<=' is an upper bound, '>=' a lower one. A \
share is the goodput divided by what the path carries in full frames at its loss. Figures are the \
worst of all seeds. A goal after a bound is withdrawn: the bound is weaker (ADR 0024). The exit status is 1 if a bound is missed.";

#[derive(Parser)]
pub(crate) struct Faults {
    /// Number of seeds for each fault
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Number of handshakes of each kind
    #[arg(long, default_value_t = 1_000)]
    handshakes: u64,
    /// Run only faults whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
}

/// A fault: its name, unit and bound, and the function that measures it for a seed.
struct Scenario {
    name: &'static str,
    unit: &'static str,
    bound: Bound,
    /// The goal that is withdrawn, if the bound is weaker (ADR 0024).
    goal: Option<f64>,
    figure: fn(&Faults, u64) -> f64,
    /// The figure of one seed comes from many runs, so that one seed is enough.
    single: bool,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn worse(self, a: f64, b: f64) -> f64 {
        match self {
            Self::AtMost(_) => a.max(b),
            Self::AtLeast(_) => a.min(b),
        }
    }

    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
        }
    }
}

fn lossy(loss: f64, link: LinkConfig) -> LinkConfig {
    LinkConfig { loss: Loss::Iid(loss), ..link }
}

/// A transfer over `link`, which is replaced at the given seconds by the given links.
fn transfer(link: &LinkConfig, seconds: u64, seed: u64, changes: &[(f64, LinkConfig)]) -> Transfer {
    let change =
        |(at, link): &(f64, LinkConfig)| (Duration::from_secs_f64(*at), link.clone(), link.clone());
    Transfer {
        changes: changes.iter().map(change).collect(),
        seed,
        ..Transfer::over(link, Duration::from_secs(seconds))
    }
}

/// Goodput between two seconds of the run, in Mbit/s.
fn goodput(outcome: &Outcome, from: f64, to: f64) -> f64 {
    outcome.goodput(outcome.since_connected(from), outcome.since_connected(to))
}

/// Seconds from the second `change` of the run until the goodput is at least `least` Mbit/s again.
fn recovery(outcome: &Outcome, change: f64, least: f64) -> f64 {
    outcome.recovery(outcome.since_connected(change), least)
}

fn finish(run: &Transfer) -> f64 {
    run.run().finished.map_or(f64::INFINITY, |at| at.as_secs_f64())
}

/// 99th percentile of the time to the arrival of the first message, in seconds.
fn handshakes(count: u64, link: &LinkConfig) -> f64 {
    let mut delays = DelayHistogram::default();
    for seed in 0..count {
        match Messages::one(link, seed).run().first {
            Some(first) => delays.add(first),
            None => return f64::INFINITY,
        }
    }
    delays.percentile(99.0).map_or(f64::INFINITY, |delay| delay.as_secs_f64())
}

fn blackout(seed: u64, loss: f64) -> f64 {
    let base = lossy(loss, link(100, 20));
    let outage = LinkConfig { black_hole: true, ..base.clone() };
    let run = transfer(&base, 14, seed, &[(6.0, outage), (8.0, base.clone())]);
    recovery(&run.run(), 8.0, 0.85 * capacity(&base))
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
    let per_seed = |name, unit, bound, figure| Scenario {
        name,
        unit,
        bound,
        goal: None,
        figure,
        single: false,
    };
    let single = |name, unit, bound, figure| Scenario {
        single: true,
        ..per_seed(name, unit, bound, figure)
    };
    let with_goal = |goal, scenario| Scenario { goal: Some(goal), ..scenario };
    vec![
        single("handshake at 30 % loss, p99", "s", Bound::AtMost(1.0), |arguments, _| {
            handshakes(arguments.handshakes, &lossy(0.3, link(10, 15)))
        }),
        single("handshake at 30 % corruption, p99", "s", Bound::AtMost(1.0), |arguments, _| {
            handshakes(arguments.handshakes, &LinkConfig { corrupt: 0.3, ..link(10, 15) })
        }),
        per_seed("30 % loss, share", "", Bound::AtLeast(0.9), |_, seed| share_at(seed, 0.3)),
        with_goal(
            0.8,
            per_seed("50 % loss, share", "", Bound::AtLeast(0.75), |_, seed| share_at(seed, 0.5)),
        ),
        per_seed("90 % loss, 0.5 MB at 20 Mbit/s", "s", Bound::AtMost(60.0), |_, seed| {
            let clean = link(20, 10);
            let run = transfer(&clean, 120, seed, &[(0.06, lossy(0.9, clean.clone()))]);
            finish(&Transfer { total_bytes: Some(500_000), ..run })
        }),
        per_seed("time to 90 % of the rate after 30 % loss", "s", Bound::AtMost(0.4), |_, seed| {
            let clean = link(100, 20);
            let before = lossy(0.3, clean.clone());
            let run = transfer(&before, 16, seed, &[(10.0, clean.clone())]);
            recovery(&run.run(), 10.0, 0.9 * capacity(&clean))
        }),
        per_seed("blackout of 2 s, time to 85 % of the rate", "s", Bound::AtMost(0.5), |_, s| {
            blackout(s, 0.0)
        }),
        per_seed("blackout of 2 s at 5 % loss", "s", Bound::AtMost(0.5), |_, s| blackout(s, 0.05)),
        with_goal(
            5.3,
            per_seed("satellite, 100 MB", "s", Bound::AtMost(7.2), |_, seed| satellite(seed, 0.0)),
        ),
        with_goal(
            6.0,
            per_seed("satellite at 1 % loss, 100 MB", "s", Bound::AtMost(7.9), |_, s| {
                satellite(s, 0.01)
            }),
        ),
        with_goal(
            3.5,
            per_seed(
                "six blackouts of 250 ms, 10 MiB at 50 Mbit/s",
                "s",
                Bound::AtMost(4.05),
                |_, seed| {
                    let base = link(50, 15);
                    let outage = LinkConfig { black_hole: true, ..base.clone() };
                    let at = |number: u32| f64::from(number) * 0.5 + 0.2;
                    let changes: Vec<_> = (0..6)
                        .flat_map(|n| [(at(n), outage.clone()), (at(n) + 0.25, base.clone())])
                        .collect();
                    let run = transfer(&base, 60, seed, &changes);
                    finish(&Transfer { total_bytes: Some(10 << 20), ..run })
                },
            ),
        ),
        per_seed(
            "MTU falls to 1,300 bytes, share after 3 s",
            "",
            Bound::AtLeast(0.85),
            |_, seed| {
                let base = link(100, 20);
                let narrow = LinkConfig { mtu: Some(1_300), ..base.clone() };
                let run = transfer(&base, 12, seed, &[(4.0, narrow)]).run();
                let share = 1_300.0 / 1_342.0 * 1_514.0 / 1_472.0;
                goodput(&run, 7.0, 12.0) / (capacity(&base) * share)
            },
        ),
        per_seed("key update every 64 packets, share", "", Bound::AtLeast(0.9), |_, seed| {
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
        return Err(Failure::Usage(format!(
            "--only {:?}: no fault name contains this text",
            arguments.only
        )));
    }
    let jobs: Vec<(usize, u64)> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(index, scenario)| {
            let last = if scenario.single { 1 } else { arguments.seeds };
            (1..=last).map(move |seed| (index, seed))
        })
        .collect();
    let figures = parallel(&jobs, 0, |&(index, seed)| (scenarios[index].figure)(arguments, seed));
    print_line(&format!("{:44} {:>10}  {:>10}", "fault", "figure", "bound"))?;
    let mut missed = 0;
    for (index, scenario) in scenarios.iter().enumerate() {
        let own = jobs.iter().zip(&figures).filter(|((job, _), _)| *job == index);
        let Some(worst) = own.map(|(_, figure)| *figure).reduce(|a, b| scenario.bound.worse(a, b))
        else {
            continue;
        };
        let is_met = scenario.bound.is_met(worst);
        missed += usize::from(!is_met);
        let bound = match scenario.bound {
            Bound::AtMost(most) => format!("<= {most:.2}"),
            Bound::AtLeast(least) => format!(">= {least:.2}"),
        };
        let (name, unit) = (scenario.name, scenario.unit);
        let verdict = match (is_met, scenario.goal) {
            (false, _) => "missed".to_owned(),
            (true, Some(goal)) => format!("goal {goal}"),
            (true, None) => String::new(),
        };
        print_line(&format!("{name:44} {worst:>10.3}  {bound:>10} {unit:2} {verdict}"))?;
    }
    if missed > 0 {
        return Err(Failure::CheckFailed(format!("{missed} bounds are missed")));
    }
    Ok(())
}
