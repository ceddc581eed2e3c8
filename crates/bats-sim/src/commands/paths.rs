//! Command `paths`: multipath bulk transfer.

use std::time::Duration;

use bats_sim::jobs::parallel;
use bats_sim::paths::{Paths, PathsFigures};
use clap::Parser;

use crate::{Failure, print_line};

/// Explanation of the columns.
pub(crate) const LEGEND: &str = "\
Goodput counts message bytes that became deliverable in order after the first third of the run, \
or in the last third if a link is cut. 'of': the bound, the sum of (1 - p) C over the paths that \
work in that time; C is in UDP payload of full frames, and a path of two links counts with the \
smaller. 'share': goodput divided by the bound; the goal is at least 0.9. 'gap ms': longest time \
without progress in the whole run, in steps of 10 ms; if a link is cut, the goal is one round \
trip of the longest path. 'ends repair': repairs sent by the source, per cent of its \
symbols. 'non-innov.': coded packets that were not innovative for the destination. The exit \
status is 1 if a bound is missed.";

#[derive(Parser)]
pub(crate) struct PathsArguments {
    /// Duration of a run in seconds, at least 6
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(6..=3_600))]
    seconds: u64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use direct sessions between neighbours instead of end-to-end sessions; without the scenario with relays
    #[arg(long)]
    direct: bool,
    /// Print the figures as a JSON array of objects
    #[arg(long)]
    json: bool,
}

/// "met", or the missed bounds.
fn verdict(figures: &PathsFigures) -> &'static str {
    match (figures.has_share(), figures.is_steady()) {
        (true, true) => "met",
        (false, true) => "MISSED: share",
        (true, false) => "MISSED: gap",
        (false, false) => "MISSED: share and gap",
    }
}

fn line(figures: &PathsFigures) -> String {
    let gap_bound = figures.gap_bound_ms.map_or("-".to_owned(), |bound| format!("<= {bound:.0}"));
    format!(
        "{:50} {:8.1} {:6.1} {:6.3} >= {:.2} {:7.0} {:>6} {:14.2} {:12.2}  {}",
        figures.name,
        figures.goodput_mbps,
        figures.bound_mbps,
        figures.share,
        figures.share_bound,
        figures.longest_gap_ms,
        gap_bound,
        figures.end_repairs_percent,
        figures.non_innovative_percent,
        verdict(figures),
    )
}

/// Runs all scenarios and prints their figures.
pub(crate) fn run(arguments: &PathsArguments) -> Result<(), Failure> {
    let seconds = Duration::from_secs(arguments.seconds);
    let runs = match arguments.direct {
        true => Paths::direct_scenarios(seconds, arguments.seed),
        false => Paths::scenarios(seconds, arguments.seed),
    };
    let figures = parallel(&runs, 0, Paths::run);
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&figures).map_err(|error| Failure::Io(error.into()))?;
        print_line(&text)?;
    } else {
        print_line(&format!(
            "{:50} {:>8} {:>6} {:>6} {:>7} {:>7} {:>6} {:>14} {:>12}",
            "paths",
            "Mbit/s",
            "of",
            "share",
            "bound",
            "gap ms",
            "bound",
            "ends repair %",
            "non-innov. %"
        ))?;
        figures.iter().try_for_each(|figures| print_line(&line(figures)))?;
    }
    match figures.iter().filter(|figures| !figures.is_met()).count() {
        0 => Ok(()),
        missed => Err(Failure::CheckFailed(format!("{missed} scenarios miss a bound"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(share: f64, longest_gap_ms: f64, gap_bound_ms: Option<f64>) -> PathsFigures {
        PathsFigures {
            name: "two",
            goodput_mbps: 100.0 * share,
            bound_mbps: 100.0,
            share,
            share_bound: 0.9,
            longest_gap_ms,
            gap_bound_ms,
            end_repairs_percent: 0.0,
            non_innovative_percent: 0.0,
        }
    }

    #[test]
    fn the_verdict_names_missed_bounds() {
        assert_eq!(verdict(&figures(0.9, 300.0, None)), "met");
        assert_eq!(verdict(&figures(0.9, 50.0, Some(50.0))), "met");
        assert_eq!(verdict(&figures(0.9, 60.0, Some(50.0))), "MISSED: gap");
        assert_eq!(verdict(&figures(0.89, 50.0, Some(50.0))), "MISSED: share");
        let neither = figures(0.89, 60.0, Some(50.0));
        assert_eq!(verdict(&neither), "MISSED: share and gap");
        assert!(!neither.is_met() && line(&neither).contains("<= 50"));
    }
}
