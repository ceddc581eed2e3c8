use bats_types::Timestamp;

/// Replay window in packet numbers below the largest one: 190 ms of reordering at 1 Gbit/s.
pub const REPLAY_WINDOW: u64 = 16_384;
const WORDS: usize = (REPLAY_WINDOW / 64) as usize;
/// Number of consecutive acknowledgements that report each packet.
const ACK_REPEATS: usize = 8;
/// Packet numbers below the largest that every acknowledgement covers at least.
const MIN_COVERAGE: u64 = 64;
/// Limit of ranges per acknowledgement: 256 ranges of two bytes fit any packet.
pub const MAX_RANGES: usize = 256;

/// Packet numbers received on a link: replay window and source of acknowledgements.
#[derive(Debug)]
pub struct ReceivedPackets {
    /// Bit `pn % REPLAY_WINDOW` is set if `pn` was received, for the last `REPLAY_WINDOW` numbers.
    bits: Box<[u64; WORDS]>,
    /// Largest packet number, `None` before the first packet.
    largest: Option<u64>,
    largest_at: Timestamp,
    /// `largest` at each of the last acknowledgements, as a ring buffer.
    acknowledged_largest: [u64; ACK_REPEATS],
    acks_sent: usize,
    shortened: u64,
}

impl Default for ReceivedPackets {
    fn default() -> Self {
        Self {
            bits: Box::new([0; WORDS]),
            largest: None,
            largest_at: Timestamp::ZERO,
            acknowledged_largest: [0; ACK_REPEATS],
            acks_sent: 0,
            shortened: 0,
        }
    }
}

impl ReceivedPackets {
    /// The next expected packet number; truncated numbers are expanded around it.
    pub fn expected(&self) -> u64 {
        self.largest.map_or(0, |largest| largest + 1)
    }

    /// Whether `pn` is new. Call it only for authentic packets, so that forged packets cannot move
    /// the window.
    pub fn is_new(&self, pn: u64) -> bool {
        match self.largest {
            None => true,
            Some(largest) if pn > largest => true,
            Some(largest) => largest - pn < REPLAY_WINDOW && !self.contains(pn),
        }
    }

    fn contains(&self, pn: u64) -> bool {
        let bit = pn % REPLAY_WINDOW;
        self.bits[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Records an authentic packet; false if it is a duplicate or older than the replay window.
    /// `pn` must come from [`expand`].
    pub fn insert(&mut self, now: Timestamp, pn: u64) -> bool {
        if !self.is_new(pn) {
            return false;
        }
        match self.largest {
            Some(largest) if pn <= largest => {}
            previous => {
                let first = previous.map_or(0, |largest| largest + 1);
                if pn - first >= REPLAY_WINDOW {
                    self.bits.fill(0);
                } else {
                    for skipped in first..pn {
                        self.clear(skipped);
                    }
                }
                self.largest = Some(pn);
                self.largest_at = now;
            }
        }
        let bit = pn % REPLAY_WINDOW;
        self.bits[(bit / 64) as usize] |= 1 << (bit % 64);
        true
    }

    fn clear(&mut self, pn: u64) {
        let bit = pn % REPLAY_WINDOW;
        self.bits[(bit / 64) as usize] &= !(1 << (bit % 64));
    }

    /// Largest packet number and its arrival time.
    pub fn largest(&self) -> Option<(u64, Timestamp)> {
        self.largest.map(|largest| (largest, self.largest_at))
    }

    /// Acknowledgements that omitted older ranges.
    pub fn shortened(&self) -> u64 {
        self.shortened
    }

    /// Writes the ranges of the next acknowledgement, newest first, each as (first, last)
    /// inclusive. Several consecutive acknowledgements cover every packet, so that losing some of
    /// them does no harm.
    pub fn write_ranges(&mut self, ranges: &mut Vec<(u64, u64)>) {
        ranges.clear();
        let Some(largest) = self.largest else { return };
        let oldest = if self.acks_sent < ACK_REPEATS {
            0
        } else {
            self.acknowledged_largest[self.acks_sent % ACK_REPEATS]
        };
        self.acknowledged_largest[self.acks_sent % ACK_REPEATS] = largest;
        self.acks_sent += 1;
        let floor = oldest
            .min(largest.saturating_sub(MIN_COVERAGE))
            .max((largest + 1).saturating_sub(REPLAY_WINDOW));

        let mut last = None;
        let mut pn = largest;
        loop {
            match (self.contains(pn), last) {
                (true, None) if ranges.len() == MAX_RANGES => {
                    self.shortened += 1;
                    return;
                }
                (true, None) => last = Some(pn),
                (false, Some(end)) => {
                    ranges.push((pn + 1, end));
                    last = None;
                }
                _ => {}
            }
            if pn == floor {
                break;
            }
            pn -= 1;
        }
        if let Some(end) = last {
            ranges.push((floor, end));
        }
    }
}

/// The full packet number nearest to `expected` whose low 32 bits are `truncated`
/// (RFC 9000, appendix A.3).
pub fn expand(truncated: u32, expected: u64) -> u64 {
    const WINDOW: u64 = 1 << 32;
    const HALF: u64 = WINDOW / 2;
    let candidate = (expected & !(WINDOW - 1)) | u64::from(truncated);
    if candidate + HALF <= expected && candidate < (1 << 62) - WINDOW {
        candidate + WINDOW
    } else if candidate > expected + HALF && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The window agrees with a set of all received numbers.
        #[test]
        fn window_agrees_with_a_set(steps in prop::collection::vec((0_u64..40_000, any::<bool>()), 1..400)) {
            let mut window = ReceivedPackets::default();
            let mut model = BTreeSet::new();
            for (n, repeat) in steps {
                let pn = if repeat { n % 50 } else { n };
                let largest = model.last().copied().unwrap_or(0);
                let expected_new =
                    !model.contains(&pn) && (model.is_empty() || pn > largest || largest - pn < REPLAY_WINDOW);
                prop_assert_eq!(window.insert(Timestamp::ZERO, pn), expected_new);
                if expected_new {
                    model.insert(pn);
                }
            }
            let mut ranges = Vec::new();
            window.write_ranges(&mut ranges);
            let largest = *model.last().unwrap();
            let floor = (largest + 1).saturating_sub(REPLAY_WINDOW);
            let reported: BTreeSet<u64> = ranges.iter().flat_map(|&(a, b)| a..=b).collect();
            prop_assert!(reported.iter().all(|pn| model.contains(pn)));
            if ranges.len() < MAX_RANGES {
                prop_assert!(model.range(floor..).all(|pn| reported.contains(pn)));
            }
        }

        #[test]
        fn expansion_inverts_truncation(pn in 0_u64..1 << 60, distance in 0_u64..1 << 30, ahead in any::<bool>()) {
            let expected = if ahead { pn.saturating_sub(distance) } else { pn + distance };
            prop_assert_eq!(expand(pn as u32, expected), pn);
        }
    }

    #[test]
    fn packet_is_reported_by_eight_consecutive_acknowledgements() {
        let mut window = ReceivedPackets::default();
        let mut ranges = Vec::new();
        let mut reports = 0;
        for ack in 0..40_u64 {
            for i in 0..100 {
                window.insert(Timestamp::ZERO, ack * 100 + i);
            }
            window.write_ranges(&mut ranges);
            reports += usize::from(ranges.iter().any(|&(a, b)| (a..=b).contains(&1050)));
        }
        assert!(reports >= ACK_REPEATS, "{reports}");
    }

    #[test]
    fn acknowledgement_omits_the_oldest_ranges_beyond_the_limit() {
        for (packets, shortened) in [(MAX_RANGES as u64, 0), (MAX_RANGES as u64 + 1, 1)] {
            let mut window = ReceivedPackets::default();
            let mut ranges = Vec::new();
            (0..packets).for_each(|i| assert!(window.insert(Timestamp::ZERO, 2 * i)));
            window.write_ranges(&mut ranges);
            assert_eq!((ranges.len(), window.shortened()), (MAX_RANGES, shortened));
            let newest = 2 * (packets - 1);
            assert_eq!(ranges[0], (newest, newest));
            assert_eq!(ranges[MAX_RANGES - 1].0, 2 * shortened);
        }
    }

    #[test]
    fn packets_older_than_the_replay_window_count_as_duplicates() {
        for (behind, is_new) in [(REPLAY_WINDOW - 1, true), (REPLAY_WINDOW, false)] {
            let mut window = ReceivedPackets::default();
            assert!(window.insert(Timestamp::ZERO, 100_000));
            assert_eq!(window.insert(Timestamp::ZERO, 100_000 - behind), is_new);
        }
    }

    #[test]
    fn jump_beyond_the_replay_window_clears_it() {
        let mut window = ReceivedPackets::default();
        (0..100).for_each(|pn| assert!(window.insert(Timestamp::ZERO, pn)));
        assert!(window.insert(Timestamp::ZERO, 10 * REPLAY_WINDOW + 3));
        assert!(!window.insert(Timestamp::ZERO, 50));
        assert!(window.insert(Timestamp::ZERO, 9 * REPLAY_WINDOW + 50));
    }
}
