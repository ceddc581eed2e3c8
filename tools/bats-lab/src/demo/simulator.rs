//! The demonstration where no lab can be built: BRTP over the same link in virtual time.

use std::time::Duration;

use anyhow::{Result, bail};
use bats_netem::LinkConfig;
use bats_proto::TransportConfig;
use bats_sim::matrix::FRAME_OVERHEAD;
use bats_sim::transfer::{Sample as Moment, Transfer};

use super::figures::{Figures, Run, Sample};
use crate::emulator::wire;
use crate::settings::{Direction, Link};

const MTU: u32 = 1500;
const MESSAGE: usize = 16 << 10;
/// So that the same link gives the same figures.
const SEED: u64 = 1;

/// Runs BRTP over `link` in the simulator.
///
/// # Errors
/// Where no connection comes about.
pub(super) fn run(link: &Link, seconds: u64) -> Result<Figures> {
    let outcome = Transfer {
        up: direction(link, &link.forward),
        down: direction(link, &link.backward),
        transport: TransportConfig::default(),
        message_size: MESSAGE,
        total_bytes: None,
        duration: Duration::from_secs(seconds),
        changes: Vec::new(),
        seed: SEED,
    }
    .run();
    if outcome.established.is_none() {
        bail!("no connection came about over this link in 20 simulated seconds");
    }
    let mut figures = Figures::new(*link, seconds, true);
    figures.runs.push(Run {
        name: "BRTP",
        with: "bats-sim",
        samples: intervals(&outcome.samples),
        processors: None,
    });
    figures.versions.push(("batslab".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    Ok(figures)
}

/// The simulator hands UDP payload to the link: the headers count for the rate all the same.
fn direction(link: &Link, direction: &Direction) -> LinkConfig {
    LinkConfig {
        frame_overhead: FRAME_OVERHEAD,
        mtu: Some(MTU as usize + wire::ETHERNET - FRAME_OVERHEAD),
        ..wire::config(link, direction, MTU)
    }
}

/// What was delivered in each second, from what had been at each sample.
fn intervals(moments: &[Moment]) -> Vec<Sample> {
    let mut intervals = Vec::new();
    let (mut start, mut before) = (0.0, 0);
    for (index, moment) in moments.iter().enumerate() {
        let end = moment.time.as_secs_f64();
        if end - start >= 1.0 || (index + 1 == moments.len() && end > start) {
            let bytes = moment.delivered.saturating_sub(before) as f64;
            intervals.push(Sample { start, end, bytes });
            (start, before) = (end, moment.delivered);
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Loss, Queue};

    #[test]
    fn a_run_has_an_interval_a_second_and_fits_the_link() {
        let one = Direction {
            rate: 20_000_000,
            delay: Duration::from_millis(10),
            loss: Loss::Independent(0.02),
            queue: Queue::Bdp(1.0),
            ..Direction::default()
        };
        let figures = run(&Link { forward: one, backward: one }, 3).unwrap();
        let run = &figures.runs[0];
        assert!((2..=4).contains(&run.samples.len()), "{:?}", run.samples);
        let average = run.average();
        assert!(average > 1e6 && average < figures.limit(), "{average}");
        assert!(figures.table().contains("BRTP"));
    }
}
