use core::time::Duration;

use bats_types::Timestamp;

/// Initial window in bytes. Credit takes no memory until it is used. On a long path the first
/// losses are repaired while the rate multiplies, and that must not wait for more credit.
const INITIAL_WINDOW: usize = 96 << 20;
/// The window grows by this factor in a round trip in which a quarter of it was consumed. It also
/// grows if half of it is between the consumed symbols and the newest one at the end: on a long
/// path with losses that means repairs in flight, not a slow application.
const WINDOW_GROWTH: usize = 4;

/// Initial credit in symbols, for this symbol size and this budget in bytes.
pub fn initial_credit(symbol_bytes: usize, budget: usize) -> u64 {
    (INITIAL_WINDOW.min(budget / 2) / symbol_bytes.max(1)) as u64
}

/// Flow control credit for the peer, autotuned within the budget less the memory held elsewhere.
#[derive(Debug)]
pub(super) struct Credit {
    symbol_bytes: usize,
    budget: usize,
    /// Bytes that may be outstanding beyond the symbols that the session has consumed.
    window: usize,
    granted: u64,
    advertised: u64,
    round_start: Timestamp,
    consumed_at_round_start: u64,
}

impl Credit {
    pub(super) fn new(symbol_bytes: usize, budget: usize, initial: u64) -> Self {
        Self {
            symbol_bytes: symbol_bytes.max(1),
            budget,
            window: INITIAL_WINDOW.min(budget / 2),
            granted: initial,
            advertised: initial,
            round_start: Timestamp::ZERO,
            consumed_at_round_start: 0,
        }
    }

    /// Raises the budget, and the window to the initial one of that budget.
    pub(super) fn raise_budget(&mut self, budget: usize) {
        self.budget = self.budget.max(budget);
        self.window = self.window.max(INITIAL_WINDOW.min(budget / 2));
    }

    /// Total number of symbols that the peer may send.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns the granted credit and records that it is advertised.
    pub(super) fn advertise(&mut self) -> u64 {
        self.advertised = self.granted;
        self.granted
    }

    /// Updates the credit. `consumed` symbols went to the session so far, `seen` is one more than
    /// the newest symbol, and `held_elsewhere` bytes are held in addition to the symbols under the
    /// credit. Returns whether the peer should get the new credit.
    pub(super) fn update(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        consumed: u64,
        seen: u64,
        held_elsewhere: usize,
    ) -> bool {
        if now - self.round_start >= rtt {
            let used = (consumed - self.consumed_at_round_start) as usize * self.symbol_bytes;
            let waiting = seen.saturating_sub(consumed) as usize * self.symbol_bytes;
            if used >= self.window / 4 || waiting >= self.window / 2 {
                self.window = (self.window * WINDOW_GROWTH).min(self.budget);
            }
            self.round_start = now;
            self.consumed_at_round_start = consumed;
        }
        let bytes = self.window.min(self.budget.saturating_sub(held_elsewhere));
        self.granted = self.granted.max(consumed + (bytes / self.symbol_bytes) as u64);
        let fresh = (self.granted - self.advertised) as usize * self.symbol_bytes;
        fresh >= (self.window / 16).max(self.symbol_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_grows_with_use_up_to_the_budget() {
        let rtt = Duration::from_millis(100);
        let mut credit = Credit::new(1408, 64 << 20, initial_credit(1408, 64 << 20));
        let mut consumed = 0;
        for round in 1..20_u64 {
            let now = Timestamp::from_millis(100 * round);
            consumed = credit.granted();
            credit.update(now, rtt, consumed, consumed, 10 << 20);
            let promised = (credit.granted() - consumed) as usize * 1408;
            assert!(promised + (10 << 20) <= 64 << 20);
        }
        assert!((credit.granted() - consumed) as usize * 1408 > 50 << 20);
    }

    #[test]
    fn credit_stops_when_the_application_reads_nothing() {
        let mut credit = Credit::new(1408, 4 << 20, initial_credit(1408, 4 << 20));
        let before = credit.granted();
        credit.update(
            Timestamp::from_millis(1),
            Duration::from_millis(1),
            before,
            before,
            before as usize * 1408,
        );
        let after = credit.granted();
        assert!(after as usize * 1408 <= 4 << 20);
        credit.update(
            Timestamp::from_millis(9),
            Duration::from_millis(1),
            after,
            after,
            after as usize * 1408,
        );
        assert!(credit.granted() <= (4 << 20) / 1408 + 1);
    }

    const ROUND: Duration = Duration::from_millis(100);

    fn at_round(round: u32) -> Timestamp {
        Timestamp::ZERO + ROUND * round
    }

    #[test]
    fn initial_credit_is_half_the_budget_and_at_most_the_initial_window() {
        assert_eq!(initial_credit(1_000, 2_003_000), 1_001);
        assert_eq!(initial_credit(1 << 20, 1 << 30), 96);
        assert_eq!(initial_credit(0, 100), 50);
    }

    /// A credit of symbols of 10 bytes with a window of 1,000 bytes.
    fn small() -> Credit {
        Credit::new(10, 2_000, 0)
    }

    #[test]
    fn use_of_a_quarter_of_the_window_in_a_round_trip_makes_it_grow() {
        for (consumed, window) in [(24, 1_000), (25, 2_000)] {
            let mut credit = small();
            credit.update(at_round(1), ROUND, consumed, consumed, 0);
            assert_eq!(credit.window, window, "{consumed} symbols consumed");
            assert_eq!(credit.granted(), consumed + window as u64 / 10);
        }
        // Only what was consumed since the last round trip counts.
        let mut credit = Credit::new(10, 1_000_000, 0);
        credit.window = 1_000;
        credit.update(at_round(1), ROUND, 24, 24, 0);
        credit.update(at_round(2), ROUND, 48, 48, 0);
        assert_eq!(credit.window, 1_000);
        credit.update(at_round(3), ROUND, 73, 73, 0);
        assert_eq!(credit.window, 4_000);
    }

    #[test]
    fn half_of_the_window_behind_a_gap_makes_it_grow() {
        for (seen, window) in [(59, 1_000), (60, 2_000)] {
            let mut credit = small();
            credit.update(at_round(1), ROUND, 10, seen, 0);
            assert_eq!(credit.window, window, "symbols 10 to {seen} wait");
        }
    }

    #[test]
    fn window_grows_once_in_a_round_trip() {
        let mut credit = Credit::new(10, 1_000_000, 0);
        credit.window = 1_000;
        credit.update(at_round(1), ROUND, 100, 100, 0);
        assert_eq!(credit.window, 4_000);
        credit.update(at_round(1) + ROUND / 2, ROUND, 1_000, 1_000, 0);
        assert_eq!(credit.window, 4_000);
        credit.update(at_round(2), ROUND, 1_000, 1_000, 0);
        assert_eq!(credit.window, 16_000);
    }

    #[test]
    fn credit_counts_memory_held_elsewhere_and_never_shrinks() {
        let mut credit = small();
        credit.update(Timestamp::ZERO, ROUND, 7, 7, 1_300);
        assert_eq!(credit.granted(), 7 + 70);
        credit.update(Timestamp::ZERO, ROUND, 7, 7, 1_900);
        assert_eq!(credit.granted(), 77);
        credit.update(Timestamp::ZERO, ROUND, 80, 80, 3_000);
        assert_eq!(credit.granted(), 80);
    }

    #[test]
    fn credit_is_advertised_when_a_sixteenth_of_the_window_is_new() {
        let mut credit = Credit::new(10, 3_200, 160);
        for consumed in 0..10 {
            assert!(!credit.update(Timestamp::ZERO, ROUND, consumed, consumed, 0), "{consumed}");
        }
        assert!(credit.update(Timestamp::ZERO, ROUND, 10, 10, 0));
        assert_eq!(credit.advertise(), 170);
        assert!(!credit.update(Timestamp::ZERO, ROUND, 19, 19, 0));
        assert!(credit.update(Timestamp::ZERO, ROUND, 20, 20, 0));
        // With long symbols a new one is more than a sixteenth.
        let mut long = Credit::new(1_000, 2_000, 1);
        assert!(!long.update(Timestamp::ZERO, ROUND, 0, 0, 0));
        assert!(long.update(Timestamp::ZERO, ROUND, 1, 1, 0));
    }

    #[test]
    fn a_higher_budget_raises_the_window_and_a_lower_one_changes_nothing() {
        let mut credit = small();
        credit.raise_budget(3_000);
        assert_eq!((credit.budget, credit.window), (3_000, 1_500));
        credit.raise_budget(100);
        assert_eq!((credit.budget, credit.window), (3_000, 1_500));
        credit.raise_budget(1 << 40);
        assert_eq!(credit.window, 96 << 20);
    }
}
