//! One line of names and values for each interval and summary.

use super::{LatencyRow, LatencySummary, Style, ThroughputRow, ThroughputSummary, lost_percent};

fn cpu(style: &Style, percent: f64) -> String {
    if style.cpu { format!(" CPU: {percent:.2}%") } else { String::new() }
}

pub(super) fn latency_row(style: &Style, row: &LatencyRow) -> String {
    let figures = &row.figures;
    format!(
        "One way Latency: {:6} us Ave {:6.0} us Std {:6.1} us Min {:6} us Max {:6}{}\n",
        row.latency_ns / 1_000,
        // Cut off as the other values are.
        (figures.ave / 1e3).trunc(),
        figures.std / 1e3,
        figures.min / 1_000,
        figures.max / 1_000,
        cpu(style, row.cpu)
    )
}

pub(super) fn latency_summary(style: &Style, summary: &LatencySummary) -> String {
    let figures = &summary.figures;
    let [p50, p90, p99, p9999, p999999] = summary.percentiles.map(|ns| ns / 1_000);
    let serialization = match summary.serialization {
        Some((build, parse)) => {
            format!(" Serialization {:.3} us Deserialization {:.3} us", build / 1e3, parse / 1e3)
        }
        None => String::new(),
    };
    format!(
        "Length: {:5} Latency: Ave {:6.0} us Std {:6.1} us Min {:6} us Max {:6} us 50% {p50:6} us \
         90% {p90:6} us 99% {p99:6} us 99.99% {p9999:6} us 99.9999% {p999999:6} us\
         {serialization}{}\n",
        summary.length,
        // Cut off as the other values are.
        (figures.ave / 1e3).trunc(),
        figures.std / 1e3,
        figures.min / 1_000,
        figures.max / 1_000,
        cpu(style, summary.cpu)
    )
}

pub(super) fn throughput_row(style: &Style, row: &ThroughputRow) -> String {
    format!(
        "Packets: {:8} Packets/s: {:7.0} Packets/s(ave): {:7.0} Mbps: {:7.1} Mbps(ave): {:7.1} \
         Lost: {:5} ({:4.2}%){}\n",
        row.samples,
        row.rate,
        row.rate_ave,
        row.mbps,
        row.mbps_ave,
        row.lost,
        lost_percent(row.lost, row.received),
        cpu(style, row.cpu)
    )
}

pub(super) fn throughput_summary(style: &Style, summary: &ThroughputSummary) -> String {
    format!(
        "Length: {:5} Packets: {:8} Packets/s(ave): {:7.0} Mbps(ave): {:7.1} Lost: {:5} \
         ({:4.2}%){}\n",
        summary.length,
        summary.samples,
        summary.rate,
        summary.mbps,
        summary.lost,
        lost_percent(summary.lost, summary.received),
        cpu(style, summary.cpu)
    )
}
