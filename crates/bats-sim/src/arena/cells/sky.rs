//! Satellites and outages.

use core::time::Duration;

use bats_netem::{DelaySchedule, Holes, LeoRate, RateSchedule};

use super::{Cell, Entry, alone, hop, lossy, ms, short};

pub(super) const RELAYS: &[Entry] = &[
    Entry {
        name: "R3",
        title: "GEO, 250 Mbit/s, 600 ms, 1 %",
        build: |d| {
            let hop = hop(d, 250.0, 300.0, 1.0);
            short(alone(lossy(hop, 0.01)), 15, 10)
        },
    },
    Entry {
        name: "R4",
        title: "LEO, 100 Mbit/s, handovers, 1 %",
        build: |d| {
            let mut hop = hop(d, 100.0, 20.0, 1.0);
            let base_bps = hop.up.rate_bps.unwrap_or(1);
            let period = Duration::from_secs(15);
            let leo = LeoRate { base_bps, low: 0.3, high: 2.0, period, seed: d.seed };
            hop.up.rate_schedule = Some(RateSchedule::Leo(leo));
            hop.up.delay_schedule = Some(DelaySchedule::Leo { period, span: ms(40), seed: d.seed });
            Cell { measure: Duration::from_secs(50), ..alone(lossy(hop, 0.01)) }
        },
    },
    Entry {
        name: "R5",
        title: "outages of 2 s each 10 s, 50 Mbit/s",
        build: |d| {
            let mut cell = alone(hop(d, 50.0, 20.0, 1.0));
            let holes = Some(Holes::Periodic { period: ms(10_000), length: ms(2_000) });
            (cell.hops[0].up.holes, cell.hops[0].down.holes) = (holes, holes);
            cell
        },
    },
];
