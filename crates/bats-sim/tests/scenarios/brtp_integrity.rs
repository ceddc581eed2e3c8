//! BRTP delivers every message once, intact and in order, over any network. `Transfer::run` checks
//! this and panics at the first wrong message.

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::transfer::{Outcome, Transfer};

const TOTAL: u64 = 8 << 20;

fn hostile(loss: Loss) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(50_000_000),
        queue_bytes: Some(400_000),
        delay: Duration::from_millis(20),
        jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: true }),
        loss,
        duplicate: 0.02,
        corrupt: 0.01,
        frame_overhead: 42,
        ..LinkConfig::default()
    }
}

fn transfer(loss: Loss, seed: u64) -> Transfer {
    Transfer {
        up: hostile(loss),
        down: hostile(loss),
        transport: TransportConfig::default(),
        message_size: 5_000,
        message_interval: None,
        total_bytes: Some(TOTAL),
        duration: Duration::from_secs(60),
        sample_interval: Transfer::SAMPLE,
        changes: Vec::new(),
        seed,
    }
}

fn assert_complete(outcome: &Outcome, what: &str) {
    assert!(
        outcome.finished.is_some(),
        "{what}: {:?} after {} bytes",
        outcome.closed,
        outcome.bytes
    );
    assert!(outcome.bytes >= TOTAL, "{what}");
    assert_eq!(outcome.receiver.packets.malformed, 0, "{what}");
}

#[test]
fn all_messages_arrive_with_loss_reordering_duplicates_and_corruption() {
    for loss in [0.0, 0.1, 0.3, 0.5] {
        for seed in 1..4 {
            let outcome = transfer(Loss::Iid(loss), seed).run();
            assert_complete(&outcome, &format!("loss {loss}, seed {seed}"));
            assert!(outcome.receiver.packets.forged > 0, "corrupted packets are counted");
            assert!(outcome.receiver.packets.replayed > 0, "duplicates are counted");
        }
    }
}

#[test]
fn all_messages_arrive_with_burst_losses() {
    for seed in 1..4 {
        assert_complete(&transfer(Loss::bursts(0.1, 8.0), seed).run(), &format!("seed {seed}"));
    }
}

#[test]
fn a_blackout_of_two_seconds_delays_the_transfer_by_at_most_3_5_s() {
    let base = transfer(Loss::Iid(0.02), 5);
    let without = base.run().finished.expect("arrives").as_secs_f64();
    let hole = LinkConfig { black_hole: true, ..base.up.clone() };
    let mut with = base.clone();
    with.changes = vec![
        (Duration::from_millis(800), hole.clone(), hole),
        (Duration::from_millis(2_800), base.up.clone(), base.down.clone()),
    ];
    let outcome = with.run();
    assert_complete(&outcome, "blackout");
    let cost = outcome.finished.expect("arrives").as_secs_f64() - without;
    assert!((1.0..3.5).contains(&cost), "{cost} s");
}
