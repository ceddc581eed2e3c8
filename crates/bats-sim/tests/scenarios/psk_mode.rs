//! PSK mode takes no additional round trip, withstands the same loss as handshakes without a PSK,
//! and works over several hops.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::{CloseReason, Event, PresharedKey, TransportConfig};
use bats_sim::delay_histogram::DelayHistogram;
use bats_sim::messages::{Messages, MessagesOutcome};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;

const SEEDS: u64 = 200;

fn transport(byte: u8) -> TransportConfig {
    TransportConfig { psk: Some(PresharedKey::new([byte; 32])), ..TransportConfig::default() }
}

fn path(loss: f64) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(10_000_000),
        queue_bytes: Some(40_000),
        delay: Duration::from_millis(15),
        frame_overhead: 42,
        loss: Loss::Iid(loss),
        ..LinkConfig::default()
    }
}

fn echoes(hops: usize, loss: f64, transport: TransportConfig, seed: u64) -> MessagesOutcome {
    let run = Messages {
        hops: vec![path(loss); hops],
        transport,
        size: 100,
        interval: Duration::from_millis(10),
        count: 20,
        warm_up: 0,
        burst: 0,
        echo: true,
        seed,
    };
    run.run()
}

#[test]
fn psk_mode_does_not_delay_the_first_message() {
    let first = |transport| echoes(1, 0.0, transport, 1).first.expect("connected").as_secs_f64();
    let (closed, open) = (first(transport(1)), first(TransportConfig::default()));
    // The only cost is a token of 16 bytes.
    assert!((closed - open).abs() < 0.000_1, "{closed} and {open} s");
}

#[test]
fn handshakes_at_thirty_per_cent_loss_take_at_most_1_s_at_p99() {
    let mut delays = DelayHistogram::default();
    for seed in 0..SEEDS {
        let outcome = echoes(1, 0.3, transport(1), seed);
        delays.add(outcome.first.unwrap_or_else(|| panic!("seed {seed}: not connected")));
        assert_eq!((outcome.arrived, outcome.wrong), (20, 0), "seed {seed}");
    }
    let [p50, p99, max] =
        [50.0, 99.0, 100.0].map(|percent| delays.percentile(percent).expect("some").as_secs_f64());
    println!("p50 {p50:.3}, p99 {p99:.3}, max {max:.3} s");
    assert!(p50 <= 0.1 && p99 <= 1.0 && max <= 5.0, "p50 {p50}, p99 {p99}, max {max} s");
}

#[test]
fn psk_mode_works_over_three_hops() {
    for loss in [0.0, 0.1] {
        let outcome = echoes(3, loss, transport(1), 1);
        assert!(outcome.first.is_some(), "connected");
        assert_eq!((outcome.arrived, outcome.wrong), (20, 0), "{loss}");
    }
}

#[test]
fn a_client_with_another_key_or_none_gets_no_answer_and_times_out() {
    for theirs in [transport(2), TransportConfig::default()] {
        let links = [path(0.0), path(0.0)];
        let mut network = Network::new(endpoints(&transport(1), 1), links, 1);
        let now = network.now();
        let handle = network.connect(&theirs);
        let until = now + Duration::from_secs(15);
        while network.now() < until {
            network.step(until);
        }
        let timed_out = Event::Closed(CloseReason::HandshakeTimeout);
        assert_eq!(network.events, [(Host::Client, handle, timed_out)]);
        let stats = network.endpoint(Host::Server).endpoint_stats();
        assert!(stats.unauthenticated_ignored > 3);
        assert_eq!(stats.unauthenticated_ignored, stats.datagrams_received);
        assert_eq!(network.endpoint(Host::Client).endpoint_stats().datagrams_received, 0);
    }
}
