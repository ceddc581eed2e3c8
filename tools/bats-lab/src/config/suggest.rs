//! Suggestions for misspelt words.

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
    let one: Vec<char> = one.to_lowercase().chars().collect();
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for row in 1..=one.len() {
        let mut line = vec![row];
        for column in 1..=other.len() {
            let same = one[row - 1] == other[column - 1];
            let mut least = (last[column] + 1)
                .min(line[column - 1] + 1)
                .min(last[column - 1] + usize::from(!same));
            let swapped = row > 1
                && column > 1
                && one[row - 1] == other[column - 2]
                && one[row - 2] == other[column - 1];
            if swapped {
                least = least.min(before_last[column - 2] + 1);
            }
            line.push(least);
        }
        before_last = std::mem::replace(&mut last, line);
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
