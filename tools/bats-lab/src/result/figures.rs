//! The figures of measurements, and how they are computed.

use std::collections::BTreeMap;

use super::series::{Distribution, Series};
use super::statistics::percentile;
use crate::plan::ToolKind;

/// Description of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FigureInfo {
    /// Name in files.
    pub(crate) name: &'static str,
    /// Title for reports.
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// Whether a higher value is better; `None` if neither is.
    pub(crate) more_is_better: Option<bool>,
}

const fn info(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    more_is_better: Option<bool>,
) -> FigureInfo {
    FigureInfo { name, title, unit, more_is_better }
}

/// All figures, in the order of the tables.
pub(crate) const FIGURES: &[FigureInfo] = &[
    info("throughput_mbps", "throughput", "Mbit/s", Some(true)),
    info("first_10s_mbps", "first 10 s", "Mbit/s", Some(true)),
    info("steady_mbps", "steady", "Mbit/s", Some(true)),
    info("steady_from_s", "steady: from", "s", None),
    info("steady_to_s", "steady: to", "s", None),
    info("bound_mbps", "bound", "Mbit/s", None),
    info("forwarding_bound_mbps", "bound without recoding", "Mbit/s", None),
    info("efficiency", "E (steady / bound)", "", Some(true)),
    info("seconds_to_90_percent", "time to 90 % of the steady rate", "s", Some(false)),
    info("loss_percent", "residual loss", "%", Some(false)),
    info("packet_loss_percent", "packet loss", "%", None),
    info("jitter_ms", "jitter", "ms", Some(false)),
    info("retransmissions", "retransmissions", "", Some(false)),
    info("share_percent", "throughput share", "%", None),
    info("times_the_tools", "rate / rate of the tool", "", None),
    info("rate_p10_mbps", "rate p10", "Mbit/s", Some(true)),
    info("rate_p50_mbps", "rate p50", "Mbit/s", Some(true)),
    info("rate_p90_mbps", "rate p90", "Mbit/s", Some(true)),
    info("retransmitted_percent", "retransmitted segments", "%", Some(false)),
    info("cwnd_min_kb", "cwnd min", "kB", None),
    info("cwnd_p50_kb", "cwnd p50", "kB", None),
    info("cwnd_max_kb", "cwnd max", "kB", None),
    info("srtt_min_ms", "smoothed RTT min", "ms", Some(false)),
    info("srtt_p50_ms", "smoothed RTT p50", "ms", Some(false)),
    info("srtt_max_ms", "smoothed RTT max", "ms", Some(false)),
    info("rtt_mean_ms", "RTT mean", "ms", Some(false)),
    info("rtt_p50_ms", "RTT p50", "ms", Some(false)),
    info("rtt_p90_ms", "RTT p90", "ms", Some(false)),
    info("rtt_p99_ms", "RTT p99", "ms", Some(false)),
    info("rtt_p99_9_ms", "RTT p99.9", "ms", Some(false)),
    info("rtt_max_ms", "RTT max", "ms", Some(false)),
    info("first_rtt_ms", "first RTT", "ms", Some(false)),
    info("first_rtt_connect_ms", "first RTT with connecting", "ms", Some(false)),
    info("connect_ms", "connect", "ms", Some(false)),
    info("unanswered_percent", "unanswered", "%", Some(false)),
    info("path_rtt_ms", "path RTT without queues", "ms", None),
    info("latency_p50_ms", "latency p50", "ms", Some(false)),
    info("latency_p99_ms", "latency p99", "ms", Some(false)),
    info("latency_p99_9_ms", "latency p99.9", "ms", Some(false)),
    info("samples_per_second", "samples", "/s", Some(true)),
    info("lost_samples", "lost samples", "", Some(false)),
    info("file_seconds", "file", "s", Some(false)),
    info("queue_mean_ms", "queue mean", "ms", Some(false)),
    info("queue_max_ms", "queue max", "ms", Some(false)),
    info("relay_kib", "peak memory of a relay", "KiB", Some(false)),
    info("useless_percent", "non-innovative packets", "%", Some(false)),
    info("fairness", "Jain's fairness index", "", Some(true)),
    info("sender_processors", "CPU: sender", "", Some(false)),
    info("receiver_processors", "CPU: receiver", "", Some(false)),
    info("helper_processors", "CPU: daemons and tunnel programs", "", Some(false)),
    info(
        "helper_seconds_per_gb",
        "CPU time of daemons and tunnel programs per GB",
        "s",
        Some(false),
    ),
    info("emulator_processors", "CPU: emulator", "", Some(false)),
    info("emulator_drops", "dropped by an overloaded emulator", "frames", Some(false)),
    info("emulator_late_percent", "delayed by an overloaded emulator", "%", Some(false)),
    info("emulator_late_max_ms", "latest frame of the emulator", "ms", Some(false)),
    info("steal_percent", "steal", "%", Some(false)),
    info("scheduling_delay_p99_ms", "scheduling delay p99", "ms", Some(false)),
    info("scheduling_delay_max_ms", "scheduling delay max", "ms", Some(false)),
    info("other_processors", "CPU: other processes", "", Some(false)),
    info("exit_code", "exit code", "", None),
];

/// The figure with this name.
pub(crate) fn find(name: &str) -> Option<&'static FigureInfo> {
    FIGURES.iter().find(|info| info.name == name)
}

/// Figures of the machine, not of a protocol.
pub(crate) const OF_THE_HOST: [&str; 6] = [
    "emulator_late_percent",
    "emulator_late_max_ms",
    "scheduling_delay_p99_ms",
    "scheduling_delay_max_ms",
    "steal_percent",
    "other_processors",
];

/// Whether a tool of this kind can have the figure. All tools have the figures of the network and
/// of the machine.
pub(crate) fn tool_has_figure(tool: &ToolKind, figure: &str) -> bool {
    let is_command = matches!(tool, ToolKind::Command { .. });
    match figure {
        "rtt_mean_ms" | "rtt_p50_ms" | "rtt_p90_ms" | "rtt_p99_ms" | "rtt_p99_9_ms"
        | "rtt_max_ms" | "unanswered_percent" => {
            is_command || matches!(tool, ToolKind::Rtt { .. } | ToolKind::Ping { .. })
        }
        "connect_ms" => matches!(tool, ToolKind::Rtt { .. }),
        "first_rtt_ms" | "first_rtt_connect_ms" => matches!(tool, ToolKind::Rtt { count: 1, .. }),
        "file_seconds" => is_command || matches!(tool, ToolKind::Scp { .. }),
        // Commands may be ping, curl and bats_perftest.
        "exit_code" | "latency_p50_ms" | "latency_p99_ms" | "latency_p99_9_ms"
        | "samples_per_second" | "lost_samples" => is_command,
        // A command may print a report in the format of iperf3.
        "throughput_mbps" | "helper_seconds_per_gb" => {
            is_command || matches!(tool, ToolKind::Throughput { .. } | ToolKind::Scp { .. })
        }
        "first_10s_mbps"
        | "steady_mbps"
        | "steady_from_s"
        | "steady_to_s"
        | "packet_loss_percent"
        | "seconds_to_90_percent"
        | "loss_percent"
        | "jitter_ms"
        | "retransmissions"
        | "retransmitted_percent" => is_command || tool.has_competing_flows(),
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
        | "fairness" => tool.has_competing_flows(),
        // Only competing flows have it.
        "times_the_tools" => false,
        _ => true,
    }
}

/// Figures by name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Sets a figure, unless the value is NaN or infinite.
pub(crate) fn set(figures: &mut Figures, name: &'static str, value: f64) {
    if value.is_finite() {
        figures.insert(name.to_owned(), value);
    }
}

/// Sets the figures derived from throughput over time. The points are the ends of intervals in
/// rising order. Data that arrives after `length` seconds, while queues drain, does not count.
pub(crate) fn set_throughput_figures(figures: &mut Figures, series: &Series, length: f64) {
    let Some(end) = last_full_interval_end(&series.points).map(|end| end.min(length)) else {
        return;
    };
    set(figures, "throughput_mbps", mean(&series.points, 0.0, end));
    set(figures, "first_10s_mbps", mean(&series.points, 0.0, end.min(10.0)));
    let (from, to) = steady(end);
    let level = mean(&series.points, from, to);
    set(figures, "steady_mbps", level);
    set(figures, "steady_from_s", from);
    set(figures, "steady_to_s", to);
    if let Some(&(at, _)) = series.points.iter().find(|point| point.1 >= 0.9 * level) {
        set(figures, "seconds_to_90_percent", at);
    }
}

/// The end of the last full interval; a shorter one after it is from draining queues.
fn last_full_interval_end(points: &[(f64, f64)]) -> Option<f64> {
    let last = points.last()?.0;
    let Some(&[before, (end, _)]) = points.last_chunk::<2>() else { return Some(last) };
    let start = points.len().checked_sub(3).map_or(0.0, |at| points[at].0);
    Some(if end - before.0 < 0.5 * (before.0 - start) { before.0 } else { end })
}

/// The steady period: seconds 5 to 15, or the second half of shorter runs.
pub(crate) fn steady(end: f64) -> (f64, f64) {
    let to = end.min(15.0);
    // Tolerate ends slightly above 7 s, for example 7.02 s.
    (if to > 7.5 { 5.0 } else { to / 2.0 }, to)
}

/// The mean of a series of intervals between two times; partial overlap counts in proportion.
pub(crate) fn mean(points: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let mut start = 0.0;
    let mut sum = 0.0;
    for &(end, value) in points {
        sum += value * (end.min(to) - f64::max(start, from)).max(0.0);
        start = end;
    }
    sum / (to - from).max(1e-9)
}

/// Sets the figures derived from round-trip times, in ms and in rising order.
pub(crate) fn set_rtt_figures(figures: &mut Figures, times: &Distribution) {
    let values = &times.values;
    if values.is_empty() {
        return;
    }
    set(figures, "rtt_mean_ms", values.iter().sum::<f64>() / values.len() as f64);
    for (name, quantile) in [
        ("rtt_p50_ms", 0.5),
        ("rtt_p90_ms", 0.9),
        ("rtt_p99_ms", 0.99),
        ("rtt_p99_9_ms", 0.999),
        ("rtt_max_ms", 1.0),
    ] {
        if let Some(value) = percentile(values, quantile) {
            set(figures, name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_counts_partial_overlap_in_proportion() {
        let points = [(1.0, 8.0), (2.0, 24.0)];
        assert_eq!(mean(&points, 0.0, 2.0), 16.0);
        assert_eq!(mean(&points, 0.5, 1.5), 16.0);
        assert_eq!(last_full_interval_end(&[(1.0, 8.0), (2.0, 8.0), (2.1, 1.0)]), Some(2.0));
        assert_eq!(last_full_interval_end(&[(1.0, 8.0), (2.0, 8.0), (3.0, 1.0)]), Some(3.0));
        assert_eq!(
            (last_full_interval_end(&[(1.0, 8.0)]), last_full_interval_end(&[])),
            (Some(1.0), None)
        );
        assert_eq!(steady(20.0), (5.0, 15.0));
        assert_eq!(steady(4.0), (2.0, 4.0));
    }

    #[test]
    fn data_from_draining_queues_does_not_count() {
        let mut points: Vec<(f64, f64)> = (1..=8).map(|second| (f64::from(second), 9.5)).collect();
        points.push((8.76, 0.1));
        let series = Series { name: String::new(), of: String::new(), unit: String::new(), points };
        let mut figures = Figures::new();
        set_throughput_figures(&mut figures, &series, 8.0);
        for name in ["steady_mbps", "throughput_mbps", "first_10s_mbps"] {
            assert!((figures[name] - 9.5).abs() < 1e-9, "{name}: {}", figures[name]);
        }
        set_throughput_figures(&mut figures, &series, f64::INFINITY);
        assert!(figures["steady_mbps"] < 9.0);
    }

    #[test]
    fn figure_names_are_unique() {
        for (index, one) in FIGURES.iter().enumerate() {
            assert!(FIGURES[..index].iter().all(|other| other.name != one.name), "{}", one.name);
            assert!(find(one.name).is_some());
        }
    }
}
