//! Selects the plots of a test.

use super::palette::{Paint, Palette};
use super::plot::{Bar, Content, Curve, Grid, Plot, Style};
use super::table::{self, Matrix};
use crate::config::expand::file_name;
use crate::result::measures::{CONTROLLER_STATE, LIMITED_BY};
use crate::result::series::Series;
use crate::result::{CaseResult, Measurement, Status, figures};

/// Maximum number of networks with curve plots; larger families only have matrices.
const MAX_PLOTTED_NETWORKS: usize = 36;

/// Name of the series of the throughput bound while links change.
const BOUND: &str = "bound";

/// The plots of a test: matrices first, then those of each network and tool.
pub(crate) fn plots(case: &CaseResult, palette: &Palette) -> Vec<Plot> {
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
        .flat_map(|matrix| matrix_plots(matrix, max_of(&matrix.unit), palette))
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
            plots.extend(tool_plots(case, network, tool, &all, palette));
        }
    }
    for plot in &mut plots {
        plot.name = file_name(&plot.name);
    }
    plots
}

/// A matrix as a heat map and as bars.
fn matrix_plots(matrix: &Matrix, max: f64, palette: &Palette) -> [Plot; 2] {
    let grid = Grid {
        max,
        rows: matrix.rows.clone(),
        columns: matrix.columns.clone(),
        values: matrix.values.clone(),
        unit: matrix.unit.clone(),
    };
    // Published figures have a colour of their own, grey.
    let paint = Paint::new(palette.find(&matrix.label).unwrap_or(6), 0);
    let plot = |what: &str, content| Plot {
        name: format!("{what}-{}", matrix.name),
        title: matrix.title.clone(),
        content,
    };
    [plot("matrix", Content::Heat(grid.clone())), plot("bars", Content::Bars3d { grid, paint })]
}

/// How a series of a measurement is painted: the flow in its colour, everything else of the
/// measurement in that of its protocol. Several curves of one colour differ in their pattern. Each
/// value of a state has a colour of its own.
fn paint(palette: &Palette, one: &Measurement, series: &Series, drawn: &[Curve]) -> Paint {
    if is_state(&series.name) {
        return Paint::new(drawn.len(), 0);
    }
    let is_flow = one.flows.iter().any(|flow| flow.label == series.of);
    let label = if is_flow { &series.of } else { &one.label };
    let subject = palette.find(label).unwrap_or_default();
    Paint::new(subject, drawn.iter().filter(|curve| curve.paint.subject == subject).count())
}

/// The series are shares of the values of a state.
fn is_state(name: &str) -> bool {
    [CONTROLLER_STATE, LIMITED_BY].contains(&name)
}

fn tool_plots(
    case: &CaseResult,
    network: usize,
    tool: &str,
    all: &[&Measurement],
    palette: &Palette,
) -> Vec<Plot> {
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
    // All plots over time begin at the start of the tool and end together.
    let times = all.iter().flat_map(|one| &one.series).flat_map(|series| &series.points);
    let end = times.map(|point| point.0).filter(|at| at.is_finite()).fold(0.0, f64::max);
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
                    state if is_state(state) => Style::Stairs,
                    "RTT" => Style::Dots,
                    _ => Style::Line,
                };
                let paint = paint(palette, one, series, &curves);
                curves.push(Curve { label, style, paint, points: series.points.clone() });
            }
        }
        let mut limit = if kind == "throughput" { bound } else { None };
        // If links change, the bound is a curve instead of a line.
        let changing = all.iter().flat_map(|one| &one.series).find(|series| series.name == BOUND);
        if let Some(series) = changing.filter(|_| kind == "throughput") {
            limit = None;
            let (label, points) = (BOUND.to_owned(), series.points.clone());
            // Grey, as nothing that was measured.
            let paint = Paint::new(6, 1);
            curves.push(Curve { label, style: Style::Stairs, paint, points });
        }
        plots.push(Plot {
            name: name(kind),
            title: format!("{tool}: {kind}{place}"),
            content: Content::Curves {
                curves,
                x: "s".into(),
                y: format!("{kind}, {unit}"),
                limit,
                end: (end > 0.0).then_some(end),
            },
        });
    }
    plots.extend(distributions(tool, &place, all, &name, palette));
    plots
}

fn distributions(
    tool: &str,
    place: &str,
    all: &[&Measurement],
    name: &dyn Fn(&str) -> String,
    palette: &Palette,
) -> Vec<Plot> {
    let mut plots = Vec::new();
    let curves: Vec<Curve> = all
        .iter()
        .flat_map(|one| one.distributions.iter().map(move |distribution| (one, distribution)))
        .map(|(one, distribution)| {
            let count = distribution.values.len().max(1) as f64;
            let points = (1..).zip(&distribution.values);
            Curve {
                label: match all.iter().any(|other| other.repetition > 0) {
                    true => format!("{} #{}", one.label, one.repetition + 1),
                    false => one.label.clone(),
                },
                style: Style::Line,
                paint: Paint::new(
                    palette.find(&one.label).unwrap_or_default(),
                    one.repetition as usize,
                ),
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
            end: None,
        };
        plots.push(Plot {
            name: name("RTT-CDF"),
            title: format!("{tool}: RTT, distribution{place}"),
            content,
        });
    }
    // Both definitions: from the established connection, and with connecting.
    let bars: Vec<Bar> = all
        .iter()
        .flat_map(|one| {
            let bar = |name: &str, label: String, variant: usize| {
                let value = *one.figures.get(name)?;
                let subject = palette.find(&one.label).unwrap_or_default();
                Some(Bar { label, value, error: None, paint: Paint::new(subject, variant) })
            };
            [
                bar("first_rtt_ms", one.label.clone(), 0),
                bar("first_rtt_connect_ms", format!("{} with connecting", one.label), 1),
            ]
        })
        .flatten()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(label: &str, repetition: u32, series: Vec<Series>) -> Measurement {
        let value = serde_json::json!({
            "network": 0, "protocol": label, "label": label, "tool": "iperf",
            "repetition": repetition, "status": "passed", "reason": null, "figures": {},
            "series": series, "distributions": [], "warnings": [], "commands": [], "folder": "",
        });
        serde_json::from_value(value).unwrap()
    }

    fn series(name: &str, of: &str, points: &[(f64, f64)]) -> Series {
        let (name, of, unit) = (name.to_owned(), of.to_owned(), "x".to_owned());
        Series { name, of, unit, points: points.to_vec() }
    }

    #[test]
    fn a_protocol_has_one_colour_and_plots_one_time_axis() {
        // The second protocol has a window and the first has none: its colour is still its own.
        let all = [
            measurement("A", 0, vec![series("throughput", "A", &[(1.0, 1.0), (9.0, 1.0)])]),
            measurement(
                "B",
                0,
                vec![
                    series("throughput", "B", &[(1.0, 1.0)]),
                    series("cwnd", "B", &[(5.0, 1.0), (6.0, 1.0)]),
                    series("queue", "slowest link", &[(0.1, 1.0)]),
                    series("limited by", "max_bw, B", &[(0.1, 100.0)]),
                    series("limited by", "cwnd, B", &[(0.1, 0.0)]),
                ],
            ),
            measurement("B", 1, vec![series("cwnd", "B", &[(5.0, 1.0)])]),
        ];
        let case = serde_json::json!({
            "name": "c", "description": "", "backend": "sim", "seed": 1, "passed": true,
            "allow_failure": false, "verification": [], "warnings": [], "assertions": [],
            "published": [], "measurements": all,
            "networks": [{ "name": "n", "label": "n", "nodes": 2, "links": [],
                           "loss_percent": null, "delay_ms": null }],
        });
        let case: CaseResult = serde_json::from_value(case).unwrap();
        let plots = plots(&case, &Palette::new([&case]));
        let mut colours = std::collections::BTreeMap::new();
        for plot in &plots {
            let Content::Curves { curves, end, .. } = &plot.content else { continue };
            assert_eq!(*end, Some(9.0), "{}", plot.name);
            for curve in curves {
                if plot.name.contains("limited") {
                    continue;
                }
                let protocol = curve.label.chars().next().unwrap();
                let known = *colours.entry(protocol).or_insert(curve.paint.colour());
                assert_eq!(known, curve.paint.colour(), "{} {}", plot.name, curve.label);
            }
            // Curves of one colour have different patterns.
            for (index, curve) in curves.iter().enumerate() {
                assert!(curves[..index].iter().all(|other| other.paint != curve.paint));
            }
        }
        assert_eq!(plots.len(), 4);
        let limits = plots.iter().find(|plot| plot.title.contains("limited by")).unwrap();
        let Content::Curves { curves, .. } = &limits.content else { panic!("curves") };
        assert_eq!(curves[0].label, "max_bw, B #1");
        assert_ne!(curves[0].paint.colour(), curves[1].paint.colour());
        assert_ne!(colours[&'A'], colours[&'B']);
    }
}
