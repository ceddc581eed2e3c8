//! The kernel's TCP and UDP beside OpenBATS.

use serde_json::{Value, json};

use super::throughput::Run;
use crate::control::{Carrier, Summary};
use crate::meter::Reading;
use crate::report::json::{self, protocol};
use crate::report::{Side, kinds, places};
use crate::units;

pub(super) fn name(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Bats => "OpenBATS",
        Carrier::Tcp => "TCP",
        Carrier::Udp => "UDP",
    }
}

/// What arrived in one direction: bytes, seconds and share lost.
struct Arrived {
    bits_per_second: f64,
    lost_percent: f64,
}

fn sum(summary: &Summary, places: &[usize]) -> Arrived {
    let streams: Vec<_> = places.iter().filter_map(|&place| summary.streams.get(place)).collect();
    let readings: Vec<Reading> = streams.iter().map(|totals| Reading::from(*totals)).collect();
    let seconds = streams.iter().map(|totals| totals.seconds).fold(0.0, f64::max);
    let all = Reading::sum(&readings);
    let total = all.messages.saturating_add(all.lost).max(1);
    Arrived {
        bits_per_second: all.bytes as f64 * 8.0 / seconds.max(1e-9),
        lost_percent: 100.0 * all.lost as f64 / total as f64,
    }
}

/// What arrived in each direction, the client's own first.
fn arrived(run: &Run) -> Vec<(&'static str, Arrived)> {
    kinds(&run.outcome.sides)
        .into_iter()
        .filter_map(|side| {
            let places = places(&run.outcome.sides, side);
            match side {
                Side::Sender => Some(("forward", sum(run.remote.as_ref()?, &places))),
                Side::Receiver => Some(("reverse", sum(&run.outcome.summary, &places))),
            }
        })
        .collect()
}

/// The rate of one stream that arrived: what UDP shall send.
pub(super) fn rate_of_a_stream(run: &Run) -> u64 {
    let best = arrived(run).iter().map(|(_, x)| x.bits_per_second).fold(0.0, f64::max);
    let streams = f64::from(run.about.request.streams.max(1));
    (best / streams).clamp(1e5, 1e12) as u64
}

/// A run over one of the kernel's carriers, or why it came to nothing.
pub(super) struct Baseline {
    pub(super) carrier: Carrier,
    pub(super) outcome: Result<Run, String>,
}

impl Baseline {
    /// What went wrong in its own words.
    fn own_error(&self) -> Option<String> {
        match &self.outcome {
            Ok(run) => run.error(),
            Err(error) => Some(error.clone()),
        }
    }

    /// What went wrong and in which baseline.
    pub(super) fn error(&self) -> Option<String> {
        Some(format!("baseline {}: {}", name(self.carrier), self.own_error()?))
    }

    /// Its part of the document.
    pub(super) fn document(&self) -> Value {
        let mut value = json!({ "protocol": name(self.carrier) });
        if let Ok(run) = &self.outcome {
            let mut document = json::document(&run.about, &run.outcome, run.remote.as_ref());
            value["intervals"] = document["intervals"].take();
            value["end"] = document["end"].take();
        }
        if let Some(error) = self.own_error() {
            value["error"] = error.into();
        }
        value
    }
}

/// The test and the baselines that came about, side by side.
pub(super) fn table(test: &Run, baselines: &[Baseline]) -> Vec<String> {
    let baselines = baselines.iter().filter_map(|baseline| baseline.outcome.as_ref().ok());
    let runs: Vec<&Run> = std::iter::once(test).chain(baselines).collect();
    let mut lines = vec![
        String::new(),
        format!(
            "{:<10} {:<9} {:>18} {:>9} {:>9} {:>14} {:>14}",
            "Carrier", "Direction", "Received", "Ratio", "Lost", "CPU local", "CPU remote"
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
                protocol(&run.about.request),
                units::rate(found.bits_per_second),
                found.lost_percent,
                run.outcome.summary.processor.total,
            ));
        }
    }
    lines
}
