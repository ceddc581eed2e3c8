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

/// What arrived in one direction: octets, seconds and share lost.
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

/// The runs side by side.
pub(super) fn table(runs: &[&Run]) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "{:<10} {:<9} {:>18} {:>9} {:>9} {:>14} {:>14}",
            "Carrier", "Direction", "Received", "Ratio", "Lost", "CPU local", "CPU remote"
        ),
    ];
    let first = runs.first().map(|run| arrived(run)).unwrap_or_default();
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

/// A baseline's part of the document.
pub(super) fn document(run: &Run) -> Value {
    let document = json::document(&run.about, &run.outcome, run.remote.as_ref());
    json!({
        "protocol": protocol(&run.about.request),
        "intervals": document["intervals"],
        "end": document["end"],
    })
}
