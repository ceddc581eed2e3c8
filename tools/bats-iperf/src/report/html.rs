//! The report as a self-contained HTML page: tables, a plot, and the JSON document.

use anyhow::{Context, Result};
use minijinja::Environment;
use serde_json::{Value, json};

use crate::units;

const TEMPLATE: &str = include_str!("report.html.j2");
/// Inner size of the plot: narrow, so that its text can be read on a page of 390 pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
/// Space for the labels of the y axis, which are at most as long as "1000.0".
const LEFT: f64 = 70.0;
/// Height of a line of the legend below the plot.
const LEGEND_LINE: f64 = 22.0;
/// Of the palette of Okabe and Ito, distinguishable with any colour vision, on white and on black.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#cc79a7", "#56b4e9"];
/// Line patterns, so that colours are not needed to distinguish curves.
const DASHES: [&str; 4] = ["none", "8 4", "3 3", "10 3 3 3"];

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
    let (unit, scale) = axis_unit(highest);
    let step = round_step(highest / scale / 5.0);
    let steps = (highest / scale / step - 1e-9).ceil().max(1.0);
    // The axis ends at a round number.
    let highest = steps * step * scale;
    let longest = series.iter().flat_map(|(_, points)| points).map(|(x, _)| *x).fold(0.1, f64::max);
    let lines: Vec<Value> = series
        .iter()
        .zip(COLOURS.iter().zip(DASHES).cycle())
        .zip(0_u32..)
        .map(|(((name, points), (colour, dash)), index)| {
            let points: Vec<String> = points
                .iter()
                .map(|(x, y)| {
                    format!("{:.1},{:.1}", x / longest * WIDTH, HEIGHT - y / highest * HEIGHT)
                })
                .collect();
            json!({
                "name": name, "colour": colour, "dash": dash, "points": points.join(" "),
                "y": HEIGHT + 46.0 + LEGEND_LINE * f64::from(index),
            })
        })
        .collect();
    let digits = if step < 1.0 { 1 } else { 0 };
    let grid: Vec<Value> = (0..=steps as u32)
        .map(|index| {
            let rate = f64::from(index) * step;
            json!({ "y": HEIGHT - rate * scale / highest * HEIGHT, "rate": format!("{rate:.digits$}") })
        })
        .collect();
    let times: Vec<Value> = (0..=4)
        .map(|index| {
            let fraction = f64::from(index) / 4.0;
            json!({ "x": fraction * WIDTH, "time": longest * fraction })
        })
        .collect();
    let below = 40.0 + LEGEND_LINE * lines.len() as f64;
    environment
        .get_template("report.html")
        .and_then(|template| {
            template.render(json!({
                "report": document,
                "raw": raw,
                "pretty": format!("{document:#}"),
                "lines": lines,
                "grid": grid,
                "times": times,
                "unit": unit,
                "left": LEFT,
                "below": below,
                "width": WIDTH,
                "height": HEIGHT,
            }))
        })
        .context("the report template does not match the document")
}

/// Points at the ends of intervals without a last one that is shorter than the one before: only
/// what drained from queues arrived in it.
fn without_partial_interval(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let start = points.len().checked_sub(3).map_or(0.0, |before| points[before].0);
    if let Some([before, last]) = points.last_chunk::<2>()
        && last.0 - before.0 < 0.9 * (before.0 - start)
    {
        points.pop();
    }
    points
}

/// The unit in which a rate has at most four digits, and its size in bit/s.
fn axis_unit(bits_per_second: f64) -> (&'static str, f64) {
    const UNITS: [(&str, f64); 4] =
        [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)];
    UNITS.into_iter().find(|(_, size)| bits_per_second >= *size).unwrap_or(("bit/s", 1.0))
}

/// The next number of the series 1, 2, 5, 10, ... that is not less, at least 0.1.
fn round_step(least: f64) -> f64 {
    let magnitude = 10_f64.powf(least.max(0.1).log10().floor());
    let factor =
        [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * magnitude
}

/// Rates over time: of the test, of its reverse direction, and of each baseline.
fn series(document: &Value) -> Vec<(String, Vec<(f64, f64)>)> {
    let points = |document: &Value, key: &str| -> Vec<(f64, f64)> {
        let intervals = document["intervals"].as_array().map(Vec::as_slice).unwrap_or_default();
        let points = intervals
            .iter()
            .filter_map(|interval| {
                let sum = &interval[key];
                Some((sum["end"].as_f64()?, sum["bits_per_second"].as_f64()?))
            })
            .collect();
        without_partial_interval(points)
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
        assert!(page.contains("280.0,120.0 560.0,0.0"), "{page}");
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_last_part_of_an_interval_is_not_drawn() {
        let kept = |ends: &[f64]| {
            without_partial_interval(ends.iter().map(|&end| (end, 1.0)).collect()).len()
        };
        assert_eq!((kept(&[1.0, 2.0, 2.1]), kept(&[1.0, 1.2]), kept(&[1.0, 2.0, 2.98])), (2, 1, 3));
        assert_eq!((kept(&[0.3]), kept(&[])), (1, 0));
    }

    #[test]
    fn labels_of_the_rate_fit_into_the_margin() {
        // Letters of narrow pages are up to 10 units wide.
        let most = (LEFT - 26.0) / 10.0;
        for rate in [1.0, 999.0, 1e3, 9.99e5, 1.2e6, 48.7e6, 101e6, 999e6, 1e9, 37.2e9, 1e12] {
            let document = json!({
                "start": { "test_start": { "protocol": "BRTP" } },
                "intervals": [{ "sum": { "end": 1.0, "bits_per_second": rate } }],
                "end": { "streams": [] },
            });
            let page = page(&document).unwrap();
            let labels = page.split("class=\"rate\">").skip(1);
            let labels: Vec<&str> = labels.map(|rest| rest.split('<').next().unwrap()).collect();
            assert!((2..=7).contains(&labels.len()), "{rate}: {labels:?}");
            // A rate of 1 Tbit/s and more has no unit of its own.
            let most = if rate < 1e12 { most } else { most + 1.0 };
            for label in labels {
                assert!(label.len() as f64 <= most, "{rate}: {label}");
            }
        }
    }

    #[test]
    fn tables_name_their_columns_in_each_cell() {
        let sum = json!({ "end": 1.0, "bits_per_second": 5e6, "bytes": 1 });
        let stream = json!({ "socket": 1, "sender": sum, "receiver": sum });
        let document = json!({
            "start": { "test_start": { "protocol": "BRTP" } },
            "intervals": [],
            "end": { "sum_sent": sum, "sum_received": sum, "streams": [stream] },
        });
        let page = page(&document).unwrap();
        // Narrow screens show rows as lists.
        let cells = page.matches("<td").count();
        assert!(cells >= 17 && page.matches("<td data-head=").count() == cells, "{page}");
    }
}
