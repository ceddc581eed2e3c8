//! Limits how many reports of a peer cause work.

use core::time::Duration;

use crate::Timestamp;

/// Reports that may arrive at once: those of 16 ms that a queue or a blackout has held up.
const BURST: u32 = 32;

/// A budget of reports (a token bucket). A report replaces the one before, so one that exceeds the
/// budget can be ignored: the next shows the same, and more.
#[derive(Debug)]
pub struct ReportBudget {
    left: u32,
    interval: Duration,
    refilled_at: Timestamp,
}

impl ReportBudget {
    /// A budget that allows one report in each `interval`, and 32 at once.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self { left: BURST, interval, refilled_at: Timestamp::ZERO }
    }

    /// Whether [`Self::take`] would return true.
    #[inline]
    #[must_use]
    pub fn has_left(&self, now: Timestamp) -> bool {
        self.left > 0 || self.refilled_at + self.interval <= now
    }

    /// Takes a report from the budget. Returns false if it is used up.
    #[inline]
    pub fn take(&mut self, now: Timestamp) -> bool {
        let next = self.refilled_at + self.interval;
        if self.left < BURST && next <= now {
            let further = (now - next).as_nanos().checked_div(self.interval.as_nanos());
            let further = further.and_then(|further| u32::try_from(further).ok());
            let earned = further.unwrap_or(BURST).saturating_add(1).min(BURST);
            self.left = self.left.saturating_add(earned).min(BURST);
            self.refilled_at += self.interval.saturating_mul(earned);
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
        let mut budget = ReportBudget::new(Duration::from_micros(900));
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
    /// milliseconds, with the intervals of `bats-relay` and `bats-proto`.
    #[test]
    fn honest_reports_are_never_ignored() {
        for (interval, reports) in [(450, 2), (900, 1)] {
            let mut budget = ReportBudget::new(Duration::from_micros(interval));
            let mut arrivals: Vec<u64> = (0..4_000)
                .flat_map(|n| [n * 1_000 + n * 7_919 % 8_000, n * 1_000 + n * 104_729 % 8_000])
                .step_by(3 - reports)
                .collect();
            arrivals.sort_unstable();
            let taken = |at| budget.take(Timestamp::from_millis(5) + Duration::from_micros(at));
            assert!(arrivals.into_iter().all(taken));
        }
    }
}
