//! Runs a server on `b` and a client on `a`, and measures their CPU time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::DemoContext;
use super::figures::CpuSeconds;
use crate::process::{ChildGuard, Process};
use crate::topology;

/// A command line.
pub(super) struct CommandLine {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
}

impl CommandLine {
    pub(super) fn new<const N: usize>(program: &Path, arguments: [&str; N]) -> Self {
        Self { program: program.to_owned(), arguments: arguments.map(str::to_owned).to_vec() }
    }

    pub(super) fn with_arguments<const N: usize>(mut self, arguments: [&str; N]) -> Self {
        self.arguments.extend(arguments.map(str::to_owned));
        self
    }
}

/// The outcome of a run.
pub(super) struct Outcome {
    /// Standard output of the client.
    pub(super) client: String,
    /// Standard output of the server.
    pub(super) server: String,
    /// Duration of the client.
    pub(super) time: Duration,
    pub(super) cpu_seconds: CpuSeconds,
}

/// Runs `client` on `a` against `server` on `b`.
///
/// # Errors
/// If one cannot be started, the client fails, or the timeout expires.
pub(super) fn run(
    demo: &DemoContext,
    what: &str,
    server: &CommandLine,
    client: &CommandLine,
    timeout: Duration,
) -> Result<Outcome> {
    let mut far = start(demo, "b", server, "server")?;
    let ready = Instant::now();
    while ready.elapsed() < Duration::from_millis(500) {
        if let Some((status, _)) = far.try_wait()? {
            bail!("the server of {what} ended early ({status}): {}", last_message(demo, "server"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let emulator_before = emulator_time(demo);
    let began = Instant::now();
    let mut near = start(demo, "a", client, "client")?;
    let mut ended: Option<(ExitStatus, Duration)> = None;
    demo.watch(what, timeout, || {
        ended = near.try_wait()?;
        Ok(ended.is_some())
    })?;
    let time = began.elapsed();
    let emulator = emulator_time(demo).saturating_sub(emulator_before);
    let Some((status, sender)) = ended else { bail!("{what} did not end") };
    if !status.success() {
        bail!("the client of {what} failed ({status}): {}", last_message(demo, "client"));
    }
    let receiver = finish(&mut far)?;
    Ok(Outcome {
        client: stdout_of(demo, "client"),
        server: stdout_of(demo, "server"),
        time,
        cpu_seconds: CpuSeconds {
            sender: sender.as_secs_f64(),
            receiver: receiver.as_secs_f64(),
            emulator: emulator.as_secs_f64(),
        },
    })
}

/// Output of `program` with `argument`, if it can be run.
pub(super) fn output(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits up to 2 s for a server that serves one client; terminates it if it continues. Returns its
/// CPU time.
fn finish(server: &mut ChildGuard) -> Result<Duration> {
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

fn start(
    demo: &DemoContext,
    host: &str,
    command_line: &CommandLine,
    role: &str,
) -> Result<ChildGuard> {
    let lab = &demo.lab_guard.lab.name;
    let errors = file(&demo.scratch(&format!("{role}.err")))?;
    let output = file(&demo.scratch(&format!("{role}.out")))?;
    demo.lab_guard.home.namespaces(lab).within(&topology::namespace(lab, host), || {
        Command::new(&command_line.program)
            .args(&command_line.arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map(ChildGuard::new)
            .with_context(|| format!("cannot run {}", command_line.program.display()))
    })
}

fn file(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn stdout_of(demo: &DemoContext, role: &str) -> String {
    let bytes = fs::read(demo.scratch(&format!("{role}.out"))).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last line of output of a process, for error messages.
fn last_message(demo: &DemoContext, role: &str) -> String {
    let errors = fs::read(demo.scratch(&format!("{role}.err"))).unwrap_or_default();
    let all = String::from_utf8_lossy(&errors).into_owned() + &stdout_of(demo, role);
    let last = all.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("no output").trim().to_owned()
}

fn emulator_time(demo: &DemoContext) -> Duration {
    demo.lab_guard.lab.emulator.map(|emulator| emulator.processor_time()).unwrap_or_default()
}
