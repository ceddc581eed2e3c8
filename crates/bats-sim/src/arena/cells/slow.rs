//! Slow links.

use core::time::Duration;

use bats_netem::Loss;

use super::{Cell, Entry, alone, hop, lossy};

pub(super) const SLOW: &[Entry] = &[
    Entry { name: "S1", title: "30 kbit/s, 200 ms", build: |d| alone(hop(d, 0.03, 100.0, 1.0)) },
    Entry { name: "S2", title: "100 kbit/s, 100 ms", build: |d| alone(hop(d, 0.1, 50.0, 1.0)) },
    Entry {
        name: "S3",
        title: "500 kbit/s, 100 ms, 30 %",
        build: |d| alone(lossy(hop(d, 0.5, 50.0, 1.0), 0.3)),
    },
    Entry {
        name: "S4",
        title: "1 Mbit/s, 600 ms, 10 %",
        build: |d| alone(lossy(hop(d, 1.0, 300.0, 1.0), 0.1)),
    },
    Entry {
        name: "S5",
        title: "1 Mbit/s, 100 ms, 90 %",
        build: |d| {
            let mut hop = hop(d, 1.0, 50.0, 1.0);
            hop.up.loss = Loss::Iid(0.9);
            Cell { measure: Duration::from_secs(50), ..alone(hop) }
        },
    },
];
