//! The numbers below the largest one that were received, as a bit map.

/// Which of the last `WORDS * 64` packet numbers were received. The size is a parameter so that
/// tests can try all sequences with a small window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReplayWindow<const WORDS: usize> {
    /// Bit `pn % SIZE` is set if `pn` was received, for the last `SIZE` numbers. Words that were never
    /// needed are absent, so that a connection with little traffic takes little memory.
    bits: Vec<u64>,
    /// Largest packet number, `None` before the first packet.
    largest: Option<u64>,
}

impl<const WORDS: usize> Default for ReplayWindow<WORDS> {
    fn default() -> Self {
        Self { bits: Vec::new(), largest: None }
    }
}

impl<const WORDS: usize> ReplayWindow<WORDS> {
    /// Packet numbers that the window covers, the largest included.
    pub(super) const SIZE: u64 = WORDS as u64 * 64;

    /// Largest packet number recorded.
    pub(super) fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// The lowest number that the window covers.
    pub(super) fn floor(&self) -> u64 {
        self.largest.map_or(0, |largest| (largest + 1).saturating_sub(Self::SIZE))
    }

    /// Whether `pn` is above the largest number, or within the window and not recorded.
    pub(super) fn is_new(&self, pn: u64) -> bool {
        match self.largest {
            None => true,
            Some(largest) if pn > largest => true,
            Some(_) => pn >= self.floor() && !self.contains(pn),
        }
    }

    /// Whether a number within the window was recorded.
    pub(super) fn contains(&self, pn: u64) -> bool {
        let bit = pn % Self::SIZE;
        self.bits.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Records a number that is new. Returns whether it is the largest so far.
    pub(super) fn insert(&mut self, pn: u64) -> bool {
        let is_largest = self.largest.is_none_or(|largest| pn > largest);
        if is_largest {
            let first = self.largest.map_or(0, |largest| largest + 1);
            if pn - first >= Self::SIZE {
                self.bits.fill(0);
            } else {
                (first..pn).for_each(|skipped| self.clear(skipped));
            }
            self.largest = Some(pn);
        }
        let bit = pn % Self::SIZE;
        let word = (bit / 64) as usize;
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << (bit % 64);
        is_largest
    }

    fn clear(&mut self, pn: u64) {
        let bit = pn % Self::SIZE;
        if let Some(word) = self.bits.get_mut((bit / 64) as usize) {
            *word &= !(1 << (bit % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[test]
    fn memory_grows_with_the_numbers_up_to_the_window() {
        let mut window = ReplayWindow::<256>::default();
        for (pn, words) in [(0, 1), (63, 1), (64, 2), (16_383, 256), (1 << 40, 256)] {
            window.insert(pn);
            assert!(window.contains(pn));
            assert_eq!(window.bits.len(), words, "{pn}");
        }
        assert!(!window.contains((1 << 40) - 16_383) && window.bits.capacity() <= 512);
    }

    /// Everything about a number that the window decides.
    fn check(window: &ReplayWindow<1>, model: &BTreeSet<u64>, numbers: &[u64]) {
        let largest = model.last().copied();
        assert_eq!(window.largest(), largest);
        let floor = largest.map_or(0, |largest| (largest + 1).saturating_sub(64));
        assert_eq!(window.floor(), floor);
        for &pn in numbers {
            let is_old = pn < floor;
            assert_eq!(window.is_new(pn), !is_old && !model.contains(&pn), "{pn} after {model:?}");
            if !is_old && largest.is_some_and(|largest| pn <= largest) {
                assert_eq!(window.contains(pn), model.contains(&pn), "{pn} after {model:?}");
            }
        }
    }

    /// All sequences of up to 12 arrivals of 14 numbers at the limits of a window of 64: each number
    /// is accepted at most once, none below the window, and every other one. Sequences that lead to
    /// the same window and the same set of accepted numbers are continued once.
    #[test]
    fn all_sequences_of_twelve_arrivals_agree_with_a_set() {
        const NUMBERS: [u64; 14] = [0, 1, 2, 62, 63, 64, 65, 66, 126, 127, 128, 129, 191, 192];
        let start = (ReplayWindow::<1>::default(), BTreeSet::new());
        let mut states = HashSet::from([start.clone()]);
        let mut newest = vec![start];
        for _ in 0..12 {
            let mut next = Vec::new();
            for (window, model) in newest {
                check(&window, &model, &NUMBERS);
                for pn in NUMBERS {
                    let (mut window, mut model) = (window.clone(), model.clone());
                    if window.is_new(pn) {
                        let is_largest = model.last().is_none_or(|&largest| pn > largest);
                        assert_eq!(window.insert(pn), is_largest);
                        assert!(model.insert(pn), "{pn} was accepted twice: {model:?}");
                    }
                    // A state that a shorter sequence reaches was continued there.
                    if states.insert((window.clone(), model.clone())) {
                        next.push((window, model));
                    }
                }
            }
            newest = next;
        }
        for (window, model) in &newest {
            check(window, model, &NUMBERS);
        }
        assert!(states.len() > 1_000, "{} states", states.len());
    }
}
