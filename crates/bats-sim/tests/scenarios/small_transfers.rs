//! Ten megabytes over links that lose nothing, from the first byte of the handshake to the last of the
//! data: what a user of a good link waits for.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{Jitter, LinkConfig};

const BYTES: u64 = 10_000_000;

/// Seconds until everything has arrived, the handshake included.
fn seconds(link: &LinkConfig, seed: u64) -> f64 {
    let mut run = transfer(link, 60);
    run.seed = seed;
    run.total_bytes = Some(BYTES);
    let outcome = run.run();
    assert_eq!(outcome.bytes, BYTES.next_multiple_of(run.message_size as u64), "seed {seed}");
    // Virtual time starts at one millisecond.
    outcome.finished.expect("arrives").as_secs_f64() - 0.001
}

#[test]
fn a_slow_link_is_filled_without_variation() {
    let link = link(10, 15);
    let rates: Vec<f64> = (1..6).map(|seed| BYTES as f64 * 8e-6 / seconds(&link, seed)).collect();
    let (least, most) = rates.iter().fold((f64::MAX, 0.0_f64), |(a, b), &r| (a.min(r), b.max(r)));
    assert!(least >= 9.3, "Mbit/s of at most {}: {rates:?}", capacity(&link));
    assert!(most - least < 0.01 * least, "{rates:?}");
}

#[test]
fn jitter_costs_a_fast_link_little() {
    let link = LinkConfig {
        jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: true }),
        ..link(100, 10)
    };
    for seed in 1..4 {
        let took = seconds(&link, seed);
        assert!(took <= 1.0, "seed {seed}: {took} s");
    }
}

#[test]
fn a_gigabit_is_reached_at_once_over_a_few_milliseconds() {
    let link = link(1_000, 4);
    for seed in 1..4 {
        let took = seconds(&link, seed);
        assert!(took <= 0.2, "seed {seed}: {took} s");
    }
}
