//! Limits how many reports of a peer cause work. Rank feedback has a [`ReportBudget`].
//!
//! [`ReportBudget`]: bats_types::ReportBudget

use core::time::Duration;

/// Limit of ranges per acknowledgement.
const MAX_RANGES: u32 = super::received::MAX_RANGES as u32;
/// Ranges that are always read: a receiver repeats the newest 64 packet numbers in each
/// acknowledgement, which have at most as many ranges.
const FREE_RANGES: u32 = 32;
/// Ranges that each newly acknowledged packet allows: twice those of a receiver that reports each
/// packet in eight acknowledgements.
const RANGES_PER_PACKET: u64 = 16;
/// Ranges that are allowed at once: 16 acknowledgements that overtook each other.
const RANGE_BURST: u32 = 16 * MAX_RANGES;

/// A budget of acknowledged ranges (a token bucket that newly acknowledged packets refill). Most
/// ranges repeat those of acknowledgements before, in case these were lost. If the budget is used
/// up, only the newest ranges of an acknowledgement are read.
#[derive(Debug)]
pub(crate) struct RangeBudget {
    left: u32,
}

impl Default for RangeBudget {
    fn default() -> Self {
        Self { left: RANGE_BURST }
    }
}

impl RangeBudget {
    /// Number of ranges to read of the next acknowledgement.
    pub(crate) fn ranges(&self) -> usize {
        let is_enough = self.left >= MAX_RANGES;
        (if is_enough { MAX_RANGES } else { FREE_RANGES }) as usize
    }

    /// An acknowledgement of which this number of ranges was read has acknowledged new packets.
    pub(crate) fn charge(&mut self, ranges: usize, new_packets: u64) {
        let earned = u32::try_from(new_packets.saturating_mul(RANGES_PER_PACKET));
        let spent = u32::try_from(ranges).unwrap_or(u32::MAX).saturating_sub(FREE_RANGES);
        let left = self.left.saturating_add(earned.unwrap_or(u32::MAX)).min(RANGE_BURST);
        self.left = left.saturating_sub(spent);
    }
}

/// Interval at which a further RANK is allowed. Receivers report at most once in a millisecond; their
/// clock may be faster.
pub(crate) const RANK_INTERVAL: Duration = Duration::from_micros(900);

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver behind a path that loses every second packet, which acknowledges two new packets at
    /// a time, each in eight acknowledgements, and 64 numbers at least.
    #[test]
    fn honest_acknowledgements_are_read_completely() {
        let mut budget = RangeBudget::default();
        for _ in 0..10_000 {
            assert_eq!(budget.ranges(), 256);
            budget.charge(32, 2);
        }
        // A large number of packets in each, with as many ranges.
        for _ in 0..10_000 {
            assert_eq!(budget.ranges(), 256);
            budget.charge(256, 32);
        }
    }

    #[test]
    fn repeated_ranges_are_limited_to_a_burst_and_the_newest_are_always_read() {
        let mut budget = RangeBudget::default();
        let acks = (0..100).take_while(|_| {
            let is_read = budget.ranges() == 256;
            budget.charge(256, 0);
            is_read
        });
        assert_eq!(acks.count(), 18, "4,096 ranges in acknowledgements of 224 more than are free");
        assert_eq!(budget.ranges(), 32);
        budget.charge(32, 15);
        assert_eq!(budget.ranges(), 32, "the newest ranges cost nothing");
        budget.charge(32, 1);
        assert_eq!(budget.ranges(), 256);
        budget.charge(256, u64::MAX);
        assert_eq!(budget.left, RANGE_BURST - 224);
    }
}
