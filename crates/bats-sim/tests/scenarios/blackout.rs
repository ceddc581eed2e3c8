//! A blackout of two seconds in both directions.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};

#[test]
fn goodput_recovers_within_400_ms_after_a_blackout() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let link = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
        let hole = LinkConfig { black_hole: true, ..link.clone() };
        let mut run = transfer(&link, 14);
        run.seed = seed;
        run.changes = [(6.0, &hole), (8.0, &link)]
            .map(|(at, link)| (Duration::from_secs_f64(at), link.clone(), link.clone()))
            .into();
        let outcome = run.run();
        let (begin, end) = (outcome.since_connected(6.0), outcome.since_connected(8.0));

        assert_eq!(outcome.closed, None);
        assert_eq!(outcome.at(begin + 0.1).delivered, outcome.at(end).delivered, "nothing arrives");
        let seconds = outcome.recovery(end, 0.85 * capacity(&link));
        // A probe every 250 ms, a round trip, and the lost data are requested at once.
        assert!(seconds <= 0.4, "loss {loss}, seed {seed}: {seconds} s");
        let share = outcome.goodput(end + 1.0, 14.0) / capacity(&link);
        assert!(share >= 0.85, "loss {loss}, seed {seed}: {share}");

        // The sender must probe for the end of the blackout, but far below the link rate.
        let tried = outcome.at(end).link.offered - outcome.at(begin + 0.2).link.offered;
        let full_rate = 100e6 * (end - begin - 0.2) / 8.0 / 1_514.0;
        assert!((tried as f64) < 0.5 * full_rate, "{tried} packets during the blackout");
    }
}

/// The test case `blackhole` of the QUIC interop runner: 10 MiB over a link with a blackout from
/// second 5 to 7. Without a blackout the transfer takes at least 9.0 s.
#[test]
fn ten_mebibytes_with_a_blackout_of_two_seconds_take_at_most_11_5_s() {
    for seed in 1..6 {
        let link = LinkConfig { queue_bytes: Some(25 * 1_514), ..link(10, 15) };
        let hole = LinkConfig { black_hole: true, ..link.clone() };
        let mut run = transfer(&link, 60);
        run.seed = seed;
        run.total_bytes = Some(10 << 20);
        run.changes = [(5.0, &hole), (7.0, &link)]
            .map(|(at, link)| (Duration::from_secs_f64(at), link.clone(), link.clone()))
            .into();
        let outcome = run.run();
        let took = outcome.finished.expect("arrives").as_secs_f64() - 0.001;
        let end = outcome.since_connected(7.0);
        let before = outcome.at(end).delivered;
        let first = outcome.samples.iter().find(|sample| sample.delivered > before);
        let first = first.expect("goes on").time.as_secs_f64() - end;
        println!("seed {seed}: {took:.3} s, first data {first:.3} s after");
        assert!(took <= 11.5, "seed {seed}: {took} s");
        // Packets in flight when the blackout ends, a round trip of 30 ms, and repairs before data
        // are in order: measured 0.112 s. Samples are 10 ms apart.
        assert!(first <= 0.25, "seed {seed}: {first} s until the first new data");
    }
}
