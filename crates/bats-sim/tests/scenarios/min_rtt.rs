//! The sender updates its minimum RTT without a ProbeRTT phase, which would interrupt the transfer.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::LinkConfig;

#[test]
fn goodput_has_no_gaps_for_the_measurement_of_the_minimum_rtt() {
    for (mbps, one_way) in [(100, 20), (50, 100)] {
        let link = link(mbps, one_way);
        let run = transfer(&link, 35);
        let outcome = run.run();
        // From second 5 on the rate is known. The minimum RTT expires after 10 s, so it is renewed
        // at least twice.
        for slot in 25..175 {
            let (from, to) = (f64::from(slot) * 0.2, f64::from(slot + 1) * 0.2);
            let share = outcome.goodput(from, to) / capacity(&link);
            assert!(share >= 0.7, "{mbps} Mbit/s, {one_way} ms: {share} from second {from} on");
        }
        let share = outcome.goodput(5.0, 35.0) / capacity(&link);
        assert!(share >= 0.93, "{mbps} Mbit/s, {one_way} ms: {share}");
    }
}

#[test]
fn the_minimum_rtt_follows_a_rising_delay_on_a_full_link() {
    let before = link(100, 20);
    let after = LinkConfig { delay: Duration::from_millis(35), ..before.clone() };
    let mut run = transfer(&before, 45);
    run.changes = vec![(Duration::from_secs(10), after.clone(), after.clone())];
    let outcome = run.run();
    let known = |second| outcome.at(second).sender.path.min_rtt.as_secs_f64();
    assert!((known(9.5) - 0.040).abs() < 0.002, "{}", known(9.5));
    // The old minimum is used for at most 30 s, and the new one contains no queueing delay.
    assert!((known(44.9) - 0.070).abs() < 0.004, "{}", known(44.9));
    assert!(outcome.goodput(15.0, 45.0) >= 0.9 * capacity(&link(100, 20)));
}
