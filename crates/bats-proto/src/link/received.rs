use bats_types::Timestamp;

use super::replay_window::ReplayWindow;
use crate::wire::frame::MAX_ACK_RANGES;

/// Replay window in packet numbers below the largest one: 190 ms of reordering at 1 Gbit/s.
pub const REPLAY_WINDOW: u64 = ReplayWindow::<WORDS>::SIZE;
const WORDS: usize = 256;
/// Number of consecutive acknowledgements that report each packet.
const ACK_REPEATS: usize = 8;
/// Packet numbers below the largest that every acknowledgement covers at least.
const MIN_COVERAGE: u64 = 64;
/// Limit of ranges per acknowledgement: as many as a peer accepts.
pub const MAX_RANGES: usize = MAX_ACK_RANGES as usize;

/// Packet numbers received on a link: replay window and source of acknowledgements.
#[derive(Debug)]
pub struct ReceivedPackets {
    window: ReplayWindow<WORDS>,
    largest_at: Timestamp,
    /// The lowest packet that each of the last acknowledgements was the first to report, as a ring
    /// buffer. Reordered packets may be far below the largest one.
    lowest_reported: [u64; ACK_REPEATS],
    /// The lowest packet since the last acknowledgement.
    lowest_new: Option<u64>,
    acks_sent: usize,
    shortened: u64,
}

impl Default for ReceivedPackets {
    fn default() -> Self {
        Self {
            window: ReplayWindow::default(),
            largest_at: Timestamp::ZERO,
            lowest_reported: [0; ACK_REPEATS],
            lowest_new: None,
            acks_sent: 0,
            shortened: 0,
        }
    }
}

impl ReceivedPackets {
    /// The next expected packet number; truncated numbers are expanded around it.
    pub fn expected(&self) -> u64 {
        self.window.largest().map_or(0, |largest| largest + 1)
    }

    /// Whether `pn` is new. Call it only for authentic packets, so that forged packets cannot move
    /// the window.
    pub fn is_new(&self, pn: u64) -> bool {
        self.window.is_new(pn)
    }

    /// Records an authentic packet; false if it is a duplicate or older than the replay window.
    /// `pn` must come from [`expand`].
    pub fn insert(&mut self, now: Timestamp, pn: u64) -> bool {
        if !self.is_new(pn) {
            return false;
        }
        if self.window.insert(pn) {
            self.largest_at = now;
        }
        self.lowest_new = Some(self.lowest_new.map_or(pn, |lowest| lowest.min(pn)));
        true
    }

    /// Largest packet number and its arrival time.
    pub fn largest(&self) -> Option<(u64, Timestamp)> {
        self.window.largest().map(|largest| (largest, self.largest_at))
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
        let Some(largest) = self.window.largest() else { return };
        self.lowest_reported[self.acks_sent % ACK_REPEATS] =
            self.lowest_new.take().unwrap_or(largest);
        self.acks_sent += 1;
        let oldest = self.lowest_reported.iter().copied().min().unwrap_or(0);
        let floor = oldest.min(largest.saturating_sub(MIN_COVERAGE)).max(self.window.floor());

        let mut last = None;
        let mut pn = largest;
        loop {
            match (self.window.contains(pn), last) {
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
    expand_bits::<32>(u64::from(truncated), expected)
}

/// [`expand`] for any number of bits below 62, so that tests can try all windows of 16 bits.
/// `expected` is below 2^62, so that nothing overflows.
#[inline]
fn expand_bits<const BITS: u32>(truncated: u64, expected: u64) -> u64 {
    let window = 1_u64 << BITS;
    let half = window / 2;
    let candidate = (expected & !(window - 1)) | truncated;
    if candidate.wrapping_add(half) <= expected && candidate < (1 << 62) - window {
        candidate.wrapping_add(window)
    } else if candidate > expected.wrapping_add(half) && candidate >= window {
        candidate.wrapping_sub(window)
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

        /// Each acknowledgement has what arrived from the lowest packet that the last eight were the
        /// first to report, or from 64 below the largest, as maximal ranges.
        #[test]
        fn acknowledgements_agree_with_a_set(
            acks in prop::collection::vec(prop::collection::vec(0_u64..400, 0..20), 1..30)
        ) {
            let mut window = ReceivedPackets::default();
            let (mut model, mut lowest) = (BTreeSet::new(), vec![0; ACK_REPEATS]);
            let mut ranges = Vec::new();
            for (ack, distances) in (0..).zip(acks) {
                // The packets of an acknowledgement are up to 400 numbers apart, each 50 higher.
                let new: Vec<u64> = distances
                    .into_iter()
                    .map(|distance| ack * 50 + distance)
                    .filter(|&pn| window.insert(Timestamp::ZERO, pn))
                    .collect();
                model.extend(new.iter().copied());
                window.write_ranges(&mut ranges);
                let Some(&largest) = model.last() else {
                    prop_assert!(ranges.is_empty());
                    continue;
                };
                lowest.push(new.iter().copied().min().unwrap_or(largest));
                let oldest = lowest[lowest.len() - ACK_REPEATS..].iter().copied().min().unwrap();
                let floor = oldest.min(largest.saturating_sub(64));
                let reported: Vec<u64> = ranges.iter().flat_map(|&(a, b)| (a..=b).rev()).collect();
                prop_assert!(reported.iter().eq(model.range(floor..).rev()));
                prop_assert!(ranges.windows(2).all(|pair| pair[1].1 + 1 < pair[0].0));
            }
        }

        #[test]
        fn expansion_inverts_truncation(pn in 0_u64..1 << 60, distance in 0_u64..1 << 30, ahead in any::<bool>()) {
            let expected = if ahead { pn.saturating_sub(distance) } else { pn + distance };
            prop_assert_eq!(expand(pn as u32, expected), pn);
        }
    }

    #[test]
    fn next_number_is_expected_after_the_largest_which_alone_has_an_arrival_time() {
        let mut window = ReceivedPackets::default();
        assert_eq!((window.expected(), window.largest()), (0, None));
        let at = Timestamp::from_millis;
        for (ms, pn, largest) in [(1, 0, (0, at(1))), (2, 7, (7, at(2))), (3, 5, (7, at(2)))] {
            assert!(window.insert(at(ms), pn));
            assert!(!window.insert(at(ms + 10), pn));
            assert_eq!((window.expected(), window.largest()), (largest.0 + 1, Some(largest)));
        }
    }

    #[test]
    fn every_acknowledgement_covers_the_newest_65_numbers() {
        let mut window = ReceivedPackets::default();
        let mut ranges = Vec::new();
        for pn in 0..200 {
            window.insert(Timestamp::ZERO, pn);
            window.write_ranges(&mut ranges);
            assert_eq!(ranges, [(pn.saturating_sub(64), pn)]);
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
        assert_eq!(reports, ACK_REPEATS);
    }

    #[test]
    fn late_packets_are_reported_by_eight_acknowledgements_too() {
        let mut window = ReceivedPackets::default();
        let mut ranges = Vec::new();
        let mut reports = 0;
        for ack in 0..40_u64 {
            for i in 0..100 {
                let pn = ack * 100 + i;
                // One packet is delayed by 10 acknowledgements.
                if pn != 1_050 {
                    window.insert(Timestamp::ZERO, pn);
                }
            }
            if ack == 20 {
                window.insert(Timestamp::ZERO, 1_050);
            }
            window.write_ranges(&mut ranges);
            reports += usize::from(ranges.iter().any(|&(a, b)| (a..=b).contains(&1_050)));
        }
        assert_eq!(reports, ACK_REPEATS);
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

    /// Every number with every expected number that is at most half a window away, for all expected
    /// numbers of a window of 16 bits.
    #[test]
    fn all_windows_of_16_bits_expand_to_the_nearest_number() {
        const WINDOW: u64 = 1 << 16;
        for expected in 3 * WINDOW..4 * WINDOW {
            let first = expected - WINDOW / 2 + 1;
            let wrong = (first..first + WINDOW)
                .fold(0, |wrong, pn| wrong | (expand_bits::<16>(pn % WINDOW, expected) ^ pn));
            assert_eq!(wrong, 0, "near {expected}");
        }
    }

    /// Of two numbers that are equally near, RFC 9000 takes the larger one.
    #[test]
    fn number_half_a_window_ahead_is_taken_instead_of_that_behind() {
        const HALF: u64 = 1 << 31;
        for expected in [2 * HALF, (1 << 40) + 7] {
            let ahead = expected + HALF;
            for (pn, expanded) in [
                (ahead, ahead),
                (expected - HALF, ahead),
                (ahead + 1, expected - HALF + 1),
                (ahead - 1, ahead - 1),
            ] {
                assert_eq!(expand(pn as u32, expected), expanded);
            }
        }
    }

    /// All windows of 8 bits at both ends of the number range: the nearest number with these bits
    /// that is in the range.
    #[test]
    fn expansion_stays_in_the_number_range() {
        const WINDOW: u64 = 1 << 8;
        const END: u64 = 1 << 62;
        for from in [0, WINDOW, END - 2 * WINDOW, END - WINDOW] {
            for expected in from..from + WINDOW {
                for truncated in 0..WINDOW {
                    let pn = expand_bits::<8>(truncated, expected);
                    let below = expected.saturating_sub(2 * WINDOW) & !(WINDOW - 1);
                    let nearest = (0..5)
                        .map(|windows| below + windows * WINDOW + truncated)
                        .filter(|&other| other < END)
                        .map(|other| other.abs_diff(expected))
                        .min();
                    assert_eq!((pn % WINDOW, Some(pn.abs_diff(expected))), (truncated, nearest));
                }
            }
        }
    }

    /// The bit of the number just below the window is that of the largest number.
    #[test]
    fn acknowledgements_never_report_a_number_below_the_window() {
        let mut window = ReceivedPackets::default();
        let mut ranges = Vec::new();
        for pn in [0, REPLAY_WINDOW, REPLAY_WINDOW + 1, 3 * REPLAY_WINDOW] {
            assert!(window.insert(Timestamp::ZERO, pn));
            window.write_ranges(&mut ranges);
            let oldest = ranges.last().map(|&(first, _)| first);
            assert!(oldest > Some(pn - pn.min(REPLAY_WINDOW)) || pn == 0, "{pn}: {ranges:?}");
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
