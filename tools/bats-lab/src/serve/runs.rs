//! Runs: those in the folder of results, and those that this server has started.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use axum::http::StatusCode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::past::Past;
use super::{Order, Refusal};
use crate::config::load;
use crate::config::tests_of::file_name;
use crate::plan;
use crate::run::progress::LIVE;

/// Most past runs that are listed.
const MOST: usize = 500;

/// The runs.
pub(super) struct Runs {
    results: PathBuf,
    started: Mutex<BTreeMap<String, Started>>,
    past: Past,
}

/// A run that this server has started.
struct Started {
    child: Child,
    /// How it ended, if it has: whether well, and its last words.
    ended: Option<(bool, String)>,
    /// Whether it was asked to end.
    interrupted: bool,
    errors: PathBuf,
}

impl Started {
    fn poll(&mut self) {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            let words = fs::read_to_string(&self.errors).unwrap_or_default();
            let last = words.lines().rfind(|line| !line.trim().is_empty());
            // One that was interrupted before it began to listen for that has no words.
            let last = match last {
                Some(last) => last.to_owned(),
                None if self.interrupted => "interrupted".to_owned(),
                None if !status.success() => status.to_string(),
                None => String::new(),
            };
            self.ended = Some((status.success(), last));
            let _ = fs::remove_file(&self.errors);
        }
    }

    fn interrupt(&mut self) {
        self.interrupted = true;
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
    }
}

/// The digits of a time with milliseconds, as a result and as a folder's name has it, in rising order.
fn began(text: &str) -> String {
    text.chars().take("2026-01-01T00:00:00.000".len()).filter(char::is_ascii_digit).collect()
}

/// The same of a run without a result; where its folder is not named by the time, when that has changed.
fn began_by_name(name: &str, changed: Option<SystemTime>) -> String {
    let is_stamp = name.get(.."2026-01-01T00-00-00".len()).is_some_and(|stamp| {
        stamp.chars().all(|letter| letter.is_ascii_digit() || matches!(letter, '-' | 'T'))
    });
    let changed = changed.and_then(|time| jiff::Timestamp::try_from(time).ok());
    match changed.filter(|_| !is_stamp) {
        Some(time) => began(&time.to_string()),
        None => began(name),
    }
}

impl Runs {
    pub(super) fn new(results: PathBuf) -> Self {
        Self { results, started: Mutex::new(BTreeMap::new()), past: Past::default() }
    }

    fn started(&self) -> MutexGuard<'_, BTreeMap<String, Started>> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.values_mut().for_each(Started::poll);
        started
    }

    /// The plan of a test file, or of its test `only`, in words.
    pub(super) fn check(&self, yaml: &str, only: Option<&str>) -> Result<String> {
        let path = self.results.join(format!(
            ".check-{}-{:?}.yaml",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::write(&path, yaml).context("cannot write in the folder of results")?;
        let suite = load::suite(&path.to_string_lossy(), only);
        let _ = fs::remove_file(&path);
        let suite = suite.map_err(|error| {
            let text = format!("{error:#}");
            anyhow::anyhow!(text.replace(&*path.to_string_lossy(), "file"))
        })?;
        Ok(plan::describe(&suite, None, true))
    }

    /// Starts a run. Returns its name.
    pub(super) fn start(&self, order: &Order) -> Result<String, Refusal> {
        let what = match (&order.case, &order.yaml) {
            (Some(case), None) => {
                let name = format!("case:{case}");
                load::suite(&name, order.only.as_deref())
                    .map_err(|error| Refusal::wrong(format!("{error:#}")))?;
                name
            }
            (None, Some(yaml)) => {
                self.check(yaml, order.only.as_deref())
                    .map_err(|error| Refusal::wrong(format!("{error:#}")))?;
                "own".to_owned()
            }
            _ => return Err(Refusal::wrong("say either `case` or `yaml`")),
        };
        let mut started = self.started();
        if let Some((name, _)) = started.iter().find(|(_, run)| run.ended.is_none()) {
            return Err(Refusal(
                StatusCode::CONFLICT,
                format!("{name} is running: runs would disturb each other"),
            ));
        }
        // A run that is stopped leaves no result: its name alone tells when it began, also within a second.
        let stamp = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S.%3f");
        let base = format!("{stamp}-{}", file_name(what.trim_start_matches("case:")));
        let is_free = |name: &str| !self.results.join(name).exists() && !started.contains_key(name);
        let name = (0..1000)
            .map(|count| if count == 0 { base.clone() } else { format!("{base}-{count}") })
            .find(|name| is_free(name))
            .ok_or_else(|| Refusal::wrong("there are too many runs of this millisecond"))?;
        let place = self.results.join(&name);
        let file = match &order.yaml {
            Some(yaml) => {
                let path = self.results.join(format!("{name}.yaml"));
                fs::write(&path, yaml).context("cannot write in the folder of results")?;
                path.to_string_lossy().into_owned()
            }
            None => what,
        };
        let errors = self.results.join(format!(".{name}.err"));
        let output = File::create(&errors).context("cannot write in the folder of results")?;
        let own = std::env::current_exe().context("cannot find batslab itself")?;
        let mut command = Command::new(own);
        command.arg("run").arg(file).arg("--quiet").arg("--out").arg(&place);
        if let Some(only) = &order.only {
            command.arg(format!("--only={only}"));
        }
        if let Some(backend) = order.backend {
            command.arg("--backend").arg(backend.name());
        }
        command.env_remove("CARGO_MANIFEST_DIR");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .context("cannot start the run")?;
        started.insert(name.clone(), Started { child, ended: None, interrupted: false, errors });
        Ok(name)
    }

    /// All runs, the newest first. Files are read without the lock: who starts or stops a run does not
    /// wait for them.
    pub(super) fn list(&self) -> Value {
        let mut found: Vec<(Option<SystemTime>, String)> = fs::read_dir(&self.results)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                entry.path().join(LIVE).exists() || entry.path().join("result.json").exists()
            })
            .filter_map(|entry| {
                let changed = entry.metadata().and_then(|data| data.modified()).ok();
                Some((changed, entry.file_name().into_string().ok()?))
            })
            .collect();
        // Of many the results are not read: the folders that have changed last are the newest.
        found.sort_by(|one, other| other.cmp(one));
        found.truncate(MOST);
        let changed: BTreeMap<String, Option<SystemTime>> =
            found.into_iter().map(|(changed, name)| (name, changed)).collect();
        let mut names: Vec<String> = changed.keys().cloned().collect();
        let own: BTreeMap<String, (bool, Option<String>)> = self
            .started()
            .iter()
            .map(|(name, run)| {
                let words = run.ended.as_ref().map(|ended| ended.1.clone());
                (name.clone(), (run.ended.is_none(), words))
            })
            .collect();
        names.extend(own.keys().cloned());
        names.sort();
        names.dedup();
        names.reverse();
        let mut list: Vec<(String, Value)> = Vec::new();
        for name in &names {
            let (running, error) = own.get(name).cloned().unwrap_or_default();
            let place = self.results.join(name);
            let result = if running { None } else { self.past.summary(name, &place) };
            let started = result.as_ref().map(|result| result.started.as_str());
            let changed = changed.get(name).copied().flatten();
            let order = started.map_or_else(|| began_by_name(name, changed), began);
            let entry = json!({
                "name": name,
                "running": running,
                "passed": result.as_ref().map(|result| result.passed),
                "file": result.as_ref().map(|result| result.file.clone()),
                "started": result.as_ref().map(|result| result.started.clone()),
                "seconds": result.as_ref().map(|result| result.seconds),
                "error": error.filter(|text| !text.is_empty() && result.is_none()),
                "report": place.join("report.html").exists().then(|| format!("/runs/{name}/report.html")),
            });
            list.push((order, entry));
        }
        self.past.keep(&names);
        // Folders that `--out` has named are in no order of time.
        list.sort_by(|one, other| other.0.cmp(&one.0));
        list.truncate(MOST);
        list.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether a run goes on.
    pub(super) fn is_running(&self, name: &str) -> bool {
        self.started().get(name).is_some_and(|run| run.ended.is_none())
    }

    /// Interrupts a run.
    pub(super) fn stop(&self, name: &str) -> Result<(), Refusal> {
        match self.started().get_mut(name) {
            Some(run) if run.ended.is_none() => {
                run.interrupt();
                Ok(())
            }
            _ => Err(Refusal::missing("no such run goes on")),
        }
    }

    /// A file of a run. Nothing outside of its folder is one.
    pub(super) fn file(&self, name: &str, path: &str) -> Result<PathBuf, Refusal> {
        let plain =
            |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let one = Path::new(name);
        if one.components().count() != 1
            || !plain(one)
            || !plain(Path::new(path))
            || name.starts_with('.')
        {
            return Err(Refusal::missing("there is no such file"));
        }
        let folder = self.results.join(name);
        let place = folder.join(path);
        // A link must not lead out, either. A run that is about to begin has no file yet.
        match place.canonicalize() {
            Ok(real) if real.starts_with(&folder) => Ok(real),
            Ok(_) => Err(Refusal::missing("there is no such file")),
            Err(_) if self.started().contains_key(name) => Ok(place),
            Err(_) => Err(Refusal::missing("there is no such file")),
        }
    }

    /// Interrupts what still runs and waits for it.
    pub(super) fn end_all(&self) {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let mut started = self.started();
            let running: Vec<&mut Started> =
                started.values_mut().filter(|run| run.ended.is_none()).collect();
            if running.is_empty() {
                break;
            }
            let late = Instant::now() > deadline;
            for run in running {
                if late {
                    let _ = run.child.kill();
                } else {
                    run.interrupt();
                }
            }
            drop(started);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_more_runs_than_are_listed_the_oldest_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let begin = SystemTime::now();
        let run = |name: &str, second: u64, text: &str| {
            let place = folder.path().join(name);
            fs::create_dir(&place).unwrap();
            fs::write(place.join("result.json"), text).unwrap();
            let time = begin + Duration::from_secs(second);
            File::open(place).unwrap().set_modified(time).unwrap();
        };
        run("z-first", 0, "");
        for number in 0..MOST as u64 {
            run(&format!("run-{number}"), 1 + number, "");
        }
        // By its name it would be the last.
        let started = jiff::Timestamp::try_from(begin + Duration::from_secs(2_000)).unwrap();
        let newest =
            json!({ "passed": true, "file": "x", "started": started.to_string(), "seconds": 1 });
        run("1-newest", 2_000, &newest.to_string());
        let list = Runs::new(folder.path().to_owned()).list();
        let names: Vec<&str> =
            list.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!((names.len(), names[0]), (MOST, "1-newest"));
        assert!(!names.contains(&"z-first") && !names.contains(&"run-0"));
    }
}
