//! Relays on links with long round trips and unlike rates, and flows that leave slots of a link unused.
//! `Hops` checks that each message arrives once, intact and in order.

use std::time::Duration;

use bats_proto::{Event, Timestamp};
use bats_sim::hops::Hops;
use bats_sim::matrix::Cell;
use bats_sim::relay_network::RelayNetwork;

/// A relay holds what is in flight on the next link, and accepts as much again. With less memory or
/// room, or room that follows a rate which the lack of room itself limits, three such hops had 0.31 to
/// 0.66 of the bound. The goal is that of short hops, 0.95; so soon after the start
/// chance moves the share by up to 0.05. Regression test for sessions that never measured their round
/// trip (seed 2 of the second row).
#[test]
fn long_round_trips_do_not_limit_the_rate_over_relays() {
    for (mbps, delay, loss) in [(300, 75, 0.01), (60, 300, 0.05)] {
        let hops = |hops, loss, seed| {
            let duration = Duration::from_millis(6_000 + 80 * delay);
            Hops::new(hops, Cell { seed, duration, ..Cell::over(mbps, delay, loss, 0) }, true)
        };
        let lossless = hops(1, 0.0, 1).run().goodput();
        for seed in 1..=2 {
            let run = hops(3, loss, seed);
            let outcome = run.run();
            let figures = run.figures(&outcome, lossless);
            println!("{mbps} Mbit/s, {delay} ms, seed {seed}: {figures:?}");
            assert!(figures.share >= 0.92, "{} of the bound, seed {seed}", figures.share);
            assert_eq!(figures.batches_lost, 0, "seed {seed}");
        }
    }
}

/// The slower link decides, whichever is first. The queue before it stays short: what that link takes in a
/// round trip of the link before, twice while the queue begins, and 128 packets. The median of five seeds:
/// with one of six, the controller of the slow link takes random losses for congestion and keeps 0.6 of its
/// rate.
#[test]
fn a_slow_link_next_to_a_fast_one_is_full_and_its_queue_is_bounded() {
    let slow = |seed| Cell { seed, ..Cell::over(20, 10, 0.02, 8) };
    let fast = |seed| Cell { seed, ..Cell::over(400, 50, 0.01, 8) };
    let median = |goodput: &dyn Fn(u64) -> f64| {
        let mut goodputs: Vec<f64> = (1..=5).map(goodput).collect();
        goodputs.sort_by(f64::total_cmp);
        goodputs[2]
    };
    let alone = median(&|seed| Hops::new(1, slow(seed), true).run().goodput());
    for is_fast_first in [true, false] {
        let both = median(&|seed| {
            let run = Hops::new(2, slow(seed), true);
            let mut config = run.network_config();
            config.links = vec![fast(seed).link(), slow(seed).link()];
            if !is_fast_first {
                config.links.reverse();
            }
            let outcome = run.run_on(&mut RelayNetwork::new(config), |_, _| {});
            let relay = &outcome.relays[1];
            println!(
                "seed {seed}: {:.2} Mbit/s, {} bytes held",
                outcome.goodput(),
                relay.memory.bytes_peak
            );
            // 20 Mbit/s for 112 ms are 280 kB, and 128 packets take 200 kB.
            assert!(relay.memory.bytes_peak <= 2 * 280_000 + 200_000 + 100_000, "{relay:?}");
            assert_eq!((relay.batches.dropped, relay.batches.unrepaired), (0, 0));
            outcome.goodput()
        });
        println!(
            "fast link first: {is_fast_first}: {both:.2}, the slow one alone {alone:.2} Mbit/s"
        );
        assert!(both >= 0.95 * alone, "{both} of {alone} Mbit/s");
    }
}

struct Delays {
    /// One-way delays of messages, sorted.
    sorted: Vec<Duration>,
    /// Bytes on the first link for each byte of a message.
    expansion: f64,
}

/// Messages of `size` bytes that take `load` of the rate, over equal hops.
fn steady_messages(hops: usize, cell: Cell, load: f64, size: usize) -> Delays {
    let run = Hops::new(hops, cell, true);
    let mut network = RelayNetwork::new(run.network_config());
    let client = network.connect_ends();
    let last = network.last();
    let interval = Duration::from_secs_f64(size as f64 * 8.0 / (cell.rate_bps as f64 * load));
    let end = network.now() + cell.duration;
    let (mut next, mut server) = (end, None);
    let mut sent: Vec<Timestamp> = Vec::new();
    let mut delays = Vec::new();
    while network.now() < end {
        network.step(next);
        let now = network.now();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = now,
                Event::Accepted if node == last && network.is_session(node, handle) => {
                    server = Some(handle);
                }
                Event::Readable if node == last && Some(handle) == server => {
                    while network.node(last).recv(now, handle).is_some() {
                        delays.push(now - sent[delays.len()]);
                    }
                    network.wake(last);
                }
                _ => {}
            }
        }
        if next <= now && now < end {
            // At the start the session may accept less.
            if network.node(0).send(now, client, vec![7; size].into()).is_ok() {
                sent.push(now);
                network.wake(0);
            }
            next = now + interval;
        }
    }
    let now = network.now();
    let link = network.link_connection(0).expect("a link");
    let bytes = network.node(0).stats(now, link).expect("an open link").packets.bytes_sent;
    let expansion = bytes as f64 / (delays.len() * size) as f64;
    // The first quarter has the handshake and the start.
    let mut sorted = delays.split_off(delays.len() / 4);
    sorted.sort_unstable();
    Delays { sorted, expansion }
}

/// In a flow that leaves slots of its link unused, hardly a message waits for the repair of a loss, as
/// TCP in a tunnel needs: each wait holds up all that follows for a round trip. Without more
/// recoded packets than the mean loss requires, the median at 10 % was 76 ms instead of 27. At 80 % of the
/// rate the repairs need the slots of the next packets, and the queue delays them: this bound is no goal.
#[test]
fn losses_hardly_delay_a_flow_that_leaves_slots_unused() {
    for (hops, mbps, delay, loss, load, size, median, p90, most) in [
        (1, 200, 25, 0.01, 0.5, 16_384, 1.05, 1.1, 1.25),
        (1, 200, 25, 0.1, 0.5, 16_384, 1.15, 1.25, 1.6),
        (1, 200, 25, 0.1, 0.8, 16_384, 8.0, 10.5, 1.3),
        (3, 100, 10, 0.05, 0.5, 8_192, 1.25, 1.8, 1.45),
        (1, 20, 20, 0.05, 0.5, 4_096, 1.3, 2.8, 1.6),
    ] {
        for seed in 1..=3 {
            let cell = Cell { seed, ..Cell::over(mbps, delay, loss, 8) };
            let found = steady_messages(hops, cell, load, size);
            let base = (Duration::from_millis(delay) * hops as u32).as_secs_f64();
            let at = |part: f64| {
                found.sorted[(found.sorted.len() as f64 * part) as usize].as_secs_f64() / base
            };
            let sum: Duration = found.sorted.iter().sum();
            println!(
                "{hops} hops, {mbps} Mbit/s, {delay} ms, loss {loss}, load {load}, seed {seed}: mean {:.2}, median {:.2}, \
                 p90 {:.2}, p99 {:.2} of the delay, {:.2} bytes for a byte",
                sum.as_secs_f64() / found.sorted.len() as f64 / base,
                at(0.5),
                at(0.9),
                at(0.99),
                found.expansion
            );
            assert!(at(0.5) <= median && at(0.9) <= p90, "seed {seed}");
            // What is measured and 5 %: headers, reports, and repairs in slots that are free.
            assert!(found.expansion <= most, "{} bytes for a byte, seed {seed}", found.expansion);
        }
    }
}
