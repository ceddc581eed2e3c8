//! Recovery of the goodput after a time of high loss.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

#[test]
fn goodput_recovers_within_ten_round_trips_after_thirty_per_cent_loss_ends() {
    for seed in 1..4 {
        let clean = link(100, 20);
        let lossy = LinkConfig { loss: Loss::Iid(0.3), ..clean.clone() };
        let mut run = transfer(&lossy, 16);
        run.seed = seed;
        run.changes = vec![(Duration::from_secs(10), clean.clone(), clean.clone())];
        let outcome = run.run();
        let after = outcome.recovery(outcome.since_connected(10.0), 0.9 * capacity(&clean));
        println!("seed {seed}: {:.2} round trips", after / 0.040);
        assert!(after <= 10.0 * 0.040, "seed {seed}: {after} s");
    }
}
