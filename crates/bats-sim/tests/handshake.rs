//! Handshakes through loss and corruption: as a model with a first probe after 0.2 s and two
//! copies of every flight has it (p50 0.06 s, p99 0.86 s at 30 %, a round trip of 30 ms).

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::delays::Delays;
use bats_sim::messages::Messages;

fn seeds() -> u64 {
    if cfg!(debug_assertions) { 300 } else { 1_000 }
}

/// Time to the arrival of the first message, which the client hands in when it is connected.
fn first(link: &LinkConfig, seed: u64) -> Option<Duration> {
    let run = Messages {
        hops: vec![link.clone()],
        transport: TransportConfig::default(),
        size: 100,
        interval: Duration::from_millis(10),
        count: 1,
        warm_up: 0,
        echo: false,
        seed,
    };
    run.run().first
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

fn all_are_quick(link: &LinkConfig) {
    let mut delays = Delays::default();
    for seed in 0..seeds() {
        delays.add(first(link, seed).unwrap_or_else(|| panic!("seed {seed}: not connected")));
    }
    let at = |percent| delays.percentile(percent).expect("some").as_secs_f64();
    assert!(at(50.0) <= 0.1 && at(99.0) <= 1.0, "p50 {}, p99 {} s", at(50.0), at(99.0));
    assert!(at(100.0) <= 5.0, "max {} s", at(100.0));
}

#[test]
fn thirty_per_cent_loss_both_ways() {
    all_are_quick(&LinkConfig { loss: Loss::Iid(0.3), ..path() });
}

#[test]
fn thirty_per_cent_corruption_both_ways() {
    all_are_quick(&LinkConfig { corrupt: 0.3, ..path() });
}

#[test]
fn without_loss_the_first_message_arrives_after_one_and_a_half_round_trips() {
    let trips = first(&path(), 1).expect("connected").as_secs_f64() / 0.030;
    assert!((1.5..=1.75).contains(&trips), "{trips} round trips");
}
