//! Handshakes at loss and corruption, compared with a model with a first probe after 0.2 s and two
//! copies of every flight: p50 0.06 s and p99 0.86 s at 30 % loss and an RTT of 30 ms.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_sim::delay_histogram::DelayHistogram;
use bats_sim::messages::Messages;

const SEEDS: u64 = 1_000;

/// Time to the arrival of the first message, which the client sends when it is connected.
fn first(link: &LinkConfig, seed: u64) -> Option<Duration> {
    Messages::one(link, seed).run().first
}

fn path() -> LinkConfig {
    LinkConfig {
        rate_bps: Some(10_000_000),
        queue_bytes: Some(40_000),
        delay: Duration::from_millis(15),
        frame_overhead: 42,
        ..LinkConfig::default()
    }
}

/// Median, 99th percentile and maximum over all seeds, in seconds. No handshake may fail.
fn of_all(link: &LinkConfig) -> [f64; 3] {
    let mut delays = DelayHistogram::default();
    for seed in 0..SEEDS {
        delays.add(first(link, seed).unwrap_or_else(|| panic!("seed {seed}: not connected")));
    }
    assert_eq!(delays.count(), SEEDS);
    let seconds =
        [50.0, 99.0, 100.0].map(|percent| delays.percentile(percent).expect("some").as_secs_f64());
    println!("p50 {:.3}, p99 {:.3}, max {:.3} s", seconds[0], seconds[1], seconds[2]);
    seconds
}

fn all_are_quick(link: &LinkConfig) {
    let [p50, p99, max] = of_all(link);
    assert!(p50 <= 0.1 && p99 <= 1.0 && max <= 5.0, "p50 {p50}, p99 {p99}, max {max} s");
}

#[test]
fn handshakes_at_thirty_per_cent_loss_take_at_most_1_s_at_p99() {
    all_are_quick(&LinkConfig { loss: Loss::Iid(0.3), ..path() });
}

#[test]
fn handshakes_at_thirty_per_cent_burst_loss_take_at_most_1_s_at_p99() {
    all_are_quick(&LinkConfig { loss: Loss::bursts(0.3, 3.0), ..path() });
}

#[test]
fn handshakes_at_thirty_per_cent_corruption_take_at_most_1_s_at_p99() {
    all_are_quick(&LinkConfig { corrupt: 0.3, ..path() });
}

#[test]
fn handshakes_at_fifty_per_cent_loss_take_at_most_3_5_s_at_p99() {
    let [_, p99, max] = of_all(&LinkConfig { loss: Loss::Iid(0.5), ..path() });
    assert!(p99 <= 3.5, "p99 {p99}, max {max} s");
}

#[test]
fn a_lossless_first_message_arrives_after_one_and_a_half_round_trips() {
    let trips = first(&path(), 1).expect("connected").as_secs_f64() / 0.030;
    assert!((1.5..=1.75).contains(&trips), "{trips} round trips");
}
