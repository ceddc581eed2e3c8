//! Figures of the flows of a run.

use core::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::cell::{Cell, Who, Work};
use super::outcome::{Outcome, Sample};
use crate::delay_histogram::DelayHistogram;
use crate::flows::jain_index;

/// Figures of one run. A figure that does not apply to the cell or the algorithm is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Figures {
    /// Capacity of the links in the measured time, in Mbit/s of UDP payload.
    pub optimum_mbps: f64,
    /// Goodput of each flow in Mbit/s, in the time that counts.
    pub goodput_mbps: Vec<f64>,
    /// 95th percentile of each flow's one-way delay in ms.
    pub delay_p95_ms: Vec<f64>,
    /// Goodput of all judged flows over the optimum.
    pub efficiency: f64,
    /// Jain's index of the judged flows.
    pub jain: f64,
    /// Goodput of the judged flows, as a fraction of the goodput of all flows in this direction.
    pub share: Option<f64>,
    /// The same over an equal share for each flow.
    pub of_fair_share: Option<f64>,
    /// Packets dropped by queues and policers, of those offered.
    pub drops: f64,
    /// Packets dropped by queues and policers before the time that counts.
    pub start_drops: u64,
    /// 95th percentile of the first flow's one-way delay above the propagation delay, in ms.
    pub queue_p95_ms: f64,
    /// The same over the round-trip propagation delay: the standing queue in BDP.
    pub queue_p95_bdp: f64,
    /// Packets sent per packet's worth of data delivered, of the first flow.
    pub overhead: Option<f64>,
    /// The longest time without a delivery of the first flow, in seconds.
    pub stall_s: f64,
    /// Mean goodput of the first flow that is judged over its first ten seconds, over the optimum.
    pub first_10s: f64,
    /// Non-innovative packets of the coded packets that the first flow's receiver got.
    pub non_innovative: Option<f64>,
    /// 95th percentile of the delay of messages with deadlines, in ms.
    pub media_p95_ms: Option<f64>,
    /// Transfers of a given length: how many, how many of them ended, and their mean and 95th percentile
    /// in seconds. One that did not end counts until the end of the run.
    pub transfers: Option<Transfers>,
    /// Share of the flow that began last, over its fair share, from 10 to 15 s after it began.
    pub latecomer: Option<f64>,
    /// 95th percentile of the queue before any hop but the first, in BDP of that hop.
    pub relay_queue_bdp: Option<f64>,
}

/// Completion of transfers of a given length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Transfers {
    /// Number of transfers.
    pub count: u64,
    /// Number of completed transfers.
    pub finished: u64,
    /// Mean time to completion in seconds.
    pub mean_s: f64,
    /// 95th percentile of it.
    pub p95_s: f64,
}

/// Judges a run; `optimum` in Mbit/s of payload.
pub fn figures(cell: &Cell, outcome: &Outcome, optimum: f64) -> Figures {
    let at = |time: Duration| outcome.samples.iter().find(|sample| sample.time >= time);
    let (Some(first), Some(last)) = (at(cell.warm_up), outcome.samples.last()) else {
        return Figures { optimum_mbps: optimum, ..Figures::default() };
    };
    let goodput = rates(first, last);
    let is_subject = |index: &usize| cell.is_subject(*index);
    let subjects: Vec<f64> = (0..goodput.len()).filter(is_subject).map(|i| goodput[i]).collect();
    let links = || last.links.iter().zip(&first.links);
    let offered: u64 = links().map(|(b, a)| b.offered - a.offered).sum();
    let dropped: u64 = links().map(|(b, a)| congestion_drops(b) - congestion_drops(a)).sum();
    let (queue, rtt) = (p95(&outcome.delays[0]).unwrap_or_default(), cell.rtt(0));
    let seconds = (last.time - first.time).as_secs_f64().max(1e-9);
    let packets = goodput.first().map_or(0.0, |rate| rate * seconds * 1e6 / 8.0 / 1_448.0);
    let sent = (last.sent.first().unwrap_or(&0) - first.sent.first().unwrap_or(&0)) as f64;
    let delay =
        |(flow, delays)| p95(delays).map_or(0.0, |queue| ms(cell.delay(&cell.route(flow)) + queue));
    let (share, of_fair_share) = shares(cell, &goodput).unzip();
    Figures {
        optimum_mbps: optimum,
        efficiency: subjects.iter().sum::<f64>() / optimum.max(1e-9),
        jain: jain_index(&subjects),
        share,
        of_fair_share,
        goodput_mbps: goodput,
        delay_p95_ms: outcome.delays.iter().enumerate().map(delay).collect(),
        drops: dropped as f64 / offered.max(1) as f64,
        start_drops: first.links.iter().map(congestion_drops).sum(),
        queue_p95_ms: ms(queue),
        queue_p95_bdp: queue.as_secs_f64() / rtt.as_secs_f64().max(1e-6),
        overhead: (packets >= 1.0).then(|| sent / packets),
        stall_s: stall(outcome, first.time),
        first_10s: first_seconds(cell, outcome) / optimum.max(1e-9),
        non_innovative: outcome.receivers.first().and_then(|stats| {
            let stats = stats.as_ref().filter(|stats| stats.coding.coded_packets_received > 0)?;
            Some(
                stats.coding.wasted_packets_received as f64
                    / stats.coding.coded_packets_received as f64,
            )
        }),
        media_p95_ms: media(cell, outcome),
        transfers: transfers(cell, outcome, last.time),
        latecomer: latecomer(cell, outcome),
        relay_queue_bdp: relay_queue(cell, outcome),
    }
}

/// The delay that 95 % of the packets did not exceed, without the propagation delay.
fn p95(delays: &DelayHistogram) -> Option<Duration> {
    delays.percentile(95.0)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Mbit/s of each flow between two samples.
fn rates(from: &Sample, to: &Sample) -> Vec<f64> {
    let seconds = (to.time - from.time).as_secs_f64().max(1e-9);
    let both = to.received.iter().zip(&from.received);
    both.map(|(b, a)| b.saturating_sub(*a) as f64 * 8e-6 / seconds).collect()
}

/// Packets that a queue, its management or a policer dropped.
fn congestion_drops(link: &bats_netem::LinkStats) -> u64 {
    link.dropped_queue + link.dropped_aqm + link.dropped_policer
}

/// Share of the bulk transfers that are judged, and that share over an equal one, where others compete
/// in the same direction.
fn shares(cell: &Cell, goodput: &[f64]) -> Option<(f64, f64)> {
    let is_bulk = |&flow: &usize| cell.flows[flow].work == Work::Bulk && !cell.flows[flow].reverse;
    let flows: Vec<usize> = (0..goodput.len()).filter(is_bulk).collect();
    let ours: Vec<usize> = flows.iter().copied().filter(|&flow| cell.is_subject(flow)).collect();
    if ours.is_empty() || ours.len() == flows.len() {
        return None;
    }
    let sum = |flows: &[usize]| flows.iter().map(|&flow| goodput[flow]).sum::<f64>();
    let share = sum(&ours) / sum(&flows).max(1e-9);
    Some((share, share * flows.len() as f64 / ours.len() as f64))
}

fn stall(outcome: &Outcome, from: Duration) -> f64 {
    let (mut stall, mut since) = (0.0_f64, from);
    for pair in outcome.samples.windows(2).filter(|pair| pair[0].time >= from) {
        if pair[1].received.first() > pair[0].received.first() {
            since = pair[1].time;
        }
        stall = stall.max((pair[1].time - since).as_secs_f64());
    }
    stall
}

/// Mbit/s of the first flow that is judged in its first ten seconds, or as long as the run lasts.
fn first_seconds(cell: &Cell, outcome: &Outcome) -> f64 {
    let Some(flow) = (0..cell.flows.len()).find(|&flow| cell.is_subject(flow)) else { return 0.0 };
    let start = cell.flows[flow].start;
    let until = start + Duration::from_secs(10);
    let within = outcome.samples.iter().take_while(|sample| sample.time <= until);
    let Some(sample) = within.last() else { return 0.0 };
    let seconds = sample.time.saturating_sub(start).as_secs_f64().max(1e-9);
    sample.received[flow] as f64 * 8e-6 / seconds
}

fn media(cell: &Cell, outcome: &Outcome) -> Option<f64> {
    let is_media = |flow: &usize| matches!(cell.flows[*flow].work, Work::Rate { .. });
    let flow = (0..cell.flows.len()).find(is_media)?;
    let mut delays = outcome.message_delays.get(flow)?.clone();
    delays.sort_unstable();
    percentile(&delays).map(ms)
}

fn percentile(sorted: &[Duration]) -> Option<Duration> {
    let rank = (sorted.len() as f64 * 0.95).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn transfers(cell: &Cell, outcome: &Outcome, end: Duration) -> Option<Transfers> {
    let (mut times, mut finished) = (Vec::new(), 0);
    for (flow, completed) in cell.flows.iter().zip(&outcome.completed) {
        if !matches!(flow.work, Work::Bytes(_)) {
            continue;
        }
        finished += u64::from(completed.is_some());
        times.push(completed.unwrap_or(end.saturating_sub(flow.start)));
    }
    times.sort_unstable();
    let p95_s = percentile(&times)?.as_secs_f64();
    let mean_s = times.iter().map(Duration::as_secs_f64).sum::<f64>() / times.len() as f64;
    Some(Transfers { count: times.len() as u64, finished, mean_s, p95_s })
}

fn latecomer(cell: &Cell, outcome: &Outcome) -> Option<f64> {
    let subjects: Vec<usize> =
        (0..cell.flows.len()).filter(|&flow| cell.flows[flow].who == Who::Subject).collect();
    let last = subjects.iter().copied().max_by_key(|&flow| (cell.flows[flow].start, flow))?;
    let start = cell.flows[last].start;
    if subjects.len() < 2 || subjects.iter().all(|&flow| cell.flows[flow].start == start) {
        return None;
    }
    let at = |seconds| {
        let time = start + Duration::from_secs(seconds);
        outcome.samples.iter().find(|sample| sample.time >= time)
    };
    let rates = rates(at(10)?, at(15).or(outcome.samples.last())?);
    let all: f64 = subjects.iter().map(|&flow| rates[flow]).sum();
    Some(rates[last] * subjects.len() as f64 / all.max(1e-9))
}

fn relay_queue(cell: &Cell, outcome: &Outcome) -> Option<f64> {
    let counted = || outcome.samples.iter().filter(|sample| sample.time >= cell.warm_up);
    let of_hop = |(hop, config): (usize, &super::cell::Hop)| {
        let rtt = config.up.delay + config.down.delay;
        let bdp = config.up.rate_bps? as f64 / 8.0 * rtt.as_secs_f64();
        let mut queues: Vec<usize> = counted().map(|sample| sample.queues[hop]).collect();
        queues.sort_unstable();
        let rank = (queues.len() as f64 * 0.95).ceil() as usize;
        Some(*queues.get(rank.saturating_sub(1))? as f64 / bdp.max(1.0))
    };
    cell.hops.iter().enumerate().skip(1).filter_map(of_hop).max_by(f64::total_cmp)
}
