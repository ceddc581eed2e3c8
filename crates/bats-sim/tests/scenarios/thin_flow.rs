//! Thin flows over lossy hops: proactive repairs replace lost packets at once. Bounds are ratios to
//! the RTT of the path without loss.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::Mode;
use bats_sim::links::FRAME_OVERHEAD;
use bats_sim::messages::Messages;

/// Bytes of a frame in addition to the message.
const OVERHEAD: usize = FRAME_OVERHEAD + 9 + 4 + 10 + 16;

fn messages(mode: Mode, hops: usize, loss: f64) -> Messages {
    let link = LinkConfig {
        rate_bps: Some(100_000_000),
        queue_bytes: Some(253_028),
        delay: Duration::from_millis(10),
        loss: Loss::Iid(loss),
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
    };
    Messages {
        hops: vec![link; hops],
        transport: TransportConfig { mode, ..TransportConfig::default() },
        size: 512,
        interval: Duration::from_millis(10),
        warm_up: 500,
        burst: 0,
        count: 5_000,
        echo: true,
        seed: 1,
    }
}

/// Percentiles of the echo time as multiples of the RTT of the path.
fn ratios(run: &Messages, percents: [f64; 2]) -> [f64; 2] {
    let outcome = run.run();
    assert_eq!(outcome.wrong, 0);
    let share = outcome.arrived as f64 / run.count as f64;
    assert!(share >= 0.999, "{share} arrived");
    let base = (run.path_delay(OVERHEAD) * 2).as_secs_f64();
    percents.map(|p| outcome.delays.percentile(p).expect("messages").as_secs_f64() / base)
}

#[test]
fn thin_flows_over_one_hop_with_five_per_cent_loss_have_p99_of_at_most_1_15_rtt() {
    for mode in [Mode::Btp, Mode::Brtp] {
        let [p99, p999] = ratios(&messages(mode, 1, 0.05), [99.0, 99.9]);
        assert!(p99 <= 1.15 && p999 <= 1.5, "{mode:?}: p99 {p99}, p99.9 {p999} round trips");
    }
}

#[test]
fn thin_flows_over_three_hops_with_five_per_cent_loss_have_p99_of_at_most_1_3_rtt() {
    for mode in [Mode::Btp, Mode::Brtp] {
        let [p99, _] = ratios(&messages(mode, 3, 0.05), [99.0, 99.9]);
        assert!(p99 <= 1.3, "{mode:?}: p99 {p99} round trips");
    }
}

#[test]
fn the_first_message_is_echoed_after_two_round_trips() {
    for mode in [Mode::Btp, Mode::Brtp] {
        let of = |loss: f64, seed: u64| {
            let run = Messages { count: 1, warm_up: 0, seed, ..messages(mode, 1, loss) };
            let base = (run.path_delay(OVERHEAD) * 2).as_secs_f64();
            run.run().first.expect("arrives").as_secs_f64() / base
        };
        let clean = of(0.0, 1);
        assert!((1.9..=2.1).contains(&clean), "{mode:?} without loss: {clean} round trips");
        let mean = (0..60).map(|seed| of(0.05, seed)).sum::<f64>() / 60.0;
        assert!(mean <= 2.2, "{mode:?} at 5 %: {mean} round trips");
    }
}
