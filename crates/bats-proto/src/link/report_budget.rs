//! Limits how many reports of a peer cause work.

use core::time::Duration;

use bats_types::Timestamp;

/// Reports that may arrive at once: those of 16 ms that a queue or a blackout has held up.
const BURST: u32 = 32;
/// Interval at which a further report is allowed. Receivers and relays report at most once in a
/// millisecond, relays for source symbols and repairs each.
const INTERVAL: Duration = Duration::from_micros(500);

/// A budget of reports (a token bucket). A report replaces the one before, so one that exceeds the
/// budget can be ignored: the next shows the same, and more.
#[derive(Debug)]
pub(crate) struct ReportBudget {
    left: u32,
    refilled_at: Timestamp,
}

impl Default for ReportBudget {
    fn default() -> Self {
        Self { left: BURST, refilled_at: Timestamp::ZERO }
    }
}

impl ReportBudget {
    /// Takes a report from the budget. Returns false if it is used up.
    pub(crate) fn take(&mut self, now: Timestamp) -> bool {
        let next = self.refilled_at + INTERVAL;
        if self.left < BURST && next <= now {
            let earned = (now - next).as_nanos() / INTERVAL.as_nanos() + 1;
            let earned = u32::try_from(earned).unwrap_or(BURST).min(BURST);
            self.left = (self.left + earned).min(BURST);
            self.refilled_at += INTERVAL * earned;
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
        let mut budget = ReportBudget::default();
        let start = Timestamp::from_millis(1_000);
        let at = |micros| start + Duration::from_micros(micros);
        assert_eq!((0..100).filter(|_| budget.take(start)).count(), 32, "the burst");
        assert!(!budget.take(at(499)));
        assert!(budget.take(at(500)));
        assert!(!budget.take(at(999)));
        assert!(budget.take(at(1_000)) && !budget.take(at(1_000)));
        let long = (0..10_000).filter(|&n| budget.take(at(1_000 + 100 * n))).count();
        assert_eq!(long, 1_999, "one of five");
        let later = at(10_000_000);
        assert_eq!((0..100).filter(|_| budget.take(later)).count(), 32, "no more than the burst");
    }

    /// Two reports in a millisecond, which jitter delays by up to eight milliseconds.
    #[test]
    fn honest_reports_are_never_ignored() {
        let mut budget = ReportBudget::default();
        let mut arrivals: Vec<u64> = (0..4_000)
            .flat_map(|n| [n * 1_000 + n * 7_919 % 8_000, n * 1_000 + n * 104_729 % 8_000])
            .collect();
        arrivals.sort_unstable();
        let taken = |at| budget.take(Timestamp::from_millis(5) + Duration::from_micros(at));
        assert!(arrivals.into_iter().all(taken));
    }
}
