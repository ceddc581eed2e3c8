//! Slow links that lose much: a round trip holds few packets, and what they tell of the rate and of
//! the path's own loss is noise. No conclusion from it may hold the flow down.

use crate::common::{capacity, transfer};
use bats_netem::{LinkConfig, Loss};

/// (Mbit/s, one-way delay in ms, bytes of queue, loss, share of the capacity that must arrive from
/// second 8 on, whatever the seed).
const SCENES: [(u64, u64, usize, f64, f64); 6] = [
    (20, 20, 100_000, 0.6, 0.6),
    (20, 20, 100_000, 0.5, 0.8),
    (20, 20, 100_000, 0.3, 0.85),
    (5, 20, 100_000, 0.5, 0.7),
    (2, 50, 100_000, 0.4, 0.55),
    (50, 25, 6_000, 0.3, 0.8),
];

#[test]
fn a_slow_link_that_loses_much_is_used() {
    for (rate, delay, queue, loss, share) in SCENES {
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
