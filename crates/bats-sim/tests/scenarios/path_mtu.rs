//! Paths with an MTU below the largest datagram.

use std::time::Duration;

use crate::common::{link, transfer};
use bats_netem::{LinkConfig, Loss};
use bats_sim::links::queued;
use bats_sim::transfer::{Outcome, Sample, Transfer};

/// Capacity of `link` after loss in Mbit/s of UDP payload, with `mtu` bytes of payload in each
/// frame.
fn capacity(link: &LinkConfig, mtu: u16) -> f64 {
    crate::common::capacity(link) * f64::from(mtu) / f64::from(mtu + 42) * 1_514.0 / 1_472.0
}

#[test]
fn path_mtu_discovery_finds_a_smaller_mtu_and_fills_the_link() {
    for (mtu, loss) in [(1_200, 0.0), (1_300, 0.05), (1_420, 0.0), (1_420, 0.1)] {
        let link = LinkConfig { mtu: Some(mtu), loss: Loss::Iid(loss), ..link(100, 20) };
        let outcome = transfer(&link, 15).run();
        let found = outcome.at(15.0).sender.path.mtu;
        assert!(usize::from(found) <= mtu && usize::from(found) + 16 >= mtu, "{mtu}: {found}");
        let efficiency = outcome.goodput(5.0, 15.0) / capacity(&link, found);
        assert!(efficiency >= 0.85, "{mtu} bytes, loss {loss}: {efficiency}");
    }
}

#[test]
fn path_mtu_discovery_reaches_95_per_cent_of_the_mtu_within_seven_round_trips() {
    for mtu in [1_230_u16, 1_280, 1_340, 1_400, 1_460] {
        for seed in 1..4 {
            let mut run = transfer(&LinkConfig { mtu: Some(usize::from(mtu)), ..link(100, 20) }, 1);
            run.seed = seed;
            let found = run.run().at(7.0 * 0.040).sender.path.mtu;
            assert!(found <= mtu && found * 20 >= mtu * 19, "{mtu}, seed {seed}: {found}");
        }
    }
}

/// Longest time without progress in the two seconds after a change.
fn stall_after(outcome: &Outcome, change: f64) -> f64 {
    let within =
        |sample: &&Sample| (change - 0.02..change + 2.0).contains(&sample.time.as_secs_f64());
    let delivered: Vec<u64> = outcome.samples.iter().filter(within).map(|s| s.delivered).collect();
    let still = delivered.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0);
    still as f64 * Transfer::SAMPLE.as_secs_f64()
}

/// Measured with an RTT of 40 ms: the last data arrives 20 ms after the fall, and its acknowledgement 20 ms later. The
/// sender fills its window for another 35 ms, and a probe timeout after that, of 50 ms by its estimate, a small probe
/// follows the large ones. Its answer takes a round trip, and what is resent then another 20 ms.
#[test]
fn a_falling_path_mtu_stops_the_transfer_for_at_most_three_probe_timeouts() {
    for (loss, seed) in
        [0.0, 0.05].into_iter().flat_map(|loss| (1..9).map(move |seed| (loss, seed)))
    {
        let before = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
        let after = LinkConfig { mtu: Some(1_300), ..before.clone() };
        let mut run = transfer(&before, 12);
        run.seed = seed;
        run.changes = vec![(Duration::from_secs(4), after.clone(), before.clone())];
        let outcome = run.run();
        let found = outcome.at(12.0).sender.path.mtu;
        let efficiency = outcome.goodput(7.0, 12.0) / capacity(&after, found);
        assert!(found <= 1_300 && efficiency >= 0.85, "{found} bytes, loss {loss}: {efficiency}");
        let change = outcome.since_connected(4.0);
        let stall = stall_after(&outcome, change);
        // With the default acknowledgement delay of RFC 9002.
        let probe = outcome.at(3.9).sender.path.smoothed_rtt.as_secs_f64() + 0.025;
        let timeouts = |time| outcome.at(time).sender.congestion.probe_timeouts;
        let expired = timeouts(change + 0.5) - timeouts(change);
        println!(
            "loss {loss}, seed {seed}: stall of {stall:.3} s, probe time-out {probe:.3} s, {expired} expired"
        );
        // The small probe or its answer may be lost by chance; the next one comes two probe timeouts later. So may
        // so many repairs that the first generation needs more, which follow those of all others.
        let most = if loss > 0.0 { 5.0 } else { 3.0 };
        assert!(
            stall <= most * probe,
            "loss {loss}, seed {seed}: stall of {stall} s, probe time-out {probe} s"
        );
    }
}

/// Few packets are lost between two probe timeouts of a sender whose application sends little. What takes long on
/// some of these links is the probe timer, which each packet restarts (RFC 9002, section 6.2.1), on the others that
/// the small packets at the ends of messages are answered, so that no timer expires. With 30 losses as evidence also
/// after a small probe is answered, the sixth link needed 9 probe timeouts.
#[test]
fn a_falling_path_mtu_costs_a_sender_of_little_data_at_most_three_probe_timeouts() {
    // Bit/s, one-way delay in µs, bytes of a message, time between two messages in µs, and the longest stall in ms: what
    // is measured and some more.
    for (rate, delay, message, interval, longest) in [
        (1_000_000_000, 100, 20_000, 5_000, 30),
        (1_000_000_000, 1_000, 2_000, 5_000, 50),
        (100_000_000, 5_000, 1_400, 10_000, 250),
        (20_000_000, 20_000, 5_000, 20_000, 500),
        (1_000_000, 300_000, 1_400, 100_000, 6_500),
        (100_000_000, 1_000, 1_400, 30_000, 150),
        (1_000_000_000, 100, 1_400, 20_000, 150),
        (20_000_000, 5_000, 2_800, 60_000, 400),
    ] {
        for (loss, seed) in [(0.0, 1), (0.0, 2), (0.02, 1), (0.02, 2), (0.02, 3)] {
            let before = queued(rate, Duration::from_micros(delay), 1.0, loss);
            let after = LinkConfig { mtu: Some(1_300), ..before.clone() };
            let mut run = transfer(&before, 20);
            (run.message_size, run.seed) = (message, seed);
            run.message_interval = Some(Duration::from_micros(interval));
            run.sample_interval = Duration::from_millis(1);
            run.changes = vec![(Duration::from_secs(10), after, before)];
            let outcome = run.run();
            let begin = outcome.at(outcome.since_connected(10.0));
            // What was under way at the change has arrived a delay later.
            let settled = outcome.at(begin.time.as_secs_f64() + delay as f64 * 1e-6 + 2e-3);
            let has_resumed =
                |s: &&Sample| s.time > settled.time && s.delivered > settled.delivered;
            let resumed = outcome.samples.iter().find(has_resumed).expect("the transfer resumes");
            let timeouts =
                resumed.sender.congestion.probe_timeouts - begin.sender.congestion.probe_timeouts;
            let case = format!(
                "{rate} bit/s, {delay} µs, {message} bytes each {interval} µs, loss {loss}"
            );
            let stall = resumed.time - begin.time;
            println!("{case}, seed {seed}: {timeouts} until new data, {stall:?}");
            assert!(stall <= Duration::from_millis(longest), "{case}, seed {seed}: {stall:?}");
            // A probe may be lost by chance.
            let most = if loss > 0.0 { 4 } else { 3 };
            assert!(timeouts <= most, "{case}, seed {seed}: {timeouts} probe timeouts");
            let found = outcome.at(20.0).sender.path.mtu;
            assert!((1_200..=1_300).contains(&found), "{case}, seed {seed}: {found} bytes");
        }
    }
}

/// Outages after which the small probe of the first timeout is answered, though not alone.
#[test]
fn outages_of_a_full_link_are_no_fall_of_the_mtu() {
    // Bit/s and one-way delay in µs.
    for (rate, delay) in [(100_000_000, 20_000), (100_000_000, 1_000), (10_000_000, 150_000)] {
        let clear = queued(rate, Duration::from_micros(delay), 1.0, 0.0);
        let hole = LinkConfig { black_hole: true, ..clear.clone() };
        for seed in 1..5 {
            let mut run = transfer(&clear, 14);
            run.seed = seed;
            for (at, millis) in (0..).zip([30, 60, 110, 160, 220, 300, 450, 700]) {
                let begin = Duration::from_micros(2_000_000 + 1_500_000 * at + seed * 1_313);
                let end = begin + Duration::from_micros(millis * 1_000 + seed * 7_777);
                run.changes.push((begin, hole.clone(), hole.clone()));
                run.changes.push((end, clear.clone(), clear.clone()));
            }
            let outcome = run.run();
            let mtus: Vec<_> = outcome.samples.iter().map(|s| s.sender.path.mtu).collect();
            let case = format!("{rate} bit/s, {delay} µs, seed {seed}");
            assert!(mtus.is_sorted(), "{case}: {mtus:?}");
            assert!(mtus.last().is_some_and(|&mtu| mtu > 1_400), "{case}: {mtus:?}");
        }
    }
}

/// Outages of up to several probe timeouts, and bursts of losses longer than what shows a black hole after a small
/// probe: the MTU of the path stays known, whatever the application sends.
#[test]
fn outages_and_bursts_of_losses_are_no_fall_of_the_mtu() {
    let delay = Duration::from_millis(1);
    let clear = queued(1_000_000_000, delay, 1.0, 0.0);
    let hole = LinkConfig { black_hole: true, ..clear.clone() };
    let bursts = LinkConfig { loss: Loss::bursts(0.03, 8.0), ..clear.clone() };
    for (message, interval) in [(20_000, 5_000), (2_000, 5_000), (100, 1_000), (5_000, 20_000)] {
        for (before, is_lossy) in [(&clear, false), (&bursts, true)] {
            for seed in 1..4 {
                let mut run = transfer(before, 12);
                (run.message_size, run.seed) = (message, seed);
                run.message_interval = Some(Duration::from_micros(interval));
                for (at, millis) in [(2, 10), (3, 20), (4, 35), (5, 60), (6, 100), (7, 200)] {
                    let (begin, end) = (Duration::from_secs(at), Duration::from_millis(millis));
                    run.changes.push((begin, hole.clone(), hole.clone()));
                    run.changes.push((begin + end, before.clone(), before.clone()));
                }
                let outcome = run.run();
                let case =
                    format!("{message} bytes each {interval} µs, losses {is_lossy}, seed {seed}");
                let mtus: Vec<_> = outcome.samples.iter().map(|s| s.sender.path.mtu).collect();
                assert!(mtus.is_sorted(), "{case}: {mtus:?}");
                assert!(mtus.last().is_some_and(|&mtu| mtu > 1_400), "{case}: {mtus:?}");
            }
        }
    }
}

/// The MTU is below the size of coded packets for 10 s, while PING frames and acknowledgements pass. These
/// must not reset the backoff: without it a path with a short round trip had 978 probe timeouts.
#[test]
fn probe_timeouts_back_off_while_only_small_packets_pass() {
    // Bit/s, one-way delay in µs, loss, and the time between two messages of 20,000 bytes in µs, if any.
    for (rate, delay, loss, interval) in [
        (20_000_000, 1_000, 0.0, None),
        (20_000_000, 20_000, 0.0, None),
        (20_000_000, 20_000, 0.05, None),
        (1_000_000_000, 100, 0.0, Some(5_000)),
        (1_000_000_000, 100, 0.02, Some(5_000)),
        (1_000_000_000, 1_000, 0.0, Some(5_000)),
        (100_000_000, 10_000, 0.02, Some(20_000)),
    ] {
        for (seed, length) in [(1, 10.0), (2, 10.1), (3, 10.25), (4, 3.4)] {
            let before = queued(rate, Duration::from_micros(delay), 1.0, loss);
            let during = LinkConfig { mtu: Some(1_000), ..before.clone() };
            let mut run = transfer(&before, 26);
            run.seed = seed;
            if let Some(interval) = interval {
                run.message_size = 20_000;
                run.message_interval = Some(Duration::from_micros(interval));
            }
            run.sample_interval = Duration::from_millis(1);
            let change =
                |at, link: &LinkConfig| (Duration::from_secs_f64(at), link.clone(), link.clone());
            run.changes = vec![change(4.0, &during), change(4.0 + length, &before)];
            let outcome = run.run();
            let (begin, end) =
                (outcome.since_connected(4.0), outcome.since_connected(4.0 + length));
            let timeouts = |time| outcome.at(time).sender.congestion.probe_timeouts;
            let expired = timeouts(end) - timeouts(begin);
            let case = format!("{rate} bit/s, {delay} µs, loss {loss}, {length} s, seed {seed}");
            let stalled = outcome.at(end).delivered;
            let has_resumed = |s: &&Sample| s.time.as_secs_f64() > end && s.delivered > stalled;
            let resumed = outcome.samples.iter().find(has_resumed).expect("the transfer resumes");
            let probes = resumed.sender.congestion.probe_timeouts - timeouts(end);
            let after = resumed.time.as_secs_f64() - end;
            println!("{case}: {expired} in the fault, {probes} until new data, {after:.3} s");
            // Some at first, until small probes are known to pass alone; then one in at least 64 times 5 ms.
            assert!(expired <= 80, "{case}: {expired} probe timeouts");
            assert!(probes <= 3, "{case}: resumed after {probes} probe timeouts");
        }
    }
}

/// A limit of 1,300 bytes, which ends at second 505. At 200 and 500 s not even the smallest packets pass for 5 s;
/// the search after such a black hole must not postpone the next search up to the maximum, ten minutes after the
/// first one. Probes meet a queue that the data fill at times; with these seeds two copies of a probe were lost.
#[test]
fn a_raised_mtu_is_found_ten_minutes_after_the_last_search_despite_black_holes() {
    for seed in [1, 10, 16, 25] {
        let full = link(2, 20);
        let limited = |mtu| LinkConfig { mtu: Some(mtu), ..full.clone() };
        let mut run = transfer(&limited(1_300), 640);
        let change = |at, link: LinkConfig| (Duration::from_secs(at), link.clone(), link);
        run.seed = seed;
        run.changes = vec![
            change(200, limited(1_000)),
            change(205, limited(1_300)),
            change(500, limited(1_000)),
            change(505, full.clone()),
        ];
        let outcome = run.run();
        let path_mtu = |at| outcome.at(outcome.since_connected(at)).sender.path.mtu;
        assert!(
            (1_284..=1_300).contains(&path_mtu(199.0)),
            "seed {seed}: {} bytes",
            path_mtu(199.0)
        );
        assert_eq!(path_mtu(205.0), 1_200, "seed {seed}: the black hole is detected");
        assert_eq!(path_mtu(620.0), 1_472, "seed {seed}");
    }
}
