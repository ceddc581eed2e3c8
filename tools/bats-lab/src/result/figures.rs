//! The figures that measurements have, and how they follow from what was read.

use std::collections::BTreeMap;

use super::statistics::percentile;
use super::{Distribution, Series};
use crate::plan::ToolKind;

/// A figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Its name in files.
    pub(crate) name: &'static str,
    /// Its name for people.
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// Whether more is better; none where neither is.
    pub(crate) more_is_better: Option<bool>,
}

const fn known(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    more_is_better: Option<bool>,
) -> Known {
    Known { name, title, unit, more_is_better }
}

/// All figures, in the order in which tables show them.
pub(crate) const KNOWN: &[Known] = &[
    known("throughput_mbps", "throughput", "Mbit/s", Some(true)),
    known("first_10s_mbps", "first 10 s", "Mbit/s", Some(true)),
    known("steady_mbps", "steady (5-15 s)", "Mbit/s", Some(true)),
    known("bound_mbps", "bound", "Mbit/s", None),
    known("forwarding_bound_mbps", "bound without recoding", "Mbit/s", None),
    known("efficiency", "E (steady / bound)", "", Some(true)),
    known("seconds_to_90_percent", "to 90 % of the steady rate", "s", Some(false)),
    known("loss_percent", "residual loss", "%", Some(false)),
    known("jitter_ms", "jitter", "ms", Some(false)),
    known("retransmissions", "retransmissions", "", Some(false)),
    known("share_percent", "share of all flows' rate", "%", None),
    known("times_the_tools", "rate / the tool's flow's", "", None),
    known("rate_p10_mbps", "rate p10", "Mbit/s", Some(true)),
    known("rate_p50_mbps", "rate p50", "Mbit/s", Some(true)),
    known("rate_p90_mbps", "rate p90", "Mbit/s", Some(true)),
    known("retransmitted_percent", "segments sent again", "%", Some(false)),
    known("cwnd_min_kb", "cwnd least", "kB", None),
    known("cwnd_p50_kb", "cwnd p50", "kB", None),
    known("cwnd_max_kb", "cwnd most", "kB", None),
    known("srtt_min_ms", "smoothed RTT least", "ms", Some(false)),
    known("srtt_p50_ms", "smoothed RTT p50", "ms", Some(false)),
    known("srtt_max_ms", "smoothed RTT most", "ms", Some(false)),
    known("rtt_mean_ms", "RTT mean", "ms", Some(false)),
    known("rtt_p50_ms", "RTT p50", "ms", Some(false)),
    known("rtt_p90_ms", "RTT p90", "ms", Some(false)),
    known("rtt_p99_ms", "RTT p99", "ms", Some(false)),
    known("rtt_max_ms", "RTT max", "ms", Some(false)),
    known("first_rtt_ms", "first RTT", "ms", Some(false)),
    known("connect_ms", "connect", "ms", Some(false)),
    known("unanswered_percent", "unanswered", "%", Some(false)),
    known("path_rtt_ms", "RTT of the path", "ms", None),
    known("file_seconds", "file", "s", Some(false)),
    known("queue_mean_ms", "queue mean", "ms", Some(false)),
    known("queue_max_ms", "queue max", "ms", Some(false)),
    known("relay_kib", "most held by a relay", "KiB", Some(false)),
    known("useless_percent", "useless packets", "%", Some(false)),
    known("fairness", "Jain's index", "", Some(true)),
    known("sender_processors", "processors: sender", "", Some(false)),
    known("receiver_processors", "receiver", "", Some(false)),
    known("emulator_processors", "emulator", "", Some(false)),
    known("emulator_drops", "dropped by the emulator itself", "frames", Some(false)),
    known("emulator_late_percent", "late by the emulator itself", "%", Some(false)),
    known("exit_code", "exit code", "", None),
];

/// The figure of this name.
pub(crate) fn of(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

/// Whether a tool of this kind can have the figure: what is of the network and of the machine all have.
pub(crate) fn gives(tool: &ToolKind, figure: &str) -> bool {
    let is_command = matches!(tool, ToolKind::Command { .. });
    match figure {
        "rtt_mean_ms" | "rtt_p50_ms" | "rtt_p90_ms" | "rtt_p99_ms" | "rtt_max_ms"
        | "unanswered_percent" => matches!(tool, ToolKind::Rtt { .. } | ToolKind::Ping { .. }),
        "connect_ms" => matches!(tool, ToolKind::Rtt { .. }),
        "first_rtt_ms" => matches!(tool, ToolKind::Rtt { count: 1, .. }),
        "file_seconds" => matches!(tool, ToolKind::Scp { .. }),
        "exit_code" => is_command,
        // A command may print what iperf3 prints.
        "throughput_mbps" => {
            is_command || matches!(tool, ToolKind::Throughput { .. } | ToolKind::Scp { .. })
        }
        "first_10s_mbps"
        | "steady_mbps"
        | "seconds_to_90_percent"
        | "loss_percent"
        | "jitter_ms"
        | "retransmissions"
        | "retransmitted_percent" => is_command || tool.has_flows_beside(),
        "bound_mbps"
        | "forwarding_bound_mbps"
        | "efficiency"
        | "share_percent"
        | "rate_p10_mbps"
        | "rate_p50_mbps"
        | "rate_p90_mbps"
        | "cwnd_min_kb"
        | "cwnd_p50_kb"
        | "cwnd_max_kb"
        | "srtt_min_ms"
        | "srtt_p50_ms"
        | "srtt_max_ms"
        | "fairness" => tool.has_flows_beside(),
        // Of the flows beside it.
        "times_the_tools" => false,
        _ => true,
    }
}

/// Figures by name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Sets a figure, if it is a number.
pub(crate) fn set(figures: &mut Figures, name: &'static str, value: f64) {
    if value.is_finite() {
        figures.insert(name.to_owned(), value);
    }
}

/// Sets the figures that follow from throughput over time: intervals in rising order, of which the
/// points name the ends. What arrives after `length` seconds, when the source has ended and queues
/// drain, does not count.
pub(crate) fn of_throughput(figures: &mut Figures, series: &Series, length: f64) {
    let Some(end) = whole(&series.points).map(|end| end.min(length)) else { return };
    set(figures, "throughput_mbps", mean(&series.points, 0.0, end));
    set(figures, "first_10s_mbps", mean(&series.points, 0.0, end.min(10.0)));
    let (from, to) = steady(end);
    let level = mean(&series.points, from, to);
    set(figures, "steady_mbps", level);
    if let Some(&(at, _)) = series.points.iter().find(|point| point.1 >= 0.9 * level) {
        set(figures, "seconds_to_90_percent", at);
    }
}

/// The end of the last whole interval: what comes behind it, while queues drain, is shorter.
fn whole(points: &[(f64, f64)]) -> Option<f64> {
    let last = points.last()?.0;
    let Some(&[before, (end, _)]) = points.last_chunk::<2>() else { return Some(last) };
    let start = points.len().checked_sub(3).map_or(0.0, |at| points[at].0);
    Some(if end - before.0 < 0.5 * (before.0 - start) { before.0 } else { end })
}

/// Seconds 5 to 15, or the second half of shorter runs.
pub(crate) fn steady(end: f64) -> (f64, f64) {
    let to = end.min(15.0);
    // An end of 7.02 s is one of 7 s.
    (if to > 7.5 { 5.0 } else { to / 2.0 }, to)
}

/// The mean of a series of intervals between two times; what overlaps counts in part.
pub(crate) fn mean(points: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let mut start = 0.0;
    let mut sum = 0.0;
    for &(end, value) in points {
        sum += value * (end.min(to) - f64::max(start, from)).max(0.0);
        start = end;
    }
    sum / (to - from).max(1e-9)
}

/// Sets the figures that follow from round-trip times, in ms and in rising order.
pub(crate) fn of_round_trips(figures: &mut Figures, times: &Distribution) {
    let values = &times.values;
    if values.is_empty() {
        return;
    }
    set(figures, "rtt_mean_ms", values.iter().sum::<f64>() / values.len() as f64);
    for (name, share) in
        [("rtt_p50_ms", 0.5), ("rtt_p90_ms", 0.9), ("rtt_p99_ms", 0.99), ("rtt_max_ms", 1.0)]
    {
        if let Some(value) = percentile(values, share) {
            set(figures, name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_count_overlaps_in_part() {
        let points = [(1.0, 8.0), (2.0, 24.0)];
        assert_eq!(mean(&points, 0.0, 2.0), 16.0);
        assert_eq!(mean(&points, 0.5, 1.5), 16.0);
        assert_eq!(whole(&[(1.0, 8.0), (2.0, 8.0), (2.1, 1.0)]), Some(2.0));
        assert_eq!(whole(&[(1.0, 8.0), (2.0, 8.0), (3.0, 1.0)]), Some(3.0));
        assert_eq!((whole(&[(1.0, 8.0)]), whole(&[])), (Some(1.0), None));
        assert_eq!(steady(20.0), (5.0, 15.0));
        assert_eq!(steady(4.0), (2.0, 4.0));
    }

    #[test]
    fn what_drains_after_the_end_does_not_count() {
        let mut points: Vec<(f64, f64)> = (1..=8).map(|second| (f64::from(second), 9.5)).collect();
        points.push((8.76, 0.1));
        let series = Series { name: String::new(), of: String::new(), unit: String::new(), points };
        let mut figures = Figures::new();
        of_throughput(&mut figures, &series, 8.0);
        for name in ["steady_mbps", "throughput_mbps", "first_10s_mbps"] {
            assert!((figures[name] - 9.5).abs() < 1e-9, "{name}: {}", figures[name]);
        }
        of_throughput(&mut figures, &series, f64::INFINITY);
        assert!(figures["steady_mbps"] < 9.0);
    }

    #[test]
    fn names_are_known_once() {
        for (index, one) in KNOWN.iter().enumerate() {
            assert!(KNOWN[..index].iter().all(|other| other.name != one.name), "{}", one.name);
            assert!(of(one.name).is_some());
        }
    }
}
