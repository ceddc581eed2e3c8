use core::time::Duration;

/// Bounds of the retransmission timeout (Linux `TCP_RTO_MIN`, `TCP_TIMEOUT_INIT`, `TCP_RTO_MAX`).
const MIN_RTO: Duration = Duration::from_millis(200);
const INITIAL_RTO: Duration = Duration::from_secs(1);
const MAX_RTO: Duration = Duration::from_secs(120);

/// Round-trip time and retransmission timeout (RFC 6298, in the form of Linux `tcp_rtt_estimator`:
/// the variance has a minimum, not the timeout).
#[derive(Debug)]
pub(super) struct RttEstimator {
    smoothed: Option<Duration>,
    deviation: Duration,
    /// Largest deviation of this round trip.
    max_deviation: Duration,
    variance: Duration,
    /// The round trip ends when this segment is acknowledged.
    round_end: u64,
    min: Duration,
}

impl Default for RttEstimator {
    fn default() -> Self {
        Self {
            smoothed: None,
            deviation: Duration::ZERO,
            max_deviation: MIN_RTO,
            variance: MIN_RTO,
            round_end: 0,
            min: Duration::MAX,
        }
    }
}

impl RttEstimator {
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The minimum so far, `Duration::MAX` before the first sample.
    pub(super) fn min(&self) -> Duration {
        self.min
    }

    pub(super) fn update_min(&mut self, rtt: Duration) {
        self.min = self.min.min(rtt);
    }

    /// A sample; all before `base` is acknowledged, `next` is the next new segment.
    pub(super) fn update(&mut self, rtt: Duration, base: u64, next: u64) {
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.deviation = rtt / 2;
            self.variance = (rtt * 2).max(MIN_RTO);
            self.max_deviation = self.variance;
            self.round_end = next;
            return;
        };
        let error = rtt.abs_diff(smoothed);
        // A sample below the mean by more than the deviation counts for an eighth of its gain.
        let gain = if rtt < smoothed && error > self.deviation { 32 } else { 4 };
        self.deviation = if error > self.deviation {
            self.deviation + (error - self.deviation) / gain
        } else {
            self.deviation - (self.deviation - error) / 4
        };
        self.smoothed = Some(smoothed * 7 / 8 + rtt / 8);
        self.max_deviation = self.max_deviation.max(self.deviation * 4);
        self.variance = self.variance.max(self.max_deviation);
        if base > self.round_end {
            self.variance -= self.variance.saturating_sub(self.max_deviation) / 4;
            self.round_end = next;
            self.max_deviation = MIN_RTO;
        }
    }

    /// The retransmission timeout after `backoff` timeouts in a row.
    pub(super) fn timeout(&self, backoff: u32) -> Duration {
        let base = self.smoothed.map_or(INITIAL_RTO, |smoothed| smoothed + self.variance);
        (base * 2_u32.saturating_pow(backoff.min(10))).min(MAX_RTO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_at_least_the_rtt_plus_200_ms_and_doubles() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.timeout(0), INITIAL_RTO);
        let ms = Duration::from_millis;
        for number in 0..1_000 {
            rtt.update(ms(20), number, number + 10);
        }
        assert!(rtt.timeout(0).abs_diff(ms(220)) < ms(1), "{:?}", rtt.timeout(0));
        assert_eq!(rtt.timeout(2), rtt.timeout(0) * 4);
        assert_eq!(rtt.timeout(30), MAX_RTO);
    }
}
