//! Runs: past ones in the results directory, and those that this server started.

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
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::past::SummaryCache;
use crate::config::expand::file_name;
use crate::config::load;
use crate::config::model::BackendName;
use crate::plan;
use crate::run::progress::EVENTS_FILE;

/// Maximum number of listed runs.
const MAX_LISTED: usize = 500;

/// A run without a result whose events are older than this was killed. Chosen: events are written
/// at least every few seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(120);

/// A run to start: a shipped case, or the text of a test file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartRequest {
    case: Option<String>,
    yaml: Option<String>,
    only: Option<String>,
    #[serde(default)]
    quick: bool,
    backend: Option<BackendName>,
}

/// The runs.
pub(super) struct Runs {
    results: PathBuf,
    started: Mutex<BTreeMap<String, StartedRun>>,
    past: SummaryCache,
}

/// A run that this server started.
struct StartedRun {
    child: Child,
    /// Its success and its last message, if it has ended.
    ended: Option<(bool, String)>,
    /// Whether it was interrupted.
    interrupted: bool,
    errors: PathBuf,
}

impl StartedRun {
    fn poll(&mut self) {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            let words = fs::read_to_string(&self.errors).unwrap_or_default();
            let last = words.lines().rfind(|line| !line.trim().is_empty());
            // A run that is interrupted before it installs its signal handler prints nothing.
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

/// The digits of a time with milliseconds, as in results and in directory names, as a sort key.
fn start_key(text: &str) -> String {
    text.chars().take("2026-01-01T00:00:00.000".len()).filter(char::is_ascii_digit).collect()
}

/// Whether a run has a name that [`Runs::start`] gives.
fn begins_with_a_stamp(name: &str) -> bool {
    name.get(.."2026-01-01T00-00-00".len()).is_some_and(|stamp| {
        stamp.chars().all(|letter| letter.is_ascii_digit() || matches!(letter, '-' | 'T'))
    })
}

/// The sort key of a run without a result: from its name, or from the modification time of its
/// directory.
fn start_key_without_result(name: &str, changed: Option<SystemTime>) -> String {
    let changed = changed.and_then(|time| jiff::Timestamp::try_from(time).ok());
    match changed.filter(|_| !begins_with_a_stamp(name)) {
        Some(time) => start_key(&time.to_string()),
        None => start_key(name),
    }
}

impl Runs {
    pub(super) fn new(results: PathBuf) -> Self {
        Self { results, started: Mutex::new(BTreeMap::new()), past: SummaryCache::default() }
    }

    fn started(&self) -> MutexGuard<'_, BTreeMap<String, StartedRun>> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.values_mut().for_each(StartedRun::poll);
        started
    }

    /// Describes the plan of a test file, or of its test `only`.
    pub(super) fn check(&self, yaml: &str, only: Option<&str>) -> Result<String> {
        let path = self.results.join(format!(
            ".check-{}-{:?}.yaml",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::write(&path, yaml).context("cannot write in the results directory")?;
        let suite = load::suite(&path.to_string_lossy(), only);
        let _ = fs::remove_file(&path);
        let suite = suite.map_err(|error| {
            let text = format!("{error:#}");
            anyhow::anyhow!(text.replace(&*path.to_string_lossy(), "file"))
        })?;
        Ok(plan::describe(&suite, None, true))
    }

    /// Starts a run. Returns its name.
    pub(super) fn start(&self, order: &StartRequest) -> Result<String, ApiError> {
        let what = match (&order.case, &order.yaml) {
            (Some(case), None) => {
                let name = format!("case:{case}");
                load::suite(&name, order.only.as_deref())
                    .map_err(|error| ApiError::bad_request(format!("{error:#}")))?;
                name
            }
            (None, Some(yaml)) => {
                self.check(yaml, order.only.as_deref())
                    .map_err(|error| ApiError::bad_request(format!("{error:#}")))?;
                "own".to_owned()
            }
            _ => return Err(ApiError::bad_request("either `case` or `yaml` is required")),
        };
        let mut started = self.started();
        if let Some((name, _)) = started.iter().find(|(_, run)| run.ended.is_none()) {
            return Err(ApiError(
                StatusCode::CONFLICT,
                format!("{name} is running: concurrent runs would affect each other"),
            ));
        }
        // A stopped run leaves no result, so its name must contain the start time, precise enough
        // to order runs within a second.
        let stamp = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S.%3f");
        let base = format!("{stamp}-{}", file_name(what.trim_start_matches("case:")));
        let is_free = |name: &str| !self.results.join(name).exists() && !started.contains_key(name);
        let name = (0..1000)
            .map(|count| if count == 0 { base.clone() } else { format!("{base}-{count}") })
            .find(|name| is_free(name))
            .ok_or_else(|| ApiError::bad_request("too many runs in this millisecond"))?;
        let place = self.results.join(&name);
        let file = match &order.yaml {
            Some(yaml) => {
                let path = self.results.join(format!("{name}.yaml"));
                fs::write(&path, yaml).context("cannot write in the results directory")?;
                path.to_string_lossy().into_owned()
            }
            None => what,
        };
        let errors = self.results.join(format!(".{name}.err"));
        let output = File::create(&errors).context("cannot write in the results directory")?;
        let own = std::env::current_exe().context("cannot find batslab itself")?;
        let mut command = Command::new(own);
        command.arg("run").arg(file).arg("--quiet").arg("--out").arg(&place);
        if let Some(only) = &order.only {
            command.arg(format!("--only={only}"));
        }
        if let Some(backend) = order.backend {
            command.arg("--backend").arg(backend.name());
        }
        if order.quick {
            command.arg("--quick");
        }
        // Programs that a test starts have no business with this server.
        command.env_remove("CARGO_MANIFEST_DIR").env_remove("BATSLAB_TOKEN");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .context("cannot start the run")?;
        started.insert(name.clone(), StartedRun { child, ended: None, interrupted: false, errors });
        Ok(name)
    }

    /// All runs, newest first. Files are read without the lock, so that starting and stopping need
    /// not wait.
    pub(super) fn list(&self) -> Value {
        let mut found: Vec<(Option<SystemTime>, String)> = fs::read_dir(&self.results)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                entry.path().join(EVENTS_FILE).exists() || entry.path().join("result.json").exists()
            })
            .filter_map(|entry| {
                let changed = entry.metadata().and_then(|data| data.modified()).ok();
                Some((changed, entry.file_name().into_string().ok()?))
            })
            .collect();
        // Read only the results of the most recently changed directories.
        found.sort_by(|one, other| other.cmp(one));
        found.truncate(MAX_LISTED);
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
            let order = started.map_or_else(|| start_key_without_result(name, changed), start_key);
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
        // Names of `--out` directories are not sorted by time.
        list.sort_by(|one, other| other.0.cmp(&one.0));
        list.truncate(MAX_LISTED);
        list.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether a run is running.
    pub(super) fn is_running(&self, name: &str) -> bool {
        self.started().get(name).is_some_and(|run| run.ended.is_none())
    }

    /// Interrupts a run.
    pub(super) fn stop(&self, name: &str) -> Result<(), ApiError> {
        match self.started().get_mut(name) {
            Some(run) if run.ended.is_none() => {
                run.interrupt();
                Ok(())
            }
            _ => Err(ApiError::not_found("no such run is running")),
        }
    }

    /// Deletes a run that has ended: its directory, and its test file if this server wrote it.
    pub(super) fn remove(&self, name: &str) -> Result<(), ApiError> {
        let place = self.folder(name)?;
        // The lock prevents that the run starts meanwhile.
        let mut started = self.started();
        let is_ours = match started.get(name) {
            Some(run) if run.ended.is_none() => {
                return Err(ApiError(
                    StatusCode::CONFLICT,
                    format!("{name} is running: stop it first"),
                ));
            }
            other => other.is_some(),
        };
        let has_result = place.join("result.json").exists();
        let events = fs::metadata(place.join(EVENTS_FILE)).and_then(|data| data.modified());
        // Never delete what is not a run, or one that another program is writing.
        match events {
            _ if has_result || is_ours => {}
            Ok(changed) if changed.elapsed().is_ok_and(|age| age > ABANDONED_AFTER) => {}
            Ok(_) => {
                return Err(ApiError(
                    StatusCode::CONFLICT,
                    format!("{name} may still be running: it has no result yet"),
                ));
            }
            Err(_) => return Err(ApiError::not_found("no such run")),
        }
        fs::remove_dir_all(&place).with_context(|| format!("cannot delete {name}"))?;
        // Another file next to a run of the command line is the user's.
        if is_ours || begins_with_a_stamp(name) {
            let _ = fs::remove_file(self.results.join(format!("{name}.yaml")));
        }
        started.remove(name);
        Ok(())
    }

    /// The directory of a run: a real directory directly in the results directory.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf, ApiError> {
        let place = self.results.join(name);
        let is_plain =
            Path::new(name).components().eq([Component::Normal(std::ffi::OsStr::new(name))]);
        let is_folder = fs::symlink_metadata(&place).is_ok_and(|data| data.is_dir());
        if name.starts_with('.') || !is_plain || !is_folder {
            return Err(ApiError::not_found("no such run"));
        }
        Ok(place)
    }

    /// A file of a run; only files in its directory are accessible.
    pub(super) fn file(&self, name: &str, path: &str) -> Result<PathBuf, ApiError> {
        let plain =
            |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let one = Path::new(name);
        if one.components().count() != 1
            || !plain(one)
            || !plain(Path::new(path))
            || name.starts_with('.')
        {
            return Err(ApiError::not_found("no such file"));
        }
        let folder = self.results.join(name);
        let place = folder.join(path);
        // Reject symbolic links to the outside. A run that has just been started has no file yet.
        match place.canonicalize() {
            Ok(real) if real.starts_with(&folder) => Ok(real),
            Ok(_) => Err(ApiError::not_found("no such file")),
            Err(_) if self.started().contains_key(name) => Ok(place),
            Err(_) => Err(ApiError::not_found("no such file")),
        }
    }

    /// Interrupts all runs and waits for them.
    pub(super) fn end_all(&self) {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let mut started = self.started();
            let running: Vec<&mut StartedRun> =
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
    fn list_omits_the_oldest_runs_beyond_the_limit() {
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
        for number in 0..MAX_LISTED as u64 {
            run(&format!("run-{number}"), 1 + number, "");
        }
        // Its name would sort it last.
        let started = jiff::Timestamp::try_from(begin + Duration::from_secs(2_000)).unwrap();
        let newest =
            json!({ "passed": true, "file": "x", "started": started.to_string(), "seconds": 1 });
        run("1-newest", 2_000, &newest.to_string());
        let list = Runs::new(folder.path().to_owned()).list();
        let names: Vec<&str> =
            list.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!((names.len(), names[0]), (MAX_LISTED, "1-newest"));
        assert!(!names.contains(&"z-first") && !names.contains(&"run-0"));
    }
}
