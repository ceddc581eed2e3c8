//! Two runs side by side, with confidence intervals.

use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use crate::cli::CompareOptions;
use crate::report::table::{flow_names, flow_values, number, subjects, values};
use crate::result::figures::{self, Known};
use crate::result::statistics::{Sample, difference};
use crate::result::{RunResult, folder};

const PAGE: &str = include_str!("report/compare.html");

/// A figure in both runs.
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
    /// Of B above A, in per cent of A.
    change_percent: Option<f64>,
    /// Half of the interval of 95 % confidence of the difference, in per cent of A.
    confidence_percent: Option<f64>,
    /// `better`, `worse`, `changed`, `same` (within the confidence), or `single` where one run has no
    /// repetitions and nothing can be said of chance.
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
/// Where a run cannot be read, or the two have nothing in common.
pub(crate) fn run(options: &CompareOptions) -> Result<()> {
    let (a, b) = (folder::load(&options.a)?, folder::load(&options.b)?);
    let rows = rows(&a, &b);
    if rows.is_empty() {
        anyhow::bail!(
            "the two runs have no figure in common: what is compared has the same test, network, protocol and tool ({} has {}; {} has {})",
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
        "±: half of an interval of 95 % confidence; `single`: no repetitions, so chance is not known"
    );
    Ok(())
}

/// The tests and networks of a run, in words: a few of many.
fn content(run: &RunResult) -> String {
    const FEW: usize = 4;
    let all: Vec<String> = run
        .cases
        .iter()
        .flat_map(|case| {
            case.networks
                .iter()
                .map(move |network| format!("`{}` over {}", case.name, network.label))
        })
        .collect();
    let more = all.len().saturating_sub(FEW);
    let told = all.into_iter().take(FEW).collect::<Vec<_>>().join(" | ");
    match more {
        _ if told.is_empty() => "nothing".to_owned(),
        0 => told,
        more => format!("{told} | and {more} more"),
    }
}

/// The figures that both runs have.
fn rows(a: &RunResult, b: &RunResult) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in &a.cases {
        let Some(other) = b.cases.iter().find(|other| other.name == case.name) else { continue };
        for (index, network) in case.networks.iter().enumerate() {
            // The same network may have another number in another run.
            let Some(place) = other.networks.iter().position(|one| one.label == network.label)
            else {
                continue;
            };
            for (protocol, label, tool) in subjects(case) {
                // Where one is a model of the other, both say so.
                let theirs = subjects(other)
                    .into_iter()
                    .find(|(name, _, of)| *name == protocol && *of == tool)
                    .map_or(label.clone(), |(_, theirs, _)| theirs);
                let label = both(&label, &theirs);
                let names = [case.name.as_str(), &network.label, &label, &tool];
                rows.extend(of_pair(
                    names,
                    |known| known.more_is_better.is_some(),
                    |figure| values(case, index, &protocol, &tool, figure),
                    |figure| values(other, place, &protocol, &tool, figure),
                ));
                let others = flow_names(other, place, &protocol, &tool);
                for flow in flow_names(case, index, &protocol, &tool) {
                    let Some(same) = others.iter().find(|one| plain(one) == plain(&flow)) else {
                        continue;
                    };
                    let beside = format!("{}, beside {label}", both(&flow, same));
                    rows.extend(of_pair(
                        [names[0], names[1], &beside, names[3]],
                        // A rival's share is what it is compared for.
                        |known| known.more_is_better.is_some() || OF_RIVALS.contains(&known.name),
                        |figure| flow_values(case, index, &protocol, &tool, &flow, figure),
                        |figure| flow_values(other, place, &protocol, &tool, same, figure),
                    ));
                }
            }
        }
    }
    rows
}

/// Figures of flows beside the tool's of which neither more nor less is better.
const OF_RIVALS: [&str; 2] = ["share_percent", "times_the_tools"];

/// The names of one thing in two runs.
fn both(a: &str, b: &str) -> String {
    if a == b { a.to_owned() } else { format!("{a} / {b}") }
}

/// A flow's name without the word that it is a model, which its namesake on hosts lacks.
fn plain(flow: &str) -> String {
    flow.replace(crate::backend::sim::IS_MODEL, "")
}

/// A row for each figure that is wanted and that both have.
fn of_pair(
    names: [&str; 4],
    is_wanted: impl Fn(&Known) -> bool,
    a: impl Fn(&str) -> Vec<f64>,
    b: impl Fn(&str) -> Vec<f64>,
) -> Vec<Row> {
    let of = |known: &'static Known| {
        let (one, two) = (Sample::of(&a(known.name))?, Sample::of(&b(known.name))?);
        Some(row(names, known, &one, &two))
    };
    figures::KNOWN.iter().filter(|known| is_wanted(known)).filter_map(of).collect()
}

fn row(names: [&str; 4], known: &Known, a: &Sample, b: &Sample) -> Row {
    let (change, width) = difference(a, b);
    let percent = |value: f64| (a.mean != 0.0).then(|| value * 100.0 / a.mean.abs());
    let verdict = match width {
        None => "single",
        Some(width) if change.abs() <= width => "same",
        Some(_) => match known.more_is_better {
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
        figure: known.title,
        unit: known.unit,
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
    environment.add_template("page", PAGE).context("the template is broken")?;
    let rows: Vec<[String; 7]> = rows.iter().map(cells).collect();
    let page = environment.get_template("page")?.render(context! {
        a => a.display().to_string(), b => b.display().to_string(), rows,
    });
    page.context("the comparison cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::of(values).unwrap()
    }

    #[test]
    fn verdicts_know_chance_and_direction() {
        let rate = figures::of("throughput_mbps").unwrap();
        let time = figures::of("rtt_p50_ms").unwrap();
        let of = |known, a: &[f64], b: &[f64]| {
            row(["c", "n", "p", "t"], known, &sample(a), &sample(b)).verdict
        };
        assert_eq!(of(rate, &[10.0, 11.0, 12.0], &[10.5, 11.5, 12.5]), "same");
        assert_eq!(of(rate, &[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]), "better");
        assert_eq!(of(time, &[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]), "worse");
        assert_eq!(of(rate, &[10.0], &[20.0]), "single");
    }
}
