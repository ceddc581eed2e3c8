//! Baselines: the same test over the kernel's TCP and UDP.

use serde_json::{Value, json};

use super::run::Run;
use crate::control::Summary;
use crate::meter::Reading;
use crate::report::json::{self, protocol};
use crate::report::{Side, distinct_sides, indices};
use crate::transport_mode::Transport;
use crate::units;

pub(super) fn name(transport: Transport) -> &'static str {
    match transport {
        Transport::Bats => "OpenBATS",
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

/// Result of one direction: received rate and loss.
struct Received {
    bits_per_second: f64,
    lost_percent: f64,
}

fn sum(summary: &Summary, indices: &[usize]) -> Received {
    let streams: Vec<_> = indices.iter().filter_map(|&place| summary.streams.get(place)).collect();
    let readings: Vec<Reading> = streams.iter().map(|totals| Reading::from(*totals)).collect();
    let seconds = streams.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
    let all = Reading::sum(&readings);
    let total = all.messages.saturating_add(all.lost).max(1);
    Received {
        bits_per_second: all.bytes as f64 * 8.0 / seconds.max(1e-9),
        lost_percent: 100.0 * all.lost as f64 / total as f64,
    }
}

/// The result of each direction, the client's own first.
fn arrived(run: &Run) -> Vec<(&'static str, Received)> {
    distinct_sides(&run.outcome.sides)
        .into_iter()
        .filter_map(|side| {
            let indices = indices(&run.outcome.sides, side);
            match side {
                Side::Sender => Some(("forward", sum(run.remote.as_ref()?, &indices))),
                Side::Receiver => Some(("reverse", sum(&run.outcome.summary, &indices))),
            }
        })
        .collect()
}

/// The received rate per stream, which a UDP baseline sends at.
pub(super) fn rate_per_stream(run: &Run) -> u64 {
    let best = arrived(run).iter().map(|(_, x)| x.bits_per_second).fold(0.0, f64::max);
    let streams = f64::from(run.test_info.request.streams.max(1));
    (best / streams).clamp(1e5, 1e12) as u64
}

/// A run over the kernel's TCP or UDP, or its error.
pub(super) struct Baseline {
    pub(super) transport: Transport,
    pub(super) outcome: Result<Run, String>,
}

impl Baseline {
    /// The error of this run.
    fn own_error(&self) -> Option<String> {
        match &self.outcome {
            Ok(run) => run.error(),
            Err(error) => Some(error.clone()),
        }
    }

    /// The error with the name of the baseline.
    pub(super) fn error(&self) -> Option<String> {
        Some(format!("baseline {}: {}", name(self.transport), self.own_error()?))
    }

    /// The JSON document of this baseline.
    pub(super) fn document(&self) -> Value {
        let mut value = json!({ "protocol": name(self.transport) });
        if let Ok(run) = &self.outcome {
            let mut document = json::document(&run.test_info, &run.outcome, run.remote.as_ref());
            value["intervals"] = document["intervals"].take();
            value["end"] = document["end"].take();
        }
        if let Some(error) = self.own_error() {
            value["error"] = error.into();
        }
        value
    }
}

/// A table that compares the test and the successful baselines.
pub(super) fn table(test: &Run, baselines: &[Baseline]) -> Vec<String> {
    let baselines = baselines.iter().filter_map(|baseline| baseline.outcome.as_ref().ok());
    let runs: Vec<&Run> = std::iter::once(test).chain(baselines).collect();
    let mut lines = vec![
        String::new(),
        format!(
            "{:<10} {:<9} {:>18} {:>9} {:>9} {:>14} {:>14}",
            "Transport", "Direction", "Received", "Ratio", "Lost", "CPU local", "CPU remote"
        ),
    ];
    let first = arrived(test);
    for run in runs {
        for (place, (direction, found)) in arrived(run).into_iter().enumerate() {
            let reference = first.get(place).map_or(0.0, |(_, first)| first.bits_per_second);
            let ratio = match found.bits_per_second {
                rate if rate > 0.0 => format!("{:.2}", reference / rate),
                _ => "-".into(),
            };
            let remote = run.remote.as_ref().map_or(0.0, |remote| remote.processor.total);
            lines.push(format!(
                "{:<10} {direction:<9} {:>18} {ratio:>9} {:>8.2}% {:>13.1}% {remote:>13.1}%",
                protocol(&run.test_info.request),
                units::rate(found.bits_per_second),
                found.lost_percent,
                run.outcome.summary.processor.total,
            ));
        }
    }
    lines
}
