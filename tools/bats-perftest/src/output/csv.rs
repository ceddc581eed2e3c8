//! Comma-separated tables with the titles, columns and widths of the original.

use super::{LatencyRow, LatencySummary, Style, ThroughputRow, ThroughputSummary, lost_percent};

fn cpu_header(style: &Style) -> &'static str {
    if style.cpu { ", CPU (%)" } else { "" }
}

fn cpu(style: &Style, percent: f64) -> String {
    if style.cpu { format!(",{percent:8.2}") } else { String::new() }
}

/// Title and header of a summary. Without intervals there is only the header.
fn summary_header(style: &Style, title: &str, columns: &str, serialization: bool) -> String {
    if !style.headers {
        return String::new();
    }
    let title = if style.intervals { format!("\n{title}\n") } else { String::new() };
    let serialization = match serialization {
        true => ", Serialization (μs), Deserialization (μs), Total (μs)",
        false => "",
    };
    format!("{title}{columns}{serialization}{}\n", cpu_header(style))
}

pub(super) fn latency_header(style: &Style, length: usize) -> String {
    if !(style.headers && style.intervals) {
        return String::new();
    }
    format!(
        "\nIntervals One-Way Latency for {length} Bytes:\nLength (Bytes), Latency (μs), Ave (μs), \
         Std (μs), Min (μs), Max (μs){}\n",
        cpu_header(style)
    )
}

/// Decimals of average and deviation.
fn digits(style: &Style) -> (usize, usize) {
    if style.nanoseconds { (3, 3) } else { (0, 1) }
}

/// An average in microseconds: whole ones are cut off as all values are, so that it is between the least
/// and the greatest.
fn ave_us(style: &Style, ns: f64) -> f64 {
    if style.nanoseconds { ns / 1e3 } else { (ns / 1e3).trunc() }
}

/// Microseconds: whole ones, or with the precision of the clock.
fn us(style: &Style, ns: u64) -> String {
    match style.nanoseconds {
        true => format!("{}.{:03}", ns / 1_000, ns % 1_000),
        false => (ns / 1_000).to_string(),
    }
}

pub(super) fn latency_row(style: &Style, row: &LatencyRow) -> String {
    let figures = &row.figures;
    let (ave, std) = digits(style);
    format!(
        "{:14},{:>13},{:9.ave$},{:9.std$},{:>9},{:>9}{}\n",
        row.length,
        us(style, row.latency_ns),
        ave_us(style, figures.ave),
        figures.std / 1e3,
        us(style, figures.min),
        us(style, figures.max),
        cpu(style, row.cpu)
    )
}

pub(super) fn latency_summary(style: &Style, summary: &LatencySummary) -> String {
    let figures = &summary.figures;
    let [p50, p90, p99, p9999, p999999] = summary.percentiles.map(|ns| us(style, ns));
    let (ave, std) = digits(style);
    let serialization = match summary.serialization {
        Some((build, parse)) => {
            let (build, parse) = (build / 1e3, parse / 1e3);
            format!(",{build:19.3},{parse:21.3},{:11.3}", build + parse)
        }
        None => String::new(),
    };
    let columns = "Sample Size (Bytes), Ave (μs), Std (μs), Min (μs), Max (μs), 50% (μs), \
                   90% (μs), 99% (μs), 99.99% (μs), 99.9999% (μs)";
    let has_serialization = summary.serialization.is_some();
    let header = summary_header(style, "One-way Latency Summary:", columns, has_serialization);
    format!(
        "{header}{:19},{:9.ave$},{:9.std$},{:>9},{:>9},{p50:>9},{p90:>9},{p99:>9},{p9999:>12},{p999999:>14}\
         {serialization}{}\n",
        summary.length,
        ave_us(style, figures.ave),
        figures.std / 1e3,
        us(style, figures.min),
        us(style, figures.max),
        cpu(style, summary.cpu)
    )
}

pub(super) fn throughput_header(style: &Style, length: usize) -> String {
    if !(style.headers && style.intervals) {
        return String::new();
    }
    format!(
        "\nInterval Throughput for {length} Bytes:\nLength (Bytes), Total Samples,  Samples/s, Avg \
         Samples/s,     Mbps,  Avg Mbps, Lost Samples, Lost Samples (%){}\n",
        cpu_header(style)
    )
}

pub(super) fn throughput_row(style: &Style, row: &ThroughputRow) -> String {
    format!(
        "{:14},{:14},{:11.0},{:14.0},{:9.1},{:10.1}, {:12}, {:16.2}{}\n",
        row.length,
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
    let columns = "Sample Size (Bytes), Total Samples, Avg Samples/s,    Avg Mbps, Lost Samples, \
                   Lost Samples (%)";
    let header = summary_header(style, "Throughput Summary:", columns, false);
    format!(
        "{header}{:19},{:14},{:14.0},{:12.1}, {:12}, {:16.2}{}\n",
        summary.length,
        summary.samples,
        summary.rate,
        summary.mbps,
        summary.lost,
        lost_percent(summary.lost, summary.received),
        cpu(style, summary.cpu)
    )
}
