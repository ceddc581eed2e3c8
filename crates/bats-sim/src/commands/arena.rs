//! `bats-sim arena`.

use std::io::{self, Write};

use bats_proto::CongestionAlgorithm;
use bats_sim::arena::cell::Algorithm;
use bats_sim::arena::cells::{self, Entry};
use bats_sim::arena::draw::Draw;
use bats_sim::arena::measure::{self, Figures};
use bats_sim::arena::{optimum, world};
use clap::Parser;

use crate::Failure;

/// Cells that judge congestion controllers
#[derive(Parser)]
pub(crate) struct Arena {
    /// Groups of cells, such as F,L
    #[arg(long, value_delimiter = ',')]
    group: Vec<char>,
    /// Cells, such as F1,L3
    #[arg(long, value_delimiter = ',')]
    cell: Vec<String>,
    /// Seeds a cell
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Algorithms: bbr, bbr3, ltcc, cubic (coded, over BRTP); tcp/NAME for a model of TCP with NAME of
    /// cubic, reno, bbr1, copa, bbr3, ltcc
    #[arg(long, value_delimiter = ',', default_value = "bbr,bbr3")]
    algorithm: Vec<String>,
    /// Redraw half of the parameters of each cell by this seed
    #[arg(long)]
    held_out: Option<u64>,
    /// Print the state of the first flow's sender every 100 ms
    #[arg(long)]
    trace: bool,
    /// Print an array of objects
    #[arg(long)]
    json: bool,
}

fn algorithm(name: &str) -> Result<Algorithm, Failure> {
    let parse = |name: &str| {
        name.parse::<CongestionAlgorithm>().map_err(|error| Failure::Usage(error.to_string()))
    };
    Ok(match name {
        "tcp/cubic" => Algorithm::Cubic,
        "tcp/reno" => Algorithm::Reno,
        "tcp/bbr1" => Algorithm::Bbr1,
        "tcp/copa" => Algorithm::Copa,
        other => match other.strip_prefix("tcp/") {
            Some(inner) => Algorithm::Bare(parse(inner)?),
            None => Algorithm::Brtp(parse(other)?),
        },
    })
}

#[derive(Clone)]
struct Job {
    entry: Entry,
    algorithm: usize,
    seed: u64,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arena) -> Result<(), Failure> {
    arguments.run()
}

impl Arena {
    fn run(&self) -> Result<(), Failure> {
        let algorithms: Vec<Algorithm> =
            self.algorithm.iter().map(|name| algorithm(name)).collect::<Result<_, _>>()?;
        let entries: Vec<Entry> = cells::all()
            .into_iter()
            .filter(|entry| self.group.is_empty() || self.group.contains(&entry.group()))
            .filter(|entry| self.cell.is_empty() || self.cell.iter().any(|c| c == entry.name))
            .collect();
        let mut jobs = Vec::new();
        for entry in &entries {
            for index in 0..algorithms.len() {
                for seed in 1..=self.seeds {
                    jobs.push(Job { entry: *entry, algorithm: index, seed });
                }
            }
        }
        let results = super::parallel(&jobs, |job| self.judge(job, algorithms[job.algorithm]));
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "{:<4} {:<34} {:<12} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6}",
            "cell", "", "algorithm", "E min", "E med", "Jain", "drop%", "q95 ms", "sent/b", "stall"
        )
        .map_err(Failure::Io)?;
        for entry in &entries {
            for (index, algorithm) in algorithms.iter().enumerate() {
                let of = |job: &Job| job.entry.name == entry.name && job.algorithm == index;
                let all: Vec<&Figures> = jobs
                    .iter()
                    .zip(&results)
                    .filter(|(job, _)| of(job))
                    .map(|(_, (figures, _))| figures)
                    .collect();
                let worst = |f: &dyn Fn(&Figures) -> f64, max: bool| {
                    let values = all.iter().map(|figures| f(figures));
                    if max {
                        values.fold(f64::MIN, f64::max)
                    } else {
                        values.fold(f64::MAX, f64::min)
                    }
                };
                let mut efficiencies: Vec<f64> = all.iter().map(|f| f.efficiency).collect();
                efficiencies.sort_by(f64::total_cmp);
                writeln!(
                    out,
                    "{:<4} {:<34} {:<12} {:>6.3} {:>6.3} {:>6.3} {:>6.2} {:>7.1} {:>6.2} {:>6.1}",
                    entry.name,
                    entry.title,
                    algorithm.name(),
                    efficiencies.first().unwrap_or(&0.0),
                    efficiencies.get(efficiencies.len() / 2).unwrap_or(&0.0),
                    worst(&|f| f.jain, false),
                    worst(&|f| f.drops * 100.0, true),
                    worst(&|f| f.queue_p95_ms, true),
                    worst(&|f| f.overhead, true),
                    worst(&|f| f.stall, true),
                )
                .map_err(Failure::Io)?;
            }
        }
        Ok(())
    }

    fn judge(&self, job: &Job, algorithm: Algorithm) -> (Figures, f64) {
        let mut draw = match self.held_out {
            Some(held_out) => Draw::held_out(held_out, job.entry.name, job.seed),
            None => Draw::published(job.seed),
        };
        let cell = job.entry.cell(&mut draw);
        let optimum = optimum::optimum(&cell);
        let mut last = 0;
        let mut print = |time: core::time::Duration,
                         stats: &bats_proto::ConnectionStats,
                         queue: u64| {
            let sent = stats.bytes_sent - last;
            last = stats.bytes_sent;
            println!(
                "{:7.1} {:<18} cwnd {:>9} inflight {:>9} pace {:>8.3} bw {:>8.3} sent {:>8.3} rtt {:>6.1} min {:>6.1} q {:>7.1} ms loss {:>5.3} B {:>4.1} queue {queue}",
                time.as_secs_f64(),
                stats.controller_state,
                stats.cwnd_bytes,
                stats.in_flight_bytes,
                stats.pacing_bps as f64 * 1e-6,
                stats.delivery_bps as f64 * 1e-6,
                sent as f64 * 8e-5,
                stats.smoothed_rtt.as_secs_f64() * 1e3,
                stats.min_rtt.as_secs_f64() * 1e3,
                stats.queue_delay.as_secs_f64() * 1e3,
                stats.loss_estimate,
                stats.burst_factor,
            );
        };
        let trace: Option<&mut dyn FnMut(_, &_, u64)> =
            if self.trace { Some(&mut print) } else { None };
        let outcome = world::run(&cell, algorithm, job.seed, trace);
        (measure::figures(&cell, &outcome, optimum), optimum)
    }
}
