//! The command `paths`.

use std::time::Duration;

use bats_sim::paths::{Paths, PathsFigures};
use clap::Parser;

use super::parallel;
use crate::{Failure, say};

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
Goodput counts message bytes that became deliverable in order from the second third of the run on; \
where a link is cut at a third of the run, in its last third. The bound is the sum of (1 - p) C over the \
ways that are there then, C in UDP payload of full frames, of a way of two links the lesser; 'share' is \
to be 0.9 of it. 'longest gap': time without any message, from the beginning on, in steps of 10 ms; where \
a link is cut it is to be no longer than the round trip of what is left. 'ends repair': repairs that the \
source sent, per cent of its symbols. 'useless': coded packets that brought the destination nothing. \
The exit status is 1 if a bound is not kept.";

#[derive(Parser)]
pub(crate) struct PathsArguments {
    /// Length of a run in seconds, at least 6
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(6..=3_600))]
    seconds: u64,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print an array of objects
    #[arg(long)]
    json: bool,
}

/// What is not kept, or that all is.
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
        "{:50} {:8.1} {:6.1} {:6.3} >= {:.2} {:7.0} {:>6} {:14.2} {:10.2}  {}",
        figures.name,
        figures.goodput_mbps,
        figures.bound_mbps,
        figures.share,
        figures.share_bound,
        figures.longest_gap_ms,
        gap_bound,
        figures.end_repairs_percent,
        figures.useless_percent,
        verdict(figures),
    )
}

/// Runs all scenes and prints their figures.
pub(crate) fn run(arguments: &PathsArguments) -> Result<(), Failure> {
    let runs = Paths::usual(Duration::from_secs(arguments.seconds), arguments.seed);
    let figures = parallel(&runs, Paths::run);
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&figures).map_err(|error| Failure::Io(error.into()))?;
        say(&text)?;
    } else {
        say(&format!(
            "{:50} {:>8} {:>6} {:>6} {:>7} {:>7} {:>6} {:>14} {:>10}",
            "ways",
            "Mbit/s",
            "of",
            "share",
            "bound",
            "gap ms",
            "bound",
            "ends repair %",
            "useless %"
        ))?;
        figures.iter().try_for_each(|figures| say(&line(figures)))?;
    }
    match figures.iter().filter(|figures| !figures.is_met()).count() {
        0 => Ok(()),
        missed => Err(Failure::Verdict(format!("the bounds of {missed} scenes are not kept"))),
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
            useless_percent: 0.0,
        }
    }

    #[test]
    fn the_verdict_says_what_is_not_kept() {
        assert_eq!(verdict(&figures(0.9, 300.0, None)), "met");
        assert_eq!(verdict(&figures(0.9, 50.0, Some(50.0))), "met");
        assert_eq!(verdict(&figures(0.9, 60.0, Some(50.0))), "MISSED: gap");
        assert_eq!(verdict(&figures(0.89, 50.0, Some(50.0))), "MISSED: share");
        let neither = figures(0.89, 60.0, Some(50.0));
        assert_eq!(verdict(&neither), "MISSED: share and gap");
        assert!(!neither.is_met() && line(&neither).contains("<= 50"));
    }
}
