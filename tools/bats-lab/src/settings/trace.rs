//! Recorded rate traces in mahimahi's format, read from files.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bats_netem::Trace;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Maximum size of a trace file in bytes: the longest trace that `bats-netem` takes.
const MAX_BYTES: u64 = 128 << 20;

/// Traces that were read, by their path.
static READ: Mutex<BTreeMap<String, bats_netem::RateSchedule>> = Mutex::new(BTreeMap::new());

/// A recorded trace. In a test file it is the name of the file; in the state of a lab it also has the
/// mean rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub(crate) struct TraceFile {
    /// The name of the file; absolute after [`TraceFile::resolve`].
    pub(crate) path: String,
    /// Mean rate in bits per second.
    pub(crate) mean_bps: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Name(String),
    Resolved { path: String, mean_bps: u64 },
}

impl From<Stored> for TraceFile {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Name(path) => Self { path, mean_bps: 0 },
            Stored::Resolved { path, mean_bps } => Self { path, mean_bps },
        }
    }
}

impl JsonSchema for TraceFile {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TraceFile".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl TraceFile {
    /// Reads and checks the file, whose name is relative to `folder`.
    ///
    /// # Errors
    /// If it cannot be read, is too large or has a bad line; the text names file and line.
    pub(crate) fn resolve(&mut self, folder: &Path) -> Result<(), String> {
        let path = folder.join(&self.path);
        let path = path
            .canonicalize()
            .map_err(|error| format!("the trace {} cannot be read: {error}", path.display()))?;
        let path = path
            .to_str()
            .ok_or_else(|| format!("the name of the trace {} is not UTF-8", path.display()))?;
        let schedule = read(path)?;
        self.path = path.to_owned();
        self.mean_bps = match &schedule {
            bats_netem::RateSchedule::Pieces(pieces) => pieces.mean_bps(),
            _ => 0,
        };
        READ.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned(), schedule);
        Ok(())
    }

    /// The trace as a schedule. A file is read once in a process.
    ///
    /// # Errors
    /// As [`TraceFile::resolve`].
    pub(crate) fn schedule(&self) -> Result<bats_netem::RateSchedule, String> {
        let mut known = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schedule) = known.get(&self.path) {
            return Ok(schedule.clone());
        }
        let schedule = read(&self.path)?;
        known.insert(self.path.clone(), schedule.clone());
        Ok(schedule)
    }

    /// The name without directories.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

fn read(path: &str) -> Result<bats_netem::RateSchedule, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("the trace {path} cannot be read: {error}");
    let information = std::fs::metadata(path).map_err(|error| wrong(&error))?;
    if !information.is_file() {
        return Err(format!("the trace {path} is not a file"));
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| wrong(&error))?;
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("the trace {path} is larger than {} MiB", MAX_BYTES >> 20));
    }
    let trace = Trace::parse(&text).map_err(|error| {
        let at = if error.line > 0 { format!(":{}", error.line) } else { String::new() };
        let only = bats_netem::TraceError { line: 0, ..error };
        format!(
            "the trace {path}{at} is invalid: {only}; each line is the time in ms at which the link delivers 1,500 bytes"
        )
    })?;
    Ok(bats_netem::RateSchedule::trace(&trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_lines_sizes_and_paths_are_named() {
        let folder = std::env::temp_dir().join(format!("batslab-trace-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let of = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            let mut trace = TraceFile { path: name.to_owned(), mean_bps: 0 };
            trace.resolve(&folder).map(|()| trace)
        };
        // Two opportunities in four milliseconds: 6 Mbit/s.
        let good = of("good", "2\n4\n").unwrap();
        assert_eq!((good.mean_bps, good.name()), (6_000_000, "good"));
        assert!(good.schedule().is_ok());
        let stored: TraceFile =
            serde_json::from_value(serde_json::to_value(&good).unwrap()).unwrap();
        assert_eq!(stored, good);
        for (name, text, words) in [
            ("words", "1\nfast\n", "words:2 is invalid: not a whole number"),
            ("back", "5\n3\n", "back:2 is invalid: earlier than the line before"),
            ("empty", "", "no delivery opportunity"),
        ] {
            let error = of(name, text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut missing = TraceFile { path: "missing".to_owned(), mean_bps: 0 };
        assert!(missing.resolve(&folder).unwrap_err().contains("missing cannot be read"));
        let mut device = TraceFile { path: "/dev/zero".to_owned(), mean_bps: 0 };
        assert!(device.resolve(&folder).unwrap_err().contains("is not a file"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
