//! The timers of a connection.

use bats_types::Timestamp;

/// When each timer expires; `None` if it is not armed.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// An acknowledgement is due.
    pub(super) ack: Option<Timestamp>,
    /// Feedback about missing rank is due.
    pub(super) feedback: Option<Timestamp>,
    /// The probe timeout (RFC 9002, section 6.2).
    pub(super) probe: Option<Timestamp>,
    /// The pacer allows the next burst.
    pub(super) pacing: Option<Timestamp>,
    /// Send a keep-alive, so that the peer and middleboxes keep their state.
    pub(super) keep_alive: Option<Timestamp>,
    /// The idle timeout.
    pub(super) idle: Option<Timestamp>,
    /// Discard the keys of the previous phase.
    pub(super) key_discard: Option<Timestamp>,
    /// A defect for tests: a timer that nothing handles.
    #[cfg(test)]
    pub(super) stuck: Option<Timestamp>,
}

impl Timers {
    /// Disarms all timers.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        [
            self.ack,
            self.feedback,
            self.probe,
            self.pacing,
            self.keep_alive,
            self.idle,
            self.key_discard,
            #[cfg(test)]
            self.stuck,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Whether a timer has expired; clears it if so.
pub(super) fn take_expired(timer: &mut Option<Timestamp>, now: Timestamp) -> bool {
    let due = timer.is_some_and(|at| at <= now);
    if due {
        *timer = None;
    }
    due
}

#[cfg(test)]
impl super::Connection {
    /// Arms a timer that nothing handles.
    pub(crate) fn arm_stuck_timer(&mut self, at: Timestamp) {
        self.timers.stuck = Some(at);
    }
}
