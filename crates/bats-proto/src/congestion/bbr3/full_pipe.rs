//! The full-pipe estimator (draft-ietf-ccwg-bbr-06 section 5.3.1.2).

use super::constants::{FULL_BW_GROWTH, FULL_BW_ROUNDS};

/// Looks for a plateau of the delivery rate.
#[derive(Debug, Default)]
pub(super) struct FullPipe {
    /// full_bw_reached: the pipe has been full since the connection began.
    pub(super) is_reached: bool,
    /// full_bw_now: the pipe is full since the estimator was reset.
    pub(super) is_now: bool,
    /// full_bw: the baseline in bytes per second.
    baseline: u64,
    rounds: u32,
}

impl FullPipe {
    /// ResetFullBW, with a new baseline.
    pub(super) fn reset(&mut self, baseline: u64) {
        self.baseline = baseline;
        self.rounds = 0;
        self.is_now = false;
    }

    /// CheckFullBWReached, at the start of a round whose sample is not app-limited.
    pub(super) fn on_round(&mut self, delivery_rate: u64) {
        if self.is_now {
            return;
        }
        if delivery_rate as f64 >= self.baseline as f64 * FULL_BW_GROWTH {
            self.reset(delivery_rate);
            return;
        }
        self.rounds += 1;
        self.is_now = self.rounds >= FULL_BW_ROUNDS;
        self.is_reached |= self.is_now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_rounds_without_a_quarter_of_growth_fill_the_pipe() {
        let mut pipe = FullPipe::default();
        for (rate, is_full) in
            [(100, false), (125, false), (150, false), (150, false), (156, true), (900, true)]
        {
            pipe.on_round(rate);
            assert_eq!((pipe.is_now, pipe.is_reached), (is_full, is_full), "{rate}");
        }
        pipe.reset(150);
        assert!(!pipe.is_now && pipe.is_reached);
    }

    #[test]
    fn growth_starts_the_count_again() {
        let mut pipe = FullPipe::default();
        for rate in [100, 100, 100, 130, 130, 130] {
            pipe.on_round(rate);
            assert!(!pipe.is_now);
        }
    }
}
