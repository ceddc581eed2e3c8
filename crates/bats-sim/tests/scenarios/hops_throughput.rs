//! With recoding relays, goodput over many lossy hops is close to that over one. `Hops::run` checks
//! that each message arrives once, intact and in order.

use std::time::Duration;

use bats_sim::hops::{Hops, HopsOutcome};
use bats_sim::matrix::Cell;

fn hops(hops: usize, loss: f64, recoding: bool, seed: u64) -> Hops {
    let cell = Cell { seed, ..Cell::over(40, 10, loss, 6) };
    Hops::new(hops, cell, recoding)
}

fn lossless() -> f64 {
    hops(1, 0.0, true, 1).run().goodput()
}

/// The goal at six hops is 95 %, at a loss of 20 % in each of them 86 % (0.905 is the least measured), of (1 - p) times the goodput over one lossless hop. With forwarding
/// only, (1 - p)^5 of that remains: 0.77, 0.59 and 0.33.
#[test]
fn goodput_over_six_lossy_hops_is_close_to_the_bound() {
    let lossless = lossless();
    for (loss, goal) in [(0.05, 0.95), (0.1, 0.95), (0.2, 0.86)] {
        let run = hops(6, loss, true, 1);
        let outcome = run.run();
        let figures = run.figures(&outcome, lossless);
        println!("{figures:?}");
        assert!(figures.share >= goal, "{} of the bound at {loss}", figures.share);
        assert_eq!(outcome.receiver.coding.symbols_polluted, 0);
        check_memory(&outcome);
    }
}

/// `optimum` is computed for systematic recoding without feedback, with the optimal number of
/// packets for each batch of M = 16: the goodput as a fraction of that over one lossless hop.
/// Feedback on each hop allows more. The bound is 97 % of the optimum.
#[test]
fn goodput_reaches_the_optimum_of_recoding_without_feedback() {
    let lossless = lossless();
    for (count, loss, optimum) in [(4, 0.1, 0.840), (8, 0.1, 0.808)] {
        let run = hops(count, loss, true, 2);
        let share = run.run().goodput() / lossless;
        println!("{count} hops, loss {loss}: {share:.3} of the lossless hop, optimum {optimum}");
        assert!(share >= 0.97 * optimum, "{count} hops at {loss}: {share}");
    }
}

/// The comparison: with forwarding only, all data arrive, but goodput falls with every hop.
#[test]
fn recoding_gives_at_least_1_3_times_the_goodput_of_forwarding() {
    let lossless = lossless();
    let figures = |recoding| {
        let run = hops(4, 0.1, recoding, 1);
        run.figures(&run.run(), lossless)
    };
    let (on, off) = (figures(true), figures(false));
    println!("recoding {:.1}, forwarding {:.1} Mbit/s", on.goodput_mbps, off.goodput_mbps);
    assert!(off.goodput_mbps <= 1.02 * off.forwarding_mbps);
    assert!(off.goodput_mbps >= 0.8 * off.forwarding_mbps, "the ends repair");
    assert!(on.goodput_mbps >= 1.3 * off.goodput_mbps);
    // Relays repair before the ends detect a loss.
    assert!(on.end_repairs_percent < 1.0, "{}", on.end_repairs_percent);
}

/// A relay holds at most 1 MiB per flow at these rates and drops no batches.
fn check_memory(outcome: &HopsOutcome) {
    for relay in &outcome.relays {
        assert!(relay.memory.bytes_peak <= 1 << 20, "{} bytes", relay.memory.bytes_peak);
        assert_eq!(relay.batches.dropped, 0);
    }
}

#[test]
fn equal_seeds_give_equal_runs_across_relays() {
    let mut run = hops(3, 0.1, true, 5);
    run.cell.duration = Duration::from_secs(2);
    let (a, b) = (run.run(), run.run());
    assert_eq!(a.delivered, b.delivered);
    assert_eq!(a.relays, b.relays);
}
