//! Throughput bounds of a network, also with links that change while a tool runs.

use crate::backend::sim;
use crate::config::model::BackendName;
use crate::plan::{Case, Network, Protocol, Tool, ToolKind};
use crate::result::figures::{mean, set, steady};
use crate::result::{Measurement, Series};

/// Sets the figures that are derived from the network.
pub(super) fn set_bounds(
    one: &mut Measurement,
    case: &Case,
    backend: BackendName,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) {
    let (from, to) = (tool.client, tool.server);
    if let Some(time) = network.round_trip(from, to) {
        set(&mut one.figures, "path_rtt_ms", time * 1e3);
    }
    if !matches!(tool.kind, ToolKind::Throughput { .. }) {
        return;
    }
    let has_recoding =
        backend == BackendName::Sim && sim::recoding(case, network, protocol, tool) == Some(true);
    let end_to_end = bound_series(case, network, tool, Network::bound);
    let relayed = bound_series(case, network, tool, Network::relayed_bound);
    let Some(bound) = (if has_recoding { relayed } else { end_to_end.clone() }) else { return };
    let end = tool.seconds();
    set(&mut one.figures, "bound_mbps", mean(&bound, 0.0, end));
    if let Some(&level) = one.figures.get("steady_mbps") {
        let (from, to) = steady(end);
        set(&mut one.figures, "efficiency", level / mean(&bound, from, to));
    }
    if let Some(without) = end_to_end.filter(|_| has_recoding) {
        set(&mut one.figures, "forwarding_bound_mbps", mean(&without, 0.0, end));
    }
    if bound.len() > 1 {
        let (name, of, unit) = ("bound".into(), one.label.clone(), "Mbit/s".into());
        one.series.push(Series { name, of, unit, points: bound });
    }
}

/// The bound in Mbit/s as a series; each point ends the time until a change of the links, the last
/// one is the end of the tool.
fn bound_series(
    case: &Case,
    network: &Network,
    tool: &Tool,
    bound: fn(&Network, u32, u32, (f64, f64)) -> Option<f64>,
) -> Option<Vec<(f64, f64)>> {
    let mut network = network.clone();
    let mut points: Vec<(f64, f64)> = Vec::new();
    let end = tool.seconds();
    let mut add = |network: &Network, until: f64| -> Option<()> {
        let has_schedule = network.has_schedule(tool.client, tool.server);
        loop {
            let from = points.last().map_or(0.0, |point| point.0);
            // A point for each second of a rate that changes with time.
            let next = if has_schedule { until.min(from + 1.0) } else { until };
            points.push((next, bound(network, tool.client, tool.server, (from, next))? / 1e6));
            if next >= until {
                return Some(());
            }
        }
    };
    for event in case.events.iter().filter(|event| event.at < end) {
        if event.at > 0.0 {
            add(&network, event.at)?;
        }
        for (index, link) in network.links.iter_mut().enumerate() {
            if event.link.is_none_or(|chosen| chosen == index) {
                event.changes.apply(link);
            }
        }
    }
    add(&network, end)?;
    Some(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_follows_link_changes() {
        let suite = crate::config::load::suite("case:outage", None).unwrap();
        let case = &suite.cases[0];
        let points = bound_series(case, &case.networks[0], &case.tools[0], Network::bound).unwrap();
        let full = 100.0 * 1472.0 / 1514.0;
        let expected = [
            (5.0, full * 0.98),
            (10.0, full * 0.2 * 0.98),
            (15.0, full * 0.9),
            (17.0, 0.0),
            (25.0, full * 0.98),
        ];
        assert_eq!(points.len(), expected.len());
        for (point, expected) in points.iter().zip(expected) {
            assert!(point.0 == expected.0 && (point.1 - expected.1).abs() < 1e-6, "{points:?}");
        }
    }
}
