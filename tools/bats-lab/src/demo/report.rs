//! The report: one page that needs nothing else.

use anyhow::{Context, Result};
use minijinja::{AutoEscape, Environment, context};

use super::figures::{Figures, Run};
use crate::units::megabits;

const PAGE: &str = include_str!("report.html");
const PICTURE: &str = include_str!("picture.svg");
const CHART: &str = include_str!("chart.svg");
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 36.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 12.0;
/// Told apart by people with any colour vision (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// The page.
pub(super) fn html(figures: &Figures) -> Result<String> {
    render(figures, PAGE)
}

/// The throughputs over time, as a picture for other documents.
pub(super) fn svg(figures: &Figures) -> Result<String> {
    render(figures, PICTURE)
}

fn render(figures: &Figures, template: &str) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment
        .add_template("chart", CHART)
        .and_then(|()| environment.add_template("report", template))
        .context("the report's template is broken")?;
    let chart = Chart::new(figures);
    let runs: Vec<_> = figures
        .runs
        .iter()
        .zip(COLOURS.iter().cycle())
        .map(|(run, colour)| {
            context! { name => run.name, with => run.with, colour, points => chart.points(run) }
        })
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
    let limit = figures.limit();
    let page = environment.get_template("report")?.render(context! {
        simulated => figures.simulated,
        forward => figures.link.forward.to_string(),
        backward => figures.link.backward.to_string(),
        seconds => figures.seconds,
        head => figures.head(),
        lines,
        runs,
        file,
        versions => figures.versions,
        limit => megabits(limit),
        limit_y => number(chart.y(limit)),
        width => WIDTH, height => HEIGHT,
        left => LEFT, right => WIDTH - RIGHT, top => TOP, bottom => HEIGHT - BOTTOM,
        rows => chart.rows(), columns => chart.columns(),
    });
    page.context("the report cannot be written")
}

/// The scales of the picture.
struct Chart {
    seconds: f64,
    most: f64,
}

impl Chart {
    fn new(figures: &Figures) -> Self {
        let peaks = figures
            .runs
            .iter()
            .flat_map(|run| &run.samples)
            .map(|sample| sample.bytes * 8.0 / (sample.end - sample.start).max(1e-3));
        let most = peaks.fold(figures.limit(), f64::max).max(1e6) * 1.05;
        Self { seconds: figures.seconds.max(1) as f64, most }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self.seconds).clamp(0.0, 1.0)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (rate / self.most).clamp(0.0, 1.0)
    }

    /// A stair: each interval has its own height.
    fn points(&self, run: &Run) -> String {
        let mut points = String::new();
        for sample in &run.samples {
            let rate = sample.bytes * 8.0 / (sample.end - sample.start).max(1e-3);
            for at in [sample.start, sample.end] {
                points.push_str(&format!("{},{} ", number(self.x(at)), number(self.y(rate))));
            }
        }
        points.trim_end().to_owned()
    }

    fn rows(&self) -> Vec<minijinja::Value> {
        let step = step(self.most / 1e6, 5.0);
        let mut rows = Vec::new();
        let mut rate = 0.0;
        while rate <= self.most / 1e6 {
            rows.push(context! { y => number(self.y(rate * 1e6)), label => number(rate) });
            rate += step;
        }
        rows
    }

    fn columns(&self) -> Vec<minijinja::Value> {
        let step = step(self.seconds, 8.0).max(1.0);
        let mut columns = Vec::new();
        let mut second = 0.0;
        while second <= self.seconds {
            columns.push(context! { x => number(self.x(second)), label => number(second) });
            second += step;
        }
        columns
    }
}

/// A round step that divides `range` into about `parts`.
fn step(range: f64, parts: f64) -> f64 {
    let rough = (range / parts).max(1e-6);
    let magnitude = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= rough);
    factor.unwrap_or(10.0) * magnitude
}

fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::figures::{Processors, Sample};
    use crate::settings::Link;

    #[test]
    fn the_page_holds_all_and_needs_nothing() {
        let mut figures = Figures::new(Link::default(), 15, false);
        let samples = vec![Sample { start: 0.0, end: 1.0, bytes: 1e8 }];
        figures.runs.push(Run::new("BRTP", "bats_iperf", samples, Processors::default()));
        figures.versions.push(("kernel".to_owned(), "<script>".to_owned()));
        let page = html(&figures).unwrap();
        assert!(page.contains("BRTP") && page.contains("polyline"));
        assert!(!page.contains("<script>"), "what others say is escaped");
        assert!(!page.contains("http"), "nothing is loaded from elsewhere");
        let picture = svg(&figures).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("polyline"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step(918.0, 5.0), 200.0);
        assert_eq!(step(15.0, 8.0), 2.0);
        assert_eq!(number(200.0), "200");
    }
}
