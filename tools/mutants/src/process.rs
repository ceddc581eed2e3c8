//! Runs of test programs with limits of time and memory.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::compile::Program;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Passed,
    Failed,
    TimedOut,
}

/// Limits of a run.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Processor time, so that other load does not matter.
    pub processor: Duration,
    /// For a test that waits forever.
    pub wall: Duration,
}

impl Limits {
    /// Limits for tests that take `usual` without a mutant.
    pub fn of(usual: Duration) -> Self {
        let processor = Duration::from_secs(5) + usual * 5;
        Self { processor, wall: Duration::from_secs(60) + processor * 10 }
    }
}

/// Address space of a test program in KiB: a mutant may allocate without end. Tests take a tenth.
const MEMORY: u64 = 4 << 20;

/// Runs tests of a program one after the other, until the first fails. Returns the processor time that
/// they took if all passed.
pub fn run(
    program: &Program,
    tests: &[&str],
    environment: &[(&str, &str)],
    limits: Limits,
) -> Result<(Outcome, Duration)> {
    let started = Instant::now();
    let mut child = start(program, tests, environment, limits.processor)?;
    let output = child.stdout.take().context("no output")?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        // A mutant may write what is not text.
        for line in BufReader::new(output).split(b'\n').map_while(std::io::Result::ok) {
            if line.starts_with(b"test ") && line.ends_with(b"... FAILED") && send.send(()).is_err()
            {
                break;
            }
        }
    });
    // The sender is dropped at the end of the output, which is the end of the program.
    let outcome = match receive.recv_timeout(limits.wall) {
        Ok(()) => {
            stop(&mut child)?;
            Outcome::Failed
        }
        Err(RecvTimeoutError::Timeout) => {
            stop(&mut child)?;
            Outcome::TimedOut
        }
        Err(RecvTimeoutError::Disconnected) => {
            use std::os::unix::process::ExitStatusExt;
            let time = processor_time(child.id()).unwrap_or_else(|| started.elapsed());
            let status = child.wait()?;
            // The kernel sends SIGXCPU, and SIGKILL a second later.
            match status.signal() {
                Some(24 | 9) => Outcome::TimedOut,
                _ if status.success() => return Ok((Outcome::Passed, time)),
                _ => Outcome::Failed,
            }
        }
    };
    Ok((outcome, Duration::ZERO))
}

/// Processor time of a process that has ended, but was not waited for: unlike the time on the clock, it
/// does not depend on other load.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn processor_time(process: u32) -> Option<Duration> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    // Of the main thread, which runs the tests, in nanoseconds.
    let main = read("schedstat")?.split(' ').next()?.parse().ok()?;
    // Of all threads, in hundredths of a second; the second field is a name in parentheses.
    let stat = read("stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split(' ').collect();
    let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = field(12)?.saturating_add(field(13)?);
    Some(Duration::from_nanos(main).max(Duration::from_millis(ticks.saturating_mul(10))))
}

fn start(
    program: &Program,
    tests: &[&str],
    environment: &[(&str, &str)],
    processor: Duration,
) -> Result<Child> {
    let mut command = limited(&program.path, processor);
    command.args(["--exact", "--test-threads=1"]).args(tests);
    command.current_dir(&program.directory);
    command.envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("cannot run {}", program.path.display()))
}

/// A command that the shell limits before it becomes the program.
fn limited(program: &Path, processor: Duration) -> Command {
    let mut command = Command::new("sh");
    let script = r#"ulimit -c 0; ulimit -v "$1" && ulimit -t "$2" && shift 2 && exec "$@""#;
    command.args(["-c", script, "sh", &MEMORY.to_string()]);
    command.arg(processor.as_secs().to_string()).arg(program);
    // A failing property is enough; its input is neither shrunk nor kept. The seed makes runs repeatable.
    command.env("PROPTEST_MAX_SHRINK_ITERS", "0");
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    command.env("PROPTEST_RNG_SEED", "1");
    command
}

fn stop(child: &mut Child) -> Result<()> {
    // It may have ended.
    let _ = child.kill();
    child.wait().context("cannot wait for a test program")?;
    Ok(())
}
