//! BRCTP across relays, which recode the batches of a block (RFC 9426) or forward them unchanged.
//! `Hops` checks that each message arrives once, intact and in order.

use std::time::Duration;

use bats_proto::Mode;
use bats_proto::relay::RelayStats;
use bats_sim::hops::{Hops, HopsOutcome};
use bats_sim::matrix::Cell;
use bats_sim::relay_network::RelayNetwork;

fn run(count: usize, loss: f64, recoding: bool, seconds: u64) -> HopsOutcome {
    let cell = Cell { seed: 3, ..Cell::over(20, 5, loss, seconds) };
    let hops = Hops::new(count, cell, recoding);
    let mut config = hops.network_config();
    config.transport.mode = Mode::Brctp;
    let outcome = hops.run_on(&mut RelayNetwork::new(config), |_, _| {});
    let sum = |f: fn(&RelayStats) -> u64| outcome.relays.iter().map(f).sum::<u64>();
    println!(
        "{count} hops, loss {loss}, recoding {recoding}: {:.2} Mbit/s, {} packets forwarded, {} \
         recoded, {} non-innovative, {} late, {} end-to-end repairs",
        outcome.goodput(),
        sum(|s| s.forwarded),
        sum(|s| s.top_ups + s.extras),
        sum(|s| s.dropped.non_innovative),
        sum(|s| s.dropped.late),
        outcome.sender.coding.top_up_packets_sent,
    );
    outcome
}

/// Fraction of the link rate after three hops with 10 % loss, for batches of 16 packets and relays
/// that adapt the number of packets to the rank. It is between the fractions after two and four
/// hops, 0.870 and 0.840 (computed for an infinite field).
const THREE_HOPS_OF_TEN_PER_CENT: f64 = 0.855;

#[test]
fn recoding_relays_reach_90_per_cent_of_the_computed_goodput_over_three_lossy_hops() {
    let lossless = run(1, 0.0, true, 12).goodput();
    let outcome = run(3, 0.1, true, 12);
    let share = outcome.goodput() / lossless;
    println!("{share:.3} of {lossless:.2} Mbit/s");
    // The goal is 0.97; 0.945 is the least measured.
    assert!(share >= 0.9 * THREE_HOPS_OF_TEN_PER_CENT, "{share:.3} of {lossless:.2} Mbit/s");
    assert!(outcome.longest_gap() <= Duration::from_millis(600), "{:?}", outcome.longest_gap());
    for relay in &outcome.relays[..3] {
        assert!(relay.top_ups * 12 > relay.forwarded, "relays repair the losses: {relay:?}");
    }
    let coding = &outcome.sender.coding;
    let share = coding.top_up_packets_sent as f64 / coding.source_packets_sent as f64;
    // Relays repair losses, the ends only what a relay did not: with other seeds a share of 0 to 0.03.
    assert!(share <= 0.05, "the ends repair {share:.4}");
}

#[test]
fn forwarding_relays_reach_85_per_cent_of_the_forwarding_bound() {
    let lossless = run(1, 0.0, true, 12).goodput();
    let outcome = run(3, 0.05, false, 12);
    let share = outcome.goodput() / lossless;
    let bound = 0.95_f64.powi(3);
    println!("{share:.3}, bound {bound:.3}");
    assert!(share > 0.85 * bound, "{share:.3}, bound {bound:.3}");
}
