//! Two connections share a bottleneck.

use std::time::Duration;

use crate::common::{capacity, link};
use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::flows::{Flows, jain_index};

const FROM: usize = 10;
const TO: usize = 30;

/// Mbit/s of each connection over seconds 10 to 30.
fn shares(link: &LinkConfig, starts: [u64; 2], seed: u64) -> Vec<f64> {
    let samples = Flows {
        up: link.clone(),
        down: link.clone(),
        transport: TransportConfig::default(),
        message_size: 16 << 10,
        starts: starts.map(Duration::from_secs).into(),
        duration: Duration::from_secs(TO as u64 + 1),
        seed,
    }
    .run();
    let per_second = (1.0 / Flows::SAMPLE.as_secs_f64()) as usize;
    let (a, b) = (&samples[FROM * per_second], &samples[TO * per_second]);
    let seconds = (b.time - a.time).as_secs_f64();
    let bytes = b.received.iter().zip(&a.received).map(|(b, a)| (b - a) as f64);
    bytes.map(|bytes| bytes * 8e-6 / seconds).collect()
}

#[test]
fn two_that_start_together_get_equal_shares_of_all() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.02, 1), (0.02, 2)] {
        let link = LinkConfig { loss: Loss::Iid(loss), ..link(100, 50) };
        let shares = shares(&link, [0, 0], seed);
        let (jain, total) = (jain_index(&shares), shares.iter().sum::<f64>() / capacity(&link));
        assert!(jain >= 0.9, "loss {loss}, seed {seed}: {shares:?}, index {jain}");
        assert!(total >= 0.85, "loss {loss}, seed {seed}: {total} of the capacity");
    }
}

/// Who begins fills the link for a moment. Those that are there must not take it for a rival, keep the
/// queue full in answer, and lose so much that the next one takes the loss for the path's own.
#[test]
fn eight_that_begin_one_after_the_other_do_not_flood_the_link() {
    for seed in [7, 12] {
        let scene = bats_sim::fairness::scenes(seed)
            .into_iter()
            .find(|scene| scene.name == "8 BRTP, 3 s apart")
            .expect("the scene is in the table");
        let verdict = scene.run();
        assert!(verdict.queue_loss_percent <= 1.0, "seed {seed}: {verdict:?}");
        assert!(verdict.queue_mean <= 0.2, "seed {seed}: {verdict:?}");
        assert!(verdict.utilisation >= 0.95, "seed {seed}: {verdict:?}");
    }
}
