//! Nothing passes for two seconds, then everything again.

mod common;

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use common::{at, capacity, goodput, link, recovery, since_connected, transfer};

#[test]
fn a_transfer_is_at_its_rate_half_a_second_after_a_black_hole() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let link = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
        let hole = LinkConfig { black_hole: true, ..link.clone() };
        let mut run = transfer(&link, 14);
        run.seed = seed;
        run.changes = [(6.0, &hole), (8.0, &link)]
            .map(|(at, link)| (Duration::from_secs_f64(at), link.clone(), link.clone()))
            .into();
        let outcome = run.run();
        let (begin, end) = (since_connected(&outcome, 6.0), since_connected(&outcome, 8.0));

        assert_eq!(outcome.closed, None);
        assert_eq!(at(&outcome, begin + 0.1).delivered, at(&outcome, end).delivered, "a hole");
        let seconds = recovery(&outcome, end, 0.85 * capacity(&link));
        // A probe each 250 ms, a round trip, and what was lost is asked for at once.
        assert!(seconds <= 0.4, "loss {loss}, seed {seed}: {seconds} s");
        let share = goodput(&outcome, end + 1.0, 14.0) / capacity(&link);
        assert!(share >= 0.85, "loss {loss}, seed {seed}: {share}");

        // Nobody knows when it ends, but trying must stay far below the rate.
        let tried = at(&outcome, end).link.offered - at(&outcome, begin + 0.2).link.offered;
        let full_rate = 100e6 * (end - begin - 0.2) / 8.0 / 1_514.0;
        assert!((tried as f64) < 0.5 * full_rate, "{tried} packets into the hole");
    }
}
