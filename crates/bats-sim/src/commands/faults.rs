//! `faults`: what faults cost, with the bound beside the figure.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::delays::Delays;
use bats_sim::matrix::FRAME_OVERHEAD;
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

/// A link with a queue of one bandwidth-delay product.
fn link(rate_mbps: u64, one_way_ms: u64) -> LinkConfig {
    let (rate_bps, delay) = (rate_mbps * 1_000_000, Duration::from_millis(one_way_ms));
    LinkConfig {
        rate_bps: Some(rate_bps),
        queue_bytes: Some(LinkConfig::queue_for(rate_bps, delay * 2, 1.0)),
        delay,
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
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
        up: link.clone(),
        down: link.clone(),
        transport: TransportConfig::default(),
        message_size: 16 << 10,
        total_bytes: None,
        duration: Duration::from_secs(seconds),
        changes: changes.iter().map(change).collect(),
        seed,
    }
}

/// Mbit/s of UDP payload in full frames that arrive over `link`.
fn capacity(link: &LinkConfig) -> f64 {
    let rate = link.rate_bps.unwrap_or(0) as f64 / 1e6;
    rate * 1_472.0 / 1_514.0 * (1.0 - link.loss.mean())
}

/// Mbit/s delivered between two seconds of virtual time; none of what did not connect.
fn goodput(outcome: &Outcome, from: f64, to: f64) -> f64 {
    let Some(established) = outcome.established else { return 0.0 };
    let at = |second: f64| {
        let since = second + 0.001 - established.as_secs_f64();
        let found = outcome.samples.iter().find(|sample| sample.time.as_secs_f64() >= since);
        found.or(outcome.samples.last()).map(|s| (s.time.as_secs_f64(), s.delivered))
    };
    match (at(from), at(to)) {
        (Some(a), Some(b)) if b.0 > a.0 => (b.1 - a.1) as f64 * 8e-6 / (b.0 - a.0),
        _ => 0.0,
    }
}

/// Seconds after `change` until the second that follows brings `least` Mbit/s.
fn recovery(outcome: &Outcome, change: f64, least: f64, end: f64) -> f64 {
    let mut after = 0.0;
    while change + after + 1.0 <= end {
        if goodput(outcome, change + after, change + after + 1.0) >= least {
            return after;
        }
        after += 0.05;
    }
    f64::INFINITY
}

fn finish(run: &Transfer) -> f64 {
    run.run().finished.map_or(f64::INFINITY, |at| at.as_secs_f64())
}

/// 99th percentile of the time to the first message, in seconds.
fn handshakes(count: u64, link: &LinkConfig) -> f64 {
    let mut delays = Delays::default();
    for seed in 0..count {
        let run = Messages {
            hops: vec![link.clone()],
            transport: TransportConfig::default(),
            size: 100,
            interval: Duration::from_millis(10),
            count: 1,
            warm_up: 0,
            echo: false,
            seed,
        };
        match run.run().first {
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
    recovery(&run.run(), 8.0, 0.85 * capacity(&whole), 14.0)
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
            recovery(&run.run(), 10.0, 0.9 * capacity(&clean), 16.0)
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
