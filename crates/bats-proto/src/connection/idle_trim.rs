//! A connection that says nothing gives back the memory that only a busy one needs.

use core::time::Duration;

use bats_types::Timestamp;

use super::Connection;
use super::streams::{Incoming, Outgoing};

/// Silence after which buffers are given back: longer than any pause of a conversation that is going
/// on, shorter than what keep-alives leave.
const AFTER: Duration = Duration::from_secs(2);

/// Whether a connection rests.
#[derive(Debug, Default)]
pub(super) struct IdleTrim {
    /// The last packet before buffers were given back last.
    since: Option<Timestamp>,
}

impl Connection {
    /// When buffers are to be given back; `None` if that is done.
    pub(super) fn rest_at(&self) -> Option<Timestamp> {
        let last = self.last_sent_at.max(self.last_received_at);
        (self.idle_trim.since != Some(last)).then(|| last + AFTER)
    }

    /// Gives back what holds nothing.
    pub(super) fn rest_if_due(&mut self, now: Timestamp) {
        if !self.state.is_established() || self.rest_at().is_none_or(|at| at > now) {
            return;
        }
        self.idle_trim.since = Some(self.last_sent_at.max(self.last_received_at));
        self.sent.trim();
        self.handshake.trim();
        self.fragments.trim();
        self.events.shrink_to_fit();
        self.stash.shrink_to_fit();
        self.ranges = Vec::new();
        if self.unsplit.is_none() {
            self.scratch = Vec::new();
        }
        let Some(streams) = &mut self.streams else { return };
        match &mut streams.outgoing {
            Outgoing::Reliable { flow, .. } => flow.trim(),
            Outgoing::Timely { flow, .. } => flow.trim(),
            Outgoing::Rateless { .. } => {}
        }
        match &mut streams.incoming {
            Incoming::Reliable { flow, .. } => flow.trim(),
            Incoming::Timely(timely) => timely.flow.trim(),
            Incoming::Rateless { .. } => {}
        }
        streams.inbox.trim();
    }
}
