//! Comparison of several runs (batches): their figures, curves and distributions in common plots.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use minijinja::{Value, context};

use super::palette::{Paint, Palette};
use super::plot::{Bar, Content, Curve, Plot, Style};
use super::table::{self, Table, subjects, values, with_unit};
use super::{SCRIPT, STYLE, environment, plot_contexts, script_text, write_plots};
use crate::config::expand::file_name;
use crate::result::figures::{self, FigureInfo};
use crate::result::statistics::Sample;
use crate::result::{CaseResult, Measurement, NetworkResult, RunResult, Status, folder};

const PAGE: &str = include_str!("batch.html");
/// Maximum number of runs. More curves in a plot cannot be distinguished.
const MAX_RUNS: usize = 8;
/// Maximum number of networks with plots of their own.
const MAX_NETWORKS: usize = 36;
/// Figures that are shown as bars, or over delay if the networks form a matrix.
const PLOTTED: [&str; 10] = [
    "throughput_mbps",
    "steady_mbps",
    "efficiency",
    "loss_percent",
    "rtt_p50_ms",
    "rtt_p99_ms",
    "first_rtt_ms",
    "first_rtt_connect_ms",
    "queue_mean_ms",
    "file_seconds",
];
/// Series that are shown over time.
const SERIES: [&str; 3] = ["throughput", "RTT", "residual loss"];

/// A run and its name.
pub(crate) type NamedRun = (String, RunResult);

/// Checks the names of runs to compare.
///
/// # Errors
/// If there are too few or too many, or one is named twice.
pub(crate) fn check_names(names: &[String]) -> Result<()> {
    if !(2..=MAX_RUNS).contains(&names.len()) {
        bail!("{} runs are given: a comparison needs 2 to {MAX_RUNS}", names.len());
    }
    if let Some(name) =
        (1..).zip(names).find_map(|(next, one)| names[next..].iter().find(|other| *other == one))
    {
        bail!("{name} is given twice");
    }
    Ok(())
}

/// Writes `comparison.html` and the plots as SVG and PNG to a directory.
///
/// # Errors
/// If the runs have no test in common, or a file cannot be written.
pub(crate) fn write(directory: &Path, runs: &[NamedRun]) -> Result<()> {
    let page = page(runs)?;
    let pictures = directory.join("plots");
    fs::create_dir_all(&pictures)
        .with_context(|| format!("cannot create {}", pictures.display()))?;
    for group in groups(runs) {
        write_plots(&pictures, &plots(&group, &palette(runs)))?;
    }
    folder::write(&directory.join("comparison.html"), page)
}

/// Renders the page.
///
/// # Errors
/// If the runs have no test and network in common.
pub(crate) fn page(runs: &[NamedRun]) -> Result<String> {
    let groups = groups(runs);
    if groups.is_empty() {
        bail!("no two of these runs have a test over the same network in common");
    }
    let palette = palette(runs);
    let environment = environment(PAGE)?;
    let mut data = Vec::new();
    let groups: Vec<Value> = groups
        .iter()
        .map(|group| {
            context! {
                title => group.title(),
                missing => missing(group, runs),
                tables => tables(group),
                plots => plot_contexts(&plots(group, &palette), &mut data),
            }
        })
        .collect();
    let listed: Vec<Value> = (0..)
        .zip(runs)
        .map(|(index, (name, run))| {
            let started = run.started.chars().take(19).collect::<String>().replace('T', " ");
            context! { letter => letter(index), name, file => run.file, started }
        })
        .collect();
    let page = environment.get_template("page")?.render(context! {
        runs => listed,
        groups,
        style => Value::from_safe_string(STYLE.to_owned()),
        script => Value::from_safe_string(SCRIPT.to_owned()),
        data => script_text(&data)?,
    });
    page.context("cannot render the comparison")
}

fn palette(runs: &[NamedRun]) -> Palette {
    let cases: Vec<&CaseResult> = runs.iter().flat_map(|(_, run)| &run.cases).collect();
    Palette::new(cases)
}

/// The letter of a run in plots.
fn letter(index: usize) -> char {
    char::from(b'A' + (index % 26) as u8)
}

/// A test over the same network in several runs.
struct Group<'a> {
    case: &'a str,
    network: &'a NetworkResult,
    /// Index of the run, its test, and the index of the network there.
    members: Vec<(usize, &'a CaseResult, usize)>,
}

impl Group<'_> {
    fn title(&self) -> String {
        format!("{}, {}", self.case, self.network.label)
    }
}

/// Tests over the same network that at least two runs have. Networks are the same if all of their
/// links are; their name and index may differ.
fn groups(runs: &[NamedRun]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (index, (_, run)) in runs.iter().enumerate() {
        for case in &run.cases {
            for (place, network) in case.networks.iter().enumerate() {
                let member = (index, case, place);
                let same = groups.iter_mut().find(|group| {
                    group.case == case.name
                        && (&group.network.links, group.network.nodes)
                            == (&network.links, network.nodes)
                        && group.members.iter().all(|member| member.0 != index)
                });
                match same {
                    Some(group) => group.members.push(member),
                    None => {
                        groups.push(Group { case: &case.name, network, members: vec![member] });
                    }
                }
            }
        }
    }
    groups.retain(|group| group.members.len() > 1);
    groups.truncate(MAX_NETWORKS);
    groups
}

/// Runs that do not have the test over this network.
fn missing(group: &Group<'_>, runs: &[NamedRun]) -> Option<String> {
    let has = |index: usize| group.members.iter().any(|member| member.0 == index);
    let letters: Vec<String> = (0..runs.len())
        .filter(|&index| !has(index))
        .map(|index| letter(index).to_string())
        .collect();
    (!letters.is_empty()).then(|| format!("not in {}: another test or network", letters.join(", ")))
}

/// A protocol with a tool in one run.
struct Subject<'a> {
    label: String,
    /// Label of the protocol with the letter of the run.
    title: String,
    run: usize,
    case: &'a CaseResult,
    network: usize,
    protocol: String,
}

impl<'a> Subject<'a> {
    fn values(&self, tool: &str, figure: &str) -> Vec<f64> {
        values(self.case, self.network, &self.protocol, tool, figure)
    }

    /// Its measurements with a tool.
    fn measurements(&self, tool: &'a str) -> impl Iterator<Item = &'a Measurement> {
        let (case, network, protocol) = (self.case, self.network, self.protocol.clone());
        case.measurements.iter().filter(move |one| {
            one.network == network
                && one.protocol == protocol
                && one.tool == tool
                && one.status == Status::Passed
        })
    }

    fn paint(&self, palette: &Palette) -> Paint {
        Paint::new(palette.find(&self.label).unwrap_or_default(), self.run)
    }
}

/// The tools of a group, and the subjects of each: protocol by protocol, then run by run.
fn subjects_by_tool<'a>(group: &Group<'a>) -> Vec<(String, Vec<Subject<'a>>)> {
    let mut tools: Vec<(String, Vec<Subject<'a>>)> = Vec::new();
    for &(run, case, network) in &group.members {
        for (protocol, label, tool) in subjects(case) {
            let title = format!("{label}, {}", letter(run));
            let subject = Subject { label, title, run, case, network, protocol };
            match tools.iter_mut().find(|entry| entry.0 == tool) {
                Some((_, subjects)) => subjects.push(subject),
                None => tools.push((tool, vec![subject])),
            }
        }
    }
    for (_, subjects) in &mut tools {
        let order: Vec<String> = subjects.iter().map(|one| one.protocol.clone()).collect();
        subjects.sort_by_key(|one| order.iter().position(|protocol| *protocol == one.protocol));
    }
    tools
}

fn tables(group: &Group<'_>) -> Vec<Table> {
    subjects_by_tool(group)
        .iter()
        .map(|(tool, subjects)| {
            let row = |info: &FigureInfo| -> Option<Vec<String>> {
                let cells: Vec<Vec<f64>> =
                    subjects.iter().map(|one| one.values(tool, info.name)).collect();
                cells.iter().any(|values| !values.is_empty()).then(|| {
                    let cells = cells.iter().map(|values| table::cell(values));
                    std::iter::once(with_unit(info)).chain(cells).collect()
                })
            };
            let mut head = vec![String::new()];
            head.extend(subjects.iter().map(|one| one.title.clone()));
            let rows = figures::FIGURES.iter().filter_map(row).collect();
            Table { title: tool.clone(), head, rows, text_columns: 1 }
        })
        .collect()
}

fn plots(group: &Group<'_>, palette: &Palette) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (tool, subjects) in &subjects_by_tool(group) {
        let name = |what: &str| {
            file_name(&format!("{}-{}-{tool}-{what}", group.case, group.network.label))
        };
        for info in PLOTTED.iter().filter_map(|name| figures::find(name)) {
            let bars = subjects.iter().filter_map(|one| {
                let sample = Sample::from_values(&one.values(tool, info.name))?;
                Some(Bar {
                    label: one.title.clone(),
                    value: sample.mean,
                    error: sample.half_width(),
                    paint: one.paint(palette),
                })
            });
            let bars: Vec<Bar> = bars.collect();
            if bars.len() > 1 {
                let y = if info.unit.is_empty() { info.title } else { info.unit }.to_owned();
                let title = format!("{tool}: {}", info.title);
                plots.push(Plot {
                    name: name(info.name),
                    title,
                    content: Content::Bars { bars, y },
                });
            }
        }
        for kind in SERIES {
            plots.extend(over_time(kind, tool, subjects, palette, name(kind)));
        }
        plots.extend(distribution(tool, subjects, palette, name("CDF")));
    }
    plots
}

/// A series of the first repetition of each subject over time.
fn over_time(
    kind: &str,
    tool: &str,
    subjects: &[Subject<'_>],
    palette: &Palette,
    name: String,
) -> Option<Plot> {
    let mut unit = String::new();
    let curves = subjects.iter().filter_map(|one| {
        let first = one.measurements(tool).next()?;
        let series =
            first.series.iter().find(|series| series.name == kind && series.of == first.label)?;
        unit.clone_from(&series.unit);
        Some(Curve {
            label: one.title.clone(),
            style: match kind {
                "throughput" => Style::Stairs,
                "RTT" => Style::Dots,
                _ => Style::Line,
            },
            paint: one.paint(palette),
            points: series.points.clone(),
        })
    });
    let curves: Vec<Curve> = curves.collect();
    let times = curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
    let end = times.filter(|at| at.is_finite()).fold(0.0, f64::max);
    let content = Content::Curves {
        curves,
        x: "s".into(),
        y: format!("{kind}, {unit}"),
        limit: None,
        end: (end > 0.0).then_some(end),
    };
    let title = format!("{tool}: {kind}, first repetition");
    (end > 0.0).then_some(Plot { name, title, content })
}

/// The distributions of all repetitions of each subject.
fn distribution(
    tool: &str,
    subjects: &[Subject<'_>],
    palette: &Palette,
    name: String,
) -> Option<Plot> {
    let curves = subjects.iter().filter_map(|one| {
        let distributions = one.measurements(tool).flat_map(|each| &each.distributions);
        let mut values: Vec<f64> =
            distributions.flat_map(|distribution| distribution.values.iter().copied()).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let points =
            (1..).zip(values).map(|(rank, value)| (value, f64::from(rank) / count * 100.0));
        let points: Vec<(f64, f64)> = points.collect();
        (!points.is_empty()).then(|| Curve {
            label: one.title.clone(),
            style: Style::Line,
            paint: one.paint(palette),
            points,
        })
    });
    let curves: Vec<Curve> = curves.collect();
    (!curves.is_empty()).then(|| Plot {
        name,
        title: format!("{tool}: RTT, distribution"),
        content: Content::Curves {
            curves,
            x: "RTT, ms".into(),
            y: "messages, %".into(),
            limit: None,
            end: None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(case: &str, rate: &str, label: &str, value: f64) -> RunResult {
        let measurement = |repetition: u32| {
            serde_json::json!({
                "network": 0, "protocol": "p", "label": label, "tool": "iperf",
                "repetition": repetition, "status": "passed", "reason": null,
                "figures": { "steady_mbps": value + f64::from(repetition) },
                "series": [{ "name": "throughput", "of": label, "unit": "Mbit/s",
                             "points": [[1.0, value], [2.0, value]] }],
                "distributions": [{ "name": "RTT", "unit": "ms", "values": [1.0, value] }],
                "warnings": [], "commands": [], "folder": "",
            })
        };
        let value = serde_json::json!({
            "format": crate::result::FORMAT, "started": "2026-01-01T00:00:00Z", "seconds": 1.0,
            "file": "<file>", "command": [], "versions": {}, "notes": [], "passed": true,
            "ended_early": null,
            "cases": [{
                "name": case, "description": "", "backend": "sim", "seed": 1, "passed": true,
                "allow_failure": false, "verification": [], "warnings": [], "assertions": [],
                "published": [], "measurements": [measurement(0), measurement(1)],
                "networks": [{ "name": "n", "label": "one hop", "nodes": 2, "links": [rate],
                               "loss_percent": null, "delay_ms": null }],
            }],
        });
        serde_json::from_value(value).unwrap()
    }

    fn named(runs: Vec<RunResult>) -> Vec<NamedRun> {
        runs.into_iter().enumerate().map(|(index, run)| (format!("run-{index}"), run)).collect()
    }

    #[test]
    fn runs_of_the_same_network_share_plots() {
        let runs = named(vec![
            run("c", "10M", "BRTP", 8.0),
            run("c", "10M", "BRTP", 9.0),
            run("c", "20M", "BRTP", 18.0),
        ]);
        let groups = groups(&runs);
        assert_eq!(groups.len(), 1);
        assert_eq!(missing(&groups[0], &runs).unwrap(), "not in C: another test or network");
        let plots = plots(&groups[0], &palette(&runs));
        let Some(Content::Bars { bars, .. }) = plots.first().map(|plot| &plot.content) else {
            panic!("{plots:?}")
        };
        let labels: Vec<&str> = bars.iter().map(|bar| bar.label.as_str()).collect();
        assert_eq!(labels, ["BRTP, A", "BRTP, B"]);
        assert_eq!((bars[0].value, bars[1].value), (8.5, 9.5));
        assert!(bars.iter().all(|bar| bar.error.is_some()));
        // One protocol: one colour, other patterns.
        assert_eq!(bars[0].paint.colour(), bars[1].paint.colour());
        assert_ne!(bars[0].paint, bars[1].paint);
        assert_eq!(plots.len(), 3, "bars, curves and distribution: {plots:?}");
        let page = page(&runs).unwrap();
        assert!(
            page.contains("&lt;file&gt;") && page.contains("run-1") && page.contains("BRTP, B")
        );
        assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"));
    }

    #[test]
    fn runs_without_a_common_network_are_an_error() {
        for other in [run("c", "20M", "BRTP", 1.0), run("d", "10M", "BRTP", 1.0)] {
            let error = page(&named(vec![run("c", "10M", "BRTP", 1.0), other])).unwrap_err();
            assert!(error.to_string().contains("in common"), "{error}");
        }
        let names = |count: usize| (0..count).map(|index| index.to_string()).collect::<Vec<_>>();
        assert!(check_names(&names(1)).is_err() && check_names(&names(9)).is_err());
        assert!(check_names(&names(8)).is_ok());
        let error = check_names(&["a".to_owned(), "b".to_owned(), "a".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("a is given twice"), "{error}");
    }
}
