//! Command `swarm`: random runs that are checked against models.

use std::time::{Duration, Instant};

use bats_sim::jobs::parallel;
use bats_sim::swarm::{self, Plan, Report};
use clap::Parser;

use crate::{Failure, in_range, print_line};

/// Explanation of the report.
pub(crate) const LEGEND: &str = "\
A seed determines the links, up to three relays between them, their faults, the congestion \
control, and the traffic of up to four connections of modes BRTP, BRCTP, BTP and TRANSPARENT. \
During the faults, models check everything that is delivered. Then the faults end, and all \
connections must finish within a time computed from rate and round-trip time. A seed that fails \
is printed with the violation and the command that repeats it, and the exit status is 1. Every \
25th seed runs repeat, and both runs must be identical to the byte.";

#[derive(Parser)]
pub(crate) struct Swarm {
    /// Number of seeds
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Longest fault phase in seconds; another value gives other runs for the same seeds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seeds, separated by commas, that must fail: those of known defects. If one of them passes, the
    /// exit status is 1, too, so that the list is kept up to date
    #[arg(long, value_delimiter = ',')]
    fails: Vec<u64>,
    /// Print the plan and report of each seed
    #[arg(long)]
    verbose: bool,
}

/// One seed in this many runs twice.
const REPEAT_INTERVAL: u64 = 25;

#[expect(clippy::disallowed_methods, reason = "the command reports its wall-clock time")]
fn run_seed(arguments: &Swarm, seed: u64) -> (Report, Duration) {
    let began = Instant::now();
    let plan = Plan::new(seed, Duration::from_secs_f64(arguments.seconds));
    let repeat = seed.is_multiple_of(REPEAT_INTERVAL);
    let mut report = swarm::run(&plan, repeat || arguments.verbose);
    if repeat && report.violation.is_none() && swarm::run(&plan, true) != report {
        report.violation = Some("a second run of this seed was different".to_owned());
    }
    (report, began.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "the command reports its wall-clock time")]
pub(crate) fn run(arguments: &Swarm) -> Result<(), Failure> {
    in_range("seeds", arguments.seeds as f64, 1.0, 1e9).map_err(Failure::Usage)?;
    in_range("seconds", arguments.seconds, 0.1, 3_600.0).map_err(Failure::Usage)?;
    let seeds: Vec<u64> =
        (0..arguments.seeds).map(|number| arguments.from.wrapping_add(number)).collect();
    let began = Instant::now();
    // In parts, so that failures are printed while other seeds run.
    let mut reports = Vec::with_capacity(seeds.len());
    for part in seeds.chunks(250) {
        for (report, time) in parallel(part, 0, |&seed| run_seed(arguments, seed)) {
            print_report(arguments, &report)?;
            reports.push((report, time));
        }
    }
    summary(&reports, began.elapsed())?;
    let failed: Vec<u64> = reports
        .iter()
        .filter(|(report, _)| report.violation.is_some())
        .map(|(report, _)| report.seed)
        .collect();
    check(&failed, &seeds, &arguments.fails)
}

/// Compares the seeds that failed with those that must fail, as far as they have run.
fn check(failed: &[u64], run: &[u64], must_fail: &[u64]) -> Result<(), Failure> {
    let unexpected = failed.iter().filter(|seed| !must_fail.contains(seed)).count();
    if unexpected > 0 {
        let all = run.len();
        return Err(Failure::CheckFailed(format!("{unexpected} of {all} seeds failed")));
    }
    let passed = must_fail.iter().find(|seed| run.contains(seed) && !failed.contains(seed));
    passed.map_or(Ok(()), |seed| {
        Err(Failure::CheckFailed(format!("seed {seed} passes: remove it from --fails")))
    })
}

fn print_report(arguments: &Swarm, report: &Report) -> Result<(), Failure> {
    let seed = report.seed;
    if arguments.verbose {
        let plan = Plan::new(seed, Duration::from_secs_f64(arguments.seconds));
        print_line(&format!("{plan:#?}\n{report:#?}"))?;
    }
    if let Some(violation) = &report.violation {
        let seconds = arguments.seconds;
        print_line(&format!(
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
        ("  finished by both ends", sum(|r| r.finished)),
        ("  closed early", sum(|r| r.closed)),
        ("  ended by time-outs", sum(|r| r.timed_out)),
        ("messages sent", sum(|r| r.sent)),
        ("messages delivered", sum(|r| r.delivered)),
        ("bytes delivered", sum(|r| r.bytes)),
        ("seeds with relays", sum(|r| r.relayed)),
        ("relay restarts", sum(|r| r.restarts)),
        ("client address changes", sum(|r| r.path_changes)),
        ("packets sent", sum(|r| r.packets)),
        ("violations", sum(|r| u64::from(r.violation.is_some()))),
    ];
    rows.iter().try_for_each(|(name, value)| print_line(&format!("{name:30} {value:>16}")))?;
    print_line(&format!("{:30} {:>16.0}", "virtual time, s", virtual_time.as_secs_f64()))?;
    print_line(&format!("{:30} {:>16.1}", "wall-clock time, s", time.as_secs_f64()))?;
    let worst =
        |of: fn(&(Report, Duration)) -> f64| reports.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
    if let Some((report, _)) = worst(|(report, _)| report.time_limit_used) {
        let text = format!("{:.0} % of the allowed time", report.time_limit_used * 100.0);
        print_line(&format!(
            "slowest to finish: seed {}, {text}, {:?}",
            report.seed, report.to_finish
        ))?;
    }
    if let Some((report, time)) = worst(|(_, time)| time.as_secs_f64()) {
        print_line(&format!(
            "longest wall-clock time: seed {}, {:.2} s",
            report.seed,
            time.as_secs_f64()
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_fail_exactly_if_they_must() {
        let run = [1, 2, 3];
        assert!(check(&[], &run, &[]).is_ok());
        assert!(check(&[2], &run, &[2]).is_ok());
        assert!(check(&[2], &run, &[]).is_err(), "a seed fails that must not");
        assert!(check(&[2], &run, &[3]).is_err(), "a seed fails that must not");
        assert!(check(&[], &run, &[2]).is_err(), "a seed passes that must fail");
        assert!(check(&[], &run, &[7]).is_ok(), "a seed that did not run");
    }
}
