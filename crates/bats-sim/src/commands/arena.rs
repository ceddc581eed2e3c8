//! `bats-sim arena`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bats_proto::ConnectionStats;
use bats_sim::arena::cell::Algorithm;
use bats_sim::arena::contest::{Contest, Plan};
use bats_sim::arena::report::{self, Report};
use bats_sim::arena::{cells, file, html, table};
use clap::Parser;

use crate::Failure;

/// Cells that judge congestion controllers
#[derive(Parser)]
#[command(after_long_help = table::LEGEND)]
pub(crate) struct Arena {
    /// Groups of cells, such as F,L
    #[arg(long, value_delimiter = ',')]
    group: Vec<char>,
    /// Cells, such as F1,L3
    #[arg(long, value_delimiter = ',')]
    cell: Vec<String>,
    /// Cells of this YAML file instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of seeds of each cell; 20 for judging
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// Algorithms: ltcc, bbr3, cubic (coded, over BRTP); tcp/NAME for a model of TCP with NAME of cubic,
    /// reno, bbr1, copa, bbr3, ltcc
    #[arg(long, value_delimiter = ',', default_value = "ltcc,bbr3")]
    algorithm: Vec<String>,
    /// Redraw half of the parameters of each cell by this seed
    #[arg(long)]
    held_out: Option<u64>,
    /// Print figures only: no peers, no verdicts, exit code 0
    #[arg(long)]
    no_judge: bool,
    /// Print the state of the first flow's sender every 100 ms
    #[arg(long)]
    trace: bool,
    /// Write all figures as JSON to this file, - for standard output; runs all peers
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a heat map against the best peer as a page to this file; runs all peers
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the JSON schema of --json
    #[arg(long)]
    schema: bool,
    /// Number of threads; default: one per processor
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    threads: usize,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arena) -> Result<(), Failure> {
    if arguments.schema {
        return crate::print_line(&json(&report::schema())?);
    }
    let plan = arguments.plan()?;
    if arguments.trace {
        return trace(&plan);
    }
    let jobs = plan.jobs().len();
    let done = AtomicUsize::new(0);
    let is_shown = io::stderr().is_terminal();
    let report = plan.run(|| {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if is_shown {
            eprint!("\r{done} of {jobs} runs");
        }
    });
    if is_shown {
        eprintln!();
    }
    arguments.write(&report)?;
    match report.passed {
        Some(false) => Err(Failure::CheckFailed("a goal is missed".into())),
        _ => Ok(()),
    }
}

impl Arena {
    fn plan(&self) -> Result<Plan, Failure> {
        let algorithms: Result<Vec<Algorithm>, String> =
            self.algorithm.iter().map(|name| Algorithm::parse(name)).collect();
        let contests = match &self.file {
            Some(path) => file::load(path).map_err(|error| Failure::Usage(error.to_string()))?,
            None => cells::all(),
        };
        Ok(Plan {
            contests: self.select(contests)?,
            algorithms: algorithms.map_err(Failure::Usage)?,
            seeds: (1..=self.seeds).collect(),
            held_out: self.held_out,
            judge: !self.no_judge && !self.trace,
            all_peers: self.json.is_some() || self.html.is_some(),
            threads: if self.trace { 1 } else { self.threads.min(1_024) },
        })
    }

    /// The cells with the given groups and names; each must exist.
    fn select(&self, contests: Vec<Contest>) -> Result<Vec<Contest>, Failure> {
        let known = |name: &String| contests.iter().any(|contest| contest.name == *name);
        if let Some(name) = self.cell.iter().find(|name| !known(name)) {
            let names: Vec<&str> = contests.iter().map(|contest| contest.name.as_str()).collect();
            return Err(Failure::Usage(format!("no cell {name}; known are {}", names.join(", "))));
        }
        let has_group = |contest: &Contest, group: char| contest.name.starts_with(group);
        let known = |group: char| contests.iter().any(|contest| has_group(contest, group));
        if let Some(group) = self.group.iter().find(|group| !known(**group)) {
            return Err(Failure::Usage(format!("no cell is in group {group}")));
        }
        let is_selected = |contest: &Contest| {
            (self.group.is_empty() || self.group.iter().any(|&group| has_group(contest, group)))
                && (self.cell.is_empty() || self.cell.contains(&contest.name))
        };
        Ok(contests.into_iter().filter(is_selected).collect())
    }

    fn write(&self, report: &Report) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            write_file(path, &html::page(report))?;
        }
        if let Some(path) = &self.json {
            let text = json(report)?;
            if path == Path::new("-") {
                return crate::print_line(&text);
            }
            write_file(path, &(text + "\n"))?;
        }
        write!(io::stdout(), "{}", table::table(report)).map_err(Failure::Io)
    }
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::Io(error.into()))
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| {
        Failure::Io(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    })
}

/// Runs one job after the other and prints the state of the first flow's sender.
fn trace(plan: &Plan) -> Result<(), Failure> {
    for job in plan.jobs() {
        let name = job.algorithm.map_or("-".into(), Algorithm::name);
        let cell = &plan.contests[job.contest].name;
        crate::print_line(&format!("{cell} {name}, seed {}", job.seed))?;
        let (mut sent, mut failure) = (0, None);
        let mut print = |time: Duration, stats: &ConnectionStats, queue: u64| {
            let line = line(time, stats, stats.packets.bytes_sent - sent, queue);
            sent = stats.packets.bytes_sent;
            failure = failure.take().or(crate::print_line(&line).err());
        };
        let figures = plan.run_job(&job, Some(&mut print));
        if let Some(failure) = failure {
            return Err(failure);
        }
        crate::print_line(&format!("E {:.3}", figures.efficiency))?;
    }
    Ok(())
}

fn line(time: Duration, stats: &ConnectionStats, sent: u64, queue: u64) -> String {
    format!(
        "{:7.1} {:<18} cwnd {:>9} inflight {:>9} pace {:>8.3} bw {:>8.3} sent {:>8.3} rtt {:>6.1} min {:>6.1} q {:>7.1} ms loss {:>5.3} own {:>5.3} B {:>4.1} by {:<18} queue {queue}",
        time.as_secs_f64(),
        stats.congestion.controller_state,
        stats.congestion.cwnd_bytes,
        stats.congestion.in_flight_bytes,
        stats.congestion.pacing_bps as f64 * 1e-6,
        stats.congestion.delivery_bps as f64 * 1e-6,
        sent as f64 * 8e-5,
        stats.path.smoothed_rtt.as_secs_f64() * 1e3,
        stats.path.min_rtt.as_secs_f64() * 1e3,
        stats.path.queue_delay.as_secs_f64() * 1e3,
        stats.path.loss_estimate,
        stats.congestion.own_loss,
        stats.path.burst_factor,
        stats.congestion.limited_by,
    )
}
