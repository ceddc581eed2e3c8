//! When a handshake sends its flights again, and when it fails.

use core::time::Duration;

use bats_types::Timestamp;

use super::timers::{DUPLICATE_AFTER, RetransmitTimers};
use crate::config::TransportConfig;

/// Least interval between retransmissions.
const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// The retransmission timer of the current flight.
#[derive(Debug)]
pub(super) struct RetransmitSchedule {
    timers: RetransmitTimers,
    started: Timestamp,
    /// When the last authentic datagram arrived.
    heard: Timestamp,
    next_send: Option<Timestamp>,
    interval: Duration,
    /// The current flight has not been sent twice yet.
    duplicate_pending: bool,
    last_sent: Timestamp,
}

impl RetransmitSchedule {
    /// Nothing is to be sent yet.
    pub(super) fn new(now: Timestamp) -> Self {
        let timers = RetransmitTimers::of(&TransportConfig::default());
        Self {
            timers,
            started: now,
            heard: now,
            next_send: None,
            interval: timers.initial,
            duplicate_pending: true,
            last_sent: Timestamp::ZERO,
        }
    }

    /// Sets the timers, before anything has been sent.
    pub(super) fn set_timers(&mut self, timers: RetransmitTimers) {
        self.timers = timers;
        self.interval = timers.initial;
    }

    /// When the handshake fails unless it is complete. An end that `extends` its time continues as
    /// long as it hears its peer, up to a limit.
    pub(super) fn deadline(&self, extends: bool) -> Timestamp {
        match extends {
            true => self.timers.server_deadline(self.started, self.heard),
            false => self.started + self.timers.timeout,
        }
    }

    /// An authentic datagram arrived.
    pub(super) fn on_authentic(&mut self, now: Timestamp) {
        self.heard = now;
    }

    /// The time of the next datagram.
    pub(super) fn next_send(&self) -> Option<Timestamp> {
        self.next_send
    }

    /// Whether it is time for the next datagram.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next_send.is_some_and(|at| at <= now)
    }

    /// Sends the next datagram at once, without a change of the intervals.
    pub(super) fn send_now(&mut self, now: Timestamp) {
        self.next_send = Some(now);
    }

    /// Sends nothing more.
    pub(super) fn stop(&mut self) {
        self.next_send = None;
    }

    /// Begins a flight of new data.
    pub(super) fn begin_flight(&mut self, now: Timestamp, rtt: Option<Duration>) {
        self.duplicate_pending = true;
        self.answer(now, rtt);
    }

    /// Sends an acknowledgement at once, and restarts the intervals.
    pub(super) fn answer(&mut self, now: Timestamp, rtt: Option<Duration>) {
        self.interval = self.base_interval(rtt);
        self.next_send = Some(now);
    }

    /// The current flight is sent again now. Returns whether it is the second time.
    pub(super) fn take_duplicate(&mut self) -> bool {
        core::mem::take(&mut self.duplicate_pending)
    }

    /// A datagram was written.
    pub(super) fn on_sent(&mut self, now: Timestamp) {
        self.last_sent = now;
    }

    /// Whether data that the peer retransmits are a reason to send this end's data again: not soon
    /// after the last datagram, which may answer them.
    pub(super) fn may_rewind(&self, now: Timestamp) -> bool {
        now.saturating_since(self.last_sent) >= self.timers.initial
    }

    /// The flight is sent: schedules its duplicate or its retransmission, at doubling intervals, if
    /// this end `is_waiting` for the peer.
    pub(super) fn on_flight_sent(
        &mut self,
        now: Timestamp,
        is_waiting: bool,
        rtt: Option<Duration>,
    ) {
        let wait = if self.duplicate_pending { DUPLICATE_AFTER } else { self.interval };
        self.next_send = is_waiting.then(|| now + wait);
        if !self.duplicate_pending {
            let max_interval = self.timers.max.max(self.base_interval(rtt));
            self.interval = (self.interval * 2).min(max_interval);
        }
    }

    fn base_interval(&self, rtt: Option<Duration>) -> Duration {
        let first = self.timers.initial;
        // A measured RTT overrides the assumed one.
        rtt.map_or(first, |rtt| (rtt + rtt / 4).max(first.min(MIN_INTERVAL)))
    }
}
