use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::PathView;

/// A flow with fewer symbols than this in a round trip is thin. Its losses are repaired message by
/// message, because there is no window to spread repairs over.
const THIN_SYMBOLS: usize = 12;
/// Minimum round-trip time used for that decision.
const MIN_THIN_RTT: Duration = Duration::from_millis(50);
/// Fraction of the path's rate that repairs of thin flows may take, and bytes per second that they
/// may always take: chosen.
const MAX_RATE_FRACTION: f64 = 0.2;
const MIN_RATE: f64 = 125_000.0;
/// Maximum number of repairs sent at once after an idle period.
const MAX_BURST: f64 = 16.0;

/// Decides whether a flow is thin and limits its repairs. Many small flows, each with three times
/// its own load in repairs, must not fill a path.
#[derive(Debug)]
pub(super) struct ThinFlow {
    /// Send times of the newest symbols.
    sent_at: VecDeque<Timestamp>,
    /// Number of repairs that may be sent, as of `since`.
    allowance: f64,
    since: Timestamp,
}

impl Default for ThinFlow {
    fn default() -> Self {
        Self { sent_at: VecDeque::new(), allowance: MAX_BURST, since: Timestamp::ZERO }
    }
}

impl ThinFlow {
    /// Records a sent symbol.
    pub(super) fn on_symbol(&mut self, now: Timestamp) {
        if self.sent_at.len() == THIN_SYMBOLS {
            self.sent_at.pop_front();
        }
        self.sent_at.push_back(now);
    }

    pub(super) fn is_thin(&self, now: Timestamp, path: &PathView) -> bool {
        let round = path.smoothed_rtt.max(MIN_THIN_RTT);
        self.sent_at.len() < THIN_SYMBOLS
            || self.sent_at.front().is_some_and(|&at| at + round <= now)
    }

    /// How many of the `wanted` repairs of `bytes` bytes each may be sent.
    pub(super) fn allow(
        &mut self,
        now: Timestamp,
        wanted: u64,
        bytes: usize,
        path: &PathView,
    ) -> u64 {
        let rate = (path.rate_bytes_per_second as f64 * MAX_RATE_FRACTION).max(MIN_RATE);
        let earned = (now - self.since).as_secs_f64() * rate / bytes.max(1) as f64;
        self.allowance = (self.allowance + earned).min(MAX_BURST);
        self.since = now;
        let allowed = (wanted as f64).min(self.allowance.floor());
        self.allowance -= allowed;
        allowed as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rate: u64) -> PathView {
        PathView {
            rate_bytes_per_second: rate,
            smoothed_rtt: Duration::from_millis(100),
            ack_interval: Duration::from_millis(1),
            loss: 0.1,
            burst_factor: 1.0,
            loss_packets: 1_000,
            queue_delay: Duration::ZERO,
        }
    }

    #[test]
    fn few_symbols_in_a_round_trip_make_a_thin_flow() {
        let mut thin = ThinFlow::default();
        for number in 0..40 {
            let now = Timestamp::from_millis(number * 10);
            thin.on_symbol(now);
            assert!(thin.is_thin(now, &path(0)), "one per 10 ms, ten per round trip");
        }
        for number in 0..40 {
            let now = Timestamp::from_millis(400 + number);
            thin.on_symbol(now);
            // From then on the twelfth last symbol is less than 100 ms old.
            assert_eq!(thin.is_thin(now, &path(0)), number < 2, "one per millisecond: {number}");
        }
    }

    #[test]
    fn repairs_are_limited_to_a_fifth_of_the_rate_or_one_megabit() {
        for (rate, cap) in [(0, 125_000.0), (10_000_000, 2_000_000.0)] {
            let mut thin = ThinFlow::default();
            let sum: u64 = (0..10_000)
                .map(|number| thin.allow(Timestamp::from_millis(number), 5, 1_000, &path(rate)))
                .sum();
            let bound = (cap * 10.0 / 1_000.0) as u64;
            assert!(sum <= bound + 16 && sum >= bound - 16, "{sum}, bound {bound}");
        }
    }

    #[test]
    fn flow_is_thin_again_a_round_trip_after_its_twelfth_last_symbol() {
        let mut thin = ThinFlow::default();
        for number in 0..12 {
            assert!(thin.is_thin(Timestamp::from_millis(10), &path(0)), "{number} symbols");
            thin.on_symbol(Timestamp::from_millis(10));
        }
        assert!(!thin.is_thin(Timestamp::from_millis(109), &path(0)));
        assert!(thin.is_thin(Timestamp::from_millis(110), &path(0)));
        // A shorter round trip counts as 50 ms.
        let near = PathView { smoothed_rtt: Duration::from_millis(1), ..path(0) };
        assert!(!thin.is_thin(Timestamp::from_millis(59), &near));
        assert!(thin.is_thin(Timestamp::from_millis(60), &near));
    }

    #[test]
    fn allowance_is_earned_with_time_and_kept_in_fractions() {
        let mut thin = ThinFlow::default();
        let mut allow =
            |micros, wanted| thin.allow(Timestamp::from_micros(micros), wanted, 1_000, &path(0));
        assert_eq!(allow(0, 100), 16, "the burst");
        assert_eq!(allow(7_000, 5), 0, "a repair takes 8 ms");
        assert_eq!(allow(8_000, 5), 1);
        assert_eq!(allow(40_000, 3), 3, "fewer than the four earned");
        assert_eq!(allow(40_000, 3), 1);
        assert_eq!(allow(10_000_000, 100), 16, "no more than the burst");
    }
}
