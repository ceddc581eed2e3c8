//! Which of the newest messages were delivered, to detect duplicates and to count lost messages.

/// Number of the newest message IDs whose delivery is recorded.
pub(super) const DUPLICATE_WINDOW: u64 = 4_096;

/// Number of words of 64 messages that a window can overlap.
const WORDS: u64 = DUPLICATE_WINDOW / 64 + 1;

/// The delivered ones among the newest [`DUPLICATE_WINDOW`] messages. A jump of the message number
/// costs no more than clearing the window.
#[derive(Debug, Default)]
pub(super) struct DeliveredSet {
    /// 64 messages per word, as a ring: by message number / 64 modulo [`WORDS`]. Empty before the
    /// first delivery. Bits outside of the window are zero.
    words: Vec<u64>,
    /// The words that are not zero: one bit each, by index. A message number 4,095 above the last one
    /// removes a whole window.
    filled: u128,
    /// All messages below this number are known to exist.
    end: u64,
    /// Delivered messages below the window.
    delivered_before: u64,
}

impl DeliveredSet {
    /// All messages below this number are known to exist.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The oldest message in the window.
    pub(super) fn window_start(&self) -> u64 {
        self.end.saturating_sub(DUPLICATE_WINDOW)
    }

    /// Begins with this message in an empty set: those before it count as delivered.
    pub(super) fn begin_at(&mut self, first: u64) {
        self.extend_to(first);
        self.delivered_before = self.window_start();
        (self.window_start()..first).for_each(|id| self.insert(id));
    }

    /// Whether a message is below the window, so that its delivery is not recorded.
    pub(super) fn is_before_window(&self, id: u64) -> bool {
        id < self.window_start()
    }

    /// Whether a message is recorded as delivered.
    pub(super) fn contains(&self, id: u64) -> bool {
        id < self.end
            && !self.is_before_window(id)
            && self.words.get(Self::index(id / 64)).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    fn index(word: u64) -> usize {
        (word % WORDS) as usize
    }

    /// Records the delivery of a message that is known to exist.
    pub(super) fn insert(&mut self, id: u64) {
        if self.is_before_window(id) || id >= self.end {
            return;
        }
        if self.words.is_empty() {
            self.words = vec![0; WORDS as usize];
        }
        let index = Self::index(id / 64);
        self.words[index] |= 1 << (id % 64);
        self.filled |= 1 << index;
    }

    /// Messages below the window that were not delivered.
    pub(super) fn lost(&self) -> u64 {
        self.window_start() - self.delivered_before
    }

    /// Records that messages below `end` exist.
    pub(super) fn extend_to(&mut self, end: u64) {
        if end <= self.end {
            return;
        }
        let before = self.window_start();
        self.end = end;
        let keep = self.window_start();
        if self.filled == 0 || keep == before {
            return;
        }
        // Words that leave the window as a whole, and the one in which it begins now.
        let whole = (keep / 64 - before / 64).min(WORDS);
        let ones = (1_u128 << whole) - 1;
        let index = Self::index(before / 64);
        let mut gone = self.filled & (ones << index | ones >> (WORDS as usize - index));
        while gone != 0 {
            let index = gone.trailing_zeros();
            let word = core::mem::take(&mut self.words[index as usize]);
            self.delivered_before += u64::from(word.count_ones());
            self.filled &= !(1 << index);
            gone &= gone - 1;
        }
        let index = Self::index(keep / 64);
        let first = &mut self.words[index];
        let gone = *first & ((1 << (keep % 64)) - 1);
        self.delivered_before += u64::from(gone.count_ones());
        *first &= !gone;
        if *first == 0 {
            self.filled &= !(1 << index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with a set that records all messages.
        #[test]
        fn set_agrees_with_a_naive_one(
            steps in prop::collection::vec((0_u64..5_000, any::<bool>()), 1..200),
        ) {
            let (mut set, mut naive) = (DeliveredSet::default(), BTreeSet::new());
            for (jump, back) in steps {
                let id = if back { set.end().saturating_sub(jump) } else { set.end() + jump };
                set.extend_to(id + 1);
                let is_in_window = id + DUPLICATE_WINDOW >= set.end();
                prop_assert_eq!(set.is_before_window(id), !is_in_window);
                prop_assert_eq!(set.contains(id), is_in_window && naive.contains(&id));
                if is_in_window {
                    set.insert(id);
                    naive.insert(id);
                }
                let before = naive.range(..set.window_start()).count() as u64;
                prop_assert_eq!(set.lost(), set.window_start() - before);
                prop_assert!(set.words.len() as u64 <= WORDS);
                let filled = |index: usize| set.filled >> index & 1 == 1;
                prop_assert!(set.words.iter().enumerate().all(|(i, &word)| filled(i) == (word != 0)));
            }
        }
    }

    #[test]
    fn window_has_4096_messages() {
        let mut set = DeliveredSet::default();
        set.extend_to(1);
        set.insert(0);
        set.extend_to(4_096);
        assert!(set.contains(0) && !set.is_before_window(0), "the oldest one in the window");
        set.extend_to(4_097);
        assert!(!set.contains(0) && set.is_before_window(0), "beyond the window");
        assert_eq!(set.lost(), 0);
        set.extend_to(4_098);
        assert_eq!(set.lost(), 1, "message 1");
    }
}
