//! The delay of the path changes during a transfer.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

const CHANGE: f64 = 6.0;

/// Seconds until the goodput is back at 85 % of the capacity after a change of the one-way delay,
/// and its share of the capacity from `settled` seconds after the change on.
fn after_change(from_ms: u64, to_ms: u64, loss: f64, seed: u64, settled: f64) -> (f64, f64) {
    // The queue length is that of the longer path throughout; only the delay changes.
    let before = LinkConfig {
        loss: Loss::Iid(loss),
        delay: Duration::from_millis(from_ms),
        ..link(100, from_ms.max(to_ms))
    };
    let after = LinkConfig { delay: Duration::from_millis(to_ms), ..before.clone() };
    let mut run = transfer(&before, 16);
    run.seed = seed;
    run.changes = vec![(Duration::from_secs_f64(CHANGE), after.clone(), after.clone())];
    let outcome = run.run();
    let change = outcome.since_connected(CHANGE);
    (
        outcome.recovery(change, 0.85 * capacity(&after)),
        outcome.goodput(change + settled, 16.0) / capacity(&after),
    )
}

#[test]
fn goodput_recovers_within_2_s_after_the_delay_falls() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let (seconds, share) = after_change(100, 20, loss, seed, 2.0);
        assert!(seconds <= 2.0 && share >= 0.85, "loss {loss}, seed {seed}: {seconds} s, {share}");
    }
}

#[test]
fn goodput_recovers_within_5_s_after_the_delay_rises() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let (seconds, share) = after_change(20, 100, loss, seed, 5.0);
        assert!(seconds <= 5.0 && share >= 0.85, "loss {loss}, seed {seed}: {seconds} s, {share}");
    }
}
