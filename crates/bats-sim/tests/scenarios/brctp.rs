//! BRCTP: rateless blocks are as reliable as BRTP and use the link nearly as well. `Transfer::run`
//! checks that no message is corrupted, lost or out of order.

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_proto::config::Mode;

use crate::common::{capacity, link, transfer};

fn brctp() -> TransportConfig {
    TransportConfig { mode: Mode::Brctp, ..TransportConfig::default() }
}

#[test]
fn all_data_arrive_with_loss_reordering_duplicates_and_corruption() {
    for (seed, loss) in [(1, 0.0), (2, 0.1), (3, 0.3), (4, 0.5)] {
        let hostile = LinkConfig {
            jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: true }),
            loss: Loss::Iid(loss),
            duplicate: 0.02,
            corrupt: 0.01,
            ..link(50, 20)
        };
        let mut run = transfer(&hostile, 60);
        run.transport = brctp();
        run.message_size = 5_000;
        run.total_bytes = Some(8 << 20);
        run.seed = seed;
        let outcome = run.run();
        assert!(outcome.finished.is_some(), "loss {loss}: {:?} {}", outcome.closed, outcome.bytes);
        assert!(outcome.bytes >= 8 << 20, "loss {loss}");
        assert_eq!(outcome.receiver.packets.malformed, 0, "loss {loss}");
    }
}

/// Overhead relative to full frames of payload: a header of 40 bytes in packets of 1,472 bytes, and
/// one packet in 256 because of the degree distribution.
#[test]
fn goodput_exceeds_88_per_cent_of_the_capacity_with_little_waste() {
    for loss in [0.0, 0.1, 0.3] {
        let lossy = LinkConfig { loss: Loss::Iid(loss), ..link(100, 30) };
        let mut run = transfer(&lossy, 10);
        run.transport = brctp();
        let outcome = run.run();
        let share = outcome.goodput(4.0, 10.0) / capacity(&lossy);
        assert!(share > 0.88, "{share:.3} at loss {loss}");
        let receiver = &outcome.receiver;
        let waste = receiver.coding.wasted_packets_received as f64
            / receiver.coding.coded_packets_received as f64;
        assert!(waste < 0.03, "{waste:.3} at loss {loss}");
        println!("loss {loss}: {share:.3} of the capacity, waste {waste:.4}");
    }
}
