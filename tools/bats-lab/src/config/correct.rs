//! Several errors of one file: misspelt keys and values are corrected, so that the rest is checked.

use serde::de::DeserializeOwned;

use super::source::{ConfigErrors, Source};

/// Maximum number of corrections in a file.
const MAX_CORRECTIONS: usize = 50;

/// Parses a file. The value is there if all errors are misspelt words; it is that of the corrected
/// file.
pub(super) fn parse<T: DeserializeOwned>(source: &Source) -> (Option<T>, Source, ConfigErrors) {
    let mut errors = ConfigErrors::default();
    let mut corrected = source.clone();
    // Line, column from which on columns are shifted, and by how much.
    let mut shifts: Vec<(u64, u64, i64)> = Vec::new();
    loop {
        let (mut error, correction) = match corrected.parse_or_correct() {
            Ok(value) => return (Some(value), corrected, errors),
            Err(wrong) => wrong,
        };
        let at = error.position();
        if let Some((line, column)) = at {
            let shift: i64 = shifts
                .iter()
                .filter(|&&(of, from, _)| of == line && column > from)
                .map(|&(_, _, shift)| shift)
                .sum();
            error.move_to(line, column.saturating_add_signed(shift.saturating_neg()));
        }
        let fixed = at.zip(correction).and_then(|((line, column), (word, meant))| {
            let text = replace(corrected.text(), line, column, &word, meant)?;
            let [old, new] = [word.as_str(), meant].map(|word| word.chars().count() as i64);
            let shift = new.saturating_sub(old);
            shifts.push((line, column, shift));
            Some(text)
        });
        // What follows a correction may be its own consequence: a key that is then there twice.
        let is_consequence = !errors.0.is_empty() && error.to_string().contains("duplicate key");
        if !is_consequence {
            errors.keep::<()>(Err(error));
        }
        match fixed {
            Some(text) if errors.0.len() <= MAX_CORRECTIONS => corrected = source.with_text(text),
            _ => return (None, corrected, errors),
        }
    }
}

/// The text with `meant` in place of `word` at a position.
fn replace(text: &str, line: u64, column: u64, word: &str, meant: &str) -> Option<String> {
    let (line, column) = (usize::try_from(line).ok()?, usize::try_from(column).ok()?);
    let start: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let rest = text.get(start..)?.lines().next()?;
    let at = rest.char_indices().nth(column.checked_sub(1)?).map(|(at, _)| at)?;
    // Quotes in front of the word stay.
    let within = rest.get(at..)?.find(word).filter(|&within| within <= 1)?;
    let at = start.checked_add(at)?.checked_add(within)?;
    let (before, rest) = text.split_at_checked(at)?;
    Some(format!("{before}{meant}{}", rest.strip_prefix(word)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_replaced_at_its_position_only() {
        let text = "a: 1\n  \"los\": los\n";
        assert_eq!(replace(text, 2, 3, "los", "loss").unwrap(), "a: 1\n  \"loss\": los\n");
        assert_eq!(replace(text, 2, 10, "los", "loss").unwrap(), "a: 1\n  \"los\": loss\n");
        for (line, column) in [(0, 1), (2, 0), (2, 5), (9, 1), (1, 90)] {
            assert_eq!(replace(text, line, column, "los", "loss"), None, "{line}:{column}");
        }
    }
}
