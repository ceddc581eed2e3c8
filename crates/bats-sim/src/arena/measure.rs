//! Figures of a run.

use core::time::Duration;

use super::cell::Cell;
use super::world::Outcome;
use crate::flows::jain_index;

/// Figures of one run.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Goodput of each flow in Mbit/s during the measurement.
    pub goodput: Vec<f64>,
    /// Goodput of the first flow, or of all flows under test, divided by the optimum.
    pub efficiency: f64,
    /// Jain's index of the flows under test.
    pub jain: f64,
    /// Fraction of the offered packets that queues and policers dropped.
    pub drops: f64,
    /// 95th percentile of the first flow's one-way delay above the propagation delay, in ms.
    pub queue_p95_ms: f64,
    /// Packets sent by the first flow per packet of data delivered.
    pub overhead: f64,
    /// Longest time without a delivery to the first flow, in seconds.
    pub stall: f64,
    /// Mean goodput over the first ten seconds, divided by the optimum.
    pub first_10s: f64,
}

/// Computes the figures of a run; `optimum` is in Mbit/s of payload.
pub fn figures(cell: &Cell, outcome: &Outcome, optimum: f64) -> Figures {
    let at = |time: Duration| outcome.samples.iter().find(|sample| sample.time >= time);
    let (Some(first), Some(last)) = (at(cell.warm_up), outcome.samples.last()) else {
        return Figures::default();
    };
    let seconds = (last.time - first.time).as_secs_f64().max(1e-9);
    let goodput: Vec<f64> = last
        .received
        .iter()
        .zip(&first.received)
        .map(|(b, a)| (b - a) as f64 * 8e-6 / seconds)
        .collect();
    let is_subject = |index: &usize| cell.flows[*index].who == super::cell::Who::Subject;
    let subjects: Vec<f64> = (0..goodput.len()).filter(is_subject).map(|i| goodput[i]).collect();
    let offered: u64 =
        last.links.iter().zip(&first.links).map(|(b, a)| b.offered - a.offered).sum();
    let dropped: u64 = last
        .links
        .iter()
        .zip(&first.links)
        .map(|(b, a)| congestion_drops(b) - congestion_drops(a))
        .sum();
    let base: Duration = cell.hops.iter().map(|hop| hop.up.delay).sum();
    let packets = goodput.first().map_or(0.0, |rate| rate * seconds * 1e6 / 8.0 / 1_448.0);
    let sent = (last.sent.first().unwrap_or(&0) - first.sent.first().unwrap_or(&0)) as f64;
    let (mut stall, mut since) = (0.0_f64, first.time);
    for pair in outcome.samples.windows(2).filter(|pair| pair[0].time >= first.time) {
        if pair[1].received.first() > pair[0].received.first() {
            since = pair[1].time;
        }
        stall = stall.max((pair[1].time - since).as_secs_f64());
    }
    let ten = at(Duration::from_secs(10)).map_or(0, |sample| sample.received[0]);
    Figures {
        efficiency: subjects.iter().sum::<f64>() / optimum.max(1e-9),
        jain: jain_index(&subjects),
        goodput,
        drops: dropped as f64 / offered.max(1) as f64,
        queue_p95_ms: outcome.delays[0].quantile(0.95).saturating_sub(base).as_secs_f64() * 1e3,
        overhead: sent / packets.max(1e-9),
        stall,
        first_10s: ten as f64 * 8e-7 / optimum.max(1e-9),
    }
}

/// Packets dropped by a queue, its discipline or a policer.
fn congestion_drops(link: &bats_netem::LinkStats) -> u64 {
    link.dropped_queue + link.dropped_aqm + link.dropped_policer
}
