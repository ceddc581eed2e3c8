//! What lists show of past runs: read from their results once, as long as these stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Deserialize;

/// What a list shows of a run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Summary {
    pub(super) passed: bool,
    pub(super) file: String,
    pub(super) started: String,
    pub(super) seconds: f64,
}

/// When a file was written, and how long it is.
type Stamp = (Option<SystemTime>, u64);

/// What is known of past runs, by name.
#[derive(Default)]
pub(super) struct Past(Mutex<BTreeMap<String, (Stamp, Option<Summary>)>>);

impl Past {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (Stamp, Option<Summary>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a list shows of the run in the folder; nothing where it has no result, or one of another
    /// format. The file is read without a lock.
    pub(super) fn summary(&self, name: &str, folder: &Path) -> Option<Summary> {
        let file = fs::File::open(folder.join("result.json")).ok()?;
        let data = file.metadata().ok()?;
        let stamp = (data.modified().ok(), data.len());
        if let Some((known, summary)) = self.known().get(name)
            && *known == stamp
        {
            return summary.clone();
        }
        // All but a few words of it is passed over.
        let summary: Option<Summary> = serde_json::from_reader(BufReader::new(file)).ok();
        self.known().insert(name.to_owned(), (stamp, summary.clone()));
        summary
    }

    /// Forgets all other runs.
    pub(super) fn keep(&self, names: &[String]) {
        let names: BTreeSet<&String> = names.iter().collect();
        self.known().retain(|name, _| names.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_read_again_and_what_has_not_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result.json");
        let write = |passed: bool, more: &str| {
            let text = serde_json::json!({
                "passed": passed, "file": "x", "started": "now", "seconds": 1.5, "more": [more],
            });
            fs::write(&file, text.to_string()).unwrap();
        };
        let past = Past::default();
        assert_eq!(past.summary("a", folder.path()), None);
        write(true, "");
        assert!(past.summary("a", folder.path()).is_some_and(|one| one.passed));
        write(false, "longer");
        assert!(past.summary("a", folder.path()).is_some_and(|one| !one.passed));
        // The same stamp: what is remembered is told.
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
        assert_eq!(past.summary("a", folder.path()), None, "it is broken");
    }
}
