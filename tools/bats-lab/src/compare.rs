//! Comparison of two runs, with confidence intervals.

use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use crate::cli::CompareOptions;
use crate::report::table::{flow_names, flow_values, number, subjects, values};
use crate::result::figures::{self, FigureInfo};
use crate::result::statistics::{Sample, difference};
use crate::result::{RunResult, folder};

const PAGE: &str = include_str!("report/compare.html");

/// One figure that both runs have.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    case: String,
    network: String,
    protocol: String,
    tool: String,
    figure: &'static str,
    unit: &'static str,
    a: Side,
    b: Side,
    /// Change from A to B, in percent of A.
    change_percent: Option<f64>,
    /// Half the width of the 95 % confidence interval of the difference, in percent of A.
    confidence_percent: Option<f64>,
    /// `better`, `worse`, `changed`, `same` (the confidence interval includes zero), or `single`
    /// (one run has no repetitions, so significance is unknown).
    verdict: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Side {
    mean: f64,
    count: usize,
    half_width: Option<f64>,
}

/// Prints the comparison.
///
/// # Errors
/// If a run cannot be read, or the two runs have no figure in common.
pub(crate) fn run(options: &CompareOptions) -> Result<()> {
    let (a, b) = (folder::load(&options.a)?, folder::load(&options.b)?);
    let rows = rows(&a, &b);
    if rows.is_empty() {
        anyhow::bail!(
            "the two runs have no figure in common: only figures of the same test, network, protocol and tool can be compared ({} has {}; {} has {})",
            options.a.display(),
            content(&a),
            options.b.display(),
            content(&b),
        );
    }
    if let Some(path) = &options.html {
        folder::write(path, page(&options.a, &options.b, &rows)?)?;
    }
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    let cells: Vec<[String; 7]> = rows.iter().map(cells).collect();
    let cells: Vec<[&str; 7]> =
        cells.iter().map(|row| std::array::from_fn(|column| row[column].as_str())).collect();
    out!("{}", crate::text::table(&["", "", "figure", "A", "B", "B - A", ""], &cells));
    outln!(
        "±: half the width of the 95 % confidence interval; `single`: no repetitions, so significance is unknown"
    );
    Ok(())
}

/// Names of the first tests and networks of a run, for error messages.
fn content(run: &RunResult) -> String {
    const MAX_LISTED: usize = 4;
    let all: Vec<String> = run
        .cases
        .iter()
        .flat_map(|case| {
            case.networks
                .iter()
                .map(move |network| format!("`{}` over {}", case.name, network.label))
        })
        .collect();
    let more = all.len().saturating_sub(MAX_LISTED);
    let listed = all.into_iter().take(MAX_LISTED).collect::<Vec<_>>().join(" | ");
    match more {
        _ if listed.is_empty() => "nothing".to_owned(),
        0 => listed,
        more => format!("{listed} | and {more} more"),
    }
}

/// One row for each figure that both runs have.
fn rows(a: &RunResult, b: &RunResult) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in &a.cases {
        let Some(other) = b.cases.iter().find(|other| other.name == case.name) else { continue };
        for (index, network) in case.networks.iter().enumerate() {
            // The same network may have another index in the other run.
            let Some(other_index) =
                other.networks.iter().position(|one| one.label == network.label)
            else {
                continue;
            };
            for (protocol, label, tool) in subjects(case) {
                // A simulated TCP is labelled as a model and kernel TCP is not, so show both
                // labels.
                let other_label = subjects(other)
                    .into_iter()
                    .find(|(name, _, of)| *name == protocol && *of == tool)
                    .map_or(label.clone(), |(_, label, _)| label);
                let label = joined_labels(&label, &other_label);
                let names = [case.name.as_str(), &network.label, &label, &tool];
                rows.extend(compare_figures(
                    names,
                    |info| info.more_is_better.is_some(),
                    |figure| values(case, index, &protocol, &tool, figure),
                    |figure| values(other, other_index, &protocol, &tool, figure),
                ));
                let others = flow_names(other, other_index, &protocol, &tool);
                for flow in flow_names(case, index, &protocol, &tool) {
                    let Some(same) = others
                        .iter()
                        .find(|one| without_model_suffix(one) == without_model_suffix(&flow))
                    else {
                        continue;
                    };
                    let flow_label =
                        format!("{}, competing with {label}", joined_labels(&flow, same));
                    rows.extend(compare_figures(
                        [names[0], names[1], &flow_label, names[3]],
                        // Competing flows are measured for their throughput share.
                        |info| {
                            info.more_is_better.is_some()
                                || COMPETITION_FIGURES.contains(&info.name)
                        },
                        |figure| flow_values(case, index, &protocol, &tool, &flow, figure),
                        |figure| flow_values(other, other_index, &protocol, &tool, same, figure),
                    ));
                }
            }
        }
    }
    rows
}

/// Figures of competing flows for which neither direction is better.
const COMPETITION_FIGURES: [&str; 2] = ["share_percent", "times_the_tools"];

/// Joins the two labels of one subject if they differ.
fn joined_labels(a: &str, b: &str) -> String {
    if a == b { a.to_owned() } else { format!("{a} / {b}") }
}

/// The label of a flow without the model suffix, so that simulated and real flows match.
fn without_model_suffix(flow: &str) -> String {
    flow.replace(crate::backend::sim::MODEL_SUFFIX, "")
}

/// One row for each wanted figure that both runs have.
fn compare_figures(
    names: [&str; 4],
    is_wanted: impl Fn(&FigureInfo) -> bool,
    a: impl Fn(&str) -> Vec<f64>,
    b: impl Fn(&str) -> Vec<f64>,
) -> Vec<Row> {
    let of = |info: &'static FigureInfo| {
        let (one, two) = (Sample::from_values(&a(info.name))?, Sample::from_values(&b(info.name))?);
        Some(row(names, info, &one, &two))
    };
    figures::FIGURES.iter().filter(|info| is_wanted(info)).filter_map(of).collect()
}

fn row(names: [&str; 4], info: &FigureInfo, a: &Sample, b: &Sample) -> Row {
    let (change, width) = difference(a, b);
    let percent = |value: f64| (a.mean != 0.0).then(|| value * 100.0 / a.mean.abs());
    let verdict = match width {
        None => "single",
        Some(width) if change.abs() <= width => "same",
        Some(_) => match info.more_is_better {
            Some(more) if more == (change > 0.0) => "better",
            Some(_) => "worse",
            None => "changed",
        },
    };
    let side = |sample: &Sample| Side {
        mean: sample.mean,
        count: sample.count,
        half_width: sample.half_width(),
    };
    let [case, network, protocol, tool] = names.map(str::to_owned);
    Row {
        case,
        network,
        protocol,
        tool,
        figure: info.title,
        unit: info.unit,
        a: side(a),
        b: side(b),
        change_percent: percent(change),
        confidence_percent: width.and_then(percent),
        verdict,
    }
}

fn side(side: &Side) -> String {
    match side.half_width {
        Some(width) => format!("{} ±{}", number(side.mean), number(width)),
        None => number(side.mean),
    }
}

fn change(row: &Row) -> String {
    match (row.change_percent, row.confidence_percent) {
        (Some(change), Some(width)) => format!("{change:+.1} % ±{width:.1}"),
        (Some(change), None) => format!("{change:+.1} %"),
        _ => "-".to_owned(),
    }
}

fn cells(row: &Row) -> [String; 7] {
    [
        format!("{}, {}", row.case, row.network),
        format!("{} {}", row.protocol, row.tool),
        format!("{} {}", row.figure, row.unit).trim_end().to_owned(),
        side(&row.a),
        side(&row.b),
        change(row),
        row.verdict.to_owned(),
    ]
}

fn page(a: &Path, b: &Path, rows: &[Row]) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("page", PAGE).context("the HTML template is invalid")?;
    let rows: Vec<[String; 7]> = rows.iter().map(cells).collect();
    let page = environment.get_template("page")?.render(context! {
        a => a.display().to_string(), b => b.display().to_string(), rows,
    });
    page.context("cannot render the comparison")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::from_values(values).unwrap()
    }

    #[test]
    fn verdict_depends_on_confidence_interval_and_direction() {
        let rate = figures::find("throughput_mbps").unwrap();
        let time = figures::find("rtt_p50_ms").unwrap();
        let of = |info, a: &[f64], b: &[f64]| {
            row(["c", "n", "p", "t"], info, &sample(a), &sample(b)).verdict
        };
        assert_eq!(of(rate, &[10.0, 11.0, 12.0], &[10.5, 11.5, 12.5]), "same");
        assert_eq!(of(rate, &[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]), "better");
        assert_eq!(of(time, &[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]), "worse");
        assert_eq!(of(rate, &[10.0], &[20.0]), "single");
    }
}
