//! Definitions that all backends share: how counters and samples become figures and series.
//! docs/measures.md describes them.

use std::time::Duration;

use super::figures::{Figures, set};
use super::series::Series;

/// Series of [`shares`]: states of the congestion controller, and which of its bounds limits it.
pub(crate) const CONTROLLER_STATE: &str = "controller state";
pub(crate) const LIMITED_BY: &str = "limited by";

/// Most values of a state that get a series: states come from the output of programs.
const MAX_VALUES: usize = 16;

/// Shortest last interval that is kept, relative to the one before.
const MIN_LAST_INTERVAL: f64 = 0.9;

/// Sets the residual loss: messages that did not arrive, of all that were handed over.
pub(crate) fn set_residual_loss(figures: &mut Figures, lost: f64, handed_over: f64) {
    set(figures, "loss_percent", percent(lost, handed_over));
}

/// A part in percent; all of nothing is lost.
pub(crate) fn percent(part: f64, all: f64) -> f64 {
    if all > 0.0 { 100.0 * part / all } else { 100.0 }
}

/// Sets the first round-trip times: from the established connection, and with connecting. `times`
/// and `connects` are pairs of the connection and milliseconds.
pub(crate) fn set_first_rtt(figures: &mut Figures, times: &[(f64, f64)], connects: &[(f64, f64)]) {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let replies: Vec<f64> = times.iter().map(|time| time.1).collect();
    set(figures, "first_rtt_ms", mean(&replies));
    let with: Vec<f64> = times
        .iter()
        .filter_map(|&(of, time)| {
            let connect = connects.iter().find(|connect| connect.0 == of)?;
            Some(connect.1 + time)
        })
        .collect();
    set(figures, "first_rtt_connect_ms", mean(&with));
}

/// Sets the processor time that the daemons and tunnel programs of a protocol used on all hosts, per second and per GB
/// (10^9 bytes) that the receiver got. The latter needs the throughput and is left out with competing flows, whose bytes
/// cost processor time too.
pub(crate) fn set_helper_time(
    figures: &mut Figures,
    used: Duration,
    seconds: f64,
    series: &[Series],
    has_competing_flows: bool,
) {
    set(figures, "helper_processors", used.as_secs_f64() / seconds.max(1e-3));
    if let Some(throughput) = series.iter().find(|one| one.name == "throughput")
        && !has_competing_flows
    {
        set(figures, "helper_seconds_per_gb", used.as_secs_f64() * 1e9 / bytes(&throughput.points));
    }
}

/// The bytes of rates in Mbit/s; each point is at the end of its interval, the first begins at zero.
fn bytes(points: &[(f64, f64)]) -> f64 {
    let mut start = 0.0;
    points.iter().fold(0.0, |sum, &(end, rate)| {
        let seconds = end - std::mem::replace(&mut start, end);
        sum + rate * seconds * 1e6 / 8.0
    })
}

/// Packets of a sender up to a time in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PacketCount {
    pub(crate) at: f64,
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}

/// Sets the packet loss, and the packets sent and lost in each interval. Losses count when the
/// sender detects them.
pub(crate) fn packets(
    figures: &mut Figures,
    samples: &[PacketCount],
    interval: f64,
    of: &str,
) -> Vec<Series> {
    let Some(last) = samples.last().filter(|last| last.sent > 0) else { return Vec::new() };
    set(figures, "packet_loss_percent", percent(last.lost as f64, last.sent as f64));
    [("packets sent", true), ("packets lost", false)]
        .into_iter()
        .map(|(name, is_sent)| {
            let count =
                |one: &PacketCount| (one.at, if is_sent { one.sent } else { one.lost } as f64);
            let counts: Vec<(f64, f64)> = samples.iter().map(count).collect();
            let points = per_interval(&counts, interval);
            Series { name: name.into(), of: of.to_owned(), unit: "packets".into(), points }
        })
        .filter(|series| !series.points.is_empty())
        .collect()
}

/// The increase of a counter in each interval; each point is at the end of its interval. The
/// counter is zero at time zero. A last part of an interval is left out.
pub(crate) fn per_interval(counts: &[(f64, f64)], interval: f64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let (mut start, mut before) = (0.0, 0.0);
    for &(at, count) in counts {
        // Samples are not exactly on time.
        if at - start > 0.98 * interval && at > start {
            points.push((at, f64::max(count - before, 0.0)));
            (start, before) = (at, count);
        }
    }
    points
}

/// How often a state had each of its values: a series for each value, of `value, of`, with its share
/// of the samples since the point before. `samples` are times, in order, and values; an empty one is
/// unknown. Points are at least `interval` apart.
pub(crate) fn shares(name: &str, of: &str, samples: &[(f64, &str)], interval: f64) -> Vec<Series> {
    let mut values: Vec<&str> = Vec::new();
    for &(_, value) in samples {
        if !value.is_empty() && !values.contains(&value) && values.len() < MAX_VALUES {
            values.push(value);
        }
    }
    let mut points = vec![Vec::new(); values.len()];
    let (mut start, mut from) = (0.0, 0);
    for (index, &(at, _)) in samples.iter().enumerate() {
        let is_last = samples.get(index + 1).is_none_or(|next| next.0 > at);
        if is_last && at - start > 0.98 * interval {
            let group = &samples[from..=index];
            for (value, points) in values.iter().zip(&mut points) {
                let count = group.iter().filter(|sample| sample.1 == *value).count();
                points.push((at, percent(count as f64, group.len() as f64)));
            }
            (start, from) = (at, index + 1);
        }
    }
    let series = |(value, points): (&str, Vec<(f64, f64)>)| Series {
        name: name.to_owned(),
        of: format!("{value}, {of}"),
        unit: "%".into(),
        points,
    };
    values.into_iter().zip(points).map(series).filter(|one| !one.points.is_empty()).collect()
}

/// Leaves out intervals after the end of the tool, when queues drain, and a last interval that is
/// shorter than the one before: its rate would be another kind of value. The times are ends of
/// intervals.
pub(crate) fn drop_partial_intervals(series: &mut [Series], length: f64) {
    const OF_INTERVALS: [&str; 3] = ["throughput", "residual loss", "jitter"];
    for one in series.iter_mut().filter(|one| OF_INTERVALS.contains(&one.name.as_str())) {
        let points = &mut one.points;
        // Starts and ends are measured, so they may be a little late.
        while let Some([before, _]) = points.last_chunk::<2>()
            && before.0 > 0.98 * length
        {
            points.pop();
        }
        let start = points.len().checked_sub(3).map_or(0.0, |at| points[at].0);
        if let Some([before, last]) = points.last_chunk::<2>()
            && last.0 - before.0 < MIN_LAST_INTERVAL * (before.0 - start)
        {
            points.pop();
        }
    }
}

/// Moves data to when it must have arrived at the latest: no faster than the path can carry it.
/// An application receives data in order, so data that waited for a retransmission is delivered in
/// a burst, long after it arrived. Points are rates at the ends of intervals, `capacity` gives the
/// rate that the path can carry between two times. What arrived before the first interval is left
/// out.
pub(crate) fn arrivals(
    points: &[(f64, f64)],
    capacity: impl Fn(f64, f64) -> f64,
) -> Vec<(f64, f64)> {
    let mut arrived = points.to_vec();
    let mut earlier = 0.0;
    for index in (0..points.len()).rev() {
        let start = index.checked_sub(1).map_or(0.0, |before| points[before].0);
        let (end, rate) = points[index];
        let seconds = (end - start).max(1e-9);
        let amount = rate * seconds + earlier;
        let most = capacity(start, end) * seconds;
        earlier = f64::max(amount - most, 0.0);
        arrived[index] = (end, (amount - earlier) / seconds);
    }
    arrived
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: &[(f64, f64)]) -> Series {
        let (name, of, unit) = ("throughput".into(), "x".into(), "Mbit/s".into());
        Series { name, of, unit, points: points.to_vec() }
    }

    #[test]
    fn only_whole_intervals_of_the_tool_remain() {
        let kept = |ends: &[f64], length: f64| -> Vec<f64> {
            let points: Vec<(f64, f64)> = ends.iter().map(|&end| (end, 1.0)).collect();
            let mut all = [series(&points)];
            drop_partial_intervals(&mut all, length);
            all[0].points.iter().map(|point| point.0).collect()
        };
        assert_eq!(kept(&[1.0, 2.0, 3.004, 3.2], 3.0), [1.0, 2.0, 3.004]);
        // Queues that drain for whole intervals.
        assert_eq!(kept(&[1.0, 2.0, 3.004, 4.0, 5.0, 5.4], 3.0), [1.0, 2.0, 3.004]);
        assert_eq!(kept(&[1.0, 2.0, 2.5], 2.5), [1.0, 2.0]);
        assert_eq!(kept(&[1.01, 2.0, 2.98], f64::INFINITY), [1.01, 2.0, 2.98]);
        assert_eq!(kept(&[0.5], 1.0), [0.5]);
        assert_eq!(kept(&[], 1.0), Vec::<f64>::new());
    }

    #[test]
    fn counters_become_increases_of_whole_intervals() {
        let samples: Vec<PacketCount> = (1..=25)
            .map(|tick| PacketCount { at: f64::from(tick) * 0.1, sent: 10 * tick as u64, lost: 1 })
            .collect();
        let mut figures = Figures::new();
        let series = packets(&mut figures, &samples, 1.0, "x");
        assert_eq!(figures["packet_loss_percent"], 0.4);
        let values = |index: usize| -> Vec<f64> {
            series[index].points.iter().map(|point| point.1).collect()
        };
        assert_eq!((values(0), values(1)), (vec![100.0, 100.0], vec![1.0, 0.0]));
        assert!(packets(&mut figures, &[], 1.0, "x").is_empty());
    }

    #[test]
    fn shares_of_states_are_those_of_the_samples_of_each_interval() {
        // Two streams with a sample each 0.1 s; the state of the second is unknown.
        let samples = [(0.1, "up"), (0.1, ""), (0.2, "up"), (0.2, ""), (0.3, "down"), (0.3, "")];
        let all = shares("state", "x", &samples, 0.2);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].name.as_str(), all[0].of.as_str()), ("state", "up, x"));
        assert_eq!(all[0].points, [(0.2, 50.0)]);
        assert_eq!((all[1].of.as_str(), &all[1].points[..]), ("down, x", &[(0.2, 0.0)][..]));
        assert_eq!(shares("state", "x", &samples, 0.1)[1].points[2], (0.3, 50.0));
        assert!(shares("state", "x", &[(0.1, ""), (0.2, "")], 0.1).is_empty());
        let many: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let many: Vec<(f64, &str)> = many.iter().map(|value| (1.0, value.as_str())).collect();
        assert_eq!(shares("state", "x", &many, 1.0).len(), MAX_VALUES);
    }

    #[test]
    fn data_in_bursts_counts_when_it_must_have_arrived() {
        // A link of 20 Mbit/s: a hole from 3 s on is filled at 5 s.
        let delivered =
            [(1.0, 20.0), (2.0, 20.0), (3.0, 20.0), (4.0, 0.0), (5.0, 5.0), (6.0, 50.0)];
        let arrived = arrivals(&delivered, |_, _| 20.0);
        let rates: Vec<f64> = arrived.iter().map(|point| point.1).collect();
        assert_eq!(rates, [20.0, 20.0, 20.0, 15.0, 20.0, 20.0]);
        // Steady delivery is not changed.
        let even = [(1.0, 12.0), (2.0, 19.0)];
        assert_eq!(arrivals(&even, |_, _| 20.0), even);
        // A link that becomes slower.
        let slower =
            arrivals(&[(1.0, 0.0), (2.0, 20.0)], |from, _| if from < 1.0 { 40.0 } else { 5.0 });
        assert_eq!(slower, [(1.0, 15.0), (2.0, 5.0)]);
    }

    #[test]
    fn processor_time_of_helpers_counts_per_second_and_per_gb() {
        let of = |used: f64, series: &[Series], has_flows: bool| {
            let mut figures = Figures::new();
            let used = Duration::from_secs_f64(used);
            set_helper_time(&mut figures, used, 4.0, series, has_flows);
            (
                figures.get("helper_processors").copied(),
                figures.get("helper_seconds_per_gb").copied(),
            )
        };
        // 1 s of 4 Gbit/s, then 0.5 s of 8 Gbit/s: 1 GB. The drain after the end of the tool counts.
        let all = [series(&[(1.0, 4000.0), (1.5, 8000.0)])];
        assert_eq!(of(6.0, &all, false), (Some(1.5), Some(6.0)));
        assert_eq!(of(6.0, &all, true), (Some(1.5), None));
        // Round trips have no throughput, and nothing is no divisor.
        assert_eq!(of(1.0, &[], false), (Some(0.25), None));
        assert_eq!(of(1.0, &[series(&[(1.0, 0.0)])], false), (Some(0.25), None));
    }

    #[test]
    fn first_rtt_is_shown_with_and_without_connecting() {
        let mut figures = Figures::new();
        // The second of three connections got no reply.
        let connects = [(0.0, 30.0), (1.0, 500.0), (2.0, 50.0)];
        set_first_rtt(&mut figures, &[(0.0, 20.0), (2.0, 24.0)], &connects);
        assert_eq!((figures["first_rtt_ms"], figures["first_rtt_connect_ms"]), (22.0, 62.0));
        let mut loss = Figures::new();
        set_residual_loss(&mut loss, 1.0, 8.0);
        assert_eq!(loss["loss_percent"], 12.5);
    }
}
