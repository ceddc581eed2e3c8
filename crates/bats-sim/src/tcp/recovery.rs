//! The state of loss recovery: Linux's states, and what undo needs to know.

use bats_types::Timestamp;

/// Linux `tcp_ca_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    #[default]
    Open,
    Disorder,
    /// The window is reduced after an ECN echo.
    Cwr,
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// The state of recovery and what undo needs to know.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) state: State,
    /// The recovery ends when all segments before this one are acknowledged.
    pub(super) end: u64,
    /// First segment of the recovery that may be undone.
    pub(super) undo_marker: Option<u64>,
    /// Retransmissions since then that no DSACK has reported (Linux `undo_retrans`); `None` before
    /// the first one.
    pub(super) undo_retransmissions: Option<u64>,
    /// Whether an undo may restore the window before the recovery.
    pub(super) restores_window: bool,
    pub(super) first_retransmission: Option<Timestamp>,
    pub(super) frto: bool,
    pub(super) sends_new_data: bool,
}

impl Recovery {
    pub(super) fn is_recovering(&self) -> bool {
        self.state >= State::Recovery
    }

    /// Whether new data is sent before retransmissions (F-RTO, RFC 5682 section 3.1 step 2.b).
    pub(super) fn sends_new_data(&self) -> bool {
        self.sends_new_data
    }

    pub(super) fn is_before_end(&self, number: u64) -> bool {
        number < self.end
    }

    pub(super) fn on_retransmitted(&mut self, now: Timestamp) {
        self.first_retransmission.get_or_insert(now);
        self.undo_retransmissions = Some(self.undo_retransmissions.unwrap_or(0) + 1);
    }

    /// A segment arrived twice (Linux `tcp_check_dsack`).
    pub(super) fn on_dsack(&mut self, number: u64) {
        if self.undo_marker.is_some_and(|marker| number >= marker)
            && let Some(count) = &mut self.undo_retransmissions
        {
            *count = count.saturating_sub(1);
        }
    }

    /// The acknowledgement was caused by a segment sent before the first retransmission (Eifel
    /// detection, RFC 3522; Linux `tcp_packet_delayed`).
    pub(super) fn is_delayed(&self, echo: Option<Timestamp>) -> bool {
        self.first_retransmission.is_none_or(|first| echo.is_some_and(|echo| echo < first))
    }

    /// Linux `tcp_may_undo`.
    pub(super) fn may_undo(&self, echo: Option<Timestamp>) -> bool {
        self.undo_marker.is_some()
            && (self.undo_retransmissions == Some(0) || self.is_delayed(echo))
    }

    pub(super) fn begin(&mut self, state: State, base: u64, next: u64, retransmitted: u64) {
        self.state = state;
        self.end = next;
        self.undo_marker = Some(base);
        self.undo_retransmissions = Some(retransmitted).filter(|&count| count > 0);
        self.first_retransmission = None;
    }
}
