//! The report of a sweep: one self-contained HTML page.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use minijinja::Environment;
use serde_json::{Value, json};

use super::options::SweepOptions;
use super::published;
use super::results::{Latency, Results};

const TEMPLATE: &str = include_str!("report.html.j2");
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 300.0;
const COLOURS: [&str; 8] =
    ["#2563eb", "#059669", "#7c3aed", "#d97706", "#0891b2", "#dc2626", "#6b7280", "#a3a3a3"];

/// A line of a plot: its series, whether it is dashed, and its points by size.
struct Line {
    series: String,
    is_dashed: bool,
    points: Vec<(usize, f64)>,
}

/// The page of a sweep.
///
/// # Errors
/// The template does not match the results, which is a bug.
pub(super) fn page(options: &SweepOptions, own: &Results, failures: &[String]) -> Result<String> {
    let mut all = own.clone();
    let published = published::results();
    all.throughput.extend(published.throughput);
    all.latency.extend(published.latency);

    let throughput = all.throughput.iter().map(|(series, figures)| Line {
        series: series.clone(),
        is_dashed: false,
        points: figures.iter().map(|(&size, figures)| (size, figures.mbps)).collect(),
    });
    let latency = all.latency.iter().flat_map(|(series, figures)| {
        let line = |is_dashed, value: fn(&Latency) -> f64| Line {
            series: series.clone(),
            is_dashed,
            points: figures.iter().map(|(&size, figures)| (size, value(figures))).collect(),
        };
        [line(false, Latency::median), line(true, Latency::min), line(true, Latency::p90)]
    });
    let plots = [
        plot("Throughput by sample size", "Mbit/s", throughput.collect()),
        plot("One-way latency: median (solid), minimum and 90 % (dashed)", "μs", latency.collect()),
    ];
    let data = json!({
        "seconds": options.seconds,
        "failures": failures,
        "plots": plots,
        "throughput": throughput_rows(&all),
        "latency": latency_rows(&all),
    });
    let mut environment = Environment::new();
    environment.add_filter("fixed", |value: f64, digits: usize| format!("{value:.digits$}"));
    environment.add_template("report.html", TEMPLATE).context("the report template is invalid")?;
    environment
        .get_template("report.html")
        .and_then(|template| template.render(&data))
        .context("the report template does not match the results")
}

fn throughput_rows(all: &Results) -> Vec<Value> {
    let mut rows = Vec::new();
    for (series, figures) in &all.throughput {
        for (size, figures) in figures {
            rows.push(json!({
                "series": series,
                "size": size,
                "samples": figures.samples,
                "rate": figures.rate,
                "mbps": figures.mbps,
                "lost": figures.lost,
                "lost_percent": figures.lost_percent,
            }));
        }
    }
    rows
}

fn latency_rows(all: &Results) -> Vec<Value> {
    let mut rows = Vec::new();
    for (series, figures) in &all.latency {
        for (size, figures) in figures {
            rows.push(json!({ "series": series, "size": size, "figures": figures.0 }));
        }
    }
    rows
}

/// A plot with logarithmic sizes.
fn plot(title: &str, unit: &str, lines: Vec<Line>) -> Value {
    let points = || lines.iter().flat_map(|line| &line.points);
    let highest = points().map(|(_, value)| *value).fold(1.0, f64::max);
    let sizes: Vec<usize> = {
        let mut sizes: Vec<usize> = points().map(|(size, _)| *size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let log = |size: usize| (size.max(1) as f64).log2();
    let (first, last) = match (sizes.first(), sizes.last()) {
        (Some(&first), Some(&last)) if last > first => (log(first), log(last)),
        _ => (0.0, 16.0),
    };
    let x = |size: usize| (log(size) - first) / (last - first) * WIDTH;
    let y = |value: f64| HEIGHT - value / highest * HEIGHT;
    let mut colours: BTreeMap<&str, &str> = BTreeMap::new();
    for line in &lines {
        let next = COLOURS[colours.len() % COLOURS.len()];
        colours.entry(&line.series).or_insert(next);
    }
    let drawn: Vec<Value> = lines
        .iter()
        .map(|line| {
            let points: Vec<String> = line
                .points
                .iter()
                .map(|&(size, value)| format!("{:.1},{:.1}", x(size), y(value)))
                .collect();
            json!({
                "colour": colours.get(line.series.as_str()),
                "dashed": line.is_dashed,
                "points": points.join(" "),
            })
        })
        .collect();
    let legend: Vec<Value> =
        colours.iter().map(|(name, colour)| json!({ "name": name, "colour": colour })).collect();
    let grid: Vec<Value> = (0..=4)
        .map(|step| highest * f64::from(step) / 4.0)
        .map(|value| json!({ "y": y(value), "value": value }))
        .collect();
    let ticks: Vec<Value> =
        sizes.iter().map(|&size| json!({ "x": x(size), "size": size })).collect();
    json!({
        "title": title,
        "unit": unit,
        "lines": drawn,
        "legend": legend,
        "grid": grid,
        "ticks": ticks,
        "width": WIDTH,
        "height": HEIGHT,
    })
}

#[cfg(test)]
mod tests {
    use super::super::options::parse;
    use super::super::results::Throughput;
    use super::*;

    #[test]
    fn the_page_is_self_contained_and_has_own_and_published_figures() {
        let options = parse(&[]).unwrap().unwrap();
        let mut results = Results::default();
        let figures =
            Throughput { samples: 1.0, rate: 2.0, mbps: 123.4, lost: 0.0, lost_percent: 0.0 };
        results.throughput.insert("<b>".into(), [(64, figures)].into());
        let page = page(&options, &results, &["</script> failed".into()]).unwrap();
        assert!(page.contains("123.4") && page.contains("869.2") && page.contains("2259406"));
        assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"));
        assert!(!page.contains("</script> failed"));
        assert_eq!(page.matches("<svg").count(), 2);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn published_figures_are_complete() {
        let published = published::results();
        for series in [published::DDS, published::UDP] {
            assert_eq!(published.throughput[series].len(), 9);
            assert_eq!(published.latency[series].len(), 9);
        }
        assert_eq!(published.latency[published::DDS][&8_192].median(), 351.0);
        assert_eq!(published.throughput[published::UDP][&64].lost_percent, 8.07);
    }
}
