//! Numbers of channels, and which ones of the peer have been seen.

use std::collections::BTreeMap;

/// The channel of the messages.
pub(super) const MESSAGES: u64 = 0;

/// The indexes of the peer's channels that have been seen, as the ranges of those that have not.
///
/// An index is never used again. Unseen ones below the newest count as open for the peer's limit, so
/// there are never more ranges than channels that it may have open.
#[derive(Debug, Default)]
pub(super) struct SeenIndexes {
    /// Unseen ranges below `end`: first index and end.
    unseen: BTreeMap<u64, u64>,
    /// One more than the newest seen index.
    end: u64,
}

impl SeenIndexes {
    /// Whether the index has been seen.
    pub(super) fn contains(&self, index: u64) -> bool {
        let range = self.unseen.range(..=index).next_back();
        index < self.end && range.is_none_or(|(_, &end)| index >= end)
    }

    /// Records that an index is seen.
    pub(super) fn insert(&mut self, index: u64) {
        if index >= self.end {
            if index > self.end {
                self.unseen.insert(self.end, index);
            }
            self.end = index + 1;
            return;
        }
        let range = self.unseen.range(..=index).next_back().map(|(&first, &end)| (first, end));
        let Some((first, end)) = range.filter(|&(_, end)| index < end) else { return };
        self.unseen.remove(&first);
        if first < index {
            self.unseen.insert(first, index);
        }
        if index + 1 < end {
            self.unseen.insert(index + 1, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn seen_indexes_agree_with_a_naive_set(inserted in prop::collection::vec(0_u64..60, 0..80)) {
            let (mut seen, mut naive) = (SeenIndexes::default(), BTreeSet::new());
            for index in inserted {
                prop_assert_eq!(seen.contains(index), naive.contains(&index));
                seen.insert(index);
                naive.insert(index);
                prop_assert!((0..70).all(|index| seen.contains(index) == naive.contains(&index)));
                let unseen = naive.last().map_or(0, |last| last + 1 - naive.len() as u64);
                prop_assert!(seen.unseen.len() as u64 <= unseen);
            }
        }
    }
}
