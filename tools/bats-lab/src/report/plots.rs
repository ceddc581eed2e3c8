//! Selects the plots of a test.

use super::plot::{Content, Curve, Plot, Style};
use super::table;
use crate::config::expand::file_name;
use crate::result::{CaseResult, Measurement, Status, figures};

/// Maximum number of networks with curve plots; larger families only have matrices.
const MAX_PLOTTED_NETWORKS: usize = 36;

/// Name of the series of the throughput bound while links change.
const BOUND: &str = "bound";

/// The plots of a test: matrices first, then those of each network and tool.
pub(crate) fn plots(case: &CaseResult) -> Vec<Plot> {
    let matrices = table::matrices(case);
    // Measured and published matrices of the same unit share one scale.
    let max_of = |unit: &str| {
        let alike = matrices.iter().filter(|matrix| matrix.unit == unit);
        alike
            .flat_map(|matrix| matrix.values.iter().flatten().flatten())
            .fold(0.0, |a: f64, &b| a.max(b))
    };
    let mut plots: Vec<Plot> = matrices
        .iter()
        .cloned()
        .map(|matrix| Plot {
            name: format!("matrix-{}", matrix.name),
            title: matrix.title,
            content: Content::Heat {
                max: max_of(&matrix.unit),
                rows: matrix.rows,
                columns: matrix.columns,
                values: matrix.values,
                unit: matrix.unit,
            },
        })
        .collect();
    for network in 0..case.networks.len().min(MAX_PLOTTED_NETWORKS) {
        let mut tools: Vec<&str> = Vec::new();
        for one in case.measurements.iter().filter(|one| one.network == network) {
            if !tools.contains(&one.tool.as_str()) {
                tools.push(&one.tool);
            }
        }
        for tool in tools {
            let all: Vec<&Measurement> = case
                .measurements
                .iter()
                .filter(|one| {
                    one.network == network && one.tool == tool && one.status == Status::Passed
                })
                .collect();
            plots.extend(tool_plots(case, network, tool, &all));
        }
    }
    for plot in &mut plots {
        plot.name = file_name(&plot.name);
    }
    plots
}

fn tool_plots(case: &CaseResult, network: usize, tool: &str, all: &[&Measurement]) -> Vec<Plot> {
    let place = if case.networks.len() > 1 {
        let one = &case.networks[network];
        match (one.loss_percent, one.delay_ms) {
            (Some(loss), Some(delay)) => format!(" (loss {loss} %, one-way delay {delay} ms)"),
            _ => format!(" (topology-{network})"),
        }
    } else {
        String::new()
    };
    let name = |what: &str| format!("{tool}-{what}-{network}");
    // The bounds differ between relays that recode and relays that do not.
    let bounds = all.iter().filter_map(|one| one.figures.get("bound_mbps").copied());
    let bound = bounds.reduce(f64::max);
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for series in all.iter().flat_map(|one| &one.series) {
        let kind = (series.name.as_str(), series.unit.as_str());
        // The bound is drawn into the plot of the throughput.
        if kind.0 != BOUND && !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut plots = Vec::new();
    for (kind, unit) in kinds {
        let mut curves = Vec::new();
        for one in all {
            for series in one.series.iter().filter(|series| series.name == kind) {
                let mut label =
                    if series.of == one.label || kind == "throughput" && one.label.is_empty() {
                        series.of.clone()
                    } else if all.len() > 1 && !series.of.ends_with(&one.label) {
                        format!("{}: {}", one.label, series.of)
                    } else {
                        series.of.clone()
                    };
                if all.iter().any(|other| other.repetition > 0) {
                    label = format!("{label} #{}", one.repetition + 1);
                }
                let style = match kind {
                    "throughput" => Style::Stairs,
                    "RTT" => Style::Dots,
                    _ => Style::Line,
                };
                curves.push(Curve { label, style, points: series.points.clone() });
            }
        }
        let mut limit = if kind == "throughput" { bound } else { None };
        // If links change, the bound is a curve instead of a line.
        let changing = all.iter().flat_map(|one| &one.series).find(|series| series.name == BOUND);
        if let Some(series) = changing.filter(|_| kind == "throughput") {
            limit = None;
            let (label, points) = (BOUND.to_owned(), series.points.clone());
            curves.push(Curve { label, style: Style::Stairs, points });
        }
        plots.push(Plot {
            name: name(kind),
            title: format!("{tool}: {kind}{place}"),
            content: Content::Curves { curves, x: "s".into(), y: format!("{kind}, {unit}"), limit },
        });
    }
    plots.extend(distributions(tool, &place, all, &name));
    plots
}

fn distributions(
    tool: &str,
    place: &str,
    all: &[&Measurement],
    name: &dyn Fn(&str) -> String,
) -> Vec<Plot> {
    let mut plots = Vec::new();
    let curves: Vec<Curve> = all
        .iter()
        .flat_map(|one| one.distributions.iter().map(move |distribution| (one, distribution)))
        .map(|(one, distribution)| {
            let count = distribution.values.len().max(1) as f64;
            let points = (1..).zip(&distribution.values);
            Curve {
                label: one.label.clone(),
                style: Style::Line,
                points: points
                    .map(|(rank, value)| (*value, f64::from(rank) / count * 100.0))
                    .collect(),
            }
        })
        .collect();
    if let Some(unit) = all.iter().find_map(|one| Some(one.distributions.first()?.unit.clone())) {
        let content = Content::Curves {
            curves,
            x: format!("RTT, {unit}"),
            y: "messages, %".into(),
            limit: None,
        };
        plots.push(Plot {
            name: name("RTT-CDF"),
            title: format!("{tool}: RTT, distribution{place}"),
            content,
        });
    }
    let bars: Vec<(String, f64)> = all
        .iter()
        .filter_map(|one| Some((one.label.clone(), *one.figures.get("first_rtt_ms")?)))
        .collect();
    if !bars.is_empty() {
        let unit = figures::find("first_rtt_ms").map_or("", |known| known.unit);
        plots.push(Plot {
            name: name("first-RTT"),
            title: format!("{tool}: first RTT, mean of the connections{place}"),
            content: Content::Bars { bars, y: unit.into() },
        });
    }
    plots
}
