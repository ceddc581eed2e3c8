//! BTP: what arrives in time without being asked for again, and what that costs. Verdicts are
//! ratios to 1 / (1 - p), which nothing can stay below that lets all arrive.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::Mode;
use bats_sim::links::FRAME_OVERHEAD;
use bats_sim::messages::{Messages, MessagesOutcome};

/// Bytes of a message that fills one symbol.
const SIZE: usize = 1_390;

fn run(mode: Mode, loss: f64) -> MessagesOutcome {
    let link = LinkConfig {
        rate_bps: Some(100_000_000),
        queue_bytes: Some(753_028),
        delay: Duration::from_millis(30),
        loss: Loss::Iid(loss),
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
    };
    let interval = Duration::from_secs_f64(SIZE as f64 * 8.0 / 20e6);
    let total = (12.0 / interval.as_secs_f64()) as u64;
    Messages {
        hops: vec![link],
        transport: TransportConfig { mode, ..TransportConfig::default() },
        size: SIZE,
        interval,
        warm_up: total / 5,
        count: total - total / 5,
        echo: false,
        seed: 1,
    }
    .run()
}

/// Share of symbols that neither arrived nor were repaired, and coded packets per symbol.
fn residual_and_overhead(outcome: &MessagesOutcome) -> (f64, f64) {
    let [sender, receiver] = &outcome.stats;
    let source = sender.source_packets_sent as f64;
    let coded = source + sender.proactive_packets_sent as f64 + sender.top_up_packets_sent as f64;
    (receiver.symbols_lost as f64 / source, coded / source)
}

#[test]
fn at_thirty_per_cent_all_but_one_of_a_hundred_arrive_and_little_more_than_needed_is_sent() {
    let outcome = run(Mode::Btp, 0.3);
    let (lost, sent) = residual_and_overhead(&outcome);
    assert_eq!(outcome.wrong, 0);
    assert!(lost <= 0.01, "{lost} of the symbols lost");
    // 1.62 is 1.134 times what is needed.
    let ratio = sent * 0.7;
    assert!((1.0..=1.134).contains(&ratio), "{ratio} times what is needed");
}

#[test]
fn at_ten_per_cent_all_but_one_of_a_thousand_arrive() {
    let outcome = run(Mode::Btp, 0.1);
    let (lost, sent) = residual_and_overhead(&outcome);
    assert_eq!(outcome.wrong, 0);
    assert!(lost <= 0.001, "{lost} of the symbols lost");
    assert!((1.0..=1.3).contains(&(sent * 0.9)), "{sent} packets per symbol");
}

#[test]
fn transparent_sends_each_message_once_and_repairs_nothing() {
    let outcome = run(Mode::Transparent, 0.1);
    let [sender, receiver] = &outcome.stats;
    assert_eq!(outcome.wrong, 0);
    assert_eq!(sender.proactive_packets_sent + sender.top_up_packets_sent, 0);
    assert_eq!(receiver.symbols_repaired, 0);
    let arrived = receiver.messages_received as f64 / sender.messages_sent as f64;
    assert!((0.88..=0.92).contains(&arrived), "{arrived} arrived at a loss of 0.1");
}
