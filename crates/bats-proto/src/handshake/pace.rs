//! How long a handshake waits for what.

use core::time::Duration;

use crate::config::TransportConfig;

/// First and longest interval between repetitions of a flight where nothing is known of the path.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_INTERVAL: Duration = Duration::from_millis(150);
/// After this time a flight is sent once more, whether it was lost or not: waiting for a round trip to
/// find out would make every twentieth connection of a path that loses 5 % twice as slow, and a
/// handshake is short. Not at once, because losses come in bursts; not later on long paths, because data
/// follow, and overtake it where it is lost.
pub(super) const COPY_AFTER: Duration = Duration::from_millis(4);
/// The round trip for which the intervals are made; where a longer one is expected they grow with it.
const USUAL_RTT: Duration = Duration::from_millis(100);

/// Intervals of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Before the first repetition.
    pub(super) first: Duration,
    /// Between repetitions at most, where no round trip has been measured.
    pub(super) longest: Duration,
    /// After which it is given up.
    pub(super) timeout: Duration,
}

impl Pace {
    /// As configured; a round trip shorter than the usual one makes nothing faster.
    pub fn of(config: &TransportConfig) -> Self {
        let scale = (config.initial_rtt.as_secs_f64() / USUAL_RTT.as_secs_f64()).max(1.0);
        let scaled = |interval: Duration| {
            Duration::try_from_secs_f64(interval.as_secs_f64() * scale).unwrap_or(Duration::MAX)
        };
        Self {
            first: scaled(FIRST_INTERVAL),
            longest: scaled(LONGEST_INTERVAL),
            timeout: config.handshake_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(initial_rtt: Duration) -> Pace {
        Pace::of(&TransportConfig { initial_rtt, ..TransportConfig::default() })
    }

    #[test]
    fn only_long_paths_change_it() {
        let usual = pace(Duration::from_millis(100));
        assert_eq!((usual.first, usual.longest), (FIRST_INTERVAL, LONGEST_INTERVAL));
        assert_eq!(pace(Duration::from_millis(1)), usual);
        assert_eq!(pace(Duration::from_secs(100)).first, Duration::from_secs(20));
        assert_eq!(pace(Duration::MAX).longest, Duration::MAX);
    }
}
