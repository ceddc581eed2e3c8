//! A bottleneck with a queue of 0.1 BDP.

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

#[test]
fn a_queue_of_a_tenth_of_the_bdp_keeps_85_per_cent_of_the_goodput() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let full = link(100, 20);
        let link = LinkConfig {
            loss: Loss::Iid(loss),
            queue_bytes: full.queue_bytes.map(|bytes| bytes / 10),
            ..full
        };
        let mut run = transfer(&link, 15);
        run.seed = seed;
        let outcome = run.run();
        let efficiency = outcome.goodput(5.0, 15.0) / capacity(&link);
        assert!(efficiency >= 0.85, "loss {loss}, seed {seed}: {efficiency}");
        // Bandwidth probing overflows the queue at times; permanent overload would drop more.
        let dropped = outcome.queue_loss(5.0, 15.0);
        assert!(dropped <= 0.02, "loss {loss}, seed {seed}: {dropped} dropped by the queue");
    }
}
