//! Pacing during a blackout.

use core::time::Duration;

use bats_types::Timestamp;

/// Paces one congestion window of data evenly between two probe timeouts during a blackout.
///
/// The link may return at any moment, and data should be in flight then. Or it is congested, and
/// every packet makes it worse. Probe timeouts back off, so the rate falls. A window sent at once
/// would leave nothing to send when the link returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlackoutPacing {
    /// When the oldest unanswered packet was sent.
    pub(super) since: Timestamp,
    /// When the blackout was detected.
    pub(super) noticed: Timestamp,
    /// Time from the last probe timeout to the next.
    pub(super) interval: Duration,
}

impl BlackoutPacing {
    /// Pacing rate in bytes per second, from the path's pacing rate and congestion window (bytes).
    pub(super) fn pace(&self, rate: u64, window: u64) -> u64 {
        let even = window as f64 / self.interval.as_secs_f64().max(1e-3);
        (rate / 2).min(even as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_window_is_spread_until_the_next_probe() {
        let blackout = |ms| BlackoutPacing {
            since: Timestamp::ZERO,
            noticed: Timestamp::from_millis(100),
            interval: Duration::from_millis(ms),
        };
        assert_eq!(blackout(250).pace(6_000_000, 360_000), 1_440_000);
        assert_eq!(blackout(100).pace(6_000_000, 360_000), 3_000_000, "half the rate at most");
        assert_eq!(blackout(100).pace(u64::MAX, u64::MAX), u64::MAX / 2);
    }
}
