//! A run in a terminal.

use std::fmt::Write as _;

use super::table::{self, Table};
use crate::result::{CaseResult, Measurement, RunResult, Status};

/// Verdicts and tables.
pub(crate) fn summary(result: &RunResult) -> String {
    let mut text = String::new();
    for case in &result.cases {
        let _ = writeln!(text, "\n{} on {}: {}", case.name, case.backend, verdict(case));
        if let Some(doubt) = doubt(case) {
            let _ = writeln!(text, "  {doubt}");
        }
        for table in table::of(case) {
            let _ = write!(text, "{}", lines(&table));
        }
        for one in table::without_figures(case) {
            let word = if one.failed { "failed" } else { "not here" };
            let _ = writeln!(text, "  {word}: {}: {}", one.what, one.why);
        }
        for assertion in &case.assertions {
            let word = held(assertion.holds);
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

/// What a reader has to know, each once, with the measurements that it is said of.
pub(crate) fn notes(case: &CaseResult) -> Vec<String> {
    let of = |one: &Measurement| format!("{} {} topology-{}", one.label, one.tool, one.network);
    let mut said: Vec<(&str, Vec<String>)> = Vec::new();
    let each = case
        .measurements
        .iter()
        .flat_map(|one| one.warnings.iter().map(move |warning| (warning.as_str(), of(one))));
    for (warning, of) in each {
        match said.iter_mut().find(|(known, _)| *known == warning) {
            Some((_, all)) if all.contains(&of) => {}
            Some((_, all)) => all.push(of),
            None => said.push((warning, vec![of])),
        }
    }
    let told = said.into_iter().map(|(warning, all)| match all.as_slice() {
        [] => warning.to_owned(),
        [one] => format!("{one}: {warning}"),
        [one, other] => format!("{one} and {other}: {warning}"),
        [first, rest @ ..] => format!("{first} and {} others: {warning}", rest.len()),
    });
    case.warnings.iter().cloned().chain(told).collect()
}

/// The class of a verdict in a page.
pub(crate) fn class(case: &CaseResult) -> &'static str {
    match (case.skipped.is_some(), case.passed) {
        (true, _) => "",
        (false, true) => "good",
        (false, false) => "bad",
    }
}

/// What became of an assertion, in words.
pub(crate) fn held(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "holds",
        Some(false) => "DOES NOT HOLD",
        None => "not judged",
    }
}

/// How a test ended, in a word.
pub(crate) fn verdict(case: &CaseResult) -> &'static str {
    if case.skipped.is_some() {
        return "skipped: nothing of it can be measured here";
    }
    match (case.passed, case.allow_failure) {
        (true, _) => "passed",
        (false, true) => "failed, which is allowed",
        (false, false) => "FAILED",
    }
}

/// Of how many measurements the machine may have set the figures, in words; nothing where of none.
pub(crate) fn doubt(case: &CaseResult) -> Option<String> {
    let passed = || case.measurements.iter().filter(|one| one.status == Status::Passed);
    let doubtful: Vec<String> = passed()
        .filter(|one| one.machine_bound)
        .map(|one| format!("{} {} topology-{}", one.label, one.tool, one.network))
        .collect();
    let (first, rest) = doubtful.split_first()?;
    Some(format!(
        "of {} of {} measurements this machine may have set the figures, not the protocol: {first}{}",
        doubtful.len(),
        passed().count(),
        if rest.is_empty() { "" } else { " and others; see the notes" }
    ))
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
            // Words to the left, numbers to the right.
            if index < table.words {
                let _ = write!(line, " {cell:<width$} ");
            } else {
                let _ = write!(line, " {cell:>width$} ");
            }
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
