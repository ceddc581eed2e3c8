//! The set of known symbols: one bit each, so that long ranges are scanned 64 symbols at a time.

use alloc::collections::VecDeque;

/// A bitmap of a contiguous range of symbol numbers. All below it are known, all above are unknown.
#[derive(Debug, Default)]
pub(super) struct KnownSet {
    words: VecDeque<u64>,
    /// Index of the first stored word.
    base: u64,
}

impl KnownSet {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.word(number / 64) >> (number % 64) & 1 != 0
    }

    fn word(&self, index: u64) -> u64 {
        match index.checked_sub(self.base) {
            None => u64::MAX,
            Some(offset) => usize::try_from(offset)
                .ok()
                .and_then(|offset| self.words.get(offset))
                .copied()
                .unwrap_or(0),
        }
    }

    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.words.shrink_to_fit();
    }

    /// Marks a symbol as known. The caller bounds how far it is above the others.
    pub(super) fn insert(&mut self, number: u64) {
        let Some(offset) = (number / 64).checked_sub(self.base) else { return };
        let offset = offset as usize;
        if offset >= self.words.len() {
            self.words.resize(offset + 1, 0);
        }
        self.words[offset] |= 1 << (number % 64);
    }

    /// Marks a symbol as unknown; numbers below the stored words stay known.
    pub(super) fn remove(&mut self, number: u64) {
        let offset = (number / 64).checked_sub(self.base).and_then(|o| usize::try_from(o).ok());
        if let Some(word) = offset.and_then(|offset| self.words.get_mut(offset)) {
            *word &= !(1 << (number % 64));
        }
    }

    /// Marks all symbols below `number` as known and frees their words.
    pub(super) fn release_below(&mut self, number: u64) {
        while self.base < number / 64 {
            if self.words.pop_front().is_none() {
                self.base = number / 64;
                break;
            }
            self.base += 1;
        }
        if !number.is_multiple_of(64) {
            if self.words.is_empty() {
                self.words.push_back(0);
            }
            if self.base == number / 64 {
                self.words[0] |= (1 << (number % 64)) - 1;
            }
        }
    }

    /// Calls `each` for the unknown symbols in `number..end`, in order. Faster than repeated calls
    /// of [`KnownSet::next_unknown`].
    pub(super) fn for_each_unknown(&self, number: u64, end: u64, mut each: impl FnMut(u64)) {
        let number = number.max(self.base * 64);
        if number >= end {
            return;
        }
        let last = (end - 1) / 64;
        let mut mask = u64::MAX << (number % 64);
        for index in number / 64..=last {
            let mut word = !self.word(index) & mask;
            mask = u64::MAX;
            if index == last {
                word &= u64::MAX >> (63 - (end - 1) % 64);
            }
            while word != 0 {
                each(index * 64 + u64::from(word.trailing_zeros()));
                word &= word - 1;
            }
        }
    }

    /// The first unknown symbol in `number..end`.
    pub(super) fn next_unknown(&self, number: u64, end: u64) -> Option<u64> {
        // All symbols below the stored words are known.
        let number = number.max(self.base * 64);
        if number >= end {
            return None;
        }
        let last = (end - 1) / 64;
        let mut index = number / 64;
        let mut word = !self.word(index) & (u64::MAX << (number % 64));
        while word == 0 {
            // All symbols above the stored words are unknown, so that this ends.
            if index >= last {
                return None;
            }
            index += 1;
            word = !self.word(index);
        }
        let found = index * 64 + u64::from(word.trailing_zeros());
        (found < end).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bitmap_matches_a_btree_set(
            operations in prop::collection::vec((0u8..5, 0u64..400), 0..80),
            from in 0u64..450,
            span in 0u64..450,
        ) {
            let mut set = KnownSet::default();
            let mut floor = 0;
            let mut plain = BTreeSet::new();
            for (kind, number) in operations {
                if kind == 0 {
                    floor = floor.max(number / 4);
                    set.release_below(floor);
                } else if kind == 1 && number >= floor {
                    set.remove(number);
                    plain.remove(&number);
                } else if number >= floor {
                    set.insert(number);
                    plain.insert(number);
                }
            }
            let known = |n: u64| n < floor || plain.contains(&n);
            for n in 0..450 {
                prop_assert_eq!(set.contains(n), known(n));
            }
            let end = from + span;
            prop_assert_eq!(set.next_unknown(from, end), (from..end).find(|&n| !known(n)));
            let mut all = Vec::new();
            set.for_each_unknown(from, end, |n| all.push(n));
            prop_assert_eq!(all, (from..end).filter(|&n| !known(n)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn trimming_frees_released_words() {
        let mut set = KnownSet::default();
        set.insert(100_000);
        set.release_below(99_990);
        set.trim();
        assert!(set.words.capacity() < 10);
        assert!(set.contains(100_000) && !set.contains(99_999));
    }

    #[test]
    fn numbers_near_the_maximum_are_supported() {
        let mut set = KnownSet::default();
        set.release_below(u64::MAX - 10);
        set.insert(u64::MAX - 9);
        assert_eq!(set.next_unknown(5, u64::MAX), Some(u64::MAX - 10));
        assert!(set.contains(u64::MAX - 9) && !set.contains(u64::MAX - 8));
        let mut unknown = Vec::new();
        set.for_each_unknown(5, u64::MAX, |n| unknown.push(n));
        assert_eq!(unknown.len(), 9);
    }
}
