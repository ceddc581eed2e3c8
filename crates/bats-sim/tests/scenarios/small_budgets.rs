//! Small memory budgets must not cause a deadlock.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::transfer::Transfer;

#[test]
fn the_smallest_budgets_deliver_all_data_at_any_loss() {
    const TOTAL: u64 = 8 << 20;
    for (loss, receive_budget, message_size) in
        [(0.0, 0, 1_400_000), (0.3, 0, 5_000), (0.5, 0, 700_000), (0.5, 3 << 20, 1_400_000)]
    {
        let link = LinkConfig {
            rate_bps: Some(50_000_000),
            queue_bytes: Some(400_000),
            delay: Duration::from_millis(20),
            loss: Loss::Iid(loss),
            frame_overhead: 42,
            ..LinkConfig::default()
        };
        // A smaller send budget would allow only one message per round trip.
        let transport = TransportConfig {
            send_budget: 256 << 10,
            receive_budget,
            ..TransportConfig::default()
        };
        let outcome = Transfer {
            up: link.clone(),
            down: link,
            transport,
            message_size,
            message_interval: None,
            total_bytes: Some(TOTAL),
            duration: Duration::from_secs(60),
            sample_interval: Transfer::SAMPLE,
            changes: Vec::new(),
            seed: 7,
        }
        .run();
        let what = format!("loss {loss}, budget {receive_budget}, {message_size} bytes");
        assert!(outcome.finished.is_some(), "{what}: {} of {TOTAL} bytes", outcome.bytes);
    }
}
