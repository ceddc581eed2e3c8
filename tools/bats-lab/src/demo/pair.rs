//! A server on `b` and a client on `a`: run, watched, measured.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Stage;
use super::figures::Processors;
use crate::process::{Guarded, Process};
use crate::topology;

/// A command line.
pub(super) struct Words {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
}

impl Words {
    pub(super) fn new<const N: usize>(program: &Path, arguments: [&str; N]) -> Self {
        Self { program: program.to_owned(), arguments: arguments.map(str::to_owned).to_vec() }
    }

    pub(super) fn and<const N: usize>(mut self, arguments: [&str; N]) -> Self {
        self.arguments.extend(arguments.map(str::to_owned));
        self
    }
}

/// What a run left.
pub(super) struct Outcome {
    /// What the client printed.
    pub(super) client: String,
    /// What the server printed.
    pub(super) server: String,
    /// How long the client ran.
    pub(super) time: Duration,
    pub(super) processors: Processors,
}

/// Runs `client` on `a` against `server` on `b`.
///
/// # Errors
/// Where one cannot be started, the client fails, or it takes longer than `patience`.
pub(super) fn run(
    stage: &Stage,
    what: &str,
    server: &Words,
    client: &Words,
    patience: Duration,
) -> Result<Outcome> {
    let mut far = start(stage, "b", server, "server")?;
    let ready = Instant::now();
    while ready.elapsed() < Duration::from_millis(500) {
        if let Some((status, _)) = far.try_wait()? {
            bail!("the server of {what} ended early ({status}): {}", complaint(stage, "server"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let emulator_before = emulator_time(stage);
    let began = Instant::now();
    let mut near = start(stage, "a", client, "client")?;
    let mut ended: Option<(ExitStatus, Duration)> = None;
    stage.watch(what, patience, || {
        ended = near.try_wait()?;
        Ok(ended.is_some())
    })?;
    let time = began.elapsed();
    let emulator = emulator_time(stage).saturating_sub(emulator_before);
    let Some((status, sender)) = ended else { bail!("{what} did not end") };
    if !status.success() {
        bail!("the client of {what} failed ({status}): {}", complaint(stage, "client"));
    }
    let receiver = finish(&mut far)?;
    Ok(Outcome {
        client: printed(stage, "client"),
        server: printed(stage, "server"),
        time,
        processors: Processors {
            sender: sender.as_secs_f64(),
            receiver: receiver.as_secs_f64(),
            emulator: emulator.as_secs_f64(),
        },
    })
}

/// What `program` prints when asked with `argument`, if it can be run.
pub(super) fn output(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits a while for a server that serves once; ends one that would go on.
fn finish(server: &mut Guarded) -> Result<Duration> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        if let Some((_, used)) = server.try_wait()? {
            return Ok(used);
        }
        if Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = Process::find(server.child_mut().id());
    let used = process.map(|process| process.processor_time()).unwrap_or_default();
    if let Some(process) = process {
        process.end();
    }
    Ok(used)
}

fn start(stage: &Stage, host: &str, words: &Words, role: &str) -> Result<Guarded> {
    let lab = &stage.own.lab.name;
    let errors = file(&stage.scratch(&format!("{role}.err")))?;
    let output = file(&stage.scratch(&format!("{role}.out")))?;
    stage.own.home.namespaces(lab).within(&topology::namespace(lab, host), || {
        Command::new(&words.program)
            .args(&words.arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map(Guarded::new)
            .with_context(|| format!("cannot run {}", words.program.display()))
    })
}

fn file(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn printed(stage: &Stage, role: &str) -> String {
    let bytes = fs::read(stage.scratch(&format!("{role}.out"))).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last line that a process had to say.
fn complaint(stage: &Stage, role: &str) -> String {
    let errors = fs::read(stage.scratch(&format!("{role}.err"))).unwrap_or_default();
    let all = String::from_utf8_lossy(&errors).into_owned() + &printed(stage, role);
    let last = all.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").trim().to_owned()
}

fn emulator_time(stage: &Stage) -> Duration {
    stage.own.lab.emulator.map(|emulator| emulator.processor_time()).unwrap_or_default()
}
