//! Command `hops`: bulk transfer across relays.

use bats_sim::hops::{Hops, HopsFigures};
use bats_sim::jobs::parallel;
use clap::Parser;

use crate::{Common, Failure, print_line};

/// Explanation of the columns.
pub(crate) const LEGEND: &str = "\
Every link has the given loss p in both directions. Goodput counts message bytes that became \
deliverable in order after the first third of the run. The bound is (1 - p) times the goodput of \
the same session over one lossless hop; 'share' is goodput divided by the bound. 'forwarding' is \
(1 - p)^h times the lossless goodput: what remains with relays that only forward. With --recoding \
off relays only forward, and the ends repair.

'ends repair': repairs sent by the source, per cent of its symbols. 'non-innov.': packets that \
were not innovative for the node that received them (mostly recoded packets in otherwise unused \
send slots). 'relay KiB': the most memory that one node held. 'lost': batches that a relay gave \
up.";

const HEADER: &str = "hops  loss %  recoding  goodput Mbit/s   bound   share  forwarding  \
    handshake ms  ends repair %  non-innov. %  relay KiB  lost";

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Recoding {
    /// Relays recode and repair
    On,
    /// Relays forward, the ends repair
    Off,
    /// Run both, one after the other
    Both,
}

#[derive(Parser)]
pub(crate) struct HopsArguments {
    /// Numbers of links between the ends
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 6, 8])]
    hops: Vec<usize>,
    /// Loss rates of each link in per cent, applied in both directions
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 10.0, 20.0])]
    loss: Vec<f64>,
    /// One-way delay of each link in milliseconds
    #[arg(long, default_value_t = 10.0)]
    delay: f64,
    /// Whether relays recode
    #[arg(long, default_value = "both")]
    recoding: Recoding,
    /// Rate of each link in Mbit/s, frames included
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Queue length of each link in BDP, at least two full frames
    #[arg(long, default_value_t = 1.0)]
    queue: f64,
    /// Duration of a run in seconds
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the figures as a JSON array of objects
    #[arg(long)]
    json: bool,
}

fn line(figures: &HopsFigures) -> String {
    let handshake = figures.handshake_ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
    format!(
        "{:4} {:7.1} {:>9} {:15.1} {:7.1} {:7.3} {:11.1} {:>13} {:14.2} {:13.2} {:10.0} {:5}",
        figures.hops,
        figures.loss_percent,
        if figures.recoding { "on" } else { "off" },
        figures.goodput_mbps,
        figures.bound_mbps,
        figures.share,
        figures.forwarding_mbps,
        handshake,
        figures.end_repairs_percent,
        figures.non_innovative_percent,
        figures.relay_kib,
        figures.batches_lost,
    )
}

/// Runs all transfers and prints their figures.
pub(crate) fn run(arguments: &HopsArguments) -> Result<(), Failure> {
    let &HopsArguments { delay, rate, queue, seconds, seed, .. } = arguments;
    let congestion = bats_proto::CongestionAlgorithm::Ltcc;
    let common = Common { rate, queue, seconds, congestion, seed };
    let cell = |loss: f64| common.cell(loss, delay).map_err(Failure::Usage);
    let modes: &[bool] = match arguments.recoding {
        Recoding::On => &[true],
        Recoding::Off => &[false],
        Recoding::Both => &[true, false],
    };
    // The first run is the lossless reference for the bounds of the others.
    let mut runs = vec![Hops::new(1, cell(0.0)?, true)];
    for &recoding in modes {
        for &loss in &arguments.loss {
            for &hops in &arguments.hops {
                if !(1..=64).contains(&hops) {
                    return Err(Failure::Usage(format!(
                        "--hops {hops} is out of range: allowed are 1 to 64"
                    )));
                }
                runs.push(Hops::new(hops, cell(loss)?, recoding));
            }
        }
    }
    let outcomes = parallel(&runs, 0, |run| {
        let outcome = run.run();
        if !arguments.json {
            eprint!(".");
        }
        outcome
    });
    let lossless = outcomes.first().map_or(0.0, |outcome| outcome.goodput());
    let figures: Vec<HopsFigures> = runs
        .iter()
        .zip(&outcomes)
        .skip(1)
        .map(|(run, outcome)| run.figures(outcome, lossless))
        .collect();
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&figures).map_err(|error| Failure::Io(error.into()))?;
        return print_line(&text);
    }
    eprintln!();
    print_line(&format!("one lossless hop: {lossless:.1} Mbit/s"))?;
    print_line(HEADER)?;
    figures.iter().try_for_each(|figures| print_line(&line(figures)))
}
