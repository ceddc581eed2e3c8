//! Retransmission timers of the handshake.

use core::time::Duration;

use bats_types::Timestamp;

use crate::config::TransportConfig;

/// First and longest retransmission interval of a flight before an RTT is measured.
const INITIAL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_millis(150);
/// After this time a flight is sent once more, whether it was lost or not. Waiting a round trip for
/// the loss to show would double the setup time of one connection in twenty at 5 % loss, and a
/// flight is short. The duplicate is not sent at once, because losses come in bursts. It is not
/// sent later on long paths either, because data follows and would arrive before a lost flight.
pub(super) const DUPLICATE_AFTER: Duration = Duration::from_millis(4);
/// RTT for which the intervals are chosen; they grow in proportion to a longer `initial_rtt`.
const REFERENCE_RTT: Duration = Duration::from_millis(100);

/// A server continues the handshake of a client that it still hears for this many timeouts. It does
/// not know how long the client is ready to wait, and a client that has the keys of one handshake
/// cannot begin another. At 90 % loss a handshake takes up to half a minute. Beyond the bound, the
/// limits of half-open handshakes apply as to any other client (`endpoint/admission.rs`).
const MAX_SERVER_TIMEOUTS: u32 = 6;

/// Timers of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetransmitTimers {
    /// Interval before the first retransmission.
    pub(super) initial: Duration,
    /// Longest interval between retransmissions before an RTT is measured.
    pub(super) max: Duration,
    /// Time after which the handshake fails.
    pub(super) timeout: Duration,
}

impl RetransmitTimers {
    /// The timers for a configuration. An `initial_rtt` below 100 ms does not shorten them.
    pub fn of(config: &TransportConfig) -> Self {
        let scale = (config.initial_rtt.as_secs_f64() / REFERENCE_RTT.as_secs_f64()).max(1.0);
        let scaled = |interval: Duration| {
            Duration::try_from_secs_f64(interval.as_secs_f64() * scale).unwrap_or(Duration::MAX)
        };
        Self {
            initial: scaled(INITIAL_INTERVAL),
            max: scaled(MAX_INTERVAL),
            timeout: config.handshake_timeout,
        }
    }

    /// When the handshake of a server fails that began at `started` and heard its client last at
    /// `heard`.
    pub(super) fn server_deadline(&self, started: Timestamp, heard: Timestamp) -> Timestamp {
        let longest = self.timeout.saturating_mul(MAX_SERVER_TIMEOUTS);
        (heard + self.timeout).min(started + longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timers(initial_rtt: Duration) -> RetransmitTimers {
        RetransmitTimers::of(&TransportConfig { initial_rtt, ..TransportConfig::default() })
    }

    #[test]
    fn a_server_waits_for_clients_that_it_hears_up_to_a_limit() {
        let timers = timers(Duration::from_millis(100));
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        assert_eq!(timers.server_deadline(at(5), at(5)), at(15));
        assert_eq!(timers.server_deadline(at(5), at(14)), at(24));
        assert_eq!(timers.server_deadline(at(5), at(54)), at(64));
        assert_eq!(timers.server_deadline(at(5), at(64)), at(65));
    }

    #[test]
    fn timers_grow_only_with_long_initial_rtt() {
        let usual = timers(Duration::from_millis(100));
        assert_eq!((usual.initial, usual.max), (INITIAL_INTERVAL, MAX_INTERVAL));
        assert_eq!(timers(Duration::from_millis(1)), usual);
        assert_eq!(timers(Duration::from_secs(100)).initial, Duration::from_secs(20));
        assert_eq!(timers(Duration::MAX).max, Duration::MAX);
    }
}
