//! Losses in bursts (Gilbert-Elliott) cost bandwidth in proportion to their share, like others.

mod common;

use bats_netem::{LinkConfig, Loss};
use common::{capacity, goodput, link, transfer};

#[test]
fn bursts_of_eight_leave_most_of_the_capacity() {
    for seed in 1..4 {
        let link = LinkConfig { loss: Loss::bursts(0.05, 8.0), ..link(100, 25) };
        let mut run = transfer(&link, 15);
        run.seed = seed;
        let outcome = run.run();
        let efficiency = goodput(&outcome, 5.0, 15.0) / capacity(&link);
        assert!((0.8..=1.0).contains(&efficiency), "seed {seed}: {efficiency}");
    }
}
