//! The report: a self-contained HTML page.

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, context};

use super::figures::{Figures, Protocol};
use crate::report::palette::{COLOURS, Paint};
use crate::report::plot::{Content, Curve, Plot, Style};
use crate::units::megabits;

const PAGE: &str = include_str!("report.html");

/// Renders the page.
pub(super) fn html(figures: &Figures) -> Result<String> {
    render(figures, PAGE)
}

/// The throughput plot as SVG for other documents.
pub(super) fn svg(figures: &Figures) -> String {
    picture(figures).svg()
}

fn picture(figures: &Figures) -> Plot {
    let curves = (0..).zip(figures.protocols()).map(|(index, one)| curve(index, &one)).collect();
    Plot {
        name: "throughput".to_owned(),
        title: "Throughput over time".to_owned(),
        content: Content::Curves {
            curves,
            x: "s".to_owned(),
            y: "Mbit/s".to_owned(),
            limit: (figures.limit() > 0.0).then(|| figures.limit() / 1e6),
            end: None,
        },
    }
}

/// A step curve with a constant height for each interval.
fn curve(index: usize, protocol: &Protocol<'_>) -> Curve {
    let points = protocol.rates().into_iter().map(|(end, rate)| (end, rate / 1e6)).collect();
    let (style, paint) = (Style::Stairs, Paint::new(index, 0));
    Curve { label: protocol.name.to_owned(), style, paint, points }
}

fn render(figures: &Figures, template: &str) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment
        .add_template("report", template)
        .context("the template of the report is invalid")?;
    let protocols: Vec<_> = figures
        .protocols()
        .iter()
        .zip(COLOURS.iter().cycle())
        .map(|(one, colour)| context! { name => one.name, with => one.with, colour })
        .collect();
    let lines: Vec<Vec<String>> =
        figures.lines().into_iter().map(|line| line.cells.to_vec()).collect();
    let file = figures.file.map(|file| {
        context! {
            mib => file.bytes >> 20,
            seconds => format!("{:.2}", file.seconds),
            rate => megabits(file.bits_per_second()),
        }
    });
    let page = environment.get_template("report")?.render(context! {
        simulated => figures.simulated,
        forward => figures.link.forward.to_string(),
        backward => figures.link.backward.to_string(),
        seconds => figures.seconds,
        head => figures.head(),
        lines,
        protocols,
        rounds => figures.rounds(),
        file,
        versions => figures.versions,
        limit => megabits(figures.limit()),
        picture => minijinja::Value::from_safe_string(svg(figures)),
    });
    page.context("cannot render the report")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::figures::{CpuSeconds, Run, Sample};
    use crate::settings::Link;

    #[test]
    fn page_is_complete_self_contained_and_escaped() {
        let mut figures = Figures::new(Link::default(), 15, false);
        let samples = vec![Sample { start: 0.0, end: 1.0, bytes: 1e8 }];
        figures.runs.push(Run::new("BRTP", "bats_iperf", samples, CpuSeconds::default()));
        figures.versions.push(("kernel".to_owned(), "<script>".to_owned()));
        let page = html(&figures).unwrap();
        assert!(page.contains("BRTP") && page.contains("polyline"));
        assert!(!page.contains("<script>"), "external text is escaped");
        assert!(!page.contains("Median"), "there is one run");
        figures.runs.push(figures.runs[0].clone());
        assert!(html(&figures).unwrap().contains("Median (minimum..maximum) of 2 runs"));
        assert!(
            !page.replace("http://www.w3.org/2000/svg", "").contains("http"),
            "the page loads external resources"
        );
        let picture = svg(&figures);
        assert!(picture.starts_with("<svg") && picture.contains("polyline"));
    }
}
