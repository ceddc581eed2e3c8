//! Suggestions for misspelt words.

use std::iter::{once, repeat};

/// The candidate closest to `word`, if one is close enough.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let length = word.chars().count();
    let limit = (length / 3).max(2);
    candidates
        .into_iter()
        // Each character of difference in length is an edit. A word may have the size of a file.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Number of insertions, deletions, substitutions and swaps of neighbours (optimal string alignment
/// distance).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut previous = None;
    for (row, this) in (1..).zip(one.to_lowercase().chars()) {
        let mut line = vec![row];
        let mut left = row;
        // A swap needs two rows and two columns: the first row and the first column have none.
        let swaps = other.iter().zip(&before_last).map(Some);
        let swaps = once(None).chain(swaps).chain(repeat(None));
        let columns = other.iter().zip(&last).zip(last.iter().skip(1)).zip(swaps);
        for (((&that, &diagonal), &above), swap) in columns {
            let substituted = diagonal.saturating_add(usize::from(this != that));
            let mut least = above.min(left).saturating_add(1).min(substituted);
            if let Some((&before, &unswapped)) = swap
                && this == before
                && previous == Some(that)
            {
                least = least.min(unswapped.saturating_add(1));
            }
            line.push(least);
            left = least;
        }
        before_last = std::mem::replace(&mut last, line);
        previous = Some(this);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (one, other, edits) in [
            ("loss", "loss", 0),
            ("los", "loss", 1),
            ("lsos", "loss", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), edits, "{one} {other}");
            assert_eq!(distance(other, one), edits, "{other} {one}");
        }
    }

    #[test]
    fn only_close_words_are_suggested() {
        let keys = ["topology", "test_tools", "route"];
        assert_eq!(nearest("topologie", keys), Some("topology"));
        assert_eq!(nearest("testtools", keys), Some("test_tools"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest(&"topology".repeat(1 << 20), keys), None);
    }
}
