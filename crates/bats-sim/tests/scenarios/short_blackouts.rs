//! Six blackouts of 250 ms, as on a wireless interface.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::LinkConfig;

#[test]
fn six_short_blackouts_delay_a_transfer_little_more_than_their_duration() {
    let link = link(50, 15);
    let blackout = LinkConfig { black_hole: true, ..link.clone() };
    let bytes = 10_u64 << 20;
    for seed in 1..4 {
        let mut run = transfer(&link, 60);
        run.seed = seed;
        run.total_bytes = Some(bytes);
        for number in 0..6_u64 {
            let from = Duration::from_millis(200 + number * 500);
            let until = from + Duration::from_millis(250);
            run.changes.push((from, blackout.clone(), blackout.clone()));
            run.changes.push((until, link.clone(), link.clone()));
        }
        let outcome = run.run();
        let took = outcome.finished.expect("arrives").as_secs_f64();
        let sending = bytes as f64 * 8.0 / (capacity(&link) * 1e6);
        // Until the sixth blackout has ended, half of the time is blackouts.
        let optimum = sending + 6.0_f64.min((sending / 0.25).ceil()) * 0.25;
        // After each blackout the link is not full for a round trip, and the first one is in
        // Startup.
        // The goal is 3.5 s; 3.46 to 3.85 s are measured. The bound is 5 % above that.
        println!("seed {seed}: {took:.2} s");
        assert!(took <= 4.04, "seed {seed}: {took} s, optimum {optimum} s");
    }
}
