//! Slow links with high loss: a round trip has few packets, so estimates of the delivery rate and
//! of the random loss are noisy. This noise must not reduce the goodput.

use crate::common::{capacity, transfer};
use bats_netem::{LinkConfig, Loss};

/// (Mbit/s, one-way delay in ms, queue in bytes, loss, minimum share of the capacity from second 8
/// on, for each seed).
const SCENARIOS: [(u64, u64, usize, f64, f64); 6] = [
    (20, 20, 100_000, 0.6, 0.6),
    (20, 20, 100_000, 0.5, 0.8),
    (20, 20, 100_000, 0.3, 0.85),
    (5, 20, 100_000, 0.5, 0.7),
    (2, 50, 100_000, 0.4, 0.55),
    (50, 25, 6_000, 0.3, 0.8),
];

#[test]
fn slow_links_with_high_loss_reach_their_share_of_the_capacity() {
    for (rate, delay, queue, loss, share) in SCENARIOS {
        for seed in 1..=5 {
            let link = LinkConfig {
                queue_bytes: Some(queue),
                loss: Loss::Iid(loss),
                ..crate::common::link(rate, delay)
            };
            let mut run = transfer(&link, 20);
            run.seed = seed;
            let efficiency = run.run().goodput(8.0, 20.0) / capacity(&link);
            assert!(
                efficiency >= share,
                "{rate} Mbit/s, {delay} ms, {queue} bytes, loss {loss}, seed {seed}: {efficiency}"
            );
        }
    }
}
