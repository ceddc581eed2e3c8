//! Capacity of the links of a cell.

use core::time::Duration;

use bats_netem::{Holes, LinkConfig};
use bats_types::Timestamp;

use super::cell::Cell;

/// UDP payload of a full frame.
const PAYLOAD: f64 = 1_472.0;

/// Mbit/s of UDP payload in full frames that the slowest hop delivers during the measurement.
pub fn optimum(cell: &Cell) -> f64 {
    let hops = cell.hops.iter().map(|hop| capacity(cell, &hop.up));
    hops.fold(f64::INFINITY, f64::min)
}

fn capacity(cell: &Cell, link: &LinkConfig) -> f64 {
    let start = Timestamp::from_millis(1) + cell.warm_up;
    let end = start + cell.measure;
    let bits = |from: Timestamp, to: Timestamp| match &link.rate_schedule {
        Some(schedule) => schedule.bits(link.epoch, from, to),
        None => link.rate_bps.unwrap_or(u64::MAX) as f64 * (to - from).as_secs_f64(),
    };
    let seconds = cell.measure.as_secs_f64();
    // Computed in steps, because loss and holes depend on time or rate.
    const STEP: Duration = Duration::from_millis(10);
    let (mut at, mut delivered) = (start, 0.0);
    while at < end {
        let next = (at + STEP).min(end);
        let mut offered = bits(at, next);
        if let Some(policer) = &link.policer {
            offered = offered.min(policer.rate_bps as f64 * (next - at).as_secs_f64());
        }
        delivered += offered * (1.0 - loss_at(link, at)) * passing(link, at);
        at = next;
    }
    let frame = PAYLOAD + link.frame_overhead as f64;
    delivered / seconds * PAYLOAD / frame * 1e-6
}

/// Mean loss at a time.
fn loss_at(link: &LinkConfig, at: Timestamp) -> f64 {
    let since = at.as_nanos().saturating_sub(link.epoch.as_nanos()) as u128;
    let base = match &link.alternate_loss {
        Some(other) if since / other.every.as_nanos().max(1) % 2 == 1 => other.loss.mean(),
        _ => link.loss.mean(),
    };
    let fade = match (&link.fade, &link.rate_schedule) {
        (Some(fade), Some(schedule)) => fade.probability(schedule.rate_at(link.epoch, at)),
        _ => 0.0,
    };
    1.0 - (1.0 - base) * (1.0 - fade)
}

/// Fraction of the time around `at` in which packets pass.
fn passing(link: &LinkConfig, at: Timestamp) -> f64 {
    match link.holes {
        None => 1.0,
        Some(Holes::Periodic { period, length }) => {
            let (period, length) = (period.as_nanos().max(1), length.as_nanos());
            let since = at.as_nanos().saturating_sub(link.epoch.as_nanos()) as u128;
            if since % period >= period - length.min(period) { 0.0 } else { 1.0 }
        }
        Some(Holes::Random { mean_gap, mean_length }) => {
            let (gap, length) = (mean_gap.as_secs_f64(), mean_length.as_secs_f64());
            gap / (gap + length).max(1e-9)
        }
    }
}
