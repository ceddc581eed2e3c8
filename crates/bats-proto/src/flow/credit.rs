use core::time::Duration;

use bats_types::Timestamp;

/// Bytes promised to a fresh peer: a promise costs nothing until it is used, and start-up on a
/// long path, where the first losses are repaired while the rate multiplies, must not wait for
/// more.
const INITIAL_WINDOW: usize = 96 << 20;
/// The window grows by this factor in a round trip in which a quarter of it was consumed, or at
/// whose end half of it stands between what is consumed and the newest symbol: with losses on a
/// long path that is repair under way, not an application that does not read.
const GROWTH: usize = 4;

/// Symbols promised at the start, for symbols of this size and this budget in bytes.
pub fn initial_credit(symbol_bytes: usize, budget: usize) -> u64 {
    (INITIAL_WINDOW.min(budget / 2) / symbol_bytes.max(1)) as u64
}

/// How many symbols the peer may send: what the budget carries beside what is held, autotuned.
#[derive(Debug)]
pub(super) struct Credit {
    symbol_bytes: usize,
    budget: usize,
    /// Bytes that may be outstanding beyond what the session took.
    window: usize,
    granted: u64,
    told: u64,
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
            told: initial,
            round_start: Timestamp::ZERO,
            consumed_at_round_start: 0,
        }
    }

    /// Symbols that the peer may send in all.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// The peer is told what is granted.
    pub(super) fn tell(&mut self) -> u64 {
        self.told = self.granted;
        self.granted
    }

    /// `consumed` symbols went to the session so far, `seen` is the end of what has arrived, `held_elsewhere` bytes are held beside the
    /// symbols under the credit. True when it is worth telling the peer.
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
                self.window = (self.window * GROWTH).min(self.budget);
            }
            self.round_start = now;
            self.consumed_at_round_start = consumed;
        }
        let bytes = self.window.min(self.budget.saturating_sub(held_elsewhere));
        self.granted = self.granted.max(consumed + (bytes / self.symbol_bytes) as u64);
        let fresh = (self.granted - self.told) as usize * self.symbol_bytes;
        fresh >= (self.window / 16).max(self.symbol_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_grows_with_use_and_never_promises_beyond_the_budget() {
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
    fn an_application_that_takes_nothing_stops_the_credit() {
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
}
