//! Idle trimming: an idle connection frees the memory that only an active one needs.

use core::time::Duration;

use bats_types::Timestamp;

use super::Connection;
use super::streams::{Incoming, Outgoing};

/// Idle time after which buffers are freed: longer than pauses within a conversation, shorter than
/// usual keep-alive intervals.
const IDLE_TRIM_AFTER: Duration = Duration::from_secs(2);
/// Round trips after which they are freed at the earliest: a receiver may need symbols to use repairs that its peer
/// sends when it has read a report, and what it sends when that was not enough.
const IDLE_TRIM_ROUND_TRIPS: u32 = 4;

/// Remembers for which idle period buffers were freed.
#[derive(Debug, Default)]
pub(super) struct IdleTrim {
    /// Time of the last packet when buffers were last freed.
    since: Option<Timestamp>,
}

impl Connection {
    /// When to free buffers; `None` if that is done.
    pub(super) fn idle_trim_at(&self) -> Option<Timestamp> {
        let last = self.last_sent_at.max(self.last_received_at);
        let after = IDLE_TRIM_AFTER.max(self.rtt.smoothed() * IDLE_TRIM_ROUND_TRIPS);
        (self.idle_trim.since != Some(last)).then(|| last + after)
    }

    /// Frees empty buffers if the connection has been idle long enough.
    pub(super) fn trim_if_idle(&mut self, now: Timestamp) {
        if !self.state.is_established() || self.idle_trim_at().is_none_or(|at| at > now) {
            return;
        }
        self.idle_trim.since = Some(self.last_sent_at.max(self.last_received_at));
        self.sent.trim();
        self.handshake.trim();
        self.handshake.release_session(true);
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
            Outgoing::Rateless { flow, .. } => flow.trim(),
        }
        match &mut streams.incoming {
            Incoming::Reliable { flow, .. } => flow.trim(),
            Incoming::Timely(timely) => timely.trim(),
            Incoming::Rateless { flow, .. } => _ = flow.trim(),
        }
        streams.inbox.trim();
    }
}
