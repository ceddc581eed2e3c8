//! `swarm`: random runs, watched by models.

use std::time::{Duration, Instant};

use bats_sim::swarm::{self, Plan, Report};
use clap::Parser;

use super::parallel;
use crate::{Failure, in_range, say};

/// What is reported.
pub(crate) const LEGEND: &str = "\
Each seed decides the links, up to three relays between them, their faults, the congestion control, \
and what up to four connections of modes BRTP, BRCTP, BTP and TRANSPARENT do over them. While there are faults, models watch what is delivered; then faults end, \
and all must finish within a time computed from rate and round trip. A seed that fails is printed \
with what was broken and the command that repeats it; the exit status is 1 then. Every 25th seed \
runs twice, and both runs must be the same to the byte.";

#[derive(Parser)]
pub(crate) struct Swarm {
    /// How many seeds
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Longest phase of faults in seconds; a seed is another run with another value
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Print the plans and reports of all seeds
    #[arg(long)]
    verbose: bool,
}

/// Seeds after which one runs twice.
const TWICE: u64 = 25;

#[expect(clippy::disallowed_methods, reason = "a command tells how long it took")]
fn one(arguments: &Swarm, seed: u64) -> (Report, Duration) {
    let began = Instant::now();
    let plan = Plan::new(seed, Duration::from_secs_f64(arguments.seconds));
    let twice = seed.is_multiple_of(TWICE);
    let mut report = swarm::run(&plan, twice || arguments.verbose);
    if twice && report.violation.is_none() && swarm::run(&plan, true) != report {
        report.violation = Some("a second run was another one".to_owned());
    }
    (report, began.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "a command tells how long it took")]
pub(crate) fn run(arguments: &Swarm) -> Result<(), Failure> {
    in_range("seeds", arguments.seeds as f64, 1.0, 1e9).map_err(Failure::Usage)?;
    in_range("seconds", arguments.seconds, 0.1, 3_600.0).map_err(Failure::Usage)?;
    let seeds: Vec<u64> =
        (0..arguments.seeds).map(|number| arguments.from.wrapping_add(number)).collect();
    let began = Instant::now();
    // In parts, so that failures are seen while others run.
    let mut reports = Vec::with_capacity(seeds.len());
    for part in seeds.chunks(250) {
        for (report, time) in parallel(part, |&seed| one(arguments, seed)) {
            tell(arguments, &report)?;
            reports.push((report, time));
        }
    }
    summary(&reports, began.elapsed())?;
    let failed = reports.iter().filter(|(report, _)| report.violation.is_some()).count();
    if failed > 0 {
        return Err(Failure::Verdict(format!("{failed} of {} seeds failed", reports.len())));
    }
    Ok(())
}

fn tell(arguments: &Swarm, report: &Report) -> Result<(), Failure> {
    let seed = report.seed;
    if arguments.verbose {
        let plan = Plan::new(seed, Duration::from_secs_f64(arguments.seconds));
        say(&format!("{plan:#?}\n{report:#?}"))?;
    }
    if let Some(violation) = &report.violation {
        let seconds = arguments.seconds;
        say(&format!(
            "seed {seed}: {violation}\n  repeat: bats-sim swarm --from {seed} --seeds 1 --seconds {seconds} --verbose"
        ))?;
    }
    Ok(())
}

fn summary(reports: &[(Report, Duration)], time: Duration) -> Result<(), Failure> {
    let sum =
        |of: fn(&Report) -> u64| -> u64 { reports.iter().map(|(report, _)| of(report)).sum() };
    let virtual_time: Duration = reports.iter().map(|(report, _)| report.time).sum();
    let rows = [
        ("seeds", reports.len() as u64),
        ("connections", sum(|r| r.connections)),
        ("  finished by both", sum(|r| r.finished)),
        ("  closed early", sum(|r| r.closed)),
        ("  given up in long silence", sum(|r| r.given_up)),
        ("messages sent", sum(|r| r.sent)),
        ("messages delivered", sum(|r| r.delivered)),
        ("bytes delivered", sum(|r| r.bytes)),
        ("seeds with relays", sum(|r| r.relayed)),
        ("relays that lost their memory", sum(|r| r.restarts)),
        ("clients found elsewhere", sum(|r| r.moves)),
        ("packets", sum(|r| r.packets)),
        ("violations", sum(|r| u64::from(r.violation.is_some()))),
    ];
    rows.iter().try_for_each(|(name, value)| say(&format!("{name:30} {value:>16}")))?;
    say(&format!("{:30} {:>16.0}", "virtual seconds", virtual_time.as_secs_f64()))?;
    say(&format!("{:30} {:>16.1}", "seconds", time.as_secs_f64()))?;
    let worst =
        |of: fn(&(Report, Duration)) -> f64| reports.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
    if let Some((report, _)) = worst(|(report, _)| report.patience_used) {
        let text = format!("{:.0} % of the time allowed", report.patience_used * 100.0);
        say(&format!("slowest to finish: seed {}, {text}, {:?}", report.seed, report.to_finish))?;
    }
    if let Some((report, time)) = worst(|(_, time)| time.as_secs_f64()) {
        say(&format!("most work: seed {}, {:.2} s", report.seed, time.as_secs_f64()))?;
    }
    Ok(())
}
