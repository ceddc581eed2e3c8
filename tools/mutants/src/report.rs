//! Results of an area in a file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result as Fallible};

use crate::judge::{Missed, Verdict};
use crate::tree::State;

/// A part of the package, whose score counts by itself.
pub struct Area {
    pub name: String,
    /// Start of the names of its unit tests.
    pub prefix: String,
    pub list: PathBuf,
}

/// A mutant's result as the file has it: the class and why.
pub struct Result {
    class: &'static str,
    why: &'static str,
}

impl Result {
    pub fn new(state: &State, verdict: Option<Verdict>) -> Self {
        let (class, why) = match (state, verdict) {
            (State::Unviable, _) => ("unviable", "the compiler rejects it"),
            (State::Unmeasured(why), _) => ("unmeasured", *why),
            (State::Switched, Some(Verdict::Caught)) => ("caught", "a test fails"),
            (State::Switched, Some(Verdict::TimedOut)) => ("caught", "a test does not end"),
            (State::Switched, Some(Verdict::Missed(missed))) => (
                "missed",
                match missed {
                    Missed::Unreached => "no test reaches it",
                    Missed::Passed => "all tests pass that reach it",
                    Missed::Limited => "the tests pass that reach it and fit the limit of time",
                },
            ),
            (State::Switched, None) => ("unmeasured", "not tested"),
        };
        Self { class, why }
    }
}

/// Writes `results.tsv`: class, reason and name of each mutant.
pub fn write<'a>(
    directory: &Path,
    results: impl Iterator<Item = (&'a str, Result)>,
) -> Fallible<()> {
    let mut text = String::new();
    for (name, Result { class, why }) in results {
        writeln!(text, "{class}\t{why}\t{name}")?;
    }
    std::fs::create_dir_all(directory)?;
    let path = directory.join("results.tsv");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
