//! Rates that change within seconds.

use bats_netem::{Contention, LteRate, RateSchedule};

use super::{Draw, Entry, alone, hop, lossy, ms};
use crate::arena::cell::Cell;

/// A link with 40 ms whose rate follows `schedule`, in multiples of a mean of `mbps`; the queue is
/// one BDP of the mean.
fn varying(
    d: &mut Draw,
    mbps: f64,
    schedule: impl FnOnce(f64, u64) -> Option<RateSchedule>,
) -> Cell {
    let mut cell = alone(hop(d, mbps, 20.0, 1.0));
    let up = &mut cell.hops[0].up;
    let mean = up.rate_bps.unwrap_or(1) as f64;
    up.rate_schedule = schedule(mean, d.seed);
    cell
}

/// `low` and `high` times the mean in turns of `turn_ms`.
fn square(mean: f64, low: f64, high: f64, turn_ms: u64) -> Option<RateSchedule> {
    let steps = [(ms(turn_ms), (mean * high) as u64), (ms(turn_ms), (mean * low) as u64)];
    RateSchedule::steps(&steps, true).ok()
}

fn saw(mean: f64, low: f64, high: f64, rise_ms: u64) -> Option<RateSchedule> {
    RateSchedule::saw((mean * low) as u64, (mean * high) as u64, ms(rise_ms), ms(0)).ok()
}

fn lte(mean: f64, seed: u64, sigma: f64, step_ms: u64) -> Option<RateSchedule> {
    let lte = LteRate { sigma, step: ms(step_ms), ..LteRate::new(mean as u64, seed) };
    Some(RateSchedule::Lte(lte))
}

fn step(mean: f64, factor: f64) -> Option<RateSchedule> {
    let steps = [(ms(15_000), mean as u64), (ms(1_000), (mean * factor) as u64)];
    RateSchedule::steps(&steps, false).ok()
}

pub(super) const VARIABLE: &[Entry] = &[
    Entry {
        name: "V1",
        title: "50 and 5 Mbit/s each 1 s",
        build: |d| varying(d, 27.5, |m, _| square(m, 0.18, 1.82, 1_000)),
    },
    Entry {
        name: "V2",
        title: "50 and 5 Mbit/s each 3 s",
        build: |d| varying(d, 27.5, |m, _| square(m, 0.18, 1.82, 3_000)),
    },
    Entry {
        name: "V3",
        title: "saw of 5 to 50 Mbit/s, 2 s",
        build: |d| varying(d, 27.5, |m, _| saw(m, 0.18, 1.82, 2_000)),
    },
    Entry {
        name: "V4",
        title: "10 to 100 Mbit/s after 15 s",
        build: |d| varying(d, 10.0, |m, _| step(m, 10.0)),
    },
    Entry {
        name: "V5",
        title: "100 to 10 Mbit/s after 15 s",
        build: |d| varying(d, 100.0, |m, _| step(m, 0.1)),
    },
    Entry {
        name: "V6",
        title: "LTE-like, 20 Mbit/s, 100 ms steps",
        build: |d| varying(d, 20.0, |m, s| lte(m, s, 0.35, 100)),
    },
    Entry {
        name: "V7",
        title: "LTE-like, 20 Mbit/s, 20 ms steps",
        build: |d| varying(d, 20.0, |m, s| lte(m, s, 0.3, 20)),
    },
    Entry {
        name: "V8",
        title: "Wi-Fi-like contention, 30 Mbit/s",
        build: |d| {
            let mut cell = varying(d, 30.0, |m, s| lte(m, s, 0.1, 100));
            cell.hops[0].up.contention = Some(Contention::wifi(ms(7)));
            cell
        },
    },
    Entry {
        name: "V9",
        title: "saw of 5 to 50 Mbit/s, 2 % loss",
        build: |d| {
            let mut cell = varying(d, 27.5, |m, _| saw(m, 0.18, 1.82, 2_000));
            cell.hops[0] = lossy(cell.hops[0].clone(), 0.02);
            cell
        },
    },
    Entry {
        name: "V10",
        title: "LTE-like, 20 Mbit/s, 2 % loss",
        build: |d| {
            let mut cell = varying(d, 20.0, |m, s| lte(m, s, 0.35, 100));
            cell.hops[0] = lossy(cell.hops[0].clone(), 0.02);
            cell
        },
    },
];
