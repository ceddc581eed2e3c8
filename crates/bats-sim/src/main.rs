//! `bats-sim`: measures the protocol in virtual time.
#![forbid(unsafe_code)]

mod commands;
mod table;

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bats_code::kernel::Kernel;
use bats_proto::CongestionAlgorithm;
use bats_sim::capture::Capture;
use bats_sim::jobs::parallel;
use bats_sim::matrix::Cell;
use bats_sim::recorder::Recorder;
use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Measure the OpenBATS protocol in virtual time")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bulk transfer over one link, for all combinations of loss and delay
    #[command(after_long_help = table::LEGEND)]
    Matrix(Matrix),
    /// Bulk transfer across relays, for all combinations of hop count and loss
    #[command(after_long_help = commands::hops::LEGEND)]
    Hops(commands::hops::HopsArguments),
    /// Multipath bulk transfer, with failures of single paths
    #[command(after_long_help = commands::paths::LEGEND)]
    Paths(commands::paths::PathsArguments),
    /// One cell of the matrix, with the sender's state over time
    #[command(after_long_help = table::LEGEND)]
    Run(Run),
    /// Messages with deadlines (BTP): residual loss, overhead and delay
    #[command(after_long_help = commands::btp::LEGEND)]
    Btp(commands::btp::Btp),
    /// Round-trip times of small messages over one and several hops
    #[command(after_long_help = commands::messages::LEGEND)]
    Messages(commands::messages::MessagesCommand),
    /// Competing flows on one link: BRTP with BRTP and with TCP
    #[command(after_long_help = commands::fairness::LEGEND)]
    Fairness(commands::fairness::Fairness),
    /// Cells that judge congestion controllers
    Arena(commands::arena::Arena),
    /// Effect of network faults, each figure with its bound
    #[command(after_long_help = commands::faults::LEGEND)]
    Faults(commands::faults::Faults),
    /// Random networks, faults and applications, checked against models
    #[command(after_long_help = commands::swarm::LEGEND)]
    Swarm(commands::swarm::Swarm),
    /// Random networks of nodes: safety, and reachability within 1 s of the last event
    #[command(after_long_help = commands::node_networks::LEGEND)]
    NodeNetworks(commands::node_networks::NodeNetworks),
    /// Print the kernel of finite-field arithmetic in use, of those that the processor supports
    #[command(hide = true)]
    Kernel,
    /// Write manual pages and shell completions to a directory, for packages
    #[command(hide = true)]
    Generate(bats_sim::generate::Generate),
}

#[derive(Parser)]
struct Matrix {
    /// Loss rates in per cent, applied in both directions
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 30.0])]
    loss: Vec<f64>,
    /// One-way delays in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [10.0, 30.0, 50.0, 70.0, 100.0])]
    delay: Vec<f64>,
    #[command(flatten)]
    common: Common,
    /// Exit with 1 if E over seconds 5 to 15 is lower than this in a cell
    #[arg(long, value_name = "E")]
    least_e: Option<f64>,
    /// Print the figures as a JSON array of objects
    #[arg(long)]
    json: bool,
}

#[derive(Parser)]
struct Run {
    /// Loss rate in per cent, applied in both directions
    #[arg(long, default_value_t = 10.0)]
    loss: f64,
    /// One-way delay in milliseconds
    #[arg(long, default_value_t = 50.0)]
    delay: f64,
    #[command(flatten)]
    common: Common,
    /// Write the datagrams to this file (pcapng, synthetic Ethernet, IPv4 and UDP headers)
    ///
    /// Datagrams are captured where they enter the link. A datagram that the link drops has a
    /// comment with the reason. Timestamps are virtual time and start in 1970.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Maximum number of datagrams in that file; later ones are not written
    #[arg(long, value_name = "N", default_value_t = 100_000, requires = "pcap")]
    pcap_packets: u64,
}

#[derive(Parser)]
struct Common {
    /// Link rate in Mbit/s, frames included
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// Queue length in BDP, at least two full frames
    #[arg(long, default_value_t = 1.0)]
    queue: f64,
    /// Duration of a run in seconds
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Congestion controller of the sender: ltcc, bbr3, cubic, gcc, none, or fixed:RATE, e.g. fixed:50M
    #[arg(long, default_value_t = CongestionAlgorithm::Ltcc)]
    congestion: CongestionAlgorithm,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn kernel() -> Result<(), Failure> {
    Kernel::from_environment().map_err(|error| Failure::Usage(error.to_string()))?;
    print_line(Kernel::active().name())
}

fn in_range(name: &str, value: f64, low: f64, high: f64) -> Result<f64, String> {
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err(format!("--{name} {value} is out of range: allowed are {low} to {high}"))
    }
}

impl Common {
    fn cell(&self, loss: f64, delay: f64) -> Result<Cell, String> {
        let delay = in_range("delay", delay, 0.01, 5_000.0)?;
        Ok(Cell {
            loss: in_range("loss", loss, 0.0, 99.0)? / 100.0,
            delay: Duration::from_secs_f64(delay / 1e3),
            rate_bps: (in_range("rate", self.rate, 0.01, 100_000.0)? * 1e6) as u64,
            queue: in_range("queue", self.queue, 0.0, 100.0)?,
            duration: Duration::from_secs_f64(in_range("seconds", self.seconds, 0.1, 3_600.0)?),
            congestion: self.congestion,
            seed: self.seed,
        })
    }
}

/// Why a command failed.
enum Failure {
    /// An option is out of range.
    Usage(String),
    /// Output cannot be written.
    Io(io::Error),
    /// The command ran, but a figure misses its bound or a seed failed.
    CheckFailed(String),
}

/// Prints a line to standard output.
fn print_line(line: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}").map_err(Failure::Io)
}

fn matrix(arguments: &Matrix) -> Result<(), Failure> {
    let losses = arguments.loss.iter();
    let pairs = losses.flat_map(|&loss| arguments.delay.iter().map(move |&delay| (loss, delay)));
    let cells: Vec<Cell> = pairs
        .map(|(loss, delay)| arguments.common.cell(loss, delay))
        .collect::<Result<_, _>>()
        .map_err(Failure::Usage)?;
    let figures = parallel(&cells, 0, |cell| {
        let (figures, _) = cell.run();
        if !arguments.json {
            eprint!(".");
        }
        figures
    });
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&figures).map_err(|error| Failure::Io(error.into()))?;
        print_line(&text)?;
    } else {
        eprintln!();
        print_line(table::HEADER)?;
        figures.iter().try_for_each(|figures| print_line(&table::line(figures)))?;
    }
    let Some(least) = arguments.least_e else { return Ok(()) };
    // No figure at all is below it, too.
    let low = figures
        .iter()
        .filter(|figures| figures.e_steady.partial_cmp(&least).is_none_or(Ordering::is_lt));
    match low.count() {
        0 => Ok(()),
        count => Err(Failure::CheckFailed(format!("E is lower than {least} in {count} cells"))),
    }
}

fn run(arguments: &Run) -> Result<(), Failure> {
    let cell = arguments.common.cell(arguments.loss, arguments.delay).map_err(Failure::Usage)?;
    let mut recorder = Recorder::tracing();
    let path = arguments.pcap.as_deref();
    let at = |error: io::Error| {
        let path = path.unwrap_or(Path::new("")).display();
        Failure::Io(io::Error::new(error.kind(), format!("{path}: {error}")))
    };
    if let Some(path) = path {
        let file = BufWriter::new(File::create(path).map_err(at)?);
        recorder.capture = Some(Capture::new(Box::new(file), arguments.pcap_packets).map_err(at)?);
    }
    let (figures, outcome) = cell.run_recorded(&mut recorder);
    table::samples(&outcome).iter().try_for_each(|line| print_line(line))?;
    print_line(&format!("{}\n{}", table::HEADER, table::line(&figures)))?;
    print_line(&format!("closed: {:?}, receiver: {:#?}", outcome.closed, outcome.receiver))?;
    if let Some(sample) = outcome.samples.last() {
        print_line(&format!("sender: {:#?}", sample.sender))?;
    }
    if let Some(capture) = recorder.capture {
        let datagrams = capture.finish().map_err(at)?;
        let path = path.unwrap_or(Path::new("")).display();
        print_line(&format!("capture: {datagrams} datagrams in {path}"))?;
    }
    if let Some(trace) = recorder.trace {
        print_line(&format!("trace: {} over {} events", trace.hash(), trace.events()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Matrix(arguments) => matrix(&arguments),
        Command::Hops(arguments) => commands::hops::run(&arguments),
        Command::Paths(arguments) => commands::paths::run(&arguments),
        Command::Run(arguments) => run(&arguments),
        Command::Btp(arguments) => commands::btp::run(&arguments),
        Command::Messages(arguments) => commands::messages::run(&arguments),
        Command::Arena(arguments) => commands::arena::run(&arguments),
        Command::Fairness(arguments) => commands::fairness::run(&arguments),
        Command::Faults(arguments) => commands::faults::run(&arguments),
        Command::Swarm(arguments) => commands::swarm::run(&arguments),
        Command::NodeNetworks(arguments) => commands::node_networks::run(&arguments),
        Command::Kernel => kernel(),
        Command::Generate(arguments) => arguments.run(&Arguments::command()).map_err(Failure::Io),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(error)) => {
            eprintln!("bats-sim: {error}");
            ExitCode::from(2)
        }
        Err(Failure::CheckFailed(reason)) => {
            eprintln!("bats-sim: {reason}");
            ExitCode::FAILURE
        }
        // The reader closed the pipe on purpose, so there is nothing to report.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(Failure::Io(error)) => {
            eprintln!("bats-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page_and_completions() {
        let program = Arguments::command();
        assert!(program.get_subcommands().count() > 5);
        assert_eq!(bats_sim::generate::missing(&program).unwrap(), Vec::<String>::new());
    }
}
