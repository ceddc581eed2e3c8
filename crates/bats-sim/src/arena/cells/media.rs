//! Media and short flows.

use core::time::Duration;

use bats_proto::CongestionAlgorithm;

use super::{Cell, Draw, Entry, FlowSpec, cell, hop};
use crate::arena::cell::{Algorithm, Who, Work};

/// 1.5 Mbit/s of messages with deadlines on a link of 6 Mbit/s with a `competing` flow: the fair share is
/// twice the rate of the media.
fn media(d: &mut Draw, who: Who, competing: FlowSpec) -> Cell {
    let mut hop = hop(d, 6.0, 10.0, 2.0);
    hop.up.queue_bytes = hop.up.queue_bytes.map(|bytes| bytes.max(60_000));
    let media = FlowSpec {
        who,
        work: Work::Rate { bits_per_second: 1.5e6, message: 1_200 },
        ..FlowSpec::subject()
    };
    cell(hop, vec![media, competing])
}

const MEDIA_FLOW: Who = Who::Fixed(Algorithm::Btp(CongestionAlgorithm::Ltcc));

pub(super) const MEDIA: &[Entry] = &[
    Entry {
        name: "M1",
        title: "BTP media and a transfer",
        build: |d| media(d, MEDIA_FLOW, FlowSpec::subject()),
    },
    Entry {
        name: "M2",
        title: "BTP media and CUBIC",
        build: |d| media(d, Who::SubjectMedia, FlowSpec::competing(Algorithm::Cubic)),
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
    Entry {
        name: "M5",
        title: "1 Mbit/s for 10 s, then a transfer",
        build: |d| {
            let work = Work::RateThenBulk { bits_per_second: 1e6, after: Duration::from_secs(10) };
            let flow = FlowSpec { work, ..FlowSpec::subject() };
            Cell { warm_up: Duration::from_secs(12), ..cell(hop(d, 20.0, 20.0, 1.0), vec![flow]) }
        },
    },
];
