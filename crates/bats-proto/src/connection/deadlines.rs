//! The clocks of a connection in one table.

use bats_types::Timestamp;

/// When something has to be done at the latest; `None` for what is not running.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// An acknowledgement is due.
    pub(super) ack: Option<Timestamp>,
    /// Feedback about missing rank is due.
    pub(super) feedback: Option<Timestamp>,
    /// Nothing was heard: probe.
    pub(super) probe: Option<Timestamp>,
    /// The pacer lets the next burst go.
    pub(super) pacing: Option<Timestamp>,
    /// Say something so that the peer and boxes between do not forget us.
    pub(super) keep_alive: Option<Timestamp>,
    /// The peer is gone.
    pub(super) idle: Option<Timestamp>,
    /// Keys of the previous phase are dropped.
    pub(super) key_discard: Option<Timestamp>,
}

impl Deadlines {
    pub(super) fn next(&self) -> Option<Timestamp> {
        [
            self.ack,
            self.feedback,
            self.probe,
            self.pacing,
            self.keep_alive,
            self.idle,
            self.key_discard,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// Clears and reports a deadline that has come.
pub(super) fn expired(deadline: &mut Option<Timestamp>, now: Timestamp) -> bool {
    let due = deadline.is_some_and(|at| at <= now);
    if due {
        *deadline = None;
    }
    due
}
