//! A client that was there before: its first message arrives after half a round trip, and once, whatever
//! the path does to its first flight. Verdicts are ratios to the round trip of the path.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_sim::delays::Delays;
use bats_sim::resumed::{Resumed, ResumedOutcome};

const DELAY: Duration = Duration::from_millis(10);

fn link() -> LinkConfig {
    LinkConfig {
        rate_bps: Some(100_000_000),
        queue_bytes: Some(253_028),
        delay: DELAY,
        frame_overhead: 42,
        ..LinkConfig::default()
    }
}

fn visits(link: &LinkConfig, hops: usize, seed: u64) -> Resumed {
    Resumed { hops: vec![link.clone(); hops], size: 512, count: 1, restart: false, seed }
}

fn run(resumed: &Resumed) -> ResumedOutcome {
    let outcome = resumed.run().expect("a session");
    assert_eq!(outcome.wrong, 0, "seed {}: {outcome:?}", resumed.seed);
    outcome
}

/// Mean time to the first echo in round trips. An echo is sent once and repaired once: over three hops at
/// 5 % one of fifty is lost.
fn mean(link: &LinkConfig, hops: usize, seeds: u64) -> f64 {
    let trip = (DELAY * 2 * hops as u32).as_secs_f64();
    let outcomes = (0..seeds).map(|seed| run(&visits(link, hops, seed)));
    let trips: Vec<f64> = outcomes
        .inspect(|outcome| assert!(outcome.resumed && outcome.arrived == 1, "{outcome:?}"))
        .filter_map(|outcome| Some(outcome.first?.as_secs_f64() / trip))
        .collect();
    assert!(trips.len() as u64 >= seeds * 95 / 100, "{} of {seeds} echoes", trips.len());
    trips.iter().sum::<f64>() / trips.len() as f64
}

#[test]
fn the_first_message_takes_one_round_trip() {
    let clean = run(&visits(&link(), 1, 1));
    let trips = clean.first.expect("an echo").as_secs_f64() / (DELAY * 2).as_secs_f64();
    assert!((1.0..=1.05).contains(&trips), "without loss: {trips} round trips");
    assert!(clean.resumed && clean.accepted == 1);
    for hops in [1, 3] {
        let trips = mean(&LinkConfig { loss: Loss::Iid(0.05), ..link() }, hops, 60);
        assert!(trips <= 1.1, "{hops} hops at 5 % each: {trips} round trips");
    }
}

/// As for handshakes: half of them hardly feel it, and of a hundred one takes a second. What does not
/// arrive early is sent once the handshake is done, and has then what BTP promises of its first packets.
fn are_quick_and_come_once(link: &LinkConfig, restart: bool) {
    let (mut delays, mut arrived, mut accepted, mut visited) = (Delays::default(), 0, 0, 0);
    for seed in 0..150 {
        let visit = Resumed { count: 8, size: 300, restart, ..visits(link, 1, seed) };
        // Sessions may not have come in ten seconds: with this seed there is nothing to see.
        let Some(outcome) = visit.run() else { continue };
        assert_eq!(outcome.wrong, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.arrived >= outcome.accepted, "seed {seed}: {outcome:?}");
        visited += 1;
        arrived += outcome.arrived;
        accepted += outcome.accepted;
        outcome.first.into_iter().for_each(|first| delays.add(first));
    }
    let at = |percent| delays.percentile(percent).expect("some").as_secs_f64();
    assert!(visited >= 148, "{visited} of 150");
    assert!(at(50.0) <= 0.1 && at(99.0) <= 1.0, "p50 {}, p99 {} s", at(50.0), at(99.0));
    assert!(arrived >= visited * 8 * 93 / 100, "{arrived} of {}", visited * 8);
    assert_eq!(accepted > 0, !restart, "{accepted} accepted");
}

#[test]
fn thirty_per_cent_loss_both_ways() {
    are_quick_and_come_once(&LinkConfig { loss: Loss::Iid(0.3), ..link() }, false);
}

#[test]
fn thirty_per_cent_corruption_both_ways() {
    are_quick_and_come_once(&LinkConfig { corrupt: 0.3, ..link() }, false);
}

#[test]
fn a_server_that_forgot_the_session_gets_each_message_once() {
    are_quick_and_come_once(&LinkConfig { loss: Loss::Iid(0.1), ..link() }, true);
}

#[test]
fn datagrams_that_come_twice_and_late_deliver_nothing_twice() {
    let twice = LinkConfig { duplicate: 0.5, loss: Loss::Iid(0.1), ..link() };
    let (mut arrived, mut accepted) = (0, 0);
    for seed in 0..60 {
        let outcome = run(&Resumed { count: 20, size: 200, ..visits(&twice, 1, seed) });
        assert!(outcome.arrived >= outcome.accepted, "seed {seed}: {outcome:?}");
        (arrived, accepted) = (arrived + outcome.arrived, accepted + outcome.accepted);
    }
    assert!(arrived >= 60 * 20 * 95 / 100 && accepted >= 60, "{arrived} and {accepted} of 1200");
}
