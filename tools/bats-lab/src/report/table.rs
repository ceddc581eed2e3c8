//! Tables of a test: measured values, bounds and published figures.

use std::collections::BTreeMap;

use crate::result::figures::{self, FigureInfo};
use crate::result::flow_result::FlowResult;
use crate::result::statistics::Sample;
use crate::result::{CaseResult, Status};

/// A table of text.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Number of text columns at the left.
    pub(crate) text_columns: usize,
}

/// A matrix over loss and delay, for one protocol, tool and figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) title: String,
    /// Label of the protocol.
    pub(crate) label: String,
    /// Name for files.
    pub(crate) name: String,
    pub(crate) unit: String,
    /// Losses in percent.
    pub(crate) rows: Vec<f64>,
    /// One-way delays in ms.
    pub(crate) columns: Vec<f64>,
    pub(crate) values: Vec<Vec<Option<f64>>>,
}

/// Figures that are shown as matrices.
const MATRIX_FIGURES: [&str; 5] =
    ["first_10s_mbps", "steady_mbps", "efficiency", "rtt_p50_ms", "first_rtt_ms"];

/// Formats a number with three to four significant digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if size >= 1000.0 {
        format!("{value:.0}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// The values of a figure in all repetitions.
pub(crate) fn values(
    case: &CaseResult,
    network: usize,
    protocol: &str,
    tool: &str,
    figure: &str,
) -> Vec<f64> {
    case.measurements
        .iter()
        .filter(|one| one.network == network && one.protocol == protocol && one.tool == tool)
        .filter(|one| one.status == Status::Passed)
        .filter_map(|one| one.figures.get(figure).copied())
        .collect()
}

/// The competing flows of a protocol, in order of repetitions.
fn flows<'a>(
    case: &'a CaseResult,
    network: usize,
    protocol: &'a str,
    tool: &'a str,
) -> impl Iterator<Item = &'a FlowResult> {
    case.measurements
        .iter()
        .filter(move |one| one.network == network && one.protocol == protocol && one.tool == tool)
        .filter(|one| one.status == Status::Passed)
        .flat_map(|one| &one.flows)
}

/// The labels of the competing flows, without duplicates.
pub(crate) fn flow_names(
    case: &CaseResult,
    network: usize,
    protocol: &str,
    tool: &str,
) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for flow in flows(case, network, protocol, tool) {
        if !names.contains(&flow.label) {
            names.push(flow.label.clone());
        }
    }
    names
}

/// The values of a figure of one competing flow in all repetitions.
pub(crate) fn flow_values(
    case: &CaseResult,
    network: usize,
    protocol: &str,
    tool: &str,
    flow: &str,
    figure: &str,
) -> Vec<f64> {
    flows(case, network, protocol, tool)
        .filter(|one| one.label == flow)
        .filter_map(|one| one.figures.get(figure).copied())
        .collect()
}

/// The measured protocols (name and label) and tools, in order.
pub(crate) fn subjects(case: &CaseResult) -> Vec<(String, String, String)> {
    let mut subjects: Vec<(String, String, String)> = Vec::new();
    for one in case.measurements.iter().filter(|one| one.status == Status::Passed) {
        let subject = (one.protocol.clone(), one.label.clone(), one.tool.clone());
        if !subjects.contains(&subject) {
            subjects.push(subject);
        }
    }
    subjects
}

/// Whether the networks of the test form a matrix of losses and delays.
pub(crate) fn is_matrix(case: &CaseResult) -> bool {
    case.networks.len() > 1
        && case.networks.iter().all(|one| one.loss_percent.is_some() && one.delay_ms.is_some())
}

/// The axes of a matrix.
fn axes(case: &CaseResult) -> (Vec<f64>, Vec<f64>) {
    let sorted = |value: &dyn Fn(usize) -> Option<f64>| {
        let mut all: Vec<f64> = (0..case.networks.len()).filter_map(value).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    };
    (
        sorted(&|index| case.networks[index].loss_percent),
        sorted(&|index| case.networks[index].delay_ms),
    )
}

/// All matrices of a test, measured and published.
pub(crate) fn matrices(case: &CaseResult) -> Vec<Matrix> {
    if !is_matrix(case) {
        return Vec::new();
    }
    let (rows, columns) = axes(case);
    let fill = |of: &dyn Fn(usize) -> Option<f64>| -> Vec<Vec<Option<f64>>> {
        let at = |loss: f64, delay: f64| {
            case.networks
                .iter()
                .position(|one| one.loss_percent == Some(loss) && one.delay_ms == Some(delay))
                .and_then(of)
        };
        rows.iter().map(|&loss| columns.iter().map(|&delay| at(loss, delay)).collect()).collect()
    };
    let mut matrices = Vec::new();
    let make = |[title, label, name]: [String; 3],
                info: &FigureInfo,
                values: Vec<Vec<Option<f64>>>| Matrix {
        title,
        label,
        name,
        unit: info.unit.to_owned(),
        rows: rows.clone(),
        columns: columns.clone(),
        values,
    };
    for (protocol, label, tool) in subjects(case) {
        for info in MATRIX_FIGURES.iter().filter_map(|name| figures::find(name)) {
            let values = fill(&|network| {
                Sample::from_values(&values(case, network, &protocol, &tool, info.name))
                    .map(|sample| sample.mean)
            });
            if values.iter().flatten().any(Option::is_some) {
                let title = format!("{label}, {tool}: {}", with_unit(info));
                let name = format!("{protocol}-{tool}-{}", info.name);
                matrices.push(make([title, label.clone(), name], info, values));
            }
        }
    }
    for published in &case.published {
        let Some(info) = figures::find(&published.figure) else { continue };
        let values = fill(&|network| published.values.get(network).copied().flatten());
        let title = format!("{} ({}): {}", published.label, published.source, with_unit(info));
        let name = format!("published-{}", published.label);
        matrices.push(make([title, published.label.clone(), name], info, values));
    }
    matrices
}

/// A figure's title with its unit.
pub(crate) fn with_unit(info: &FigureInfo) -> String {
    if info.unit.is_empty() {
        info.title.to_owned()
    } else {
        format!("{}, {}", info.title, info.unit)
    }
}

/// Measurements without figures that share a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WithoutFigures {
    pub(crate) failed: bool,
    pub(crate) what: String,
    pub(crate) why: String,
}

/// Measurements without figures; tools with the same protocol and reason are grouped.
pub(crate) fn without_figures(case: &CaseResult) -> Vec<WithoutFigures> {
    type Key<'a> = (Status, &'a str, &'a str, usize);
    let mut groups: Vec<(Key<'_>, Vec<&str>)> = Vec::new();
    for one in case.measurements.iter().filter(|one| one.status != Status::Passed) {
        let why = one.reason.as_deref().unwrap_or_default();
        let key = (one.status, one.label.as_str(), why, one.network);
        match groups.iter_mut().find(|group| group.0 == key) {
            Some((_, tools)) if tools.contains(&one.tool.as_str()) => {}
            Some((_, tools)) => tools.push(&one.tool),
            None => groups.push((key, vec![&one.tool])),
        }
    }
    // List a reason that applies to all networks only once.
    let mut all: Vec<WithoutFigures> = Vec::new();
    let several = case.networks.len() > 1;
    for ((status, label, why, network), tools) in groups {
        let everywhere = status == Status::Unsupported;
        let place =
            if several && !everywhere { format!(", topology-{network}") } else { String::new() };
        let what = format!("{label} {}{place}", tools.join(", "));
        let one = WithoutFigures { failed: status == Status::Failed, what, why: why.to_owned() };
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// The tables of a test.
pub(crate) fn tables(case: &CaseResult) -> Vec<Table> {
    if is_matrix(case) {
        return matrices(case).iter().map(matrix_table).collect();
    }
    let mut tables = Vec::new();
    for (index, network) in case.networks.iter().enumerate() {
        let mut tools: Vec<String> = subjects(case).into_iter().map(|subject| subject.2).collect();
        tools.sort();
        tools.dedup();
        for tool in tools {
            tables.extend(tool_table(case, index, &network.label, &tool));
        }
    }
    tables
}

fn matrix_table(matrix: &Matrix) -> Table {
    let mut head = vec!["loss \\ one-way delay".to_owned()];
    head.extend(matrix.columns.iter().map(|delay| format!("{delay} ms")));
    let rows = matrix.rows.iter().zip(&matrix.values).map(|(loss, values)| {
        let cells = values.iter().map(|value| value.map_or("-".to_owned(), number));
        std::iter::once(format!("{loss} %")).chain(cells).collect()
    });
    Table { title: matrix.title.clone(), head, rows: rows.collect(), text_columns: 1 }
}

/// A column of a table: the values of each figure in all repetitions.
struct Column {
    head: String,
    values: BTreeMap<&'static str, Vec<f64>>,
}

/// The columns of a protocol: its own, and one for each competing flow.
fn columns(
    case: &CaseResult,
    network: usize,
    protocol: &str,
    label: &str,
    tool: &str,
) -> Vec<Column> {
    let of = |head: String, values: &dyn Fn(&str) -> Vec<f64>| {
        let values = figures::FIGURES.iter().map(|info| (info.name, values(info.name)));
        Column { head, values: values.filter(|(_, values)| !values.is_empty()).collect() }
    };
    let mut columns =
        vec![of(label.to_owned(), &|figure| values(case, network, protocol, tool, figure))];
    for name in flow_names(case, network, protocol, tool) {
        columns.push(of(format!("{name}, competing with {label}"), &|figure| {
            flow_values(case, network, protocol, tool, &name, figure)
        }));
    }
    columns
}

/// A table of one tool: a column for each protocol and competing flow, then for published figures;
/// a row for each figure.
fn tool_table(case: &CaseResult, network: usize, label: &str, tool: &str) -> Option<Table> {
    let columns: Vec<Column> = subjects(case)
        .into_iter()
        .filter(|subject| subject.2 == tool)
        .flat_map(|(protocol, label, _)| columns(case, network, &protocol, &label, tool))
        .collect();
    let used: Vec<&FigureInfo> = figures::FIGURES
        .iter()
        .filter(|info| columns.iter().any(|column| column.values.contains_key(info.name)))
        .collect();
    if used.is_empty() {
        return None;
    }
    let mut head = vec![String::new()];
    head.extend(columns.iter().map(|column| column.head.clone()));
    let mut rows: Vec<Vec<String>> = used
        .iter()
        .map(|info| {
            let of = |column: &Column| {
                cell(column.values.get(info.name).map(Vec::as_slice).unwrap_or_default())
            };
            std::iter::once(with_unit(info)).chain(columns.iter().map(of)).collect()
        })
        .collect();
    // Published percentiles are not comparable with the first message of a connection.
    let is_first = used.iter().any(|info| info.name == "first_rtt_ms");
    for published in &case.published {
        if is_first && published.figure != "first_rtt_ms" {
            continue;
        }
        let Some(value) = published.values.get(network).copied().flatten() else { continue };
        let Some(row) = used.iter().position(|info| info.name == published.figure) else {
            continue;
        };
        let name = format!("{} ({})", published.label, published.source);
        let column = head.iter().position(|cell| *cell == name).unwrap_or_else(|| {
            head.push(name);
            rows.iter_mut().for_each(|row| row.push("-".to_owned()));
            head.len() - 1
        });
        rows[row][column] = number(value);
    }
    Some(Table { title: format!("{tool}: {label}"), head, rows, text_columns: 1 })
}

/// The mean and half the width of its 95 % confidence interval.
pub(crate) fn cell(values: &[f64]) -> String {
    match Sample::from_values(values) {
        None => "-".to_owned(),
        Some(sample) => match sample.half_width() {
            Some(width) => format!("{} ±{}", number(sample.mean), number(width)),
            None => number(sample.mean),
        },
    }
}
