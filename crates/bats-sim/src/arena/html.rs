//! A report as one page: a heat map of cells and algorithms.

use core::fmt::{self, Write};

use super::report::{CellReport, Report, RunReport};

/// Styles: two hues that colour-blind readers tell apart (blue above, orange below), and a number and a mark
/// in each field, so that no figure depends on colour.
const STYLE: &str = include_str!("heat-map.css");

/// Classes of a ratio, from far below to above: up to this ratio, the class of that name.
const CLASSES: [(f64, &str); 7] = [
    (0.25, "b4"),
    (0.5, "b3"),
    (0.75, "b2"),
    (0.95, "b1"),
    (1.05, "even"),
    (1.3, "a1"),
    (f64::INFINITY, "a2"),
];

/// A ratio of a run that a field shows.
type Ratio = fn(&RunReport) -> Option<f64>;

/// The page, complete in itself.
pub fn page(report: &Report) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut page, report);
    page
}

fn write_page(out: &mut String, report: &Report) -> fmt::Result {
    let columns = columns(report);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Arena of OpenBATS</title><style>{STYLE}</style></head><body>\
         <h1>Arena: congestion control, worst seeds</h1><p>{} cells, {} seeds each{}. A field has the worst \
         seed's goodput over that of the best peer, or over the optimum; hold the pointer over it for the \
         seed and other figures. &#10003; all goals of the cell are met, &#10007; one is missed.</p>",
        report.cells.len(),
        report.seeds.len(),
        report
            .held_out
            .map_or(String::new(), |seed| format!(", parameters redrawn by seed {seed}")),
    )?;
    write_groups(out, report)?;
    out.push_str(
        "<h2>Cells</h2><input type=\"radio\" name=\"of\" id=\"peer\" checked><label for=\"peer\">over the \
         best peer</label> <input type=\"radio\" name=\"of\" id=\"optimum\"><label for=\"optimum\">over the \
         optimum</label>",
    );
    out.push_str("<p class=\"key\">");
    let names = ["0.25", "0.5", "0.75", "0.95", "1.05", "1.3", "above"];
    for ((_, class), name) in CLASSES.iter().zip(names) {
        let to = if name == "above" { "" } else { "to " };
        write!(out, "<span class=\"{class}\">{to}{name}</span> ")?;
    }
    out.push_str("</p><div class=\"scroll\"><table><thead><tr><th scope=\"col\">cell</th>");
    for name in &columns {
        write!(out, "<th scope=\"col\">{}</th>", escape(name))?;
    }
    out.push_str("</tr></thead><tbody>");
    let mut group = "";
    for cell in &report.cells {
        if cell.group != group {
            group = &cell.group;
            let span = columns.len() + 1;
            write!(
                out,
                "<tr class=\"group\"><th colspan=\"{span}\" scope=\"rowgroup\">{}</th></tr>",
                escape(group)
            )?;
        }
        write!(
            out,
            "<tr><th scope=\"row\">{} <small>{}</small></th>",
            escape(&cell.name),
            escape(&cell.title)
        )?;
        for name in &columns {
            write_field(out, cell, name)?;
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></body></html>\n");
    Ok(())
}

/// Names of all algorithms that were run: those that were asked for first.
fn columns(report: &Report) -> Vec<String> {
    let mut columns = report.algorithms.clone();
    for run in report.cells.iter().flat_map(|cell| &cell.runs) {
        if let Some(name) = &run.algorithm
            && !columns.contains(name)
        {
            columns.push(name.clone());
        }
    }
    columns
}

fn write_groups(out: &mut String, report: &Report) -> fmt::Result {
    if report.groups.is_empty() {
        return Ok(());
    }
    out.push_str(
        "<h2>Groups</h2><div class=\"scroll\"><table><thead><tr><th scope=\"col\">group</th>\
         <th scope=\"col\">algorithm</th><th scope=\"col\">cells that pass</th>\
         <th scope=\"col\">worst cell</th></tr></thead><tbody>",
    );
    for group in &report.groups {
        let (mark, class) =
            if group.passed == group.cells { ("&#10003;", "even") } else { ("&#10007;", "b2") };
        write!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"{class}\">{mark} {} of {}</td>\
             <td class=\"text\">{}: {}</td></tr>",
            escape(&group.group),
            escape(&group.algorithm),
            group.passed,
            group.cells,
            escape(&group.worst_cell),
            escape(&group.worst)
        )?;
    }
    out.push_str("</tbody></table></div>");
    Ok(())
}

fn write_field(out: &mut String, cell: &CellReport, name: &str) -> fmt::Result {
    let of_algorithm = |run: &&RunReport| run.algorithm.as_deref() == Some(name);
    let runs = || cell.runs.iter().filter(of_algorithm);
    let worst = |value: fn(&RunReport) -> Option<f64>| {
        let known = runs().filter_map(|run| Some((value(run)?, run)));
        known.min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let verdict = cell.verdicts.iter().find(|verdict| verdict.algorithm == name);
    let mark = match verdict {
        Some(verdict) if verdict.passed => " &#10003;",
        Some(_) => " &#10007;",
        None => "",
    };
    out.push_str("<td>");
    let fields: [(&str, Ratio); 2] = [
        ("peer", |run| run.relative.of_best_peer),
        ("optimum", |run| Some(run.figures.efficiency)),
    ];
    for (kind, value) in fields {
        let Some((value, run)) = worst(value) else {
            write!(out, "<span class=\"{kind} none\">-</span>")?;
            continue;
        };
        let figures = &run.figures;
        let mut hint = format!(
            "{name}, {}: seed {}, E {:.3}, drops {:.2} %, queue p95 {:.1} ms, Jain {:.3}",
            cell.name,
            run.seed,
            figures.efficiency,
            figures.drops * 100.0,
            figures.queue_p95_ms,
            figures.jain
        );
        for goal in verdict.iter().flat_map(|verdict| &verdict.goals) {
            let kept = if goal.passed { "met" } else { "missed" };
            write!(hint, "; {kept}: {} (seed {})", goal.text, goal.seed)?;
        }
        let hint = escape(&hint);
        write!(
            out,
            "<span class=\"{kind} {}\" title=\"{hint}\">{}{mark}</span>",
            class(value),
            if value >= 100.0 { ">99".into() } else { format!("{value:.2}") }
        )?;
    }
    out.push_str("</td>");
    Ok(())
}

fn class(ratio: f64) -> &'static str {
    CLASSES.iter().find(|(up_to, _)| ratio <= *up_to).map_or("none", |(_, class)| class)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(escape("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
    }

    #[test]
    fn ratios_have_classes_from_below_to_above() {
        assert_eq!([0.0, 0.3, 0.96, 1.2, 9.0].map(class), ["b4", "b3", "even", "a1", "a2"]);
        assert_eq!(class(f64::NAN), "none");
    }
}
