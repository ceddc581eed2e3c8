//! Own flows among themselves, and other flows.

use core::time::Duration;

use bats_netem::Policer;
use bats_proto::CongestionAlgorithm;

use super::{Cell, Draw, Entry, FlowSpec, cell, hop, lossy, ms};
use crate::arena::cell::Algorithm;

fn own(d: &mut Draw, mbps: f64, count: usize) -> Cell {
    cell(hop(d, mbps, 10.0, 1.0), vec![FlowSpec::subject(); count])
}

pub(super) const OWN: &[Entry] = &[
    Entry { name: "O1", title: "2 on 20 Mbit/s, 20 ms", build: |d| own(d, 20.0, 2) },
    Entry { name: "O2", title: "4 on 20 Mbit/s, 20 ms", build: |d| own(d, 20.0, 4) },
    Entry { name: "O3", title: "8 on 20 Mbit/s, 20 ms", build: |d| own(d, 20.0, 8) },
    Entry { name: "O4", title: "16 on 20 Mbit/s, 20 ms", build: |d| own(d, 20.0, 16) },
    Entry { name: "O5", title: "32 on 20 Mbit/s, 20 ms", build: |d| own(d, 20.0, 32) },
    Entry {
        name: "O6",
        title: "8 on 20 Mbit/s, 5 %",
        build: |d| {
            let hop = hop(d, 20.0, 10.0, 1.0);
            cell(lossy(hop, 0.05), vec![FlowSpec::subject(); 8])
        },
    },
    Entry {
        name: "O7",
        title: "4 on 100 Mbit/s, 5 s apart",
        build: |d| {
            let flow = |i: u64| FlowSpec::subject().from(Duration::from_secs(5 * i));
            let base = cell(hop(d, 100.0, 10.0, 1.0), (0..4).map(flow).collect());
            Cell { warm_up: Duration::from_secs(25), ..base }
        },
    },
    Entry {
        name: "O8",
        title: "10 and 100 ms on 50 Mbit/s",
        build: |d| {
            let mut hop = hop(d, 50.0, 5.0, 4.0);
            hop.up.flow_delays = vec![ms(0), ms(90)];
            cell(hop, vec![FlowSpec::subject(); 2])
        },
    },
    Entry {
        name: "O9",
        title: "8 behind a policer of 20 Mbit/s",
        build: |d| {
            let mut hop = hop(d, 80.0, 10.0, 1.0);
            let rate_bps = hop.up.rate_bps.unwrap_or(4) / 4;
            hop.up.policer = Some(Policer { rate_bps, burst_bytes: 100_000, per_flow: false });
            cell(hop, vec![FlowSpec::subject(); 8])
        },
    },
    Entry {
        name: "O10",
        title: "8 on 2 Mbit/s, 40 ms",
        build: |d| cell(hop(d, 2.0, 20.0, 1.0), vec![FlowSpec::subject(); 8]),
    },
    Entry {
        name: "O11",
        title: "8 on 500 Mbit/s, 20 ms",
        build: |d| {
            super::short(cell(hop(d, 500.0, 10.0, 1.0), vec![FlowSpec::subject(); 8]), 5, 10)
        },
    },
];

/// The subject against `others` on 50 Mbit/s and 40 ms; the seed decides who begins.
fn against(d: &mut Draw, bdp: f64, other: Algorithm, count: usize) -> Cell {
    let base = hop(d, 50.0, 20.0, bdp);
    let (ours, theirs) = if d.seed.is_multiple_of(2) { (0, 5) } else { (5, 0) };
    let mut flows = vec![FlowSpec::subject().from(Duration::from_secs(ours))];
    let other = FlowSpec::competing(other).from(Duration::from_secs(theirs));
    flows.extend((0..count).map(|_| other));
    Cell { warm_up: Duration::from_secs(15), ..cell(base, flows) }
}

const BBR3: Algorithm = Algorithm::Bare(CongestionAlgorithm::Bbr3);

pub(super) const COMPETING: &[Entry] = &[
    Entry {
        name: "C1",
        title: "CUBIC, 0.25 BDP",
        build: |d| against(d, 0.25, Algorithm::Cubic, 1),
    },
    Entry { name: "C2", title: "CUBIC, 1 BDP", build: |d| against(d, 1.0, Algorithm::Cubic, 1) },
    Entry { name: "C3", title: "CUBIC, 4 BDP", build: |d| against(d, 4.0, Algorithm::Cubic, 1) },
    Entry {
        name: "C4",
        title: "10 CUBIC, 1 BDP",
        build: |d| against(d, 1.0, Algorithm::Cubic, 10),
    },
    Entry { name: "C5", title: "Reno, 1 BDP", build: |d| against(d, 1.0, Algorithm::Reno, 1) },
    Entry { name: "C6", title: "BBRv1, 1 BDP", build: |d| against(d, 1.0, Algorithm::Bbr1, 1) },
    Entry { name: "C7", title: "BBRv3, 1 BDP", build: |d| against(d, 1.0, BBR3, 1) },
    Entry { name: "C8", title: "Copa, 1 BDP", build: |d| against(d, 1.0, Algorithm::Copa, 1) },
    Entry {
        name: "C9",
        title: "CUBIC, 1 BDP, 1 % loss",
        build: |d| {
            let mut cell = against(d, 1.0, Algorithm::Cubic, 1);
            cell.hops[0] = lossy(cell.hops[0].clone(), 0.01);
            cell
        },
    },
];
