//! One JSON document, written as the test runs; its schema is `schema/perftest.schema.json`.
//!
//! The key names are those of the original, in one spelling for intervals and summaries.

use serde_json::{Map, Value, json};

use super::{LatencyRow, LatencySummary, Style, ThroughputRow, ThroughputSummary, lost_percent};

/// What has been written of the document.
#[derive(Debug, Default)]
pub(super) struct State {
    is_open: bool,
    has_intervals: bool,
    has_summary: bool,
}

impl State {
    pub(super) fn open(&mut self, length: usize) -> String {
        if std::mem::replace(&mut self.is_open, true) {
            return String::new();
        }
        format!("{{\"perftest\":[{{\"length\":{length},\"intervals\":[")
    }

    pub(super) fn interval(&mut self, row: Value) -> String {
        let comma = if std::mem::replace(&mut self.has_intervals, true) { "," } else { "" };
        format!("{comma}\n{row}")
    }

    pub(super) fn summary(&mut self, length: usize, summary: Value) -> String {
        self.has_summary = true;
        format!("{}],\n\"summary\":{summary}", self.open(length))
    }

    pub(super) fn close(&mut self, error: Option<&str>) -> String {
        let error = error.map(|text| json!(text).to_string());
        match (self.is_open, self.has_summary, error) {
            (false, _, None) => "{\"perftest\":[]}\n".to_owned(),
            (false, _, Some(error)) => format!("{{\"perftest\":[],\"error\":{error}}}\n"),
            (true, has_summary, error) => {
                let end = if has_summary { "" } else { "]" };
                let error = error.map(|text| format!(",\"error\":{text}")).unwrap_or_default();
                format!("{end}}}]{error}}}\n")
            }
        }
    }
}

/// Microseconds with the precision of the clock.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn with_cpu(style: &Style, mut row: Value, percent: f64) -> Value {
    if let (true, Some(row)) = (style.cpu, row.as_object_mut()) {
        row.insert("CPU".into(), json!(percent));
    }
    row
}

pub(super) fn latency_row(style: &Style, row: &LatencyRow) -> Value {
    let figures = &row.figures;
    let value = json!({
        "latency": us(row.latency_ns),
        "latency_ave": figures.ave / 1e3,
        "latency_std": figures.std / 1e3,
        "latency_min": us(figures.min),
        "latency_max": us(figures.max),
    });
    with_cpu(style, value, row.cpu)
}

pub(super) fn latency_summary(style: &Style, summary: &LatencySummary) -> Value {
    let figures = &summary.figures;
    let mut value = Map::new();
    let mut set = |name: &str, number: Value| drop(value.insert(name.to_owned(), number));
    set("latency_count", json!(figures.count));
    set("latency_ave", json!(figures.ave / 1e3));
    set("latency_std", json!(figures.std / 1e3));
    set("latency_min", json!(us(figures.min)));
    set("latency_max", json!(us(figures.max)));
    for (name, ns) in ["50", "90", "99", "99.99", "99.9999"].iter().zip(summary.percentiles) {
        set(&format!("latency_{name}"), json!(us(ns)));
    }
    set("latency_99.9", json!(us(summary.p99_9)));
    if let Some((build, parse)) = summary.serialization {
        set("serialize", json!(build / 1e3));
        set("deserialize", json!(parse / 1e3));
        set("total_s", json!((build + parse) / 1e3));
    }
    set("samples_per_message", json!(summary.samples_per_message));
    set("cpu_ns_per_sample", json!(summary.cpu_ns_per_sample));
    with_cpu(style, Value::Object(value), summary.cpu)
}

pub(super) fn throughput_row(style: &Style, row: &ThroughputRow) -> Value {
    let value = json!({
        "length": row.length,
        "packets": row.samples,
        "packets/s": row.rate,
        "packets/s_ave": row.rate_ave,
        "mbps": row.mbps,
        "mbps_ave": row.mbps_ave,
        "lost": row.lost,
        "lost_percent": lost_percent(row.lost, row.received),
    });
    with_cpu(style, value, row.cpu)
}

pub(super) fn throughput_summary(style: &Style, summary: &ThroughputSummary) -> Value {
    let value = json!({
        "packets": summary.samples,
        "packets/s_ave": summary.rate,
        "mbps_ave": summary.mbps,
        "lost": summary.lost,
        "lost_percent": lost_percent(summary.lost, summary.received),
        "duplicates": summary.duplicates,
        "cpu_ns_per_sample": summary.cpu_ns_per_sample,
    });
    with_cpu(style, value, summary.cpu)
}
