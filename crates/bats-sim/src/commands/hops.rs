//! The command `hops`.

use bats_sim::hops::{Hops, HopsFigures};
use clap::Parser;

use super::parallel;
use crate::{Common, Failure, say};

/// What the columns mean.
pub(crate) const LEGEND: &str = "\
Every link loses that much in both directions. Goodput counts message bytes that became \
deliverable in order from the second third of the run on. The bound is (1 - p) times the goodput of \
the same session over one hop without loss; 'share' is the goodput's part of it. 'forwarding' is \
(1 - p)^h of that figure: what relays that only forward leave. With --recoding off relays do \
just that, and the ends repair.

'ends repair': repairs that the source sent, per cent of its symbols. 'useless': packets that \
brought nothing to the node that received them (mostly combinations in slots that nothing else \
wanted). 'relay KiB': most that one node held. 'lost': batches that some relay gave up.";

const HEADER: &str = "hops  loss %  recoding  goodput Mbit/s   bound   share  forwarding  \
    handshake ms  ends repair %  useless %  relay KiB  lost";

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Recoding {
    /// Relays recode and repair
    On,
    /// Relays forward, the ends repair
    Off,
    /// One after the other
    Both,
}

#[derive(Parser)]
pub(crate) struct HopsArguments {
    /// Numbers of links
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 6, 8])]
    hops: Vec<usize>,
    /// Losses of each link in per cent, both directions
    #[arg(long, value_delimiter = ',', default_values_t = [5.0, 10.0, 20.0])]
    loss: Vec<f64>,
    /// One-way delay of each link in milliseconds
    #[arg(long, default_value_t = 10.0)]
    delay: f64,
    /// What relays do
    #[arg(long, default_value = "both")]
    recoding: Recoding,
    /// Rate of each link in Mbit/s of frames
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Queue of each link in bandwidth-delay products, at least two full frames
    #[arg(long, default_value_t = 1.0)]
    queue: f64,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Decides every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print an array of objects
    #[arg(long)]
    json: bool,
}

fn line(figures: &HopsFigures) -> String {
    let handshake = figures.handshake_ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
    format!(
        "{:4} {:7.1} {:>9} {:15.1} {:7.1} {:7.3} {:11.1} {:>13} {:14.2} {:10.2} {:10.0} {:5}",
        figures.hops,
        figures.loss_percent,
        if figures.recoding { "on" } else { "off" },
        figures.goodput_mbps,
        figures.bound_mbps,
        figures.share,
        figures.forwarding_mbps,
        handshake,
        figures.end_repairs_percent,
        figures.useless_percent,
        figures.relay_kib,
        figures.batches_lost,
    )
}

/// Runs all lines and prints their figures.
pub(crate) fn run(arguments: &HopsArguments) -> Result<(), Failure> {
    let &HopsArguments { delay, rate, queue, seconds, seed, .. } = arguments;
    let congestion = bats_proto::CongestionAlgorithm::Bbr;
    let common = Common { rate, queue, seconds, congestion, seed };
    let cell = |loss: f64| common.cell(loss, delay).map_err(Failure::Usage);
    let modes: &[bool] = match arguments.recoding {
        Recoding::On => &[true],
        Recoding::Off => &[false],
        Recoding::Both => &[true, false],
    };
    // The first run is what the others are measured by.
    let mut runs = vec![Hops::new(1, cell(0.0)?, true)];
    for &recoding in modes {
        for &loss in &arguments.loss {
            for &hops in &arguments.hops {
                if !(1..=64).contains(&hops) {
                    return Err(Failure::Usage(format!("--hops {hops} is not within 1 to 64")));
                }
                runs.push(Hops::new(hops, cell(loss)?, recoding));
            }
        }
    }
    let outcomes = parallel(&runs, |run| {
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
        return say(&text);
    }
    eprintln!();
    say(&format!("one hop without loss: {lossless:.1} Mbit/s"))?;
    say(HEADER)?;
    figures.iter().try_for_each(|figures| say(&line(figures)))
}
