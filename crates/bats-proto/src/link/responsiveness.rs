//! Whether the other end of a link answers: the relay prefers a link that does.

use core::time::Duration;

use bats_types::Timestamp;

use super::acks::MAX_ACK_DELAY;
use super::probing::Probing;
use super::rtt::RttEstimator;
use super::sent::SentPackets;

/// Time without an answer, in probe timeouts, after which a link counts as unresponsive.
const UNRESPONSIVE_TIMEOUTS: u32 = 3;
/// Number of packets with overdue acknowledgements from which on a link is potentially failed (RFC
/// 7829). With a loss of one third in both directions this happens by chance once in 1,000 times.
const OVERDUE_PACKETS: usize = 8;
/// Least delay of the last of these acknowledgements: the larger of this time and this number of
/// acknowledgement intervals.
const OVERDUE_TIME: Duration = Duration::from_millis(10);
const OVERDUE_INTERVALS: u32 = 8;

/// What shows whether the other end of a link answers.
#[derive(Debug)]
pub(super) struct Responsiveness<'a> {
    pub(super) sent: &'a SentPackets,
    pub(super) probing: &'a Probing,
    pub(super) rtt: &'a RttEstimator,
    /// How long this end delays acknowledgements.
    pub(super) ack_interval: Duration,
}

impl Responsiveness<'_> {
    /// Whether the other end answers.
    pub(super) fn is_responsive(&self, now: Timestamp) -> bool {
        let timeout = self.rtt.probe_timeout(MAX_ACK_DELAY) * UNRESPONSIVE_TIMEOUTS;
        self.probing.is_responsive(now, timeout)
    }

    /// When the link becomes potentially failed (RFC 7829): several acknowledgements are overdue,
    /// unless one arrives before. This is too early to abandon the link, but early enough to prefer
    /// another one.
    pub(super) fn potentially_failed_at(&self) -> Option<Timestamp> {
        Some(self.sent.unanswered(OVERDUE_PACKETS)? + self.overdue_after())
    }

    /// Whether the link is potentially failed.
    pub(super) fn is_potentially_failed(&self, now: Timestamp) -> bool {
        self.sent.has_unanswered(OVERDUE_PACKETS, self.overdue_after(), now)
    }

    /// Time after a packet was sent from which on its acknowledgement is overdue.
    fn overdue_after(&self) -> Duration {
        let late = OVERDUE_TIME.max(self.ack_interval * OVERDUE_INTERVALS);
        self.rtt.probe_timeout(late)
    }
}
