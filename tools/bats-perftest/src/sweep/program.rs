//! A program of a run: this one as a publisher or a subscriber.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

/// Longest table and line that are kept: those of a run are far shorter.
const MAX_TABLE: u64 = 1 << 20;
const MAX_LINE: u64 = 4_096;
/// What a program prints when it has found all others.
const MET: [&str; 2] = ["Waiting for data ...", "initialization pings"];

/// A running program, whose output is read as it comes; ended when dropped.
pub(super) struct Program {
    pub(super) name: &'static str,
    child: Child,
    table: Option<JoinHandle<String>>,
    errors: Option<JoinHandle<()>>,
    seen: Arc<Seen>,
}

/// What standard error has said.
#[derive(Default)]
struct Seen {
    has_met: AtomicBool,
    last_line: Mutex<String>,
}

/// The result of a program.
pub(super) struct Ended {
    pub(super) is_successful: bool,
    pub(super) table: String,
    pub(super) last_line: String,
}

impl Program {
    /// Starts a command whose outputs are pipes.
    pub(super) fn start(name: &'static str, mut command: Command) -> Result<Self> {
        let mut child = command.spawn().context("cannot start a program")?;
        let output = child.stdout.take().context("no standard output")?;
        let errors = child.stderr.take().context("no standard error")?;
        let seen = Arc::new(Seen::default());
        let watched = Arc::clone(&seen);
        Ok(Self {
            name,
            child,
            table: Some(thread::spawn(move || table(output))),
            errors: Some(thread::spawn(move || watch(errors, &watched))),
            seen,
        })
    }

    /// Whether it has ended, and then whether it was successful.
    pub(super) fn poll(&mut self) -> Result<Option<bool>> {
        let status = self.child.try_wait().context("cannot wait for a program")?;
        Ok(status.map(|status| status.success()))
    }

    /// Whether it has found the programs that it waits for.
    pub(super) fn has_met(&self) -> bool {
        self.seen.has_met.load(Ordering::Acquire)
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end.
    pub(super) fn finish(mut self) -> Result<Ended> {
        let status = self.child.wait().context("cannot wait for a program")?;
        let table = self.table.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        self.errors.take().map(JoinHandle::join);
        let last_line = self.seen.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Ended { is_successful: status.success(), table, last_line })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a table to its end.
fn table(mut output: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = output.by_ref().take(MAX_TABLE).read_to_end(&mut bytes);
    // A pipe that is not read would stop the program.
    let _ = std::io::copy(&mut output, &mut std::io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads lines to their end; only the last one is kept.
fn watch(errors: impl Read, seen: &Seen) {
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    while let Ok(1..) = errors.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if MET.iter().any(|words| text.contains(words)) {
            seen.has_met.store(true, Ordering::Release);
        }
        *seen.last_line.lock().unwrap_or_else(PoisonError::into_inner) = text;
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        Program::start("test", command).unwrap()
    }

    #[test]
    fn output_of_any_length_stops_no_program() {
        // More than a pipe holds, on both outputs.
        let program = shell(
            "echo row; echo 'Waiting for data ...' >&2; i=0; while [ $i -lt 3000 ]; do \
             echo 'a line that is longer than thirty bytes' | tee /dev/stderr; i=$((i+1)); done; \
             echo last >&2; exit 3",
        );
        let seen = Arc::clone(&program.seen);
        let ended = program.finish().unwrap();
        assert!(!ended.is_successful && ended.table.starts_with("row\n"), "{}", ended.table);
        assert_eq!(ended.last_line, "last");
        assert!(seen.has_met.load(Ordering::Acquire));
    }
}
