//! Values of the daemon as text.

use std::io::Write as _;

use serde_json::Value;

/// A value for people.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            format!("{:.2}", number.as_f64().unwrap_or(0.0))
        }
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("{key}={}", text(value));
            fields.iter().map(field).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// A table of these columns; each is a path in the rows.
pub(crate) fn table(rows: &Value, columns: &[(&str, &str)]) -> String {
    let rows = rows.as_array().map_or(&[][..], Vec::as_slice);
    let cell = |row: &Value, path: &str| text(row.pointer(path).unwrap_or(&Value::Null));
    let mut lines = vec![columns.iter().map(|(title, _)| (*title).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|(_, path)| cell(row, path)).collect()));
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut output = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        output += cells.collect::<Vec<_>>().join("  ").trim_end();
        output.push('\n');
    }
    output
}

/// The fields of an object, a line each.
pub(crate) fn tree(value: &Value, indent: usize, output: &mut String) {
    let Some(fields) = value.as_object() else { return };
    for (key, value) in fields {
        let space = " ".repeat(indent);
        match value {
            Value::Object(_) => {
                *output += &format!("{space}{key}:\n");
                tree(value, indent + 2, output);
            }
            value => *output += &format!("{space}{key}: {}\n", text(value)),
        }
    }
}

/// Writes to standard output. False if no program reads it (`| head`).
pub(crate) fn print(text: &str) -> bool {
    let mut output = std::io::stdout();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_ok()
}
