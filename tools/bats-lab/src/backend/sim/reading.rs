//! Converts the outcome of a simulation to figures and series.

use bats_sim::flows::jain_index;

use super::flow::{FlowOutcome, FlowSample, Outcome, SAMPLE_INTERVAL, SenderState};
use super::transport::SimTransport;
use crate::plan::Network;
use crate::protocol::reading::Reading;
use crate::result::figures::{self, set};
use crate::result::flows::{FlowSpan, set_competition_figures};
use crate::result::measures::{self, PacketCount};
use crate::result::series::Series;
use crate::run::schedule::Times;

/// Minimum interval of throughput in seconds; shorter ones contain too few packets.
const MIN_INTERVAL_S: f64 = 0.1;

/// Builds a reading from the outcome of flows.
pub(super) struct ReadingBuilder<'a> {
    pub(super) network: &'a Network,
    pub(super) path: &'a [(usize, bool)],
    /// Label of the main flow, which may have several connections.
    pub(super) label: &'a str,
    /// Number of flows that belong to the main flow.
    pub(super) parallel: usize,
    /// Label and schedule of each competing flow.
    pub(super) others: Vec<(String, Times)>,
    pub(super) transport: SimTransport,
    /// Duration of the tool in seconds.
    pub(super) length: f64,
    /// Interval of throughput in seconds.
    pub(super) interval: f64,
    /// Interval of state samples in seconds.
    pub(super) sample_interval: f64,
}

impl ReadingBuilder<'_> {
    /// Returns the figures and series of the flows.
    pub(super) fn reading(&self, outcome: &Outcome) -> Reading {
        let mut reading = Reading::default();
        let interval = self.interval.max(MIN_INTERVAL_S);
        let (main, others) = outcome.flows.split_at(self.parallel.min(outcome.flows.len()));
        let arrived = throughput(main, interval, self.label);
        figures::set_throughput_figures(&mut reading.figures, &arrived, self.length);
        let mut shares = vec![second_half_mean(&arrived)];
        reading.series.push(arrived);
        self.add_state_series(&mut reading, main, self.label);
        self.add_packets(&mut reading, main, interval);
        set_retransmissions(&mut reading.figures, main);
        if !self.transport.is_reliable() {
            set_residual_loss(&mut reading, main, interval, self.label);
        }
        let main = FlowSpan {
            of: self.label.to_owned(),
            from: 0.0,
            to: self.length,
            figures: Default::default(),
        };
        let mut spans = vec![main];
        for (flow, (label, times)) in others.iter().zip(&self.others) {
            let series = throughput(std::slice::from_ref(flow), interval, label);
            shares.push(second_half_mean(&series));
            let (from, to) = (times.delay, (times.delay + times.duration).min(self.length));
            let mut figures = figures::Figures::new();
            let while_it_ran =
                Series { points: points_after(&series.points, from), ..series.clone() };
            figures::set_throughput_figures(&mut figures, &while_it_ran, to - from);
            set_retransmissions(&mut figures, std::slice::from_ref(flow));
            spans.push(FlowSpan { of: label.clone(), from, to, figures });
            reading.series.push(series);
            self.add_state_series(&mut reading, std::slice::from_ref(flow), label);
        }
        reading.flows = set_competition_figures(&mut reading.figures, &reading.series, spans);
        if shares.len() > 1 {
            set(&mut reading.figures, "fairness", jain_index(&shares));
        }
        self.add_queue(&mut reading, outcome);
        self.add_relay_figures(&mut reading, outcome);
        reading
    }

    /// Number of flow samples for each shown sample.
    fn step(&self) -> usize {
        (self.sample_interval / SAMPLE_INTERVAL.as_secs_f64()).round().max(1.0) as usize
    }

    fn add_state_series(&self, reading: &mut Reading, main: &[FlowOutcome], of: &str) {
        type Value = fn(&SenderState) -> f64;
        // Aggregates several connections: the sum, or the mean where a sum has no meaning.
        let values: [(&str, &str, bool, Value); 8] = [
            ("cwnd", "kB", false, |sender| sender.cwnd_bytes / 1e3),
            ("smoothed RTT", "ms", true, |sender| sender.smoothed_rtt_ms),
            ("delivery rate", "Mbit/s", false, |sender| sender.delivery_bps / 1e6),
            ("pacing rate", "Mbit/s", false, |sender| sender.pacing_bps / 1e6),
            ("loss estimate", "%", true, |sender| sender.loss_percent),
            ("in flight", "kB", false, |sender| sender.in_flight_bytes / 1e3),
            ("queueing delay", "ms", true, |sender| sender.queue_delay_ms),
            ("own loss", "%", true, |sender| sender.own_loss_percent),
        ];
        let Some(first) = main.first() else { return };
        for (name, unit, is_mean, value) in values {
            let at = |index: usize| -> Option<(f64, f64)> {
                let samples = main.iter().filter_map(|flow| flow.samples.get(index));
                let values: Vec<f64> =
                    samples.filter_map(|sample| Some(value(sample.sender.as_ref()?))).collect();
                let sum: f64 = values.iter().sum();
                let shown = if is_mean { sum / values.len().max(1) as f64 } else { sum };
                let at = first.samples.get(index)?.at;
                (!values.is_empty() && shown.is_finite()).then_some((at, shown))
            };
            let points: Vec<_> =
                (0..first.samples.len()).step_by(self.step()).filter_map(at).collect();
            if !points.is_empty() {
                reading.series.push(series(name, of, unit, points));
            }
        }
        type Name = fn(&SenderState) -> &'static str;
        let states: [(&str, Name); 2] = [
            (measures::CONTROLLER_STATE, |sender| sender.controller_state),
            (measures::LIMITED_BY, |sender| sender.limited_by),
        ];
        for (name, state) in states {
            let samples: Vec<(f64, &str)> = first
                .samples
                .iter()
                .enumerate()
                .flat_map(|(index, sample)| {
                    let flows = main.iter().filter_map(move |flow| flow.samples.get(index));
                    flows.filter_map(move |flow| Some((sample.at, state(flow.sender.as_ref()?))))
                })
                .collect();
            reading.series.extend(measures::shares(name, of, &samples, self.sample_interval));
        }
    }

    /// Packets sent and lost in each interval, of this project's protocols; retransmissions so far
    /// of TCP, as the kernel counts them.
    fn add_packets(&self, reading: &mut Reading, main: &[FlowOutcome], interval: f64) {
        let Some(first) = main.first() else { return };
        let count = |index: usize, sample: &FlowSample| {
            let senders = main.iter().filter_map(|flow| flow.samples.get(index)?.sender.as_ref());
            let (mut sent, mut lost, mut any) = (0, 0, false);
            for sender in senders {
                (sent, lost, any) = (sent + sender.packets.0, lost + sender.packets.1, true);
            }
            any.then_some(PacketCount { at: sample.at, sent, lost })
        };
        let samples = first.samples.iter().enumerate();
        let counts: Vec<PacketCount> =
            samples.filter_map(|(index, sample)| count(index, sample)).collect();
        if matches!(self.transport, SimTransport::Tcp(_)) {
            let points = counts.iter().step_by(self.step()).map(|one| (one.at, one.lost as f64));
            let points: Vec<(f64, f64)> = points.collect();
            if !points.is_empty() {
                reading.series.push(series("retransmissions", self.label, "segments", points));
            }
            return;
        }
        let list = measures::packets(&mut reading.figures, &counts, interval, self.label);
        reading.series.extend(list);
    }

    /// The queue in front of the slowest link on the path; of several equally slow links, the
    /// longest queue.
    fn add_queue(&self, reading: &mut Reading, outcome: &Outcome) {
        let rates: Vec<u64> = self
            .path
            .iter()
            .filter_map(|&(index, forward)| {
                let link = self.network.links.get(index)?;
                let rate = if forward { &link.forward } else { &link.backward }.mean_rate();
                Some(if rate == 0 { u64::MAX } else { rate })
            })
            .collect();
        let Some(&slowest) = rates.iter().min() else { return };
        let points: Vec<(f64, f64)> = outcome
            .queues
            .iter()
            .step_by(self.step())
            .map(|(at, queues)| {
                let slow = queues.iter().zip(&rates).filter(|(_, rate)| **rate == slowest);
                (*at, slow.map(|(bytes, _)| *bytes).max().unwrap_or(0) as f64 / 1e3)
            })
            .collect();
        let rate = if slowest == u64::MAX { 0 } else { slowest };
        crate::run::sampler::queue_figures(&mut reading.figures, &points, rate);
        reading.series.push(series("queue", "slowest link", "kB", points));
    }

    fn add_relay_figures(&self, reading: &mut Reading, outcome: &Outcome) {
        let Some(most) = outcome.relays.iter().map(|relay| relay.memory.bytes_peak).max() else {
            return;
        };
        set(&mut reading.figures, "relay_kib", most as f64 / 1024.0);
        let non_innovative: u64 = outcome
            .relays
            .iter()
            .map(|relay| relay.dropped.non_innovative + relay.dropped.late)
            .sum();
        let received: u64 = outcome.relays.iter().map(|relay| relay.received).sum();
        let percent = non_innovative as f64 * 100.0 / received.max(1) as f64;
        set(&mut reading.figures, "useless_percent", percent);
    }
}

fn series(name: &str, of: &str, unit: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), of: of.to_owned(), unit: unit.to_owned(), points }
}

/// Splits the samples into intervals. Returns the indices of the first and last sample of each.
fn intervals(samples: &[FlowSample], interval: f64) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut start = 0;
    for (index, sample) in samples.iter().enumerate().skip(1) {
        let is_complete = sample.at - samples[start].at >= interval - 1e-6;
        if is_complete || index + 1 == samples.len() {
            ranges.push((start, index));
            start = index;
        }
    }
    ranges
}

/// Goodput of each interval.
fn throughput(flows: &[FlowOutcome], interval: f64, of: &str) -> Series {
    let samples = flows.first().map_or(&[][..], |flow| &flow.samples);
    let total = |index: usize| -> u64 {
        flows.iter().filter_map(|flow| flow.samples.get(index)).map(|one| one.delivered).sum()
    };
    let points = intervals(samples, interval)
        .into_iter()
        .map(|(from, to)| {
            let bytes = total(to).saturating_sub(total(from)) as f64;
            (samples[to].at, bytes * 8e-6 / (samples[to].at - samples[from].at))
        })
        .collect();
    series("throughput", of, "Mbit/s", points)
}

/// The points after the time `from`, relative to it. The interval that contains `from` is kept
/// whole.
fn points_after(points: &[(f64, f64)], from: f64) -> Vec<(f64, f64)> {
    points.iter().filter(|point| point.0 > from).map(|&(at, value)| (at - from, value)).collect()
}

/// Sets the retransmission figures of TCP models.
fn set_retransmissions(figures: &mut figures::Figures, flows: &[FlowOutcome]) {
    let counts: Vec<(u64, u64)> = flows.iter().filter_map(|flow| flow.transmissions).collect();
    if counts.is_empty() {
        return;
    }
    let sent: u64 = counts.iter().map(|count| count.0).sum();
    let retransmitted: u64 = counts.iter().map(|count| count.1).sum();
    set(figures, "retransmissions", retransmitted as f64);
    set(figures, "retransmitted_percent", 100.0 * retransmitted as f64 / sent.max(1) as f64);
}

fn second_half_mean(series: &Series) -> f64 {
    let end = series.points.last().map_or(0.0, |point| point.0);
    figures::mean(&series.points, end / 2.0, end)
}

/// Sets residual loss and jitter, in total and over time.
fn set_residual_loss(reading: &mut Reading, flows: &[FlowOutcome], interval: f64, of: &str) {
    let messages = || flows.iter().flat_map(|flow| &flow.messages);
    let percent = |lost: usize, all: usize| measures::percent(lost as f64, all as f64);
    let (all, lost) = (messages().count(), messages().filter(|message| !message.1).count());
    measures::set_residual_loss(&mut reading.figures, lost as f64, all as f64);
    let Some(first) = flows.first() else { return };
    let ends = intervals(&first.samples, interval);
    let mut counts = vec![(0, 0); ends.len()];
    let times: Vec<f64> = ends.iter().map(|&(_, to)| first.samples[to].at).collect();
    for &(at, arrived) in messages() {
        let index = times.partition_point(|&end| end <= f64::from(at));
        if let Some((all, lost)) = counts.get_mut(index) {
            *all += 1;
            *lost += usize::from(!arrived);
        }
    }
    let losses = times.iter().zip(&counts).filter(|(_, count)| count.0 > 0);
    let losses = losses.map(|(&at, &(all, lost))| (at, percent(lost, all))).collect();
    reading.series.push(series("residual loss", of, "%", losses));
    let mean = |index: usize| {
        let values = flows.iter().filter_map(|flow| flow.samples.get(index));
        values.map(|sample| sample.jitter).sum::<f64>() / flows.len() as f64
    };
    let jitters: Vec<(f64, f64)> =
        ends.iter().map(|&(_, to)| (first.samples[to].at, mean(to))).collect();
    if let Some(&(_, last)) = jitters.last() {
        set(&mut reading.figures, "jitter_ms", last);
    }
    reading.series.push(series("jitter", of, "ms", jitters));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_messages_count_in_the_interval_of_sending() {
        let sample = |at: f64| FlowSample { at, delivered: 0, jitter: 0.5, sender: None };
        let flow = FlowOutcome {
            samples: (0..=20).map(|tick| sample(f64::from(tick) * 0.1)).collect(),
            messages: (0..40).map(|n| (n as f32 * 0.05 + 0.01, n >= 20 || n % 2 == 0)).collect(),
            transmissions: None,
        };
        let mut reading = Reading::default();
        set_residual_loss(&mut reading, &[flow], 1.0, "x");
        assert_eq!(reading.figures["loss_percent"], 25.0);
        assert_eq!(reading.figures["jitter_ms"], 0.5);
        assert_eq!(reading.series[0].points, [(1.0, 50.0), (2.0, 0.0)]);
    }
}
