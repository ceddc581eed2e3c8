//! A relay forwards for a neighbour at most its rate. What is beyond it is held back: the source slows
//! down, and nothing is lost. `Hops` checks that each message arrives once, intact and in order.

use std::num::NonZeroU64;

use bats_proto::relay::{LimitGroup, LinkPolicy, RateLimit};
use bats_sim::hops::{Hops, HopsOutcome};
use bats_sim::matrix::Cell;
use bats_sim::relay_network::RelayNetwork;

const SECONDS: u64 = 6;

/// Two hops of 20 Mbit/s; the relay limits the source to `mbps`.
fn run(loss: f64, mbps: f64) -> HopsOutcome {
    let cell = Cell { seed: 5, ..Cell::over(20, 10, loss, SECONDS) };
    let run = Hops::new(2, cell, true);
    let mut network = RelayNetwork::new(run.network_config());
    let mut policy = LinkPolicy::default();
    let bits_per_second = NonZeroU64::new((mbps * 1e6) as u64).expect("a rate");
    policy.rate = Some(RateLimit { bits_per_second, group: LimitGroup(1) });
    network.set_policy(0, policy);
    run.run_on(&mut network, |_, _| {})
}

#[test]
fn a_source_gets_the_rate_of_its_neighbour_and_loses_nothing() {
    for (loss, mbps) in [(0.0, 4.0), (0.05, 4.0), (0.0, 0.5)] {
        let outcome = run(loss, mbps);
        let share = outcome.goodput() / mbps;
        let relay = &outcome.relays[1];
        println!(
            "{mbps} Mbit/s at loss {loss}: {share:.3} of the rate, at most {} bytes held, {relay:?}",
            relay.memory.bytes_peak
        );
        // The headers of symbols and messages count, and the start-up is part of the time.
        assert!((0.85..=1.0).contains(&share), "{share} of {mbps} Mbit/s at loss {loss}");
        assert_eq!(
            (relay.batches.dropped, relay.dropped.overflowed, relay.dropped.rate_limited),
            (0, 0, 0)
        );
        // Far below the 1 MiB that a flow may hold: the source is held back, not the queue filled.
        assert!(relay.memory.bytes_peak < 400 << 10, "{} bytes", relay.memory.bytes_peak);
    }
}
