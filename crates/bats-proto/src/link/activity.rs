//! When packets were last sent and received, and what depends on it: idle timeout, keep-alive, idle trimming, detection
//! of stalls, and for how long routes are missing or ports unreachable.

use core::time::Duration;

use bats_types::Timestamp;

use super::stall_detector::StallDetector;
use super::timer::take_expired;

/// Idle time after which buffers are freed: longer than pauses within a conversation, shorter than
/// usual keep-alive intervals.
const IDLE_TRIM_AFTER: Duration = Duration::from_secs(2);
/// Round trips after which they are freed at the earliest: a receiver may need symbols to use repairs that its peer
/// sends when it has read a report, and what it sends when that was not enough.
const IDLE_TRIM_ROUND_TRIPS: u32 = 4;
/// Time for which a route must be missing until an attempt to reach a node fails: relays report it once
/// a second, and a routing protocol has converged by then in most networks.
const MISSING_ROUTE_TIME: Duration = Duration::from_millis(900);

/// Times of the last packets, and the timers of an idle link.
#[derive(Debug)]
pub(super) struct Activity {
    last_received_at: Timestamp,
    last_sent_at: Timestamp,
    idle_timeout: Duration,
    idle_timer: Option<Timestamp>,
    /// When to send a keep-alive, so that the peer and middleboxes keep their state.
    keep_alive: Option<Timestamp>,
    /// Time of the last packet when buffers were last freed.
    trimmed: Option<Timestamp>,
    /// First of the errors that report the peer as unreachable, since its last packet.
    unreachable_since: Option<Timestamp>,
    /// Detects that data stops to arrive.
    stalls: StallDetector,
    /// A defect for tests: a timer that nothing handles.
    #[cfg(test)]
    stuck: Option<Timestamp>,
}

impl Activity {
    pub(super) fn new(now: Timestamp, idle_timeout: Duration) -> Self {
        Self {
            last_received_at: now,
            last_sent_at: now,
            idle_timeout,
            idle_timer: Some(now + idle_timeout),
            keep_alive: None,
            trimmed: None,
            unreachable_since: None,
            stalls: StallDetector::default(),
            #[cfg(test)]
            stuck: None,
        }
    }

    /// When the last packet of the peer arrived.
    pub(super) fn last_received_at(&self) -> Timestamp {
        self.last_received_at
    }

    /// Time without packets of the peer after which the connection ends.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// A packet of the peer arrived.
    pub(super) fn on_received(&mut self, now: Timestamp) {
        self.last_received_at = now;
    }

    /// Packets were sent; the next keep-alive is due after `keep_alive`.
    pub(super) fn on_sent(&mut self, now: Timestamp, keep_alive: Option<Duration>) {
        self.last_sent_at = now;
        self.keep_alive = keep_alive.map(|interval| now + interval);
    }

    /// Data arrived, at an end that must detect when it stops.
    pub(super) fn on_data(&mut self, now: Timestamp, rtt: Duration) {
        self.stalls.on_data(now, rtt);
    }

    /// Sets the idle timeout that both ends have agreed on.
    pub(super) fn set_idle_timeout(&mut self, timeout: Duration) {
        self.idle_timeout = timeout;
    }

    /// Restarts the idle timeout: the peer is validated.
    pub(super) fn restart_idle_timer(&mut self, now: Timestamp) {
        self.last_received_at = now;
        self.idle_timer = Some(now + self.idle_timeout);
    }

    /// Whether the idle timeout has expired. An incomplete handshake has a timeout of its own.
    pub(super) fn has_timed_out(&mut self, now: Timestamp, is_handshaking: bool) -> bool {
        if !take_expired(&mut self.idle_timer, now) || is_handshaking {
            return false;
        }
        let deadline = self.last_received_at + self.idle_timeout;
        if deadline > now {
            self.idle_timer = Some(deadline);
        }
        deadline <= now
    }

    /// Whether a keep-alive is due; it counts as sent.
    pub(super) fn take_keep_alive(&mut self, now: Timestamp) -> bool {
        take_expired(&mut self.keep_alive, now)
    }

    /// If the flow has stalled and a PING is due: the number of full-size packets that carry it, 0 for
    /// one small packet.
    pub(super) fn take_stall(&mut self, now: Timestamp) -> Option<u32> {
        self.stalls.is_due(now).then(|| self.stalls.take_padded())
    }

    /// When the idle timeout or a keep-alive is due.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        let next = Timestamp::earlier(self.idle_timer, self.keep_alive);
        #[cfg(test)]
        let next = Timestamp::earlier(next, self.stuck);
        next
    }

    /// Arms a timer that nothing handles.
    #[cfg(test)]
    pub(super) fn arm_stuck_timer(&mut self, at: Timestamp) {
        self.stuck = Some(at);
    }

    /// When the flow counts as stalled.
    pub(super) fn stalled_at(&self) -> Option<Timestamp> {
        self.stalls.next_timeout()
    }

    /// When to free buffers; `None` if that is done for this idle period.
    pub(super) fn trim_at(&self, rtt: Duration) -> Option<Timestamp> {
        let last = self.last_sent_at.max(self.last_received_at);
        let after = IDLE_TRIM_AFTER.max(rtt * IDLE_TRIM_ROUND_TRIPS);
        (self.trimmed != Some(last)).then(|| last + after)
    }

    /// Whether to free buffers now; once for each idle period.
    pub(super) fn take_trim(&mut self, now: Timestamp, rtt: Duration) -> bool {
        let is_due = self.trim_at(rtt).is_some_and(|at| at <= now);
        if is_due {
            self.trimmed = Some(self.last_sent_at.max(self.last_received_at));
        }
        is_due
    }

    /// A relay has no route to the peer. Returns whether the route has been missing for too long.
    pub(super) fn on_no_route(&mut self, now: Timestamp) -> bool {
        let since = *self.unreachable_since.get_or_insert(now);
        now - since >= MISSING_ROUTE_TIME
    }

    /// An error reports the peer's port as unreachable. Returns whether such errors persist for a probe
    /// timeout without any packet of the peer: a single one could be forged or short-lived.
    pub(super) fn on_unreachable_port(&mut self, now: Timestamp, probe_timeout: Duration) -> bool {
        match self.unreachable_since {
            Some(since) if self.last_received_at <= since => now - since >= probe_timeout,
            _ => {
                self.unreachable_since = Some(now);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(30);
    const RTT: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn idle_timeout_counts_from_the_last_packet_received() {
        let mut activity = Activity::new(at(0), IDLE);
        activity.on_received(at(10_000));
        activity.on_sent(at(20_000), None);
        assert!(!activity.has_timed_out(at(29_999), false));
        assert!(!activity.has_timed_out(at(30_000), false));
        assert_eq!(activity.next_timeout(), Some(at(40_000)));
        assert!(activity.has_timed_out(at(40_000), false));
        activity.restart_idle_timer(at(50_000));
        assert!(!activity.has_timed_out(at(80_000), true), "the handshake has its own");
    }

    #[test]
    fn keep_alive_is_due_after_the_interval_from_the_last_packet_sent() {
        let mut activity = Activity::new(at(0), IDLE);
        activity.on_sent(at(100), Some(Duration::from_secs(1)));
        activity.on_sent(at(200), Some(Duration::from_secs(1)));
        assert!(!activity.take_keep_alive(at(1_199)));
        assert!(activity.take_keep_alive(at(1_200)));
        assert!(!activity.take_keep_alive(at(1_200)));
    }

    #[test]
    fn buffers_are_freed_once_for_each_idle_period() {
        let mut activity = Activity::new(at(0), IDLE);
        assert!(!activity.take_trim(at(1_999), RTT));
        assert!(activity.take_trim(at(2_000), RTT));
        assert_eq!(activity.trim_at(RTT), None);
        activity.on_sent(at(5_000), None);
        assert_eq!(activity.trim_at(RTT), Some(at(7_000)));
        assert_eq!(activity.trim_at(RTT * 10), Some(at(9_000)), "four round trips");
    }

    #[test]
    fn port_is_unreachable_if_errors_persist_without_a_packet() {
        let mut activity = Activity::new(at(0), IDLE);
        assert!(!activity.on_unreachable_port(at(100), RTT));
        assert!(!activity.on_unreachable_port(at(199), RTT));
        assert!(activity.on_unreachable_port(at(200), RTT));
        activity.on_received(at(201));
        assert!(!activity.on_unreachable_port(at(400), RTT), "it has answered");
    }

    #[test]
    fn route_is_missing_after_nine_tenths_of_a_second() {
        let mut activity = Activity::new(at(0), IDLE);
        assert!(!activity.on_no_route(at(100)));
        assert!(!activity.on_no_route(at(999)));
        assert!(activity.on_no_route(at(1_000)));
    }
}
