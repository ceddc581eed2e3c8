//! Relays, satellites and outages.

use core::time::Duration;

use bats_netem::{DelaySchedule, Holes, LeoRate, Loss, RateSchedule};

use super::{Cell, Draw, Entry, FlowSpec, alone, hop, lossy, ms, short};

/// Hops in a row of these rates and losses, 5 ms each, with relays between them.
fn relayed(d: &mut Draw, hops: [(f64, f64); 3]) -> Cell {
    let hops = hops.map(|(mbps, loss)| lossy(hop(d, mbps, 5.0, 1.0), loss));
    Cell { relays: true, ..Cell::new(hops.to_vec(), vec![FlowSpec::subject()]) }
}

pub(super) const RELAYS: &[Entry] = &[
    Entry {
        name: "R1",
        title: "relays, 100/20/50 Mbit/s, 2/5/10 %",
        build: |d| relayed(d, [(100.0, 0.02), (20.0, 0.05), (50.0, 0.1)]),
    },
    Entry {
        name: "R2",
        title: "relays, 20/100/50 Mbit/s, 10/5/2 %",
        build: |d| relayed(d, [(20.0, 0.1), (100.0, 0.05), (50.0, 0.02)]),
    },
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
    Entry {
        name: "R6",
        title: "relays, 3 unlike hops with bursts",
        build: |d| {
            let mut cell = relayed(d, [(60.0, 0.0), (30.0, 0.0), (40.0, 0.0)]);
            let bursts =
                [Loss::bursts(0.05, 15.0), Loss::bursts(0.1, 8.0), Loss::bursts(0.02, 30.0)];
            for (place, loss) in cell.hops.iter_mut().zip(bursts) {
                place.up.loss = loss;
            }
            cell
        },
    },
    Entry {
        name: "R7",
        title: "routers, 100/20/50 Mbit/s, 2 % each",
        build: |d| {
            let hops = [(100.0, 0.02), (20.0, 0.02), (50.0, 0.02)];
            Cell { relays: false, ..relayed(d, hops) }
        },
    },
];
