//! `bats-sim`: figures of the protocol in virtual time.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bats_sim::matrix::{Cell, Figures};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "The OpenBATS protocol in virtual time")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bulk transfer over one link for every loss and delay
    Matrix(Matrix),
    /// One cell of the matrix, with the state of the sender over time
    Run(Matrix),
}

#[derive(Parser)]
struct Matrix {
    /// Losses in per cent, both directions
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 30.0])]
    loss: Vec<f64>,
    /// One-way delays in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [10.0, 30.0, 50.0, 70.0, 100.0])]
    delay: Vec<f64>,
    /// Rate in Mbit/s of frames
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Queue in bandwidth-delay products
    #[arg(long, default_value_t = 1.0)]
    queue: f64,
    /// Length of a cell's run in seconds
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print an array of objects
    #[arg(long)]
    json: bool,
}

impl Matrix {
    fn cells(&self) -> Result<Vec<Cell>, String> {
        let in_range = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                Ok(value)
            } else {
                Err(format!("--{name} {value} is not within {low} to {high}"))
            }
        };
        let rate = in_range("rate", self.rate, 0.01, 100_000.0)?;
        let seconds = in_range("seconds", self.seconds, 0.1, 3_600.0)?;
        let queue = in_range("queue", self.queue, 0.0, 100.0)?;
        let mut cells = Vec::new();
        for &loss in &self.loss {
            for &delay in &self.delay {
                cells.push(Cell {
                    loss: in_range("loss", loss, 0.0, 99.0)? / 100.0,
                    delay: Duration::from_secs_f64(in_range("delay", delay, 0.0, 60_000.0)? / 1e3),
                    rate_bps: (rate * 1e6) as u64,
                    queue,
                    duration: Duration::from_secs_f64(seconds),
                    seed: self.seed,
                });
            }
        }
        Ok(cells)
    }
}

const HEADER: &str = "loss %  delay ms   10 s Mbit/s  5-15 s Mbit/s   E 10 s   E 5-15  waste %  \
                      queue loss %  (1st s)  queue BDP  RTTs to 90 %";

fn line(figures: &Figures) -> String {
    let rounds = figures.rounds_to_rate.map_or("-".to_owned(), |rounds| format!("{rounds:.1}"));
    format!(
        "{:6.1} {:9.0} {:13.1} {:14.1} {:8.3} {:8.3} {:8.2} {:13.2} {:8.2} {:10.3} {:>13}",
        figures.loss_percent,
        figures.delay_ms,
        figures.goodput_mbps_10s,
        figures.goodput_mbps_steady,
        figures.e_10s,
        figures.e_steady,
        figures.waste_percent,
        figures.queue_loss_percent,
        figures.queue_loss_first_second_percent,
        figures.queue_bdp,
        rounds,
    )
}

/// Runs all cells on all cores; results in the order of the cells.
fn run_all(cells: &[Cell], done: impl Fn(&Figures) + Sync) -> Vec<Figures> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; cells.len()]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, cell)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    cells.get(index).map(|cell| (index, cell))
                } {
                    let (figures, _) = cell.run();
                    done(&figures);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(figures);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().flatten().collect()
}

fn matrix(arguments: &Matrix) -> Result<(), String> {
    let cells = arguments.cells()?;
    let figures = run_all(&cells, |_| {
        if !arguments.json {
            eprint!(".");
        }
    });
    if arguments.json {
        let text = serde_json::to_string_pretty(&figures).map_err(|error| error.to_string())?;
        println!("{text}");
        return Ok(());
    }
    eprintln!();
    println!("{HEADER}");
    figures.iter().for_each(|figures| println!("{}", line(figures)));
    Ok(())
}

fn run(arguments: &Matrix) -> Result<(), String> {
    for cell in arguments.cells()? {
        let (figures, outcome) = cell.run();
        println!(
            "time s  state        goodput  pacing  delivery  cwnd kB  flight kB  queue kB  queue ms  loss  drops"
        );
        let mut last = (0.0, 0);
        for sample in outcome.samples.iter().step_by(5) {
            let time = sample.time.as_secs_f64();
            let elapsed = (time - last.0).max(1e-9);
            println!(
                "{:6.2}  {:10} {:9.1} {:7.1} {:9.1} {:8} {:10} {:9} {:9.2} {:5.3} {:6}",
                time,
                sample.sender.controller_state,
                (sample.delivered - last.1) as f64 * 8e-6 / elapsed,
                sample.sender.pacing_bps as f64 / 1e6,
                sample.sender.delivery_bps as f64 / 1e6,
                sample.sender.cwnd_bytes / 1000,
                sample.sender.in_flight_bytes / 1000,
                sample.queue_bytes / 1000,
                sample.sender.queue_delay.as_secs_f64() * 1e3,
                sample.sender.loss_estimate,
                sample.link.dropped_queue,
            );
            last = (time, sample.delivered);
        }
        println!("{HEADER}\n{}", line(&figures));
        println!("closed: {:?}, receiver: {:#?}", outcome.closed, outcome.receiver);
        if let Some(sample) = outcome.samples.last() {
            println!("sender: {:#?}", sample.sender);
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Matrix(arguments) => matrix(&arguments),
        Command::Run(arguments) => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bats-sim: {error}");
            ExitCode::from(2)
        }
    }
}
