//! Tables as CSV (RFC 4180).

use std::fmt::Write as _;

use super::series::{Distribution, Series};
use super::{CaseResult, Status, figures};

/// A CSV field, quoted if necessary.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A series as CSV: time in seconds and value.
pub(crate) fn series(series: &Series) -> String {
    let mut text = format!("seconds,{}\r\n", field(&format!("{} ({})", series.name, series.unit)));
    for (at, value) in &series.points {
        let _ = write!(text, "{at},{value}\r\n");
    }
    text
}

/// A distribution as CSV: value and fraction of values up to it.
pub(crate) fn distribution(distribution: &Distribution) -> String {
    let name = field(&format!("{} ({})", distribution.name, distribution.unit));
    let mut text = format!("{name},share\r\n");
    let count = distribution.values.len().max(1) as f64;
    for (index, value) in distribution.values.iter().enumerate() {
        let _ = write!(text, "{value},{}\r\n", (index + 1) as f64 / count);
    }
    text
}

/// A test as CSV: a line for each measurement, and one for each competing flow, which is named in
/// the column `flow`.
pub(crate) fn case(case: &CaseResult) -> String {
    let used: Vec<&figures::FigureInfo> = figures::FIGURES
        .iter()
        .filter(|info| {
            case.measurements.iter().any(|one| {
                let others = one.flows.iter().map(|flow| &flow.figures);
                others.chain([&one.figures]).any(|figures| figures.contains_key(info.name))
            })
        })
        .collect();
    let mut text = String::from(
        "topology,network,loss_percent,delay_ms,protocol,label,tool,flow,repetition,status",
    );
    for info in &used {
        let _ = write!(text, ",{}", info.name);
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
                field(&network.label),
                number(network.loss_percent),
                number(network.delay_ms),
                field(&one.protocol),
                field(&one.label),
                field(&one.tool),
                field(flow),
                one.repetition
            );
            for info in &used {
                let _ = write!(text, ",{}", number(values.get(info.name).copied()));
            }
            text.push_str("\r\n");
        }
    }
    text
}

/// The matrix of a figure as CSV: rows loss, columns delay, as `throughput_latency_loss.csv` of
/// Oasis.
pub(crate) fn matrix(
    head: &str,
    rows: &[f64],
    columns: &[f64],
    values: &[Vec<Option<f64>>],
) -> String {
    let mut text = field(head);
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
    fn fields_are_quoted_if_necessary() {
        assert_eq!(field("a b"), "a b");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        let points = vec![(0.5, 1.0)];
        let one = Series { name: "x".into(), of: "f".into(), unit: "ms".into(), points };
        assert_eq!(series(&one), "seconds,x (ms)\r\n0.5,1\r\n");
        let matrix = matrix("m", &[0.0], &[10.0, 20.0], &[vec![Some(1.0), None]]);
        assert_eq!(matrix, "m,10,20\r\n0,1.000,\r\n");
    }
}
