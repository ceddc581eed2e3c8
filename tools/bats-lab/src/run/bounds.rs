//! Throughput bounds of a network, also with links that change while a tool runs.

use crate::backend::sim;
use crate::config::model::BackendName;
use crate::plan::{Case, Network, Protocol, ProtocolKind, Tool, ToolKind};
use crate::result::Measurement;
use crate::result::figures::{mean, set, steady};
use crate::result::measures::arrivals;
use crate::result::series::Series;
use crate::settings::Loss;

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
    let has_recoding = match protocol.kind {
        // The bound of several paths at once is not computed.
        ProtocolKind::Node { relays: true, .. } if !network.has_single_path(from, to) => return,
        ProtocolKind::Node { relays, .. } => relays,
        _ => {
            backend == BackendName::Sim
                && sim::recoding(case, network, protocol, tool) == Some(true)
        }
    };
    let end_to_end = bound_series(case, network, tool, Network::bound);
    let relayed = bound_series(case, network, tool, Network::relayed_bound);
    let Some(bound) = (if has_recoding { relayed } else { end_to_end.clone() }) else { return };
    let end = tool.seconds();
    set(&mut one.figures, "bound_mbps", mean(&bound, 0.0, end));
    let throughput = one.series.iter().find(|one| one.name == "throughput");
    if let Some(series) = throughput.filter(|_| one.figures.contains_key("steady_mbps")) {
        let from = one.figures.get("steady_from_s").copied().unwrap_or(steady(end).0);
        let to = one.figures.get("steady_to_s").copied().unwrap_or(steady(end).1);
        // What is delivered in order in bursts arrived earlier, no faster than the links carry it.
        let lossless = bound_series(case, network, tool, lossless_bound);
        let rate = match &lossless {
            Some(capacity) => {
                let arrived = arrivals(&series.points, |from, to| mean(capacity, from, to));
                mean(&arrived, from, to)
            }
            None => mean(&series.points, from, to),
        };
        set(&mut one.figures, "efficiency", rate / mean(&bound, from, to));
    }
    if let Some(without) = end_to_end.filter(|_| has_recoding) {
        set(&mut one.figures, "forwarding_bound_mbps", mean(&without, 0.0, end));
    }
    if bound.len() > 1 {
        let (name, of, unit) = ("bound".into(), one.label.clone(), "Mbit/s".into());
        one.series.push(Series { name, of, unit, points: bound });
    }
}

/// The bound without the losses of the links, in bit/s.
fn lossless_bound(network: &Network, from: u32, to: u32, times: (f64, f64)) -> Option<f64> {
    let mut network = network.clone();
    for link in &mut network.links {
        for direction in [&mut link.forward, &mut link.backward] {
            direction.loss = Loss::Independent(0.0);
        }
    }
    network.bound(from, to, times)
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

    #[test]
    fn bursts_of_in_order_delivery_give_no_efficiency_above_one() {
        let yaml = "
tests:
  t:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 100ms, loss: 0% } }
    target_protocols: [tcp-bbr]
    test_tools: { iperf: { interval: 1, interval_num: 8 } }
";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.yaml");
        std::fs::write(&file, yaml).unwrap();
        let suite = crate::config::load::suite(&file.to_string_lossy(), None).unwrap();
        let case = &suite.cases[0];
        // As measured: a hole at 3.9 s is filled at 5.2 s, within the steady seconds.
        let rates = [1.6, 10.9, 10.2, 17.6, 0.1, 37.0, 19.2, 19.2];
        let series = Series {
            name: "throughput".into(),
            of: "x".into(),
            unit: "Mbit/s".into(),
            points: (1..).map(f64::from).zip(rates).collect(),
        };
        let value = serde_json::json!({
            "network": 0, "protocol": "tcp-bbr", "label": "x", "tool": "iperf", "repetition": 0,
            "status": "passed", "reason": null, "figures": {}, "series": [], "distributions": [],
            "warnings": [], "commands": [], "folder": "",
        });
        let mut one: Measurement = serde_json::from_value(value).unwrap();
        crate::result::figures::set_throughput_figures(&mut one.figures, &series, 8.0);
        one.series.push(series);
        let (protocol, tool) = (&case.protocols[0], &case.tools[0]);
        set_bounds(&mut one, case, BackendName::Netns, &case.networks[0], protocol, tool);
        let naive = one.figures["steady_mbps"] / one.figures["bound_mbps"];
        assert!(naive > 1.0, "{naive}");
        let efficiency = one.figures["efficiency"];
        assert!((0.97..=1.0).contains(&efficiency), "{efficiency}");
    }
}
