//! BTP: residual loss and overhead with proactive repairs only. Overheads are relative to 1 / (1 -
//! p), the minimum number of packets per symbol for complete delivery.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::Mode;
use bats_sim::links::FRAME_OVERHEAD;
use bats_sim::messages::{Messages, MessagesOutcome};

/// Size in bytes of a message that fills one symbol.
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
        burst: 0,
        count: total - total / 5,
        echo: false,
        seed: 1,
    }
    .run()
}

/// Fraction of the symbols that neither arrived nor were repaired, and coded packets per symbol.
fn residual_and_overhead(outcome: &MessagesOutcome) -> (f64, f64) {
    let [sender, receiver] = &outcome.stats;
    let source = sender.coding.source_packets_sent as f64;
    let coded = source
        + sender.coding.proactive_packets_sent as f64
        + sender.coding.top_up_packets_sent as f64;
    (receiver.coding.symbols_lost as f64 / source, coded / source)
}

#[test]
fn btp_at_thirty_per_cent_loss_has_at_most_one_per_cent_residual_loss() {
    let outcome = run(Mode::Btp, 0.3);
    let (lost, sent) = residual_and_overhead(&outcome);
    assert_eq!(outcome.wrong, 0);
    assert!(lost <= 0.01, "{lost} of the symbols lost");
    // At most 1.62 packets per symbol: 1.134 times the minimum.
    let ratio = sent * 0.7;
    assert!((1.0..=1.134).contains(&ratio), "{ratio} times the minimum");
}

#[test]
fn btp_at_ten_per_cent_loss_has_at_most_0_1_per_cent_residual_loss() {
    let outcome = run(Mode::Btp, 0.1);
    let (lost, sent) = residual_and_overhead(&outcome);
    assert_eq!(outcome.wrong, 0);
    assert!(lost <= 0.001, "{lost} of the symbols lost");
    assert!((1.0..=1.3).contains(&(sent * 0.9)), "{sent} packets per symbol");
}

#[test]
fn transparent_mode_sends_each_message_once_without_repairs() {
    let outcome = run(Mode::Transparent, 0.1);
    let [sender, receiver] = &outcome.stats;
    assert_eq!(outcome.wrong, 0);
    assert_eq!(sender.coding.proactive_packets_sent + sender.coding.top_up_packets_sent, 0);
    assert_eq!(receiver.coding.symbols_repaired, 0);
    let arrived = receiver.messages.received as f64 / sender.messages.sent as f64;
    assert!((0.88..=0.92).contains(&arrived), "{arrived} arrived at a loss of 0.1");
}
