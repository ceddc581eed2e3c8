//! One run of a sweep: a publisher and a subscriber as processes of their own.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::options::{Side, SweepOptions};
use crate::clock::Clock;
use crate::signals;

/// Time of a run beyond its execution time: discovery, initialization pings and the end.
pub(super) const OVERHEAD_SECONDS: u64 = 5;
/// Time after which a run has failed, beyond its execution time.
const LIMIT: Duration = Duration::from_secs(60);
/// Time for the other program to end when one has failed.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Throughput,
    Latency,
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) transport: String,
    pub(super) test: Test,
    pub(super) length: usize,
    pub(super) domain: u32,
    /// The first of its tables, with the header.
    pub(super) is_first: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let test = match self.test {
            Test::Throughput => "throughput",
            Test::Latency => "latency",
        };
        write!(f, "{test}, {}, {} bytes", self.transport, self.length)
    }
}

/// The tables of both sides, as far as they ran here.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) publisher: String,
    pub(super) subscriber: String,
}

fn command(options: &SweepOptions, case: &Case, publishes: bool) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    let text = |number: u64| number.to_string();
    command.args(["-noPrintIntervals", "-dataLen", &text(case.length as u64)]);
    command.args(["-domain", &text(case.domain.into())]);
    if !case.is_first {
        command.arg("-noOutputHeaders");
    }
    if let Some(time) = &options.busy_poll {
        command.args(["-busyPoll", time]);
    }
    if let Some(nic) = &options.nic {
        command.args(["-nic", nic]);
    }
    let on_this_host = options.nic.as_deref().filter(|_| options.side == Side::Both);
    let peer = options.peer.as_deref().or(on_this_host);
    match (case.transport.as_str(), peer) {
        ("raw", Some(peer)) => drop(command.args(["-rawTransport", "-peer", peer])),
        (name, peer) => {
            command.args(["-transport", name]);
            // With both sides here, discovery finds the subscriber.
            if let Some(peer) = peer.filter(|_| options.side != Side::Both) {
                command.args(["-peer", peer]);
            }
        }
    }
    if publishes {
        command.args(["-pub", "-executionTime", &text(options.seconds)]);
        if case.test == Test::Latency {
            command.args(["-latencyTest", "-nanosecondResolution"]);
        }
        if case.transport != "raw" {
            command.args(&options.trust);
        }
        if let Some(size) = &options.send_queue {
            command.args(["-sendQueueSize", size]);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Runs a case and appends its tables to the files of the sweep.
pub(super) fn run(options: &SweepOptions, case: &Case) -> Result<Tables> {
    let start = |publishes: bool, name: &'static str| -> Result<Program> {
        let child = command(options, case, publishes)?.spawn().context("cannot start a program")?;
        Ok(Program { name, child: Some(child) })
    };
    let mut programs = Vec::new();
    if options.side != Side::Publisher {
        programs.push(start(false, "sub")?);
    }
    if options.side != Side::Subscriber {
        programs.push(start(true, "pub")?);
    }
    // With the other side on another host, the user starts it at some time.
    let limit = (options.side == Side::Both).then(|| Duration::from_secs(options.seconds) + LIMIT);
    wait(&mut programs, limit)?;
    let mut tables = Tables::default();
    for mut program in programs {
        let name = program.name;
        let output = program.output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().next_back().unwrap_or_default().to_owned();
        ensure!(output.status.success(), "{name}: {last}");
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        append(options, case, name, &table)?;
        match name {
            "pub" => tables.publisher = table,
            _ => tables.subscriber = table,
        }
    }
    Ok(tables)
}

/// A program of a run; ended when dropped.
struct Program {
    name: &'static str,
    child: Option<Child>,
}

impl Program {
    /// Whether it has ended, and then whether it was successful.
    fn poll(&mut self) -> Result<Option<bool>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        Ok(child.try_wait().context("cannot wait for a program")?.map(|status| status.success()))
    }

    fn output(&mut self) -> Result<Output> {
        let child = self.child.take().context("the program has ended")?;
        child.wait_with_output().context("cannot read the tables")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until all programs have ended; if one fails, the others have only a moment left.
fn wait(programs: &mut [Program], limit: Option<Duration>) -> Result<()> {
    let clock = Clock::start();
    let mut failed: Option<Clock> = None;
    loop {
        let mut all_ended = true;
        for program in &mut *programs {
            match program.poll()? {
                None => all_ended = false,
                Some(true) => {}
                Some(false) => drop(failed.get_or_insert_with(Clock::start)),
            }
        }
        let is_late = limit.is_some_and(|limit| clock.elapsed() > limit);
        if is_late || signals::requested() || failed.is_some_and(|at| at.elapsed() > GRACE) {
            for program in &mut *programs {
                if let Some(child) = &mut program.child {
                    let _ = child.kill();
                }
            }
            ensure!(!is_late, "no end after {:.0} s", clock.elapsed().as_secs_f64());
        }
        if all_ended {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn append(options: &SweepOptions, case: &Case, side: &str, table: &str) -> Result<()> {
    let test = match case.test {
        Test::Throughput => "throughput",
        Test::Latency => "latency",
    };
    let name = format!("{}_{test}_{side}_results.csv", case.transport);
    let path = options.directory.join(name);
    // A sweep into the same directory replaces the tables of the one before.
    let opened = match case.is_first {
        true => File::create(&path),
        false => File::options().append(true).create(true).open(&path),
    };
    opened
        .and_then(|mut file| file.write_all(table.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}
