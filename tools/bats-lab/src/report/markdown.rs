//! Matrices as Markdown, next to their CSV tables, as Oasis writes them.

use std::fmt::Write as _;

use super::table::{Matrix, number};

/// A matrix as a Markdown table: rows loss, columns one-way delay.
pub(super) fn matrix(matrix: &Matrix) -> String {
    let mut text = format!("{}\n\n| loss \\ one-way delay |", cell(&matrix.title));
    for delay in &matrix.columns {
        let _ = write!(text, " {delay} ms |");
    }
    text.push_str("\n|---:|");
    text.push_str(&"---:|".repeat(matrix.columns.len()));
    text.push('\n');
    for (loss, values) in matrix.rows.iter().zip(&matrix.values) {
        let _ = write!(text, "| {loss} % |");
        for value in values {
            let _ = write!(text, " {} |", value.map_or("-".to_owned(), number));
        }
        text.push('\n');
    }
    text
}

/// Text without marks that Markdown or HTML would interpret.
fn cell(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if "\\`*_{}[]<>|#".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(if letter.is_control() { ' ' } else { letter });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_a_markdown_table() {
        let one = Matrix {
            title: "A|B".into(),
            label: "A".into(),
            name: "x".into(),
            unit: "Mbit/s".into(),
            rows: vec![0.0, 5.0],
            columns: vec![10.0, 30.0],
            values: vec![vec![Some(95.0), None], vec![Some(1.5), Some(0.0)]],
        };
        let wanted = "A\\|B\n\n| loss \\ one-way delay | 10 ms | 30 ms |\n|---:|---:|---:|\n\
                      | 0 % | 95.00 | - |\n| 5 % | 1.50 | 0 |\n";
        assert_eq!(matrix(&one), wanted);
    }
}
