//! A flow of the protocol beside TCP, redundancy counted as its own traffic. The bounds that
//! `bats-sim fairness` prints are the goal; where they are not reached yet, the test holds what is.

use bats_sim::fairness::{Verdict, scenes};

fn verdict(name: &str, queue: f64) -> Verdict {
    let mut found =
        scenes(1).into_iter().filter(|scene| scene.name == name && scene.queue == queue);
    found.next().expect("a scene of this name").run()
}

/// The goal is 0.4 to 0.6.
#[test]
fn beside_bbr_neither_starves() {
    for name in ["BRTP beside TCP BBR, BRTP first", "BRTP beside TCP BBR, TCP first"] {
        let verdict = verdict(name, 1.0);
        assert!((0.3..=0.65).contains(&verdict.share), "{verdict:?}");
        assert!(verdict.utilisation >= 0.95, "{verdict:?}");
    }
}

/// The goal is 0.4 to 0.6.
#[test]
fn beside_cubic_neither_starves() {
    let verdict = verdict("BRTP beside TCP CUBIC, BRTP first", 1.0);
    assert!((0.4..=0.85).contains(&verdict.share), "{verdict:?}");
    assert!(verdict.queue_loss_percent < 1.0, "{verdict:?}");
}

/// The goal of the index is 0.97.
#[test]
fn four_that_share_a_lossy_link_keep_the_queue_below_half() {
    let verdict = verdict("4 BRTP, 5 % loss", 1.0);
    assert!(verdict.queue_mean < 0.5, "{verdict:?}");
    assert!(verdict.jain >= 0.94, "{verdict:?}");
    assert!(verdict.utilisation >= 0.9, "{verdict:?}");
}
