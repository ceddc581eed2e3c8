//! Limits how many reports of a peer cause work.

use core::time::Duration;

use bats_types::Timestamp;

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

/// Reports that may arrive at once: those of 16 ms that a queue or a blackout has held up.
const BURST: u32 = 32;
/// Interval at which a further RANK is allowed. Receivers report at most once in a millisecond; their
/// clock may be faster.
const RANK_INTERVAL: Duration = Duration::from_micros(900);
/// Interval at which a further BATCH_RANK of a flow is allowed. Relays report at most once in a
/// millisecond for source symbols and repairs each.
const BATCH_RANK_INTERVAL: Duration = Duration::from_micros(450);

/// A budget of reports (a token bucket). A report replaces the one before, so one that exceeds the
/// budget can be ignored: the next shows the same, and more.
#[derive(Debug)]
pub(crate) struct ReportBudget {
    left: u32,
    interval: Duration,
    refilled_at: Timestamp,
}

impl ReportBudget {
    /// A budget of RANK frames.
    pub(crate) fn of_rank() -> Self {
        Self { left: BURST, interval: RANK_INTERVAL, refilled_at: Timestamp::ZERO }
    }

    /// A budget of BATCH_RANK frames of a flow.
    pub(crate) fn of_batch_rank() -> Self {
        Self { interval: BATCH_RANK_INTERVAL, ..Self::of_rank() }
    }

    /// Whether [`Self::take`] would return true.
    pub(crate) fn has_left(&self, now: Timestamp) -> bool {
        self.left > 0 || self.refilled_at + self.interval <= now
    }

    /// Takes a report from the budget. Returns false if it is used up.
    pub(crate) fn take(&mut self, now: Timestamp) -> bool {
        let next = self.refilled_at + self.interval;
        if self.left < BURST && next <= now {
            let earned = (now - next).as_nanos() / self.interval.as_nanos() + 1;
            let earned = u32::try_from(earned).unwrap_or(BURST).min(BURST);
            self.left = (self.left + earned).min(BURST);
            self.refilled_at += self.interval * earned;
        }
        if self.left == BURST {
            self.refilled_at = now;
        }
        let is_allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_limited_to_a_burst_and_one_in_each_interval() {
        let mut budget = ReportBudget::of_rank();
        let start = Timestamp::from_millis(1_000);
        let at = |micros| start + Duration::from_micros(micros);
        assert_eq!((0..100).filter(|_| budget.take(start)).count(), 32, "the burst");
        assert!(!budget.has_left(at(899)) && !budget.take(at(899)));
        assert!(budget.has_left(at(900)) && budget.take(at(900)));
        assert!(!budget.has_left(at(1_799)) && !budget.take(at(1_799)));
        assert!(budget.take(at(1_800)) && !budget.take(at(1_800)));
        let long = (0..9_000).filter(|&n| budget.take(at(1_800 + 100 * n))).count();
        assert_eq!(long, 999, "one of nine");
        let later = at(10_000_000);
        assert_eq!((0..100).filter(|_| budget.take(later)).count(), 32, "no more than the burst");
    }

    /// Two reports of relays in a millisecond and one of receivers, which jitter delays by up to eight
    /// milliseconds.
    #[test]
    fn honest_reports_are_never_ignored() {
        for (mut budget, reports) in
            [(ReportBudget::of_batch_rank(), 2), (ReportBudget::of_rank(), 1)]
        {
            let mut arrivals: Vec<u64> = (0..4_000)
                .flat_map(|n| [n * 1_000 + n * 7_919 % 8_000, n * 1_000 + n * 104_729 % 8_000])
                .step_by(3 - reports)
                .collect();
            arrivals.sort_unstable();
            let taken = |at| budget.take(Timestamp::from_millis(5) + Duration::from_micros(at));
            assert!(arrivals.into_iter().all(taken));
        }
    }

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
