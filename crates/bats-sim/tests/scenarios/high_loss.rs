//! 50 % loss in both directions.

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

#[test]
fn fifty_per_cent_loss_keeps_seventy_per_cent_of_the_capacity() {
    for (delay, seed) in [(20, 1), (20, 2), (50, 1), (50, 2)] {
        let link = LinkConfig { loss: Loss::Iid(0.5), ..link(100, delay) };
        let mut run = transfer(&link, 15);
        run.seed = seed;
        let outcome = run.run();
        let efficiency = outcome.goodput(5.0, 15.0) / capacity(&link);
        assert!((0.7..=1.0).contains(&efficiency), "{delay} ms, seed {seed}: {efficiency}");
    }
}
