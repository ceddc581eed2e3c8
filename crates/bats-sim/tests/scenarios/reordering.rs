//! Packets overtake one another.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{Jitter, LinkConfig, Loss};

/// 5 ms to either side over 20 ms: a packet is overtaken by up to 80 others.
#[test]
fn jitter_with_reordering_is_no_collapse() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.02, 1), (0.02, 2)] {
        let link = LinkConfig {
            jitter: Some(Jitter { amplitude: Duration::from_millis(5), reorder: true }),
            loss: Loss::Iid(loss),
            ..link(100, 20)
        };
        let mut run = transfer(&link, 15);
        run.seed = seed;
        let outcome = run.run();
        let efficiency = outcome.goodput(5.0, 15.0) / capacity(&link);
        assert!(efficiency >= 0.6, "loss {loss}, seed {seed}: {efficiency}");
    }
}

/// The same jitter on a link that keeps the order is nothing but a delay that varies.
#[test]
fn jitter_in_order_costs_little() {
    for seed in 1..3 {
        let link = LinkConfig {
            jitter: Some(Jitter { amplitude: Duration::from_millis(5), reorder: false }),
            ..link(100, 20)
        };
        let mut run = transfer(&link, 15);
        run.seed = seed;
        let outcome = run.run();
        let efficiency = outcome.goodput(5.0, 15.0) / capacity(&link);
        assert!(efficiency >= 0.85, "seed {seed}: {efficiency}");
    }
}
