use core::time::Duration;

use bats_types::Timestamp;

/// Window of the minimum RTT: after this time a later sample replaces it.
const MIN_RTT_LIFETIME: Duration = Duration::from_secs(30);

/// RTT estimator of one path (RFC 9002, section 5).
#[derive(Clone, Debug)]
pub struct RttEstimator {
    latest: Duration,
    smoothed: Duration,
    variance: Duration,
    min: Duration,
    min_at: Timestamp,
    has_sample: bool,
}

impl RttEstimator {
    /// Starts with `initial`, which the first sample replaces.
    pub fn new(initial: Duration) -> Self {
        Self {
            latest: initial,
            smoothed: initial,
            variance: initial / 2,
            min: initial,
            min_at: Timestamp::ZERO,
            has_sample: false,
        }
    }

    /// Takes an RTT sample and the peer's acknowledgement delay, which reduces the sample to the
    /// minimum RTT at most.
    pub fn on_sample(&mut self, now: Timestamp, sample: Duration, ack_delay: Duration) {
        if !self.has_sample || sample <= self.min || now - self.min_at > MIN_RTT_LIFETIME {
            self.min = sample;
            self.min_at = now;
        }
        let adjusted = sample.saturating_sub(ack_delay).max(self.min);
        self.latest = adjusted.max(Duration::from_micros(1));
        if self.has_sample {
            let error = self.smoothed.abs_diff(adjusted);
            self.variance = (self.variance * 3 + error) / 4;
            self.smoothed = (self.smoothed * 7 + adjusted) / 8;
        } else {
            self.smoothed = adjusted;
            self.variance = adjusted / 2;
            self.has_sample = true;
        }
    }

    /// The newest sample, less the acknowledgement delay.
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// The smoothed RTT.
    pub fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// The minimum RTT of the last 30 s.
    pub fn min(&self) -> Duration {
        self.min
    }

    /// The probe timeout (RFC 9002, section 6.2.1).
    pub fn probe_timeout(&self, max_ack_delay: Duration) -> Duration {
        self.smoothed + (self.variance * 4).max(Duration::from_millis(1)) + max_ack_delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn first_sample_replaces_the_initial_rtt_and_later_ones_are_smoothed() {
        let mut rtt = RttEstimator::new(100 * MS);
        rtt.on_sample(Timestamp::from_millis(1), 40 * MS, Duration::ZERO);
        assert_eq!((rtt.smoothed(), rtt.min()), (40 * MS, 40 * MS));
        rtt.on_sample(Timestamp::from_millis(2), 48 * MS, Duration::ZERO);
        assert_eq!((rtt.smoothed(), rtt.min()), (41 * MS, 40 * MS));
    }

    #[test]
    fn ack_delay_never_reduces_a_sample_below_the_minimum() {
        let mut rtt = RttEstimator::new(100 * MS);
        rtt.on_sample(Timestamp::from_millis(1), 40 * MS, Duration::ZERO);
        rtt.on_sample(Timestamp::from_millis(2), 50 * MS, 3600 * 1000 * MS);
        assert!(rtt.latest() >= 40 * MS);
        rtt.on_sample(Timestamp::from_millis(3), 50 * MS, 5 * MS);
        assert_eq!(rtt.latest(), 45 * MS);
    }

    #[test]
    fn expired_minimum_is_replaced_on_a_longer_path() {
        let mut rtt = RttEstimator::new(100 * MS);
        rtt.on_sample(Timestamp::from_millis(1), 10 * MS, Duration::ZERO);
        rtt.on_sample(Timestamp::from_millis(40_000), 80 * MS, Duration::ZERO);
        assert_eq!(rtt.min(), 80 * MS);
    }

    /// RFC 9002, sections 5.3 and 6.2.1.
    #[test]
    fn probe_timeout_is_smoothed_rtt_and_four_times_its_variation() {
        let mut rtt = RttEstimator::new(100 * MS);
        assert_eq!(rtt.probe_timeout(Duration::ZERO), (100 + 4 * 50) * MS);
        for (now, sample, smoothed, variation) in [
            (1, 40, 40 * MS, 20 * MS),
            (2, 48, 41 * MS, (3 * 20 + 8) * MS / 4),
            (3, 33, 40 * MS, (3 * 17 + 8) * MS / 4),
        ] {
            rtt.on_sample(Timestamp::from_millis(now), sample * MS, Duration::ZERO);
            assert_eq!((rtt.latest(), rtt.smoothed()), (sample * MS, smoothed));
            assert_eq!(rtt.probe_timeout(25 * MS), smoothed + 4 * variation + 25 * MS);
        }
        for now in 4..200 {
            rtt.on_sample(Timestamp::from_millis(now), 40 * MS, Duration::ZERO);
        }
        assert_eq!(rtt.probe_timeout(25 * MS), rtt.smoothed() + MS + 25 * MS);
    }

    #[test]
    fn ack_delay_is_subtracted_down_to_the_minimum() {
        for (ack_delay, latest) in [(0, 50), (5, 45), (9, 41), (10, 40), (11, 40), (60, 40)] {
            let mut rtt = RttEstimator::new(100 * MS);
            rtt.on_sample(Timestamp::from_millis(1), 40 * MS, 30 * MS);
            assert_eq!(rtt.latest(), 40 * MS);
            rtt.on_sample(Timestamp::from_millis(2), 50 * MS, ack_delay * MS);
            assert_eq!(rtt.latest(), latest * MS, "delay of {ack_delay} ms");
        }
    }

    #[test]
    fn minimum_is_kept_for_exactly_30_seconds() {
        let start = Timestamp::from_millis(5);
        for (now, min) in [
            (start + MIN_RTT_LIFETIME, 10 * MS),
            (start + MIN_RTT_LIFETIME + Duration::from_nanos(1), 11 * MS),
        ] {
            let mut rtt = RttEstimator::new(2 * MS);
            rtt.on_sample(Timestamp::ZERO, 12 * MS, Duration::ZERO);
            rtt.on_sample(start, 10 * MS, Duration::ZERO);
            rtt.on_sample(now, 11 * MS, Duration::ZERO);
            assert_eq!(rtt.min(), min);
        }
    }

    #[test]
    fn equal_sample_renews_the_minimum() {
        let mut rtt = RttEstimator::new(2 * MS);
        rtt.on_sample(Timestamp::ZERO, 10 * MS, Duration::ZERO);
        let again = Timestamp::from_millis(20_000);
        rtt.on_sample(again, 10 * MS, Duration::ZERO);
        rtt.on_sample(again + MIN_RTT_LIFETIME, 40 * MS, Duration::ZERO);
        assert_eq!(rtt.min(), 10 * MS);
    }
}
