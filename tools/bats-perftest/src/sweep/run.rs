//! One run of a sweep: a publisher and a subscriber as processes of their own.

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::options::{Side, SweepOptions};
use super::program::Program;
use crate::clock::Clock;
use crate::signals;

/// Time of a run beyond its execution time: discovery, initialization pings and the end.
pub(super) const OVERHEAD_SECONDS: u64 = 5;
/// Time in which both programs must find each other.
const LIMIT: Duration = Duration::from_secs(60);
/// Time after which a run has failed from then on, beyond its execution time. A slow path takes long to
/// deliver what is queued at the end.
const END_LIMIT: Duration = Duration::from_secs(120);
/// A failed run of one side takes this time at least beyond its execution time: the other side may need it
/// to notice, and the two must begin the next run within [`LIMIT`] of each other.
const SLOT: Duration = Duration::from_secs(30);
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
}

impl Case {
    /// The name of its table of one side.
    fn table(&self, side: &str) -> String {
        let test = match self.test {
            Test::Throughput => "throughput",
            Test::Latency => "latency",
        };
        format!("{}_{test}_{side}_results.csv", self.transport)
    }
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

/// Interval of looks at the programs.
const POLL: Duration = Duration::from_millis(50);

/// How long a run may take.
struct Limits {
    /// Until both programs have found each other; `None`: without end.
    meeting: Option<Duration>,
    /// From then on.
    running: Duration,
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
        // Raw UDP has neither certificates nor a queue.
        if case.transport != "raw" {
            command.args(&options.trust);
            if let Some(size) = &options.send_queue {
                command.args(["-sendQueueSize", size]);
            }
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Deletes the tables of a sweep before into the same directory, and what was made of them.
pub(super) fn remove_tables(options: &SweepOptions, cases: &[Case]) -> Result<()> {
    let tables = cases.iter().flat_map(|case| ["pub", "sub"].map(|side| case.table(side)));
    for name in tables.chain(["comparison.csv".to_owned(), "report.html".to_owned()]) {
        let path = options.directory.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs a case and appends its tables to the files of the sweep. `is_first`: if the other side is on another
/// host, it may be started at any time.
pub(super) fn run(options: &SweepOptions, case: &Case, is_first: bool) -> Result<Tables> {
    let clock = Clock::start();
    let result = run_programs(options, case, is_first);
    if result.is_err() && options.side != Side::Both {
        let slot = Duration::from_secs(options.seconds) + SLOT;
        while clock.elapsed() < slot && !signals::requested() {
            thread::sleep(POLL);
        }
    }
    result
}

fn run_programs(options: &SweepOptions, case: &Case, is_first: bool) -> Result<Tables> {
    let mut programs = Vec::new();
    if options.side != Side::Publisher {
        programs.push(Program::start("sub", command(options, case, false)?)?);
    }
    if options.side != Side::Subscriber {
        programs.push(Program::start("pub", command(options, case, true)?)?);
    }
    let waits_for_user = is_first && options.side != Side::Both;
    let limits = Limits {
        meeting: (!waits_for_user).then_some(LIMIT),
        running: Duration::from_secs(options.seconds) + END_LIMIT,
    };
    wait(&mut programs, &limits)?;
    let mut tables = Tables::default();
    for program in programs {
        let name = program.name;
        let ended = program.finish()?;
        ensure!(ended.is_successful, "{name}: {}", ended.last_line);
        append(options, case, name, &ended.table)?;
        match name {
            "pub" => tables.publisher = ended.table,
            _ => tables.subscriber = ended.table,
        }
    }
    Ok(tables)
}

/// Waits until all programs have ended; if one fails, the others have only a moment left.
fn wait(programs: &mut [Program], limits: &Limits) -> Result<()> {
    let clock = Clock::start();
    let (mut met, mut failed) = (None::<Clock>, None::<Clock>);
    loop {
        let mut all_ended = true;
        for program in &mut *programs {
            match program.poll()? {
                None => all_ended = false,
                Some(true) => {}
                Some(false) => drop(failed.get_or_insert_with(Clock::start)),
            }
        }
        if all_ended {
            return Ok(());
        }
        if programs.iter().any(Program::has_met) {
            met.get_or_insert_with(Clock::start);
        }
        let is_late = match met {
            Some(met) => met.elapsed() > limits.running,
            None => limits.meeting.is_some_and(|limit| clock.elapsed() > limit),
        };
        if is_late || signals::requested() || failed.is_some_and(|at| at.elapsed() > GRACE) {
            programs.iter_mut().for_each(Program::kill);
            let seconds = clock.elapsed().as_secs_f64();
            match met {
                Some(_) => ensure!(!is_late, "no end after {seconds:.0} s"),
                None => ensure!(!is_late, "the other side has not come within {seconds:.0} s"),
            }
        }
        thread::sleep(POLL);
    }
}

/// Appends a table; only the first one keeps its header.
fn append(options: &SweepOptions, case: &Case, side: &str, table: &str) -> Result<()> {
    let path = options.directory.join(case.table(side));
    let has_header = fs::metadata(&path).is_ok_and(|file| file.len() > 0);
    let rows: String = table.split_inclusive('\n').skip(usize::from(has_header)).collect();
    File::options()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(rows.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}
