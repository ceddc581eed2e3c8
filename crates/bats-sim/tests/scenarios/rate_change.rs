//! The link's rate changes under a running transfer: the sender follows, and the queue does not
//! pay for it.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

const HALVED: f64 = 8.0;
const DOUBLED: f64 = 16.0;
/// A sender sees congestion within round trips but has to probe for free capacity, which it does
/// every few seconds.
const SECONDS_DOWN: f64 = 1.0;
const SECONDS_UP: f64 = 4.0;

#[test]
fn a_rate_that_halves_and_doubles_again_is_followed() {
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

        // Half the rate keeps the buffer of the whole one: two products of its own.
        let queue = outcome.mean_queue(halved, halved + 2.0) / 250_000.0;
        assert!(queue <= 0.5, "loss {loss}, seed {seed}: {queue} products after halving");
        let queue = outcome.mean_queue(doubled, 24.0) / 500_000.0;
        assert!(queue <= 0.25, "loss {loss}, seed {seed}: {queue} products after doubling");
        let dropped = outcome.queue_loss(halved, 24.0);
        assert!(dropped <= 0.005, "loss {loss}, seed {seed}: {dropped} dropped by the queue");
    }
}

#[test]
fn a_rate_that_falls_to_a_tenth_is_followed() {
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
        // The buffer is ten products of the new rate; the queue is worked off and stays away.
        let queue = outcome.mean_queue(fallen + 4.0, 20.0) / 50_000.0;
        assert!(queue <= 0.5, "loss {loss}, seed {seed}: {queue} products");
    }
}
