//! Loss recovery and undoing it (draft-ietf-ccwg-bbr-06 sections 5.5.11 and 5.6.4.4).

use bats_types::Timestamp;

use super::bounds::{Bounds, INFINITY};
use super::state::State;

/// The recovery episode and the state to restore if it was spurious.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Losses of packets sent after this begin a new episode (RFC 9002 section 7.3.2).
    since: Option<Timestamp>,
    /// Packets of this episode declared lost and not acknowledged since.
    unconfirmed: u64,
    /// Ranges of consecutive packets lost in this round.
    ranges_in_round: u32,
    /// Whether CE marks of this round were handled.
    pub(super) has_marks: bool,
    pub(super) undo_state: Option<State>,
    undo_bw_shortterm: u64,
    undo_inflight_shortterm: u64,
    undo_inflight_longterm: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            since: None,
            unconfirmed: 0,
            ranges_in_round: 0,
            has_marks: false,
            undo_state: None,
            undo_bw_shortterm: INFINITY,
            undo_inflight_shortterm: INFINITY,
            undo_inflight_longterm: INFINITY,
        }
    }
}

impl Recovery {
    /// InLossRecovery.
    pub(super) fn is_active(&self) -> bool {
        self.since.is_some()
    }

    /// Handles the acknowledgement of a packet sent at `sent_at`. Returns whether it ends the
    /// episode.
    pub(super) fn on_ack(&mut self, sent_at: Timestamp) -> bool {
        let is_over = self.since.is_some_and(|since| sent_at > since);
        if is_over {
            self.since = None;
        }
        is_over
    }

    /// Handles the arrival of packets that had been declared lost. Returns whether no loss of the
    /// episode remains.
    pub(super) fn on_spurious(&mut self, packets: u64) -> bool {
        let had_losses = self.unconfirmed > 0;
        self.unconfirmed = self.unconfirmed.saturating_sub(packets);
        had_losses && self.unconfirmed == 0
    }
    /// An episode begins with a loss.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.since = Some(now);
        self.unconfirmed = 0;
    }

    /// An episode begins, or begins again, with an RTO: earlier losses stay unconfirmed.
    pub(super) fn begin_after_rto(&mut self, now: Timestamp) {
        self.since = Some(now);
    }

    /// Counts a lost packet; `continues_run` if the packet before it was lost, too.
    pub(super) fn on_lost(&mut self, continues_run: bool) {
        self.unconfirmed += 1;
        self.ranges_in_round += u32::from(!continues_run);
    }

    /// Ranges of consecutive packets lost since the last call.
    pub(super) fn take_ranges(&mut self) -> u32 {
        core::mem::take(&mut self.ranges_in_round)
    }

    /// SaveStateUponLoss, without the window.
    pub(super) fn save(&mut self, bounds: &Bounds) {
        self.undo_state = None;
        self.undo_bw_shortterm = bounds.bw_shortterm;
        self.undo_inflight_shortterm = bounds.inflight_shortterm;
        self.undo_inflight_longterm = bounds.inflight_longterm;
    }

    /// HandleSpuriousLossDetection: raises `bounds` to those before the losses. Returns the state that
    /// the losses ended.
    pub(super) fn undo(&mut self, bounds: &mut Bounds) -> Option<State> {
        bounds.is_loss_in_round = false;
        bounds.bw_shortterm = bounds.bw_shortterm.max(self.undo_bw_shortterm);
        bounds.inflight_shortterm = bounds.inflight_shortterm.max(self.undo_inflight_shortterm);
        bounds.inflight_longterm = bounds.inflight_longterm.max(self.undo_inflight_longterm);
        self.undo_state.take()
    }
}
