//! Capacity of a cell's links.

use core::time::Duration;

use bats_netem::{Holes, LinkConfig};
use bats_types::Timestamp;

use super::cell::{Cell, Route};

/// UDP payload of a full frame.
const PAYLOAD: f64 = 1_472.0;
/// The links are looked at in steps, because rates, loss and holes change with time.
const STEP: Duration = Duration::from_millis(10);

/// Mbit/s of UDP payload in full frames that arrive in the time that counts over the route of the first
/// flow that is judged. Relays repair the losses of their hop; without relays the losses of all hops add up.
pub fn optimum(cell: &Cell) -> f64 {
    let first = (0..cell.flows.len()).find(|&flow| cell.is_subject(flow)).unwrap_or(0);
    let route = cell.route(first);
    let start = Timestamp::from_millis(1) + cell.warm_up;
    let end = start + cell.measure;
    let (mut at, mut delivered, mut of_hops) = (start, 0.0, vec![0.0; route.len()]);
    while at < end {
        let next = (at + STEP).min(end);
        let mut arriving = f64::INFINITY;
        for (place, sum) in hop_links(cell, &route, at).into_iter().zip(&mut of_hops) {
            let (carried, passed) = capacity(place, at, next);
            arriving = arriving.min(carried) * passed;
            *sum += carried * passed;
        }
        delivered += arriving;
        at = next;
    }
    // Relays have buffers, so two hops may transmit the same data at different times.
    if cell.relays || route.len() == 1 {
        delivered = of_hops.into_iter().fold(f64::INFINITY, f64::min);
    }
    delivered / cell.measure.as_secs_f64().max(1e-9) * 1e-6
}

/// The link at each place of a route at a time.
fn hop_links<'a>(cell: &'a Cell, route: &Route, at: Timestamp) -> Vec<&'a LinkConfig> {
    let since = at.saturating_since(Timestamp::from_millis(1));
    let current = |&(hop, is_forward): &(usize, bool)| {
        let changes = cell.changes.iter().filter(|change| {
            change.hop == hop && change.reverse != is_forward && change.at <= since
        });
        let last = changes.enumerate().max_by_key(|(index, change)| (change.at, *index));
        last.map_or(cell.link((hop, is_forward)), |(_, change)| &change.link)
    };
    route.iter().map(current).collect()
}

/// Bits of payload in full frames that a link takes from `at` to `next`, and the share that it delivers.
fn capacity(link: &LinkConfig, at: Timestamp, next: Timestamp) -> (f64, f64) {
    let seconds = (next - at).as_secs_f64();
    let mut bits = match &link.rate_schedule {
        Some(schedule) => schedule.bits(link.epoch, at, next),
        None => link.rate_bps.unwrap_or(u64::MAX) as f64 * seconds,
    };
    if let Some(policer) = &link.policer {
        bits = bits.min(policer.rate_bps as f64 * seconds);
    }
    let frame = PAYLOAD + link.frame_overhead as f64;
    let passed = if link.black_hole { 0.0 } else { (1.0 - loss_at(link, at)) * passing(link, at) };
    (bits * PAYLOAD / frame, passed)
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

/// The share of the time around `at` in which something passes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::cell::{Change, FlowSpec, Hop};

    fn hop(mbps: u64, loss: f64) -> Hop {
        let link = LinkConfig {
            rate_bps: Some(mbps * 1_000_000),
            frame_overhead: 66,
            loss: bats_netem::Loss::Iid(loss),
            ..LinkConfig::default()
        };
        Hop { up: link.clone(), down: link }
    }

    fn share(cell: &Cell) -> f64 {
        optimum(cell) * 1_538.0 / 1_472.0
    }

    #[test]
    fn relays_repair_the_losses_of_their_hop() {
        let hops = vec![hop(100, 0.1), hop(20, 0.2), hop(50, 0.5)];
        let mut cell = Cell::new(hops, vec![FlowSpec::subject()]);
        // 20 Mbit/s less 20 %, of which 50 % pass the last hop.
        assert!((share(&cell) - 8.0).abs() < 0.01, "{}", share(&cell));
        cell.relays = true;
        assert!((share(&cell) - 16.0).abs() < 0.01, "{}", share(&cell));
    }

    #[test]
    fn changes_count_from_their_time() {
        let mut cell = Cell::new(vec![hop(10, 0.0)], vec![FlowSpec::subject()]);
        // 10 s to settle and 30 s: 10 s at 10 Mbit/s, 10 s at 40, 10 s without anything.
        let change =
            |at, link| Change { at: Duration::from_secs(at), hop: 0, reverse: false, link };
        cell.changes.push(change(20, hop(40, 0.0).up));
        cell.changes.push(change(30, LinkConfig { black_hole: true, ..hop(40, 0.0).up }));
        assert!((share(&cell) - 50.0 / 3.0).abs() < 0.05, "{}", share(&cell));
    }
}
