//! Plain-text tables.

/// Formats a table; each column is as wide as its widest cell.
pub(crate) fn table<const N: usize>(head: &[&str; N], rows: &[[&str; N]]) -> String {
    let mut widths = head.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |row: &[&str; N]| {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(head);
    for row in rows {
        line(row);
    }
    text
}

/// The text in lines of at most `width` columns, broken between words; lines after the first are
/// indented.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { continue };
        let has_words = !line.trim().is_empty();
        if has_words && line.chars().count() + 1 + word.chars().count() > width {
            let room = width.saturating_sub(indent);
            lines.push(format!("{}{}", " ".repeat(indent), shortened(word, room)));
            continue;
        }
        if has_words || word.is_empty() {
            line.push(' ');
        }
        line.push_str(&shortened(word, width));
    }
    lines.join("\n") + "\n"
}

/// The text in at most `width` columns.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{kept}...")
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned() {
        let text = super::table(&["", "asked"], &[["rate", "1"], ["round trip", "2"]]);
        assert_eq!(text, "            asked\nrate        1\nround trip  2\n");
    }

    #[test]
    fn text_is_broken_between_words() {
        let text = super::wrapped(" one two three four", 10, 2);
        assert_eq!(text, " one two\n  three\n  four\n");
        let long = super::wrapped(&"x".repeat(30), 10, 2);
        assert!(long.lines().all(|line| line.chars().count() <= 10));
        assert_eq!(super::shortened("abcdef", 5), "ab...");
    }
}
