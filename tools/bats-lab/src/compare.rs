//! Comparison of two runs, with confidence intervals.

use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use crate::cli::CompareOptions;
use crate::report::table::{flow_names, flow_values, number, subjects, values};
use crate::result::figures::{self, FigureInfo};
use crate::result::statistics::{Sample, difference, paired_difference};
use crate::result::{CaseResult, NetworkResult, RunResult, folder};
use crate::text;

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
    /// `better`, `worse`, `changed`; `same` (the confidence interval of the difference is within the
    /// margin); `not shown to differ` (it includes zero, but is wider); or `single` (one run has no
    /// repetitions, so significance is unknown).
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
    let notes = notes(&a, &b);
    let rows = rows(&a, &b, options.margin);
    if rows.is_empty() {
        let differences: String = notes.iter().map(|note| format!("; {note}")).collect();
        anyhow::bail!(
            "the two runs have no figure in common: only figures of the same test, network, protocol and tool can be compared ({} has {}; {} has {}){differences}",
            options.a.display(),
            content(&a),
            options.b.display(),
            content(&b),
        );
    }
    if let Some(path) = &options.html {
        folder::write(path, page(&options.a, &options.b, &rows, &notes)?)?;
    }
    if options.json {
        for note in &notes {
            eprintln!("note: {note}");
        }
        outln!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    for note in &notes {
        out!("{}", text::wrapped(&format!("note: {note}"), WIDTH, 4));
    }
    out!("{}", text_of(&rows));
    let legend = format!(
        "±: half the width of the 95 % confidence interval; `same`: the interval of the difference is within {} % of A (--margin); `not shown to differ`: it includes 0, but is wider; `single`: no repetitions, so significance is unknown",
        options.margin * 100.0
    );
    out!("{}", text::wrapped(&legend, WIDTH, 0));
    Ok(())
}

/// Columns of the text.
const WIDTH: usize = 100;
/// Columns of figure, A, B, change and verdict.
const COLUMNS: [usize; 5] = [24, 15, 15, 16, 19];

/// The rows as text: a heading for each network and each subject.
fn text_of(rows: &[Row]) -> String {
    let mut text = String::new();
    let line = |cells: [&str; 5]| -> String {
        let mut line = String::from(" ");
        for (cell, width) in cells.into_iter().zip(COLUMNS) {
            let cell = text::shortened(cell, width);
            line.push(' ');
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 1));
        }
        format!("{}\n", line.trim_end())
    };
    let (mut network, mut subject) = (None, None);
    for row in rows {
        let [of_network, of_subject, figure, a, b, change, verdict] = cells(row);
        if network.as_ref() != Some(&of_network) {
            text.push_str(&text::wrapped(&of_network, WIDTH, 2));
            text.push_str(&line(["", "A", "B", "B - A", ""]));
            network = Some(of_network);
            subject = None;
        }
        if subject.as_ref() != Some(&of_subject) {
            text.push_str(&text::wrapped(&format!(" {of_subject}"), WIDTH, 2));
            subject = Some(of_subject);
        }
        text.push_str(&line([&figure, &a, &b, &change, &verdict]));
    }
    text
}

/// Whether two networks are the same: all links with all of their settings, and what happens to them.
fn is_same(a: (&CaseResult, &NetworkResult), b: (&CaseResult, &NetworkResult)) -> bool {
    a.1.nodes == b.1.nodes && a.1.links == b.1.links && a.0.conditions == b.0.conditions
}

/// How runs differ: networks that are not compared, and what limits the comparison of the others.
fn notes(a: &RunResult, b: &RunResult) -> Vec<String> {
    let mut notes = Vec::new();
    for case in &a.cases {
        let name = &case.name;
        let Some(other) = b.cases.iter().find(|other| other.name == *name) else {
            notes.push(format!("`{name}` is only in A"));
            continue;
        };
        if case.backend != other.backend {
            notes.push(format!(
                "`{name}` ran on {} in A and on {} in B",
                case.backend, other.backend
            ));
        }
        let repetitions = |case: &CaseResult| {
            case.measurements.iter().map(|one| one.repetition + 1).max().unwrap_or(0)
        };
        let (seeds, others) = ((case.seed, repetitions(case)), (other.seed, repetitions(other)));
        if seeds != others {
            let text = |(first, count): (u64, u32)| match count {
                0 | 1 => format!("the seed {first}"),
                _ => format!("the seeds {first} to {}", first.saturating_add(u64::from(count) - 1)),
            };
            notes.push(format!("`{name}` used {} in A and {} in B", text(seeds), text(others)));
        }
        for network in &case.networks {
            if other.networks.iter().any(|one| is_same((case, network), (other, one))) {
                continue;
            }
            // The one of the same place is what it may have been meant as.
            let alike = other
                .networks
                .iter()
                .find(|one| one.name == network.name)
                .or_else(|| other.networks.first());
            let differences = match alike {
                None => "B has no network".to_owned(),
                Some(one) => differences((case, network), (other, one)).join("; "),
            };
            notes.push(format!("`{name}`, {} is not compared: {differences}", network.name));
        }
    }
    for other in &b.cases {
        if !a.cases.iter().any(|case| case.name == other.name) {
            notes.push(format!("`{}` is only in B", other.name));
        }
    }
    notes
}

/// In what two networks differ.
fn differences(a: (&CaseResult, &NetworkResult), b: (&CaseResult, &NetworkResult)) -> Vec<String> {
    let mut all = Vec::new();
    if a.1.nodes != b.1.nodes {
        all.push(format!("A has {} nodes, B {}", a.1.nodes, b.1.nodes));
    }
    let lists = [("link", &a.1.links, &b.1.links), ("condition", &a.0.conditions, &b.0.conditions)];
    for (what, a, b) in lists {
        for index in 0..a.len().max(b.len()) {
            let of = |list: &[String]| {
                list.get(index).map_or("none".to_owned(), |one| format!("`{one}`"))
            };
            let (a, b) = (of(a), of(b));
            if a != b {
                all.push(format!("{what} {}: A {a}, B {b}", index + 1));
            }
        }
    }
    all
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
fn rows(a: &RunResult, b: &RunResult, margin: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in &a.cases {
        let Some(other) = b.cases.iter().find(|other| other.name == case.name) else { continue };
        // Equal seeds give equal losses in virtual time, so the repetitions are pairs.
        let is_paired = case.seed == other.seed && case.backend == "sim" && other.backend == "sim";
        let test = Test { is_paired, margin };
        for (index, network) in case.networks.iter().enumerate() {
            // The same network may have another index in the other run.
            let Some(other_index) =
                other.networks.iter().position(|one| is_same((case, network), (other, one)))
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
                    test,
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
                        test,
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
    test: Test,
    names: [&str; 4],
    is_wanted: impl Fn(&FigureInfo) -> bool,
    a: impl Fn(&str) -> Vec<f64>,
    b: impl Fn(&str) -> Vec<f64>,
) -> Vec<Row> {
    let of = |info: &'static FigureInfo| row(test, names, info, &a(info.name), &b(info.name));
    figures::FIGURES.iter().filter(|info| is_wanted(info)).filter_map(of).collect()
}

/// How figures are compared.
#[derive(Clone, Copy, Debug)]
struct Test {
    /// Whether repetitions of the same number are pairs.
    is_paired: bool,
    /// Fraction of A within which figures count as the same.
    margin: f64,
}

fn row(test: Test, names: [&str; 4], info: &FigureInfo, a: &[f64], b: &[f64]) -> Option<Row> {
    let (of_a, of_b) = (Sample::from_values(a)?, Sample::from_values(b)?);
    let (change, width) = match test.is_paired && a.len() == b.len() {
        true => paired_difference(a, b),
        false => difference(&of_a, &of_b),
    };
    let (a, b) = (&of_a, &of_b);
    // The change of single values is known, only its significance is not.
    let change = if width.is_none() { b.mean - a.mean } else { change };
    let percent = |value: f64| (a.mean != 0.0).then(|| value * 100.0 / a.mean.abs());
    let verdict = match width {
        None => "single",
        Some(width) if change.abs() > width => match info.more_is_better {
            Some(more) if more == (change > 0.0) => "better",
            Some(_) => "worse",
            None => "changed",
        },
        // Two one-sided tests at 2.5 % each.
        Some(width) if change.abs() + width <= test.margin * a.mean.abs() => "same",
        Some(_) => "not shown to differ",
    };
    let side = |sample: &Sample| Side {
        mean: sample.mean,
        count: sample.count,
        half_width: sample.half_width(),
    };
    let [case, network, protocol, tool] = names.map(str::to_owned);
    Some(Row {
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
    })
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

fn page(a: &Path, b: &Path, rows: &[Row], notes: &[String]) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.add_template("page", PAGE).context("the HTML template is invalid")?;
    let rows: Vec<[String; 7]> = rows.iter().map(cells).collect();
    let page = environment.get_template("page")?.render(context! {
        a => a.display().to_string(), b => b.display().to_string(), rows, notes,
    });
    page.context("cannot render the comparison")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Test = Test { is_paired: false, margin: 0.05 };

    fn of(test: Test, figure: &str, a: &[f64], b: &[f64]) -> Row {
        row(test, ["c", "n", "p", "t"], figures::find(figure).unwrap(), a, b).unwrap()
    }

    #[test]
    fn verdict_depends_on_confidence_interval_margin_and_direction() {
        let verdict = |figure, a: &[f64], b: &[f64]| of(TEST, figure, a, b).verdict;
        let (rate, time) = ("throughput_mbps", "rtt_p50_ms");
        assert_eq!(verdict(rate, &[10.0, 11.0, 12.0], &[10.5, 11.5, 12.5]), "not shown to differ");
        assert_eq!(verdict(rate, &[10.0, 10.01, 9.99], &[10.01, 10.0, 10.02]), "same");
        assert_eq!(verdict(rate, &[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]), "better");
        assert_eq!(verdict(time, &[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]), "worse");
        assert_eq!(verdict(rate, &[10.0], &[20.0]), "single");
        // Nothing is the same within no margin, unless it is equal.
        let none = Test { margin: 0.0, ..TEST };
        assert_eq!(of(none, rate, &[10.0, 10.01], &[10.01, 10.0]).verdict, "not shown to differ");
        // Pairs of equal seeds that differ by about as much each time.
        let pairs = Test { is_paired: true, ..TEST };
        let (a, b) = ([10.0, 20.0, 30.0], [10.1, 20.11, 30.1]);
        assert_eq!(of(TEST, rate, &a, &b).verdict, "not shown to differ");
        assert_eq!(of(pairs, rate, &a, &b).verdict, "better");
        assert_eq!(of(pairs, rate, &a, &a).verdict, "same");
    }

    fn run_with(links: &[&str], conditions: &[&str], seed: u64) -> RunResult {
        let value = serde_json::json!({
            "format": crate::result::FORMAT, "started": "", "seconds": 1.0, "file": "f", "command": [],
            "versions": {}, "notes": [], "passed": true, "ended_early": null,
            "cases": [{
                "name": "t", "description": "", "backend": "sim", "seed": seed, "passed": true,
                "allow_failure": false, "verification": [], "warnings": [], "measurements": [],
                "assertions": [], "published": [], "conditions": conditions,
                "networks": [{ "name": "topology-0", "label": "first link 10, others differ", "nodes": 3,
                    "links": links, "loss_percent": null, "delay_ms": null }],
            }],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn networks_match_by_every_link_and_condition() {
        let event = ["at 5 s link 1: down"];
        let a = run_with(&["one", "two"], &event, 1);
        assert!(notes(&a, &a.clone()).is_empty());
        let with = |links: &[&str], conditions: &[&str], seed| {
            notes(&a, &run_with(links, conditions, seed))
        };
        let other_link = with(&["one", "other"], &event, 1);
        assert_eq!(other_link, ["`t`, topology-0 is not compared: link 2: A `two`, B `other`"]);
        let without = with(&["one", "two"], &[], 1);
        assert_eq!(
            without,
            ["`t`, topology-0 is not compared: condition 1: A `at 5 s link 1: down`, B none"]
        );
        let seed = with(&["one", "two"], &event, 9);
        assert_eq!(seed, ["`t` used the seed 1 in A and the seed 9 in B"]);
    }

    #[test]
    fn rows_fit_a_hundred_columns() {
        let values = [123_456.789, 123_789.123, 120_001.5];
        let long = "a name of a test with many words ".repeat(9);
        let info = figures::FIGURES.iter().max_by_key(|info| info.title.len()).unwrap();
        let one = row(TEST, [&long, &long, &long, "tool"], info, &values, &values).unwrap();
        let text = text_of(&[one]);
        assert!(text.contains("not shown to differ") || text.contains("same"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
