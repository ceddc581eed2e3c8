//! What was computed, as a reading: figures and series.

use bats_sim::flows::jain_index;

use super::carrier::Carrier;
use super::flow::{Flown, Moment, Outcome, Sender, TICK};
use crate::plan::Network;
use crate::protocol::reading::Reading;
use crate::result::Series;
use crate::result::figures::{self, set};
use crate::result::flows::{Flight, beside};
use crate::run::schedule::Times;

/// Seconds of an interval of throughput at the least, so that rates are not of a few packets.
const INTERVAL: f64 = 0.1;

/// How flows are shown.
pub(super) struct Shown<'a> {
    pub(super) network: &'a Network,
    pub(super) path: &'a [(usize, bool)],
    /// Of the main flow, which may be of several connections.
    pub(super) label: &'a str,
    /// How many of the flows are the main one.
    pub(super) parallel: usize,
    /// Of each of the others, and when it runs.
    pub(super) others: Vec<(String, Times)>,
    pub(super) carrier: Carrier,
    /// Seconds that the tool runs.
    pub(super) length: f64,
    /// Seconds of an interval of throughput.
    pub(super) interval: f64,
    /// Seconds between two samples of a state.
    pub(super) sample_interval: f64,
}

impl Shown<'_> {
    /// The figures and series of flows.
    pub(super) fn reading(&self, outcome: &Outcome) -> Reading {
        let mut reading = Reading::default();
        let interval = self.interval.max(INTERVAL);
        let (main, others) = outcome.flows.split_at(self.parallel.min(outcome.flows.len()));
        let arrived = throughput(main, interval, self.label);
        figures::of_throughput(&mut reading.figures, &arrived, self.length);
        let mut shares = vec![later_half(&arrived)];
        reading.series.push(arrived);
        self.state(&mut reading, main, self.label);
        sent_again(&mut reading.figures, main);
        if !self.carrier.is_reliable() {
            residual(&mut reading, main, interval, self.label);
        }
        let main = Flight {
            of: self.label.to_owned(),
            from: 0.0,
            to: self.length,
            figures: Default::default(),
        };
        let mut flights = vec![main];
        for (flow, (label, times)) in others.iter().zip(&self.others) {
            let series = throughput(std::slice::from_ref(flow), interval, label);
            shares.push(later_half(&series));
            let (from, to) = (times.delay, (times.delay + times.duration).min(self.length));
            let mut figures = figures::Figures::new();
            let while_it_ran = Series { points: since(&series.points, from), ..series.clone() };
            figures::of_throughput(&mut figures, &while_it_ran, to - from);
            sent_again(&mut figures, std::slice::from_ref(flow));
            flights.push(Flight { of: label.clone(), from, to, figures });
            reading.series.push(series);
            self.state(&mut reading, std::slice::from_ref(flow), label);
        }
        reading.flows = beside(&mut reading.figures, &reading.series, flights);
        if shares.len() > 1 {
            set(&mut reading.figures, "fairness", jain_index(&shares));
        }
        self.queue(&mut reading, outcome);
        self.relays(&mut reading, outcome);
        reading
    }

    /// How many moments are one.
    fn step(&self) -> usize {
        (self.sample_interval / TICK.as_secs_f64()).round().max(1.0) as usize
    }

    fn state(&self, reading: &mut Reading, main: &[Flown], of: &str) {
        type Value = fn(&Sender) -> f64;
        // Several connections: the sum, or the mean where a sum means nothing.
        let values: [(&str, &str, bool, Value); 5] = [
            ("cwnd", "kB", false, |sender| sender.cwnd_bytes / 1e3),
            ("smoothed RTT", "ms", true, |sender| sender.smoothed_rtt_ms),
            ("delivery rate", "Mbit/s", false, |sender| sender.delivery_bps / 1e6),
            ("pacing rate", "Mbit/s", false, |sender| sender.pacing_bps / 1e6),
            ("loss seen", "%", true, |sender| sender.loss_percent),
        ];
        let Some(first) = main.first() else { return };
        for (name, unit, is_mean, value) in values {
            let at = |index: usize| -> Option<(f64, f64)> {
                let moments = main.iter().filter_map(|flow| flow.moments.get(index));
                let values: Vec<f64> =
                    moments.filter_map(|moment| Some(value(moment.sender.as_ref()?))).collect();
                let sum: f64 = values.iter().sum();
                let shown = if is_mean { sum / values.len().max(1) as f64 } else { sum };
                let at = first.moments.get(index)?.at;
                (!values.is_empty() && shown.is_finite()).then_some((at, shown))
            };
            let points: Vec<_> =
                (0..first.moments.len()).step_by(self.step()).filter_map(at).collect();
            if !points.is_empty() {
                reading.series.push(series(name, of, unit, points));
            }
        }
    }

    /// The queue before the slowest link on the way; of several that before which most waits.
    fn queue(&self, reading: &mut Reading, outcome: &Outcome) {
        let rates: Vec<u64> = self
            .path
            .iter()
            .filter_map(|&(index, forward)| {
                let link = self.network.links.get(index)?;
                let rate = if forward { link.forward.rate } else { link.backward.rate };
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

    fn relays(&self, reading: &mut Reading, outcome: &Outcome) {
        let Some(most) = outcome.relays.iter().map(|relay| relay.bytes_peak).max() else { return };
        set(&mut reading.figures, "relay_kib", most as f64 / 1024.0);
        let useless: u64 = outcome.relays.iter().map(|relay| relay.useless + relay.late).sum();
        let received: u64 = outcome.relays.iter().map(|relay| relay.received).sum();
        let share = useless as f64 * 100.0 / received.max(1) as f64;
        set(&mut reading.figures, "useless_percent", share);
    }
}

fn series(name: &str, of: &str, unit: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), of: of.to_owned(), unit: unit.to_owned(), points }
}

/// The indices of the moments that end intervals, and when they begin.
fn intervals(moments: &[Moment], interval: f64) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = 0;
    for (index, moment) in moments.iter().enumerate().skip(1) {
        let is_whole = moment.at - moments[start].at >= interval - 1e-6;
        if is_whole || index + 1 == moments.len() {
            found.push((start, index));
            start = index;
        }
    }
    found
}

/// What was delivered in each interval.
fn throughput(flows: &[Flown], interval: f64, of: &str) -> Series {
    let moments = flows.first().map_or(&[][..], |flow| &flow.moments);
    let total = |index: usize| -> u64 {
        flows.iter().filter_map(|flow| flow.moments.get(index)).map(|one| one.delivered).sum()
    };
    let points = intervals(moments, interval)
        .into_iter()
        .map(|(from, to)| {
            let bytes = total(to).saturating_sub(total(from)) as f64;
            (moments[to].at, bytes * 8e-6 / (moments[to].at - moments[from].at))
        })
        .collect();
    series("throughput", of, "Mbit/s", points)
}

/// Points of intervals from a time on, which then is zero. The interval in which it lies counts whole.
fn since(points: &[(f64, f64)], from: f64) -> Vec<(f64, f64)> {
    points.iter().filter(|point| point.0 > from).map(|&(at, value)| (at - from, value)).collect()
}

/// What models of TCP had to send again.
fn sent_again(figures: &mut figures::Figures, flows: &[Flown]) {
    let counts: Vec<(u64, u64)> = flows.iter().filter_map(|flow| flow.transmissions).collect();
    if counts.is_empty() {
        return;
    }
    let sent: u64 = counts.iter().map(|count| count.0).sum();
    let again: u64 = counts.iter().map(|count| count.1).sum();
    set(figures, "retransmissions", again as f64);
    set(figures, "retransmitted_percent", 100.0 * again as f64 / sent.max(1) as f64);
}

fn later_half(series: &Series) -> f64 {
    let end = series.points.last().map_or(0.0, |point| point.0);
    figures::mean(&series.points, end / 2.0, end)
}

/// What was lost and how unevenly the rest came, over time and in all.
fn residual(reading: &mut Reading, flows: &[Flown], interval: f64, of: &str) {
    let messages = || flows.iter().flat_map(|flow| &flow.messages);
    let share = |lost: usize, all: usize| 100.0 * lost as f64 / all.max(1) as f64;
    let (all, lost) = (messages().count(), messages().filter(|message| !message.1).count());
    set(&mut reading.figures, "loss_percent", share(lost, all));
    let Some(first) = flows.first() else { return };
    let ends = intervals(&first.moments, interval);
    let mut counts = vec![(0, 0); ends.len()];
    let times: Vec<f64> = ends.iter().map(|&(_, to)| first.moments[to].at).collect();
    for &(at, arrived) in messages() {
        let index = times.partition_point(|&end| end <= f64::from(at));
        if let Some((all, lost)) = counts.get_mut(index) {
            *all += 1;
            *lost += usize::from(!arrived);
        }
    }
    let losses = times.iter().zip(&counts).filter(|(_, count)| count.0 > 0);
    let losses = losses.map(|(&at, &(all, lost))| (at, share(lost, all))).collect();
    reading.series.push(series("residual loss", of, "%", losses));
    let mean = |index: usize| {
        let values = flows.iter().filter_map(|flow| flow.moments.get(index));
        values.map(|moment| moment.jitter).sum::<f64>() / flows.len() as f64
    };
    let jitters: Vec<(f64, f64)> =
        ends.iter().map(|&(_, to)| (first.moments[to].at, mean(to))).collect();
    if let Some(&(_, last)) = jitters.last() {
        set(&mut reading.figures, "jitter_ms", last);
    }
    reading.series.push(series("jitter", of, "ms", jitters));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_count_where_they_were_sent() {
        let moment = |at: f64| Moment { at, delivered: 0, jitter: 0.5, sender: None };
        let flow = Flown {
            moments: (0..=20).map(|tick| moment(f64::from(tick) * 0.1)).collect(),
            messages: (0..40).map(|n| (n as f32 * 0.05 + 0.01, n >= 20 || n % 2 == 0)).collect(),
            transmissions: None,
        };
        let mut reading = Reading::default();
        residual(&mut reading, &[flow], 1.0, "x");
        assert_eq!(reading.figures["loss_percent"], 25.0);
        assert_eq!(reading.figures["jitter_ms"], 0.5);
        assert_eq!(reading.series[0].points, [(1.0, 50.0), (2.0, 0.0)]);
    }
}
