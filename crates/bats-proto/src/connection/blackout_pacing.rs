//! What is sent while nothing is heard.

use core::time::Duration;

use bats_types::Timestamp;

/// Nothing is heard of the peer. The link may be back any moment, and what is sent then should arrive; or
/// it is congested, and every packet makes it worse. Between two probe time-outs, which become rarer, a
/// window of data may leave, and it leaves evenly: whoever sends it at once is silent, too, when the link
/// returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlackoutPacing {
    /// When the oldest packet without an answer was sent.
    pub(super) since: Timestamp,
    /// When that was too long ago.
    pub(super) noticed: Timestamp,
    /// From the last probe time-out to the next.
    pub(super) interval: Duration,
}

impl BlackoutPacing {
    /// Pace in bytes per second where `rate` and `window`, in bytes, are the path's.
    pub(super) fn pace(&self, rate: u64, window: u64) -> u64 {
        let even = window as f64 / self.interval.as_secs_f64().max(1e-3);
        (rate / 2).min(even as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_lasts_until_the_next_probe() {
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
