//! Runs with the same seed are identical to the byte and nanosecond.

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::recorder::Recorder;
use bats_sim::transfer::Transfer;

fn hash(seed: u64) -> String {
    let link = LinkConfig {
        rate_bps: Some(50_000_000),
        queue_bytes: Some(200_000),
        delay: Duration::from_millis(20),
        jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: true }),
        loss: Loss::bursts(0.1, 4.0),
        duplicate: 0.02,
        corrupt: 0.01,
        frame_overhead: 42,
        ..LinkConfig::default()
    };
    let mut recorder = Recorder::tracing();
    let outcome = Transfer {
        up: link.clone(),
        down: link,
        transport: TransportConfig::default(),
        message_size: 5_000,
        total_bytes: None,
        duration: Duration::from_secs(2),
        changes: Vec::new(),
        seed,
    }
    .run_recorded(&mut recorder);
    assert!(outcome.bytes > 1 << 20, "{} bytes", outcome.bytes);
    let trace = recorder.trace.expect("the recorder has a trace");
    assert!(trace.events() > 10_000);
    trace.hash().to_hex().to_string()
}

#[test]
fn equal_seeds_give_equal_traces_and_different_seeds_different_ones() {
    assert_eq!(hash(9), hash(9));
    assert_ne!(hash(9), hash(10));
}
