//! Reports: a self-contained HTML page, plots, tables.

pub(crate) mod batch;
mod markdown;
pub(crate) mod palette;
pub(crate) mod plot;
pub(crate) mod plots;
mod png;
pub(crate) mod table;
pub(crate) mod text;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, Value, context};
use serde_json::json;

use crate::config::expand::file_name;
use crate::result::{CaseResult, RunResult, csv, folder};
use crate::verify::Row;
use palette::Palette;
use plot::{Content, Plot, Style, thinned};

const PAGE: &str = include_str!("page.html");
const FIGURES: &str = include_str!("figures.html");
const PLOT: &str = include_str!("plot.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Maximum number of points of a curve in the page.
const MAX_POINTS: usize = 4_000;
/// Number of plots that are expanded initially.
const EXPANDED_PLOTS: usize = 12;

/// Writes `report.html`, and the plots as SVG and PNG.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(directory: &Path, result: &RunResult) -> Result<()> {
    let palette = Palette::new(&result.cases);
    let mut all = Vec::new();
    for case in &result.cases {
        let plots = plots::plots(case, &palette);
        let pictures = directory.join(file_name(&case.name)).join("plots");
        fs::create_dir_all(&pictures)
            .with_context(|| format!("cannot create {}", pictures.display()))?;
        write_plots(&pictures, &plots)?;
        for matrix in table::matrices(case) {
            let text =
                csv::matrix("loss % \\ delay ms", &matrix.rows, &matrix.columns, &matrix.values);
            let name = file_name(&format!("matrix-{}", matrix.name));
            folder::write(
                &directory.join(file_name(&case.name)).join(format!("{name}.csv")),
                text,
            )?;
            folder::write(
                &directory.join(file_name(&case.name)).join(format!("{name}.md")),
                markdown::matrix(&matrix),
            )?;
        }
        all.push(plots);
    }
    folder::write(&directory.join("report.html"), page(result, &all)?)
}

/// Writes plots as SVG and PNG.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write_plots(pictures: &Path, plots: &[Plot]) -> Result<()> {
    for plot in plots {
        let svg = plot.svg();
        folder::write(&pictures.join(format!("{}.png", plot.name)), png::png(&svg)?)?;
        folder::write(&pictures.join(format!("{}.svg", plot.name)), svg)?;
    }
    Ok(())
}

/// An environment with this page and the parts that pages share.
fn environment(page: &'static str) -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    for (name, text) in [("page", page), ("figures", FIGURES), ("plot", PLOT)] {
        environment.add_template(name, text).context("the template of a page is invalid")?;
    }
    Ok(environment)
}

/// Renders the page.
fn page(result: &RunResult, plots: &[Vec<Plot>]) -> Result<String> {
    let environment = environment(PAGE)?;
    let mut data = Vec::new();
    let cases: Vec<Value> = result
        .cases
        .iter()
        .zip(plots)
        .map(|(case, plots)| {
            let plots = plot_contexts(plots, &mut data);
            case_context(case, plots)
        })
        .collect();
    let page = environment.get_template("page")?.render(context! {
        result => context! {
            file => result.file,
            started => result.started.chars().take(19).collect::<String>().replace('T', " "),
            seconds => format!("{:.0}", result.seconds),
            passed => result.passed,
            ended_early => result.ended_early,
            notes => result.notes,
            versions => result.versions,
            command => result.command.join(" "),
        },
        cases,
        style => Value::from_safe_string(STYLE.to_owned()),
        script => Value::from_safe_string(SCRIPT.to_owned()),
        data => script_text(&data)?,
    });
    page.context("cannot render the report")
}

/// The plots for a template. Appends their data for the script of the page.
fn plot_contexts(plots: &[Plot], data: &mut Vec<serde_json::Value>) -> Vec<Value> {
    plots
        .iter()
        .enumerate()
        .map(|(index, plot)| {
            let number = data.len();
            data.push(script_data(plot));
            context! {
                number,
                title => plot.title,
                svg => Value::from_safe_string(plot.svg()),
                open => index < EXPANDED_PLOTS,
                is_interactive => matches!(plot.content, Content::Curves { .. }),
            }
        })
        .collect()
}

/// Data as text for a script.
fn script_text(data: &[serde_json::Value]) -> Result<Value> {
    // `<` is escaped so that the data cannot end the script element.
    Ok(Value::from_safe_string(serde_json::to_string(data)?.replace('<', "\\u003c")))
}

fn case_context(case: &CaseResult, plots: Vec<Value>) -> Value {
    let without: Vec<Value> = table::without_figures(case)
        .into_iter()
        .map(|one| context! { failed => one.failed, what => one.what, why => one.why })
        .collect();
    let assertions: Vec<Value> = case
        .assertions
        .iter()
        .map(|one| {
            let class = match one.holds {
                Some(true) => "good",
                Some(false) => "bad",
                None => "",
            };
            let word = text::assertion_verdict(one.holds);
            context! { asked => one.asked, measured => one.measured, class, word }
        })
        .collect();
    let mut commands: Vec<&String> =
        case.measurements.iter().flat_map(|one| &one.commands).collect();
    commands.dedup();
    let mut published: Vec<String> = Vec::new();
    for one in &case.published {
        let source = format!("{}: {}", one.label, one.source);
        if !published.contains(&source) {
            published.push(source);
        }
    }
    context! {
        name => case.name,
        description => case.description,
        backend => case.backend,
        seed => case.seed,
        class => text::class(case),
        verdict => text::verdict(case),
        host_overload => text::host_overload(case),
        host_load => text::host_load(case),
        networks => case.networks,
        assertions,
        published,
        tables => table::tables(case),
        verification => verification(case),
        without,
        warnings => text::notes(case),
        plots,
        commands => commands.into_iter().take(60).collect::<Vec<_>>(),
    }
}

/// The verification of the emulator, grouped by path.
fn verification(case: &CaseResult) -> Vec<Value> {
    let of = |row: &Row| row.over.clone().unwrap_or_else(|| "the first network".to_owned());
    case.verification
        .chunk_by(|a, b| a.over == b.over)
        .map(|rows| context! { over => rows.first().map(of), rows => rows })
        .collect()
}

/// The data of a plot for the script of the page.
fn script_data(plot: &Plot) -> serde_json::Value {
    let Content::Curves { curves, limit, end, .. } = &plot.content else { return json!(null) };
    let scale = plot::Scale::for_curves(curves, *limit, *end);
    let curves: Vec<_> = curves
        .iter()
        .map(|curve| {
            let points: Vec<[f64; 2]> = thinned(&curve.points, MAX_POINTS)
                .into_iter()
                .filter(|point| point.0.is_finite() && point.1.is_finite())
                .map(|(x, y)| [(x * 1e4).round() / 1e4, (y * 1e4).round() / 1e4])
                .collect();
            json!({ "label": curve.label, "stairs": curve.style == Style::Stairs, "points": points })
        })
        .collect();
    json!({
        "curves": curves, "limit": limit,
        "x": [scale.min_x, scale.max_x], "y": scale.max_y,
        "box": [plot::LEFT, plot::TOP, plot::WIDTH - plot::RIGHT, plot::HEIGHT - plot::BOTTOM],
    })
}
