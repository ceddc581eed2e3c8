//! Only the reverse path loses packets: acknowledgements and feedback, no data.

use crate::common::transfer;
use bats_netem::Loss;

#[test]
fn thirty_per_cent_ack_loss_keeps_95_per_cent_of_the_goodput() {
    for seed in 1..3 {
        let mut run = transfer(&crate::common::link(100, 20), 15);
        run.seed = seed;
        let lossless = run.run();
        run.down.loss = Loss::Iid(0.3);
        let lossy = run.run();
        for (from, to) in [(0.0, 10.0), (5.0, 15.0)] {
            let share = lossy.goodput(from, to) / lossless.goodput(from, to);
            assert!(share >= 0.95, "seed {seed}, seconds {from} to {to}: {share}");
        }
    }
}
