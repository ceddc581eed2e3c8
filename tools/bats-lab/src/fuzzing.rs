//! Body of a fuzz target; `tests/replay.rs` replays its corpus. Not part of the API.

use std::path::Path;

use bats_sim::arena::draw::Draw;

use crate::config::load;
use crate::config::model::TopologyFile;
use crate::config::source::Source;
use crate::plan::{self, MAX_MEASUREMENTS};

/// The name of the file in errors.
const FILE: &str = "scenario.yaml";

/// What a text is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Measurements of a valid test file.
    pub measurements: usize,
    /// Whether it is a valid file of topologies.
    pub is_topology_file: bool,
    /// Cells of a valid file of `bats-sim arena`.
    pub cells: usize,
}

/// Parses `data` as a test file, a file of topologies, and a file of cells of `bats-sim arena`. The plan of a valid
/// test file is described as `batslab check` does and has a bounded size; valid cells are built with their own and
/// with drawn parameters. Errors name the file and a cause.
///
/// # Panics
/// A property is violated.
pub fn scenario_run(data: &[u8]) -> Report {
    let mut report = Report::default();
    let Ok(text) = std::str::from_utf8(data) else { return report };
    let source = Source::shipped(FILE, text);
    match load::parse(&source) {
        Ok(suite) => {
            let measurements = suite.cases.iter().map(|case| case.measurements());
            report.measurements = measurements.sum();
            assert!(report.measurements <= MAX_MEASUREMENTS, "{}", report.measurements);
            let is_short = report.measurements <= 1_000;
            assert!(suite.cases.is_empty() || !plan::describe(&suite, None, is_short).is_empty());
            assert!(suite.seconds().is_finite());
            for case in &suite.cases {
                assert!(case.measurements() > 0 && case.conditions().iter().all(|c| !c.is_empty()));
            }
        }
        Err(errors) => {
            assert!(!errors.0.is_empty());
            errors.0.iter().for_each(|error| check_error(&error.to_string()));
        }
    }
    match source.parse::<TopologyFile>() {
        Ok(_) => report.is_topology_file = true,
        Err(error) => check_error(&error.to_string()),
    }
    // No file is in a folder below one that does not exist.
    match bats_sim::arena::file::parse(FILE, text, Path::new("/nonexistent")) {
        Ok(contests) => {
            report.cells = contests.len();
            for contest in contests {
                for mut draw in [Draw::published(1), Draw::held_out(3, &contest.name, 2)] {
                    let cell = contest.cell(&mut draw);
                    assert!(!cell.flows.is_empty() && !cell.hops.is_empty(), "{}", contest.name);
                }
            }
        }
        Err(error) => check_error(&error.to_string()),
    }
    report
}

/// An error has the name of the file, and says something.
fn check_error(text: &str) {
    let cause = text.strip_prefix(FILE).and_then(|rest| rest.split_once(": "));
    assert!(cause.is_some_and(|(_, cause)| !cause.trim().is_empty()), "{text:?}");
}
