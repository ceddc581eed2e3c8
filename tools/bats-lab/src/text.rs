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

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned() {
        let text = super::table(&["", "asked"], &[["rate", "1"], ["round trip", "2"]]);
        assert_eq!(text, "            asked\nrate        1\nround trip  2\n");
    }
}
