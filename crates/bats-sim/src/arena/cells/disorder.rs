//! Reordering, delay spikes, and acknowledgements that are thinned or slow.

use bats_netem::{AckThinning, DelaySchedule, Jitter};

use super::{Cell, Draw, Entry, FlowSpec, alone, cell, hop, ms};
use crate::arena::cell::Algorithm;

fn reordered(d: &mut Draw, amplitude: u64) -> Cell {
    let mut hop = hop(d, 30.0, 30.0, 1.0);
    hop.up.jitter = Some(Jitter { amplitude: ms(amplitude), reorder: true });
    alone(hop)
}

pub(super) const DISORDER: &[Entry] = &[
    Entry { name: "J1", title: "reordering of 5 ms", build: |d| reordered(d, 5) },
    Entry { name: "J2", title: "reordering of 20 ms", build: |d| reordered(d, 20) },
    Entry {
        name: "J3",
        title: "spikes of 100 ms for 200 ms each 2 s",
        build: |d| {
            let mut hop = hop(d, 30.0, 10.0, 1.0);
            hop.up.delay_schedule =
                Some(DelaySchedule::Spikes { extra: ms(100), length: ms(200), period: ms(2_000) });
            alone(hop)
        },
    },
    Entry {
        name: "J4",
        title: "one of 16 ACKs",
        build: |d| {
            let mut hop = hop(d, 30.0, 20.0, 1.0);
            hop.down.thinning = Some(AckThinning { max_len: 200, keep_one_of: 16, window: ms(50) });
            alone(hop)
        },
    },
    Entry {
        name: "J5",
        title: "reverse rate a hundredth",
        build: |d| {
            let mut hop = hop(d, 50.0, 20.0, 1.0);
            hop.down.rate_bps = hop.down.rate_bps.map(|rate| rate / 100);
            hop.down.queue_bytes = Some(20_000);
            alone(hop)
        },
    },
    Entry {
        name: "J6",
        title: "CUBIC against the data, 30/5 Mbit/s",
        build: |d| {
            let mut hop = hop(d, 30.0, 20.0, 1.0);
            hop.down.rate_bps = hop.down.rate_bps.map(|rate| rate / 6);
            hop.down.queue_bytes = hop.down.queue_bytes.map(|bytes| bytes / 6);
            let reverse = FlowSpec::competing(Algorithm::Cubic).reversed();
            cell(hop, vec![FlowSpec::subject(), reverse])
        },
    },
];
