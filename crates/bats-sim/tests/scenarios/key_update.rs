//! Frequent key updates with loss and reordering.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{Jitter, LinkConfig, Loss};
use bats_sim::transfer::{Outcome, Sample, Transfer};

#[test]
fn key_updates_every_64_packets_keep_97_per_cent_of_the_goodput() {
    for loss in [0.0, 0.05] {
        let jitter = Jitter { amplitude: Duration::from_millis(2), reorder: true };
        let link = LinkConfig { loss: Loss::Iid(loss), jitter: Some(jitter), ..link(50, 20) };
        let share = |packets: u64| {
            let mut run = transfer(&link, 8);
            run.transport.key_update_packets = packets;
            let outcome = run.run();
            assert_eq!(outcome.receiver.packets.forged, 0, "no packet is lost to a key update");
            let updates = outcome.at(8.0).sender.key_updates;
            (outcome.goodput(3.0, 8.0) / capacity(&link), updates)
        };
        let ((without, none), (with, many)) = (share(1 << 22), share(64));
        assert!(none == 0 && many >= 30, "{none} and {many} updates");
        assert!(with >= 0.97 * without, "loss {loss}: {with} of the capacity, {without} without");
    }
}

/// Longest time without progress between two times, in sample intervals.
fn longest_gap(outcome: &Outcome, from: f64, to: f64) -> f64 {
    let within = |sample: &&Sample| (from..to).contains(&sample.time.as_secs_f64());
    let delivered: Vec<u64> = outcome.samples.iter().filter(within).map(|s| s.delivered).collect();
    let still = delivered.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0);
    still as f64 * Transfer::SAMPLE.as_secs_f64()
}

/// Ten key updates in a complete transfer, none of which stalls it.
#[test]
fn ten_key_updates_lose_nothing_and_cause_no_gap_of_a_round_trip() {
    for seed in 1..4 {
        // Startup does not fill this queue.
        let queue = LinkConfig { queue_bytes: Some(1_000_000), ..link(50, 20) };
        let mut run = transfer(&queue, 60);
        run.seed = seed;
        run.total_bytes = Some(20 << 20);
        run.transport.key_update_packets = 1_400;
        let outcome = run.run();
        let end = outcome.finished.expect("all data arrive").as_secs_f64();
        let last = outcome.samples.last().expect("samples");
        let updates = last.sender.key_updates;
        assert!(updates >= 10, "{updates} updates");
        assert_eq!(outcome.receiver.key_updates, updates, "both ends count them");
        assert_eq!((outcome.bytes, outcome.receiver.packets.forged), (20 << 20, 0));
        assert_eq!(last.sender.packets.lost, 0, "no packet is lost");
        let gap = longest_gap(&outcome, 0.5, end - 0.5);
        println!("seed {seed}: {updates} updates, longest gap {gap:.3} s");
        assert!(gap <= 0.040, "seed {seed}: {gap} s without progress");
    }
}
