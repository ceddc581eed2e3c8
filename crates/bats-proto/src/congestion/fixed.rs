use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller};

/// Limit of inflight without congestion control, in bytes. It bounds memory, not the rate.
const UNLIMITED_WINDOW: u64 = 64 << 20;
/// Limit of inflight of a fixed rate, in round trips.
const WINDOW_ROUNDS: u32 = 3;

/// A fixed pacing rate, or none. Ignores all congestion signals.
#[derive(Debug)]
pub(super) struct Fixed {
    rate: u64,
    measured: u64,
    last: Option<(u64, Timestamp)>,
    rtt: Duration,
}

impl Fixed {
    pub(super) fn at_rate(rate: u64) -> Self {
        Self { rate: rate.max(1), measured: 0, last: None, rtt: Duration::from_millis(100) }
    }

    pub(super) fn unlimited() -> Self {
        Self::at_rate(u64::MAX)
    }
}

impl Controller for Fixed {
    fn on_sent(&mut self, _now: Timestamp, _bytes: u64, _in_flight: u64) {}

    fn on_ack(&mut self, sample: &AckSample) {
        self.rtt = sample.smoothed_rtt;
        let (bytes, at) =
            *self.last.get_or_insert((sample.cumulative_sent, sample.largest_received_at));
        let elapsed = sample.largest_received_at - at;
        if elapsed >= Duration::from_millis(10) {
            let sent = sample.cumulative_sent.saturating_sub(bytes);
            self.measured = (sent as f64 / elapsed.as_secs_f64()) as u64;
            self.last = Some((sample.cumulative_sent, sample.largest_received_at));
        }
    }

    fn on_probe_timeout(&mut self, _now: Timestamp, _count: u32) {}

    fn window(&self) -> u64 {
        if self.rate == u64::MAX {
            return UNLIMITED_WINDOW;
        }
        let rounds = (self.rtt * WINDOW_ROUNDS).max(Duration::from_millis(100));
        ((self.rate as f64 * rounds.as_secs_f64()) as u64).max(64 << 10)
    }

    fn pacing_rate(&self) -> u64 {
        self.rate
    }

    fn bandwidth(&self) -> u64 {
        if self.rate == u64::MAX { self.measured.max(1_000_000) } else { self.rate }
    }

    fn queue_delay(&self) -> Duration {
        Duration::ZERO
    }

    fn state(&self) -> &'static str {
        if self.rate == u64::MAX { "none" } else { "fixed" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::testing;

    fn ack(millis: u64, cumulative_sent: u64, smoothed_rtt: Duration) -> AckSample {
        let at = Timestamp::from_millis(millis);
        AckSample { cumulative_sent, smoothed_rtt, ..testing::ack(at, at, 1, 0) }
    }

    #[test]
    fn a_given_rate_is_kept_with_three_round_trips_in_flight() {
        let mut fixed = Fixed::at_rate(1_000_000);
        assert_eq!((fixed.pacing_rate(), fixed.bandwidth()), (1_000_000, 1_000_000));
        assert_eq!((fixed.window(), fixed.state()), (300_000, "fixed"));
        fixed.on_ack(&ack(1_000, 0, Duration::from_millis(200)));
        assert_eq!(fixed.window(), 600_000);
        // At least a tenth of a second, and 64 KiB.
        fixed.on_ack(&ack(2_000, 9_000_000, Duration::from_millis(1)));
        assert_eq!((fixed.window(), fixed.bandwidth()), (100_000, 1_000_000));
        assert_eq!(Fixed::at_rate(0).window(), 65_536);
        assert_eq!(Fixed::at_rate(0).pacing_rate(), 1);
        assert_eq!(fixed.queue_delay(), Duration::ZERO);
    }

    #[test]
    fn without_a_rate_what_arrives_is_measured() {
        let mut fixed = Fixed::unlimited();
        assert_eq!((fixed.window(), fixed.pacing_rate()), (67_108_864, u64::MAX));
        assert_eq!((fixed.bandwidth(), fixed.state()), (1_000_000, "none"));
        for (millis, sent, bandwidth) in [
            (1_000, 500_000, 1_000_000),
            // Too short for a measurement.
            (1_009, 545_000, 1_000_000),
            (1_010, 550_000, 5_000_000),
            (1_030, 590_000, 2_000_000),
            (1_040, 590_001, 1_000_000),
        ] {
            fixed.on_ack(&ack(millis, sent, Duration::from_millis(20)));
            assert_eq!(fixed.bandwidth(), bandwidth, "{millis}");
        }
    }
}
