//! The table of a report.

use core::fmt::{self, Write};

use super::report::{CellReport, Report, RunReport};

/// Explains the columns.
pub const LEGEND: &str = "\
Columns: E: goodput over what the links can carry, the least of all seeds and the median; Jain: index of \
the flows that are judged, least; drop%: packets dropped by queues and policers, most; q95 ms: 95th \
percentile of the standing queue, most; sent/b: packets sent per packet's worth of data, most; stall: \
longest time without a delivery in s. The last column says whether the cell's goals are met by every seed; \
peers (tcp/NAME) are not judged. See docs/arena.md.

Exit code: 1 if a goal is missed.";

/// The table, a line for each cell and algorithm that was asked for, then one for each group.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_table(&mut text, report);
    text
}

fn write_table(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(
        out,
        "{:<4} {:<36} {:<10} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6}",
        "cell", "", "algorithm", "E min", "E med", "Jain", "drop%", "q95 ms", "sent/b", "stall"
    )?;
    for cell in &report.cells {
        for name in &report.algorithms {
            write_line(out, cell, name)?;
        }
    }
    if !report.groups.is_empty() {
        writeln!(out, "\n{:<5} {:<10} {:>7}  worst cell", "group", "algorithm", "pass")?;
    }
    for group in &report.groups {
        let passed = format!("{}/{}", group.passed, group.cells);
        let (name, algorithm, worst_cell) = (&group.group, &group.algorithm, &group.worst_cell);
        writeln!(out, "{name:<5} {algorithm:<10} {passed:>7}  {worst_cell} {}", group.worst)?;
    }
    Ok(())
}

fn write_line(out: &mut String, cell: &CellReport, name: &str) -> fmt::Result {
    let runs: Vec<&RunReport> =
        cell.runs.iter().filter(|run| run.algorithm.as_deref() == Some(name)).collect();
    let sorted = |value: fn(&RunReport) -> Option<f64>| {
        let mut values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let most = |value| sorted(value).last().copied().unwrap_or(0.0);
    let efficiencies = sorted(|run| Some(run.figures.efficiency));
    let overhead = sorted(|run| run.figures.overhead).last().copied();
    write!(
        out,
        "{:<4} {:<36} {:<10} {:>6.3} {:>6.3} {:>6.3} {:>6.2} {:>7.1} {:>6} {:>6.1}",
        cell.name,
        cell.title,
        name,
        efficiencies.first().unwrap_or(&0.0),
        efficiencies.get(efficiencies.len() / 2).unwrap_or(&0.0),
        sorted(|run| Some(run.figures.jain)).first().unwrap_or(&0.0),
        most(|run| Some(run.figures.drops * 100.0)),
        most(|run| Some(run.figures.queue_p95_ms)),
        overhead.map_or("-".into(), |value| format!("{value:.2}")),
        most(|run| Some(run.figures.stall_s)),
    )?;
    match cell.verdicts.iter().find(|verdict| verdict.algorithm == name) {
        None => writeln!(out),
        Some(verdict) if verdict.passed => writeln!(out, " PASS"),
        Some(verdict) => {
            let missed = verdict.goals.iter().filter(|goal| !goal.passed);
            let missed: Vec<String> =
                missed.map(|goal| format!("{} (seed {})", goal.text, goal.seed)).collect();
            writeln!(out, " MISS {}", missed.join(", "))
        }
    }
}
