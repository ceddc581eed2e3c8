//! Loss at which others give up: still a share of what the path carries.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

/// Shares of the capacity at this loss, of some seeds.
fn shares(loss: f64) -> Vec<f64> {
    let link = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
    let share = |seed| {
        let mut run = transfer(&link, 15);
        run.seed = seed;
        run.run().goodput(5.0, 15.0) / capacity(&link)
    };
    let shares = (1..4).map(share).collect();
    println!("loss {loss}: {shares:.3?}");
    shares
}

#[test]
fn at_thirty_per_cent_the_path_is_filled() {
    let shares = shares(0.3);
    assert!(shares.iter().all(|share| (0.9..=1.0).contains(share)), "{shares:?}");
}

#[test]
fn at_fifty_per_cent_four_fifths_of_what_can_pass_do() {
    let shares = shares(0.5);
    assert!(shares.iter().all(|share| (0.8..=1.0).contains(share)), "{shares:?}");
}

#[test]
fn at_ninety_per_cent_everything_arrives() {
    for seed in 1..4 {
        // A handshake has ten seconds, too few for this: the loss begins after it.
        let clean = link(20, 10);
        let lossy = LinkConfig { loss: Loss::Iid(0.9), ..clean.clone() };
        let mut run = transfer(&clean, 120);
        run.seed = seed;
        run.changes = vec![(Duration::from_millis(60), lossy.clone(), lossy)];
        run.total_bytes = Some(500_000);
        let outcome = run.run();
        let took = outcome.finished.map(|at| at.as_secs_f64());
        assert!(took.is_some_and(|took| took < 60.0), "seed {seed}: {took:?} {:?}", outcome.closed);
    }
}
