//! A few disjoint ranges of numbers.

/// Disjoint, non-touching half-open ranges in ascending order. Meant for few of them; whoever
/// inserts what a peer chose must bound [`RangeSet::count`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<(u64, u64)>);

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of ranges.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.0.first().copied()
    }

    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.0.last().copied()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    pub(super) fn contains(&self, value: u64) -> bool {
        self.0.iter().any(|&(start, end)| (start..end).contains(&value))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let from = self.0.partition_point(|&(_, e)| e < start);
        let to = self.0.partition_point(|&(s, _)| s <= end);
        if let (Some(&(first, _)), true) = (self.0.get(from), from < to) {
            start = start.min(first);
            end = end.max(self.0[to - 1].1);
        }
        self.0.splice(from..to, [(start, end)]);
    }

    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let from = self.0.partition_point(|&(_, e)| e <= start);
        let to = self.0.partition_point(|&(s, _)| s < end);
        if from >= to {
            return;
        }
        let front = (self.0[from].0, start);
        let back = (end, self.0[to - 1].1);
        let rest = [front, back].into_iter().filter(|&(s, e)| s < e);
        self.0.splice(from..to, rest);
    }

    /// The parts of `start..end` that are not in the set, in ascending order.
    pub(super) fn missing(&self, start: u64, end: u64) -> Self {
        let mut missing = Self::default();
        missing.insert(start, end);
        for (s, e) in self.iter() {
            missing.remove(s, e);
        }
        missing
    }

    pub(super) fn remove_first(&mut self) {
        if !self.0.is_empty() {
            self.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..40, 0_u64..12), 0..40)
        ) {
            let mut ranges = RangeSet::default();
            let mut model = [false; 60];
            for (insert, start, len) in steps {
                if insert {
                    ranges.insert(start, start + len);
                } else {
                    ranges.remove(start, start + len);
                }
                model[start as usize..(start + len) as usize].fill(insert);
            }
            for (value, &held) in model.iter().enumerate() {
                prop_assert_eq!(ranges.contains(value as u64), held);
                prop_assert_eq!(ranges.missing(0, 60).contains(value as u64), !held);
            }
            let listed: Vec<_> = ranges.iter().collect();
            prop_assert!(listed.iter().all(|&(s, e)| s < e));
            prop_assert!(listed.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
