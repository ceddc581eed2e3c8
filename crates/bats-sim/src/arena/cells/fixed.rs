//! Fixed rates: without loss, with independent loss, with loss in bursts and holes.

use bats_netem::{AlternateLoss, Fade, Holes, Loss, LteRate, RateSchedule};

use super::{Entry, alone, hop, lossy, ms, short};

pub(super) const FIXED: &[Entry] = &[
    Entry {
        name: "F1",
        title: "20 Mbit/s, 20 ms, 1 BDP",
        build: |d| alone(hop(d, 20.0, 10.0, 1.0)),
    },
    Entry {
        name: "F2",
        title: "100 Mbit/s, 20 ms, 0.1 BDP",
        build: |d| alone(hop(d, 100.0, 10.0, 0.1)),
    },
    Entry {
        name: "F3",
        title: "100 Mbit/s, 40 ms, 1 BDP",
        build: |d| alone(hop(d, 100.0, 20.0, 1.0)),
    },
    Entry {
        name: "F4",
        title: "10 Mbit/s, 100 ms, 4 BDP",
        build: |d| alone(hop(d, 10.0, 50.0, 4.0)),
    },
    Entry {
        name: "F5",
        title: "1 Gbit/s, 20 ms, 1 BDP",
        build: |d| short(alone(hop(d, 1_000.0, 10.0, 1.0)), 5, 5),
    },
    Entry {
        name: "F6",
        title: "10 Gbit/s, 50 ms, 1 BDP",
        build: |d| short(alone(hop(d, 10_000.0, 25.0, 1.0)), 3, 2),
    },
    Entry {
        name: "F7",
        title: "2 Mbit/s, 600 ms, 1 BDP",
        build: |d| alone(hop(d, 2.0, 300.0, 1.0)),
    },
    Entry {
        name: "F8",
        title: "1 Gbit/s, 100 ms, the first 10 s",
        build: |d| short(alone(hop(d, 1_000.0, 50.0, 1.0)), 5, 5),
    },
];

pub(super) const LOSS: &[Entry] = &[
    Entry {
        name: "L1",
        title: "50 Mbit/s, 40 ms, 2 %",
        build: |d| alone(lossy(hop(d, 50.0, 20.0, 1.0), 0.02)),
    },
    Entry {
        name: "L2",
        title: "50 Mbit/s, 40 ms, 10 %",
        build: |d| alone(lossy(hop(d, 50.0, 20.0, 1.0), 0.1)),
    },
    Entry {
        name: "L3",
        title: "50 Mbit/s, 40 ms, 30 %",
        build: |d| alone(lossy(hop(d, 50.0, 20.0, 1.0), 0.3)),
    },
    Entry {
        name: "L4",
        title: "50 Mbit/s, 40 ms, 50 %",
        build: |d| alone(lossy(hop(d, 50.0, 20.0, 1.0), 0.5)),
    },
    Entry {
        name: "L5",
        title: "50 Mbit/s, 40 ms, 0.1 BDP, 5 %",
        build: |d| alone(lossy(hop(d, 50.0, 20.0, 0.1), 0.05)),
    },
    Entry {
        name: "L6",
        title: "1 Gbit/s, 100 ms, 1 %",
        build: |d| short(alone(lossy(hop(d, 1_000.0, 50.0, 1.0), 0.01)), 5, 5),
    },
    Entry {
        name: "L7",
        title: "50 Mbit/s, 40 ms, 20 % of ACKs",
        build: |d| {
            let mut hop = hop(d, 50.0, 20.0, 1.0);
            hop.down.loss = Loss::Iid(0.2);
            alone(hop)
        },
    },
];

/// 30 Mbit/s and 40 ms with this loss in the direction of the data.
fn bursty(d: &mut super::Draw, loss: Loss) -> super::Cell {
    let mut hop = hop(d, 30.0, 20.0, 1.0);
    hop.up.loss = loss;
    alone(hop)
}

pub(super) const BURSTS: &[Entry] = &[
    Entry {
        name: "B1",
        title: "10 % in bursts of 15",
        build: |d| bursty(d, Loss::bursts(0.1, 15.0)),
    },
    Entry {
        name: "B2",
        title: "10 % in bursts of 30",
        build: |d| bursty(d, Loss::bursts(0.1, 30.0)),
    },
    Entry {
        name: "B3",
        title: "30 % in bursts of 50",
        build: |d| bursty(d, Loss::bursts(0.3, 50.0)),
    },
    Entry {
        name: "B4",
        title: "5 % in bursts of 100",
        build: |d| bursty(d, Loss::bursts(0.05, 100.0)),
    },
    Entry {
        name: "B5",
        title: "holes of 50 ms each 500 ms",
        build: |d| {
            let mut cell = bursty(d, Loss::None);
            let holes = Some(Holes::Periodic { period: ms(500), length: ms(50) });
            (cell.hops[0].up.holes, cell.hops[0].down.holes) = (holes, holes);
            cell
        },
    },
    Entry {
        name: "B6",
        title: "holes of 250 ms each 2 s",
        build: |d| {
            let mut cell = bursty(d, Loss::None);
            let holes = Some(Holes::Periodic { period: ms(2_000), length: ms(250) });
            (cell.hops[0].up.holes, cell.hops[0].down.holes) = (holes, holes);
            cell
        },
    },
    Entry {
        name: "B7",
        title: "0 and 20 % in turns of 3 s",
        build: |d| {
            let mut cell = bursty(d, Loss::None);
            cell.hops[0].up.alternate_loss =
                Some(AlternateLoss { loss: Loss::Iid(0.2), every: ms(3_000) });
            cell
        },
    },
    Entry {
        name: "B8",
        title: "fades: a slower rate loses more",
        build: |d| {
            let mut cell = bursty(d, Loss::None);
            let up = &mut cell.hops[0].up;
            let mean = up.rate_bps.take().unwrap_or(30_000_000);
            let lte = LteRate { sigma: 0.15, step: ms(200), ..LteRate::new(mean, d.seed) };
            up.rate_schedule = Some(RateSchedule::Lte(lte));
            up.fade = Some(Fade { high_bps: mean, low_bps: mean / 4, loss: 0.2 });
            cell
        },
    },
];
