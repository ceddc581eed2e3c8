//! Counts received and lost samples by their sequence numbers.
//!
//! The original counts a gap when a later sample arrives, and never takes it back. Here a sample is
//! lost only if it does not arrive at all: reordered samples are counted when they come, duplicates
//! once, and the samples before the first arrival and after the last one are counted, too.

/// Sequence numbers below the highest for which arrivals are remembered. A sample that is later
/// than this stays lost. Chosen: a third of a second at 3 million samples per second, in 128 KiB.
const WINDOW: u64 = 1 << 20;

/// Received sequence numbers of one publisher.
#[derive(Debug)]
pub(crate) struct SequenceTracker {
    /// One bit for each number of the window.
    seen: Vec<u64>,
    /// One more than the highest number.
    next: u64,
    received: u64,
    duplicates: u64,
    /// Samples that the publisher has sent, once known.
    sent: Option<u64>,
}

impl Default for SequenceTracker {
    fn default() -> Self {
        let seen = vec![0; (WINDOW / 64) as usize];
        Self { seen, next: 0, received: 0, duplicates: 0, sent: None }
    }
}

impl SequenceTracker {
    /// Notes a sample; returns whether it counts, which it does unless it is a duplicate or later
    /// than the window. The number is the nearest one with these low 32 bits.
    pub(crate) fn on_sample(&mut self, low_bits: u32) -> bool {
        let distance = i64::from(low_bits.wrapping_sub(self.next as u32) as i32);
        let Some(number) = self.next.checked_add_signed(distance) else { return false };
        if number >= self.next {
            self.forget(self.next, number);
            self.next = number + 1;
        } else if self.next - number > WINDOW {
            return false;
        }
        let (word, bit) = place(number);
        if self.seen[word] & bit != 0 {
            self.duplicates += 1;
            return false;
        }
        self.seen[word] |= bit;
        self.received += 1;
        true
    }

    /// Clears the bits of the numbers from `first` to `last`, which enter the window.
    fn forget(&mut self, first: u64, last: u64) {
        if last - first >= WINDOW {
            self.seen.fill(0);
            return;
        }
        // Whole words at once: a publisher may jump over a million numbers with each sample.
        let (first_word, last_word) = (first.div_ceil(64), (last + 1) / 64);
        if first_word < last_word {
            let (from, to) = (place(first_word * 64).0, place((last_word - 1) * 64).0 + 1);
            if from < to {
                self.seen[from..to].fill(0);
            } else {
                self.seen[from..].fill(0);
                self.seen[..to].fill(0);
            }
        }
        let before = first..(first_word * 64).min(last + 1);
        let after = (last_word * 64).max(before.end)..last + 1;
        for number in before.chain(after) {
            let (word, bit) = place(number);
            self.seen[word] &= !bit;
        }
    }

    /// Notes how many samples the publisher has sent.
    pub(crate) fn on_end(&mut self, sent: u64) {
        self.sent = Some(sent);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.sent.is_some()
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    pub(crate) fn lost(&self) -> u64 {
        self.next.max(self.sent.unwrap_or(0)) - self.received
    }
}

fn place(number: u64) -> (usize, u64) {
    let index = number % WINDOW;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(numbers: impl IntoIterator<Item = u64>) -> SequenceTracker {
        let mut tracker = SequenceTracker::default();
        for number in numbers {
            tracker.on_sample(number as u32);
        }
        tracker
    }

    #[test]
    fn gaps_are_lost_also_at_both_ends() {
        let mut tracker = after([3, 4, 6]);
        assert_eq!((tracker.received(), tracker.lost()), (3, 4));
        tracker.on_end(10);
        assert_eq!((tracker.received(), tracker.lost()), (3, 7));
        let mut tracker = after([]);
        tracker.on_end(5);
        assert_eq!(tracker.lost(), 5);
    }

    #[test]
    fn reordered_samples_are_not_lost_and_duplicates_count_once() {
        let tracker = after([5, 1, 0, 3, 2, 4, 4, 0]);
        assert_eq!((tracker.received(), tracker.lost(), tracker.duplicates()), (6, 0, 2));
    }

    #[test]
    fn numbers_continue_beyond_32_bits() {
        let start = u64::from(u32::MAX) - 2;
        let mut tracker = SequenceTracker { next: start, received: start, ..Default::default() };
        for number in [start, start + 1, start + 4, start + 2, start + 3, start + 5] {
            assert!(tracker.on_sample(number as u32), "{number}");
        }
        assert_eq!((tracker.received(), tracker.lost()), (start + 6, 0));
    }

    #[test]
    fn later_than_the_window_stays_lost() {
        let mut tracker = after([0, WINDOW + 1]);
        assert!(!tracker.on_sample(1));
        assert!(tracker.on_sample(2));
        assert_eq!(tracker.lost(), WINDOW - 1);
    }

    #[test]
    fn any_sequence_agrees_with_a_set() {
        let mut state = 7u64;
        for _ in 0..50 {
            let (mut tracker, mut set) =
                (SequenceTracker::default(), std::collections::BTreeSet::new());
            for _ in 0..500 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let number = (state >> 33) % 700;
                assert_eq!(tracker.on_sample(number as u32), set.insert(number));
            }
            let next = set.last().unwrap() + 1;
            assert_eq!(tracker.lost(), next - set.len() as u64);
        }
    }

    #[test]
    fn words_are_cleared_as_bits_one_by_one() {
        let mut state = 3u64;
        for _ in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let shift = state % 21;
            let first = (state >> 20) % (3 * WINDOW);
            let last = first + (state >> 43) % WINDOW.min(1 << shift);
            let mut tracker = SequenceTracker::default();
            tracker.seen.fill(u64::MAX);
            tracker.forget(first, last);
            let cleared: u64 = tracker.seen.iter().map(|word| u64::from(word.count_zeros())).sum();
            assert_eq!(cleared, last - first + 1, "{first} to {last}");
            let is_clear = |number| {
                let (word, bit) = place(number);
                tracker.seen[word] & bit == 0
            };
            assert!((first..=last).all(is_clear), "{first} to {last}");
        }
    }

    #[test]
    fn hostile_numbers_are_bounded_work() {
        let mut tracker = SequenceTracker::default();
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tracker.on_sample((state >> 32) as u32);
        }
        assert!(tracker.received() <= 100_000);
        tracker.on_end(u64::MAX);
        assert_eq!(tracker.lost(), u64::MAX - tracker.received());
    }
}
