//! Policers and managed queues.

use core::time::Duration;

use bats_netem::{CoDel, Discipline, FqCoDel, Pie, Policer, StepMark};

use super::{Cell, Draw, Entry, FlowSpec, alone, cell, hop, lossy};
use crate::arena::cell::Algorithm;

/// A policer of `mbps` with a bucket of `kilobytes` before a link of four times the rate.
fn policed(d: &mut Draw, mbps: f64, kilobytes: f64) -> Cell {
    let mut hop = hop(d, mbps * 4.0, 20.0, 1.0);
    let rate_bps = hop.up.rate_bps.unwrap_or(4) / 4;
    let burst_bytes = (d.of(kilobytes) * 1e3) as usize;
    hop.up.policer = Some(Policer { rate_bps, burst_bytes, per_flow: false });
    alone(hop)
}

pub(super) const POLICERS: &[Entry] = &[
    Entry { name: "P1", title: "policer 20 Mbit/s, 25 kB", build: |d| policed(d, 20.0, 25.0) },
    Entry { name: "P2", title: "policer 20 Mbit/s, 100 kB", build: |d| policed(d, 20.0, 100.0) },
    Entry { name: "P3", title: "policer 20 Mbit/s, 1 MB", build: |d| policed(d, 20.0, 1_000.0) },
    Entry { name: "P4", title: "policer 5 Mbit/s, 15 kB", build: |d| policed(d, 5.0, 15.0) },
    Entry {
        name: "P5",
        title: "policer 20 Mbit/s, 100 kB, 2 % loss",
        build: |d| {
            let mut cell = policed(d, 20.0, 100.0);
            cell.hops[0] = lossy(cell.hops[0].clone(), 0.02);
            cell
        },
    },
];

/// A link of `mbps` and 40 ms under `discipline` with a limit of 1,000 packets.
fn managed(d: &mut Draw, mbps: f64, discipline: Discipline, competing: usize) -> Cell {
    let mut hop = hop(d, mbps, 20.0, 1.0);
    (hop.up.discipline, hop.up.queue_bytes) = (discipline, None);
    hop.up.queue_packets = Some(1_000);
    let mut flows = vec![FlowSpec::subject()];
    flows.extend((0..competing).map(|_| FlowSpec::competing(Algorithm::Cubic)));
    cell(hop, flows)
}

/// The same with ECN-capable models of TCP.
fn with_ecn(cell: Cell) -> Cell {
    Cell { tcp_ecn: true, ..cell }
}

fn pie() -> Discipline {
    Discipline::Pie(Pie::default())
}

pub(super) const QUEUES: &[Entry] = &[
    Entry {
        name: "A1",
        title: "CoDel, 2 Mbit/s",
        build: |d| managed(d, 2.0, Discipline::CoDel(CoDel::default()), 0),
    },
    Entry {
        name: "A2",
        title: "CoDel, 50 Mbit/s",
        build: |d| managed(d, 50.0, Discipline::CoDel(CoDel::default()), 0),
    },
    Entry {
        name: "A3",
        title: "FQ-CoDel, 20 Mbit/s, 2 CUBIC",
        build: |d| managed(d, 20.0, Discipline::FqCoDel(FqCoDel::default()), 2),
    },
    Entry {
        name: "A4",
        title: "FQ-CoDel, 20 Mbit/s, 8 CUBIC",
        build: |d| managed(d, 20.0, Discipline::FqCoDel(FqCoDel::default()), 8),
    },
    Entry { name: "A5", title: "PIE, 10 Mbit/s", build: |d| managed(d, 10.0, pie(), 0) },
    Entry {
        name: "A6",
        title: "step marking at 1 ms, 50 Mbit/s",
        build: |d| {
            let step = StepMark { threshold: Duration::from_millis(1) };
            with_ecn(managed(d, 50.0, Discipline::StepMark(step), 0))
        },
    },
    Entry {
        name: "A7",
        title: "CoDel, 20 Mbit/s, 2 CUBIC with ECN",
        build: |d| with_ecn(managed(d, 20.0, Discipline::CoDel(CoDel::default()), 2)),
    },
    Entry {
        name: "A8",
        title: "PIE, 10 Mbit/s, ECN",
        build: |d| with_ecn(managed(d, 10.0, pie(), 0)),
    },
];
