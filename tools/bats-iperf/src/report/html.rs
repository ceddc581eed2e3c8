//! The report as a self-contained HTML page: tables, a plot, and the JSON document.

use anyhow::{Context, Result};
use minijinja::Environment;
use serde_json::{Value, json};

use crate::units;

const TEMPLATE: &str = include_str!("report.html.j2");
/// Inner size of the plot.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 240.0;
const COLOURS: [&str; 4] = ["#2563eb", "#dc2626", "#059669", "#d97706"];

/// Renders the page of a document.
///
/// # Errors
/// The template does not match the document, which is a bug.
pub(crate) fn page(document: &Value) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Chainable);
    environment.add_filter("rate", |bits: f64| units::rate(bits));
    environment.add_filter("bytes", |bytes: f64| units::bytes(bytes as u64));
    environment.add_filter("short", |value: f64| format!("{value:.1}"));
    environment.add_filter("fixed", |value: f64| format!("{value:.3}"));
    environment.add_template("report.html", TEMPLATE).context("the report template is invalid")?;
    // The data must not end the element that contains it.
    let raw = document.to_string().replace('<', "\\u003c");
    let series = series(document);
    let highest = series.iter().flat_map(|(_, points)| points).map(|(_, y)| *y).fold(1.0, f64::max);
    let longest = series.iter().flat_map(|(_, points)| points).map(|(x, _)| *x).fold(0.1, f64::max);
    let lines: Vec<Value> = series
        .iter()
        .zip(COLOURS.iter().cycle())
        .map(|((name, points), colour)| {
            let points: Vec<String> = points
                .iter()
                .map(|(x, y)| {
                    format!("{:.1},{:.1}", x / longest * WIDTH, HEIGHT - y / highest * HEIGHT)
                })
                .collect();
            json!({ "name": name, "colour": colour, "points": points.join(" ") })
        })
        .collect();
    let grid: Vec<Value> = (0..=4)
        .map(|step| {
            let fraction = f64::from(step) / 4.0;
            json!({ "y": HEIGHT - fraction * HEIGHT, "rate": highest * fraction,
                    "x": fraction * WIDTH, "time": longest * fraction })
        })
        .collect();
    environment
        .get_template("report.html")
        .and_then(|template| {
            template.render(json!({
                "report": document,
                "raw": raw,
                "pretty": format!("{document:#}"),
                "lines": lines,
                "grid": grid,
                "width": WIDTH,
                "height": HEIGHT,
            }))
        })
        .context("the report template does not match the document")
}

/// Rates over time: of the test, of its reverse direction, and of each baseline.
fn series(document: &Value) -> Vec<(String, Vec<(f64, f64)>)> {
    let points = |document: &Value, key: &str| -> Vec<(f64, f64)> {
        let intervals = document["intervals"].as_array().map(Vec::as_slice).unwrap_or_default();
        intervals
            .iter()
            .filter_map(|interval| {
                let sum = &interval[key];
                Some((sum["end"].as_f64()?, sum["bits_per_second"].as_f64()?))
            })
            .collect()
    };
    let name = document["start"]["test_start"]["protocol"].as_str().unwrap_or("OpenBATS");
    let mut series = vec![(name.to_owned(), points(document, "sum"))];
    series.push((format!("{name} reverse"), points(document, "sum_bidir_reverse")));
    for baseline in document["baselines"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let name = baseline["protocol"].as_str().unwrap_or("baseline");
        series.push((name.to_owned(), points(baseline, "sum")));
    }
    series.retain(|(_, points)| !points.is_empty());
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_self_contained_and_data_is_escaped() {
        let sum = json!({ "end": 1.0, "bits_per_second": 5e6 });
        let document = json!({
            "start": { "test_start": { "protocol": "BRTP" }, "system_info": "<b>host</b>" },
            "title": "</script><script>alert(1)</script>",
            "intervals": [{ "sum": sum }, { "sum": { "end": 2.0, "bits_per_second": 1e7 } }],
            "end": { "sum_sent": sum, "sum_received": null, "streams": [] },
        });
        let page = page(&document).unwrap();
        assert_eq!(page.matches("</script>").count(), 1, "{page}");
        assert!(!page.contains("<b>host") && page.contains("&lt;b&gt;host"), "{page}");
        assert!(page.contains("400.0,120.0 800.0,0.0"), "{page}");
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
