//! Text summary of a run for a terminal.

use std::fmt::Write as _;

use super::table::{self, Table};
use crate::result::{CaseResult, Measurement, RunResult, Status, figures};

/// Renders verdicts and tables.
pub(crate) fn summary(result: &RunResult) -> String {
    let mut text = String::new();
    for case in &result.cases {
        let _ = writeln!(text, "\n{} on {}: {}", case.name, case.backend, verdict(case));
        if let Some(host_overload) = host_overload(case) {
            let _ = writeln!(text, "  {host_overload}");
        }
        if let Some(load) = host_load(case) {
            let _ = writeln!(text, "  {load}");
        }
        for table in table::tables(case) {
            let _ = write!(text, "{}", lines(&table));
        }
        for one in table::without_figures(case) {
            let word = if one.failed { "failed" } else { "unsupported" };
            let _ = writeln!(text, "  {word}: {}: {}", one.what, one.why);
        }
        for assertion in &case.assertions {
            let word = assertion_verdict(assertion.holds);
            let measured = if assertion.holds.is_some() { "measured " } else { "" };
            let _ =
                writeln!(text, "  {word}: {} ({measured}{})", assertion.asked, assertion.measured);
        }
        let warnings = notes(case);
        for warning in warnings.iter().take(10) {
            let _ = writeln!(text, "  note: {warning}");
        }
        if warnings.len() > 10 {
            let _ = writeln!(text, "  and {} more notes in the report", warnings.len() - 10);
        }
    }
    text
}

/// The warnings of a test without duplicates, each with the measurements to which it applies.
pub(crate) fn notes(case: &CaseResult) -> Vec<String> {
    let of = |one: &Measurement| format!("{} {} topology-{}", one.label, one.tool, one.network);
    let mut grouped: Vec<(&str, Vec<String>)> = Vec::new();
    let each = case
        .measurements
        .iter()
        .flat_map(|one| one.warnings.iter().map(move |warning| (warning.as_str(), of(one))));
    for (warning, of) in each {
        match grouped.iter_mut().find(|(known, _)| *known == warning) {
            Some((_, all)) if all.contains(&of) => {}
            Some((_, all)) => all.push(of),
            None => grouped.push((warning, vec![of])),
        }
    }
    let lines_of_measurements = grouped.into_iter().map(|(warning, all)| match all.as_slice() {
        [] => warning.to_owned(),
        [one] => format!("{one}: {warning}"),
        [one, other] => format!("{one} and {other}: {warning}"),
        [first, rest @ ..] => format!("{first} and {} others: {warning}", rest.len()),
    });
    case.warnings.iter().cloned().chain(lines_of_measurements).collect()
}

/// The CSS class of a verdict.
pub(crate) fn class(case: &CaseResult) -> &'static str {
    match (case.skipped.is_some(), case.passed) {
        (true, _) => "",
        (false, true) => "good",
        (false, false) => "bad",
    }
}

/// The verdict of an assertion.
pub(crate) fn assertion_verdict(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "holds",
        Some(false) => "DOES NOT HOLD",
        None => "not evaluated",
    }
}

/// The verdict of a test.
pub(crate) fn verdict(case: &CaseResult) -> &'static str {
    if case.skipped.is_some() {
        return "skipped: this backend can measure none of it";
    }
    match (case.passed, case.allow_failure) {
        (true, _) => "passed",
        (false, true) => "failed (allowed)",
        (false, false) => "FAILED",
    }
}

/// How many measurements host overload may have limited; `None` if none.
pub(crate) fn host_overload(case: &CaseResult) -> Option<String> {
    let passed = || case.measurements.iter().filter(|one| one.status == Status::Passed);
    let affected: Vec<String> = passed()
        .filter(|one| one.machine_bound)
        .map(|one| format!("{} {} topology-{}", one.label, one.tool, one.network))
        .collect();
    let (first, rest) = affected.split_first()?;
    Some(format!(
        "host overload may have limited {} of {} measurements, instead of the protocol: {first}{}",
        affected.len(),
        passed().count(),
        if rest.is_empty() { "" } else { " and others; see the notes" }
    ))
}

/// The load of the host: the highest value of each of its figures over all measurements. `None` in
/// virtual time, and on real hosts.
pub(crate) fn host_load(case: &CaseResult) -> Option<String> {
    let most = |name: &str| {
        let values = case.measurements.iter().filter_map(|one| one.figures.get(name).copied());
        values.reduce(f64::max)
    };
    let words: Vec<String> = figures::OF_THE_HOST
        .iter()
        .filter_map(|name| figures::find(name))
        .filter_map(|info| {
            let value = table::number(most(info.name)?);
            Some(format!("{} {value} {}", info.title, info.unit).trim_end().to_owned())
        })
        .collect();
    (!words.is_empty()).then(|| format!("host, at most: {}", words.join(", ")))
}

fn lines(table: &Table) -> String {
    let mut widths: Vec<usize> = table.head.iter().map(|cell| cell.chars().count()).collect();
    for row in &table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = format!("  {}\n", table.title);
    for row in std::iter::once(&table.head).chain(&table.rows) {
        let mut line = String::from("   ");
        for (index, (width, cell)) in widths.iter().zip(row).enumerate() {
            // Text is left-aligned, numbers are right-aligned.
            if index < table.text_columns {
                let _ = write!(line, " {cell:<width$} ");
            } else {
                let _ = write!(line, " {cell:>width$} ");
            }
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
