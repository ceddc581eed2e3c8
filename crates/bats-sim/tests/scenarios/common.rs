//! Links and figures that the scenarios share.
#![allow(dead_code, reason = "every scenario uses a part")]

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::TransportConfig;
use bats_proto::wire::parameters::symbol_size_for;
use bats_sim::matrix::FRAME_OVERHEAD;
use bats_sim::transfer::{Outcome, Sample, Transfer};

/// A link with a queue of one bandwidth-delay product.
pub(crate) fn link(rate_mbps: u64, one_way_ms: u64) -> LinkConfig {
    let (rate_bps, delay) = (rate_mbps * 1_000_000, Duration::from_millis(one_way_ms));
    LinkConfig {
        rate_bps: Some(rate_bps),
        queue_bytes: Some(LinkConfig::queue_for(rate_bps, delay * 2, 1.0)),
        delay,
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
    }
}

/// As much as possible over `link`, the same in both directions.
pub(crate) fn transfer(link: &LinkConfig, seconds: u64) -> Transfer {
    Transfer {
        up: link.clone(),
        down: link.clone(),
        transport: TransportConfig::default(),
        message_size: 16 << 10,
        total_bytes: None,
        duration: Duration::from_secs(seconds),
        changes: Vec::new(),
        seed: 1,
    }
}

/// Mbit/s of UDP payload in full frames that arrive over `link`.
pub(crate) fn capacity(link: &LinkConfig) -> f64 {
    let rate = link.rate_bps.expect("a rate") as f64 / 1e6;
    rate * 1_472.0 / 1_514.0 * (1.0 - link.loss.mean())
}

/// Mbit/s of data that arrive over `link` where nothing is coded: of a symbol in each frame, which has 29
/// octets of header and seal beside it.
pub(crate) fn payload_optimum(link: &LinkConfig) -> f64 {
    let rate = link.rate_bps.expect("a rate") as f64 / 1e6;
    let symbol = symbol_size_for(1_472);
    rate * symbol as f64 / (symbol + 29 + FRAME_OVERHEAD) as f64 * (1.0 - link.loss.mean())
}

/// The first sample from `second` on, the last one if there is none.
pub(crate) fn at(outcome: &Outcome, second: f64) -> &Sample {
    let samples = &outcome.samples;
    let found = samples.iter().find(|sample| sample.time.as_secs_f64() >= second - 1e-9);
    found.or(samples.last()).expect("a connection came about")
}

/// Mbit/s that became deliverable between two seconds.
pub(crate) fn goodput(outcome: &Outcome, from: f64, to: f64) -> f64 {
    let (a, b) = (at(outcome, from), at(outcome, to));
    (b.delivered - a.delivered) as f64 * 8e-6 / (b.time - a.time).as_secs_f64()
}

/// When something that was planned for a second of the run happened, as samples count time: from
/// the established connection.
pub(crate) fn since_connected(outcome: &Outcome, second: f64) -> f64 {
    let established = outcome.established.expect("a connection came about");
    // Virtual time starts at one millisecond.
    second + 0.001 - established.as_secs_f64()
}

/// Seconds from `change`, as samples count, until the second that follows brings `least` Mbit/s.
pub(crate) fn recovery(outcome: &Outcome, change: f64, least: f64) -> f64 {
    let end = outcome.samples.last().expect("samples").time.as_secs_f64();
    let mut after = 0.0;
    while change + after + 1.0 <= end {
        if goodput(outcome, change + after, change + after + 1.0) >= least {
            return after;
        }
        after += 0.05;
    }
    f64::INFINITY
}

/// Mean octets in the queue between two seconds.
pub(crate) fn mean_queue(outcome: &Outcome, from: f64, to: f64) -> f64 {
    let (a, b) = (at(outcome, from), at(outcome, to));
    (b.link.queue_byte_seconds - a.link.queue_byte_seconds) / (b.time - a.time).as_secs_f64()
}

/// Share of the packets handed to the link that its full queue dropped between two seconds.
pub(crate) fn queue_loss(outcome: &Outcome, from: f64, to: f64) -> f64 {
    let (a, b) = (at(outcome, from), at(outcome, to));
    let offered = (b.link.offered - a.link.offered).max(1);
    (b.link.dropped_queue - a.link.dropped_queue) as f64 / offered as f64
}
