//! The command `paths`.

use std::time::Duration;

use bats_sim::paths::{Paths, PathsFigures};
use clap::Parser;

use super::parallel;
use crate::{Failure, say};

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
Goodput counts message octets that became deliverable in order from the second third of the run on; \
where a link is cut at a third of the run, in its last third. The bound is the sum of (1 - p) C over the \
ways that are there then, C in UDP payload of full frames, of a way of two links the lesser. 'longest \
gap': time without any message, from the beginning on, in steps of 100 ms. 'ends repair': repairs that the \
source sent, per cent of its symbols. 'useless': coded packets that brought the destination nothing.";

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

fn line(figures: &PathsFigures) -> String {
    format!(
        "{:50} {:15.1} {:7.1} {:7.3} {:14.0} {:14.2} {:10.2}",
        figures.name,
        figures.goodput_mbps,
        figures.bound_mbps,
        figures.share,
        figures.longest_gap_ms,
        figures.end_repairs_percent,
        figures.useless_percent,
    )
}

/// Runs all scenes and prints their figures.
pub(crate) fn run(arguments: &PathsArguments) -> Result<(), Failure> {
    let runs = Paths::usual(Duration::from_secs(arguments.seconds), arguments.seed);
    let figures = parallel(&runs, Paths::run);
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&figures).map_err(|error| Failure::Io(error.into()))?;
        return say(&text);
    }
    say(&format!(
        "{:50} {:>15} {:>7} {:>7} {:>14} {:>14} {:>10}",
        "ways", "goodput Mbit/s", "bound", "share", "longest gap ms", "ends repair %", "useless %"
    ))?;
    figures.iter().try_for_each(|figures| say(&line(figures)))
}
