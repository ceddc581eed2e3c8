//! Progress of a run: a bar with the remaining time on a terminal, lines elsewhere, and a file of
//! JSON lines that `serve` follows.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::result::{Measurement, Status};
use crate::units::megabits;

/// File name of the JSON lines in the directory of a run.
pub(crate) const EVENTS_FILE: &str = "live.jsonl";

/// Reports the progress of a run.
pub(crate) struct Progress {
    bar: ProgressBar,
    quiet: bool,
    is_terminal: bool,
    state: Mutex<State>,
}

struct State {
    live: File,
    /// Expected seconds of work, total and done.
    total: f64,
    done: f64,
    /// Start and expected seconds of the current step.
    step: (Instant, f64),
    start: Instant,
    is_virtual: bool,
}

impl Progress {
    /// Starts the progress of a run with this expected duration in seconds.
    pub(crate) fn new(folder: &Path, total: f64, is_virtual: bool, quiet: bool) -> Result<Self> {
        let path = folder.join(EVENTS_FILE);
        let live =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let is_terminal = !quiet && std::io::stderr().is_terminal();
        let target =
            if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(1000), target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{bar:24}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        let now = Instant::now();
        let state = State {
            live,
            total: total.max(1e-3),
            done: 0.0,
            step: (now, 0.0),
            start: now,
            is_virtual,
        };
        Ok(Self { bar, quiet, is_terminal, state: Mutex::new(state) })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints a line.
    pub(crate) fn print(&self, text: &str) {
        if self.quiet {
            return;
        }
        if self.is_terminal {
            self.bar.println(text);
        } else {
            eprintln!("{text}");
        }
    }

    fn write_event(state: &mut State, value: &Value) {
        let mut line = value.to_string();
        line.push('\n');
        // Best effort: the result of the run does not depend on followers.
        let _ = state.live.write_all(line.as_bytes());
    }

    /// Starts a step with this expected duration in seconds.
    pub(crate) fn begin(&self, what: &str, seconds: f64) {
        let mut state = self.state();
        state.step = (Instant::now(), seconds);
        let at = state.start.elapsed().as_secs_f64();
        let value = json!({ "event": "begin", "what": what, "at": at, "remaining": remaining_real_time(&state) });
        Self::write_event(&mut state, &value);
        self.show(&state, what, None);
    }

    /// Ends the step.
    pub(crate) fn end(&self, seconds: f64) {
        let mut state = self.state();
        state.done += seconds;
        state.step = (Instant::now(), 0.0);
        let fraction = (state.done / state.total).min(1.0);
        self.bar.set_position((fraction * 1000.0) as u64);
    }

    /// Shows the present rate and queue, and the RTT if it is measured.
    pub(crate) fn sample(
        &self,
        what: &str,
        at: f64,
        mbps: f64,
        queue_kilobytes: f64,
        rtt_ms: Option<f64>,
    ) {
        let mut state = self.state();
        let mut value = json!({
            "event": "sample", "what": what, "at": at, "mbps": mbps, "queue_kB": queue_kilobytes,
            "remaining": remaining_real_time(&state),
        });
        if let Some(rtt) = rtt_ms {
            value["rtt_ms"] = rtt.into();
        }
        Self::write_event(&mut state, &value);
        self.show(&state, what, rtt_ms.is_none().then_some(mbps));
    }

    fn show(&self, state: &State, what: &str, mbps: Option<f64>) {
        self.bar.set_prefix(what.to_owned());
        let rate =
            mbps.map_or(String::new(), |rate| format!("{:>6} Mbit/s  ", megabits(rate * 1e6)));
        let left = crate::plan::time(remaining_seconds(state));
        self.bar.set_message(if state.is_virtual { rate } else { format!("{rate}{left} left") });
        let running = state.step.0.elapsed().as_secs_f64().min(state.step.1);
        self.bar.set_position(((state.done + running) / state.total * 1000.0).min(1000.0) as u64);
    }

    /// Reports a finished measurement.
    pub(crate) fn measured(&self, case: &str, measurement: &Measurement) {
        let key = ["throughput_mbps", "rtt_p50_ms", "first_rtt_ms", "file_seconds", "exit_code"]
            .into_iter()
            .find_map(|name| {
                Some((crate::result::figures::find(name)?, *measurement.figures.get(name)?))
            });
        let outcome = match (measurement.status, key, &measurement.reason) {
            (Status::Passed, Some((figure, value)), _) => {
                format!("{} {value:.2} {}", figure.title, figure.unit)
            }
            (Status::Passed, None, _) => "done".to_owned(),
            (Status::Failed, _, reason) => {
                format!("FAILED: {}", reason.as_deref().unwrap_or_default())
            }
            (Status::Unsupported, _, reason) => {
                format!("unsupported: {}", reason.as_deref().unwrap_or_default())
            }
        };
        self.print(&format!(
            "{case} topology-{} {} {}: {}",
            measurement.network,
            measurement.label,
            measurement.tool,
            outcome.trim_end()
        ));
        let mut state = self.state();
        let value = json!({
            "event": "measurement", "case": case, "network": measurement.network,
            "protocol": measurement.label, "tool": measurement.tool,
            "status": measurement.status, "figures": measurement.figures,
        });
        Self::write_event(&mut state, &value);
    }

    /// Ends the progress.
    pub(crate) fn finish(&self, passed: bool) {
        self.bar.finish_and_clear();
        let mut state = self.state();
        Self::write_event(&mut state, &json!({ "event": "end", "passed": passed }));
    }
}

/// Remaining seconds; `None` in virtual time, whose computing time is unknown.
fn remaining_real_time(state: &State) -> Option<f64> {
    (!state.is_virtual).then(|| remaining_seconds(state))
}

fn remaining_seconds(state: &State) -> f64 {
    let running = state.step.0.elapsed().as_secs_f64().min(state.step.1);
    (state.total - state.done - running).max(0.0)
}
