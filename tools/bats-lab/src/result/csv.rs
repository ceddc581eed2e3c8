//! Tables as CSV (RFC 4180).

use std::fmt::Write as _;

use super::{CaseResult, Distribution, Series, Status, figures};

/// A cell, in quotes where it needs them.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A series: seconds and value.
pub(crate) fn series(series: &Series) -> String {
    let mut text = format!("seconds,{}\r\n", cell(&format!("{} ({})", series.name, series.unit)));
    for (at, value) in &series.points {
        let _ = write!(text, "{at},{value}\r\n");
    }
    text
}

/// A distribution: value and share of values that are not above it.
pub(crate) fn distribution(distribution: &Distribution) -> String {
    let name = cell(&format!("{} ({})", distribution.name, distribution.unit));
    let mut text = format!("{name},share\r\n");
    let count = distribution.values.len().max(1) as f64;
    for (index, value) in distribution.values.iter().enumerate() {
        let _ = write!(text, "{value},{}\r\n", (index + 1) as f64 / count);
    }
    text
}

/// A test: a line for each measurement, and one for each flow beside it, which has a name in `flow`.
pub(crate) fn case(case: &CaseResult) -> String {
    let used: Vec<&figures::Known> = figures::KNOWN
        .iter()
        .filter(|known| {
            case.measurements.iter().any(|one| {
                let others = one.flows.iter().map(|flow| &flow.figures);
                others.chain([&one.figures]).any(|figures| figures.contains_key(known.name))
            })
        })
        .collect();
    let mut text = String::from(
        "topology,network,loss_percent,delay_ms,protocol,label,tool,flow,repetition,status",
    );
    for known in &used {
        let _ = write!(text, ",{}", known.name);
    }
    text.push_str("\r\n");
    for one in &case.measurements {
        let Some(network) = case.networks.get(one.network) else { continue };
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let status = match one.status {
            Status::Passed => "passed",
            Status::Failed => "failed",
            Status::Unsupported => "unsupported",
        };
        let main = ("", &one.figures);
        let others = one.flows.iter().map(|flow| (flow.label.as_str(), &flow.figures));
        for (flow, values) in std::iter::once(main).chain(others) {
            let _ = write!(
                text,
                "{},{},{},{},{},{},{},{},{},{status}",
                one.network,
                cell(&network.label),
                number(network.loss_percent),
                number(network.delay_ms),
                cell(&one.protocol),
                cell(&one.label),
                cell(&one.tool),
                cell(flow),
                one.repetition
            );
            for known in &used {
                let _ = write!(text, ",{}", number(values.get(known.name).copied()));
            }
            text.push_str("\r\n");
        }
    }
    text
}

/// The matrix of a figure: rows loss, columns delay, as Oasis's `throughput_latency_loss.csv`.
pub(crate) fn matrix(
    head: &str,
    rows: &[f64],
    columns: &[f64],
    values: &[Vec<Option<f64>>],
) -> String {
    let mut text = cell(head);
    for column in columns {
        let _ = write!(text, ",{column}");
    }
    text.push_str("\r\n");
    for (row, values) in rows.iter().zip(values) {
        let _ = write!(text, "{row}");
        for value in values {
            let _ = write!(text, ",{}", value.map_or(String::new(), |value| format!("{value:.3}")));
        }
        text.push_str("\r\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must() {
        assert_eq!(cell("a b"), "a b");
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
        let points = vec![(0.5, 1.0)];
        let one = Series { name: "x".into(), of: "f".into(), unit: "ms".into(), points };
        assert_eq!(series(&one), "seconds,x (ms)\r\n0.5,1\r\n");
        let matrix = matrix("m", &[0.0], &[10.0, 20.0], &[vec![Some(1.0), None]]);
        assert_eq!(matrix, "m,10,20\r\n0,1.000,\r\n");
    }
}
