//! Cached summaries of past runs.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Deserialize;

/// Summary of a run for lists.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Summary {
    pub(super) passed: bool,
    pub(super) file: String,
    pub(super) started: String,
    pub(super) seconds: f64,
}

/// Modification time and size of a file.
type Stamp = (Option<SystemTime>, u64);

/// Summaries by name of the run.
#[derive(Default)]
pub(super) struct SummaryCache(Mutex<BTreeMap<String, (Stamp, Option<Summary>)>>);

impl SummaryCache {
    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Stamp, Option<Summary>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The summary of the run in the directory; `None` if it has no result, or one in another
    /// format. The file is read without holding the lock.
    pub(super) fn summary(&self, name: &str, folder: &Path) -> Option<Summary> {
        let file = fs::File::open(folder.join("result.json")).ok()?;
        let data = file.metadata().ok()?;
        let stamp = (data.modified().ok(), data.len());
        if let Some((known, summary)) = self.entries().get(name)
            && *known == stamp
        {
            return summary.clone();
        }
        // The deserializer skips all other keys.
        let summary: Option<Summary> = serde_json::from_reader(BufReader::new(file)).ok();
        self.entries().insert(name.to_owned(), (stamp, summary.clone()));
        summary
    }

    /// Removes all other runs from the cache.
    pub(super) fn keep(&self, names: &[String]) {
        let names: BTreeSet<&String> = names.iter().collect();
        self.entries().retain(|name, _| names.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_results_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result.json");
        let write = |passed: bool, more: &str| {
            let text = serde_json::json!({
                "passed": passed, "file": "x", "started": "now", "seconds": 1.5, "more": [more],
            });
            fs::write(&file, text.to_string()).unwrap();
        };
        let past = SummaryCache::default();
        assert_eq!(past.summary("a", folder.path()), None);
        write(true, "");
        assert!(past.summary("a", folder.path()).is_some_and(|one| one.passed));
        write(false, "longer");
        assert!(past.summary("a", folder.path()).is_some_and(|one| !one.passed));
        // With the same stamp the cached summary is returned.
        let stamp = fs::metadata(&file).unwrap().modified().unwrap();
        write(false, "nonsens");
        let mut text = fs::read(&file).unwrap();
        let length = text.len() - 1;
        text.truncate(length - 1);
        text.resize(length, b' ');
        fs::write(&file, &text).unwrap();
        fs::File::options().append(true).open(&file).unwrap().set_modified(stamp).unwrap();
        assert!(past.summary("a", folder.path()).is_some());
        past.keep(&[]);
        assert_eq!(past.summary("a", folder.path()), None, "the result is invalid");
    }
}
