//! Media and short flows.

use core::time::Duration;

use bats_proto::CongestionAlgorithm;

use super::{Cell, Draw, Entry, FlowSpec, cell, hop};
use crate::arena::cell::{Algorithm, Who, Work};

/// 3 Mbit/s of messages with deadlines on a link of 6 Mbit/s with a `competing` flow.
fn media(d: &mut Draw, competing: FlowSpec) -> Cell {
    let mut hop = hop(d, 6.0, 10.0, 2.0);
    hop.up.queue_bytes = hop.up.queue_bytes.map(|bytes| bytes.max(60_000));
    let media = FlowSpec {
        who: Who::Fixed(Algorithm::Btp(CongestionAlgorithm::default())),
        work: Work::Rate { bits_per_second: 1.5e6, message: 1_200 },
        start: Duration::ZERO,
        reverse: false,
    };
    cell(hop, vec![media, competing])
}

pub(super) const MEDIA: &[Entry] = &[
    Entry {
        name: "M1",
        title: "BTP media and a transfer",
        build: |d| media(d, FlowSpec::subject()),
    },
    Entry {
        name: "M2",
        title: "BTP media and CUBIC",
        build: |d| media(d, FlowSpec::competing(Algorithm::Cubic)),
    },
    Entry {
        name: "M3",
        title: "50 CUBIC flows of 100 kB",
        build: |d| {
            let mut flows = vec![FlowSpec::subject()];
            flows.extend((0..50).map(|i| {
                FlowSpec {
                    work: Work::Bytes(100_000),
                    ..FlowSpec::competing(Algorithm::Cubic)
                        .from(Duration::from_millis(10_000 + 500 * i))
                }
            }));
            cell(hop(d, 20.0, 20.0, 1.0), flows)
        },
    },
    Entry {
        name: "M4",
        title: "50 flows of 100 kB and CUBIC",
        build: |d| {
            let mut flows = vec![FlowSpec::competing(Algorithm::Cubic)];
            flows.extend((0..50).map(|i| FlowSpec {
                work: Work::Bytes(100_000),
                ..FlowSpec::subject().from(Duration::from_millis(10_000 + 500 * i))
            }));
            cell(hop(d, 20.0, 20.0, 1.0), flows)
        },
    },
];
