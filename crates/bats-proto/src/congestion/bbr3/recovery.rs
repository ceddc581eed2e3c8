//! Loss recovery and undoing it (draft-ietf-ccwg-bbr-06 sections 5.5.11 and 5.6.4.4).

use bats_types::Timestamp;

use super::bounds::INFINITY;
use super::probe_bw::Phase;
use super::{Bbr3, LostPacket, State};

/// The recovery episode and the state to restore if it was spurious.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Losses of packets sent after this begin a new episode (RFC 9002 section 7.3.2).
    since: Option<Timestamp>,
    /// Packets of this episode declared lost and not acknowledged since.
    unconfirmed: u64,
    /// Ranges of consecutive packets lost in this round.
    pub(super) ranges_in_round: u32,
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
}

impl Bbr3 {
    /// OnEnterFastRecovery, if the loss begins an episode.
    pub(super) fn enter_recovery(&mut self, now: Timestamp, packet: &LostPacket) {
        if !self.recovery.is_active() {
            self.save_cwnd();
            self.save_state_upon_loss();
            self.recovery.since = Some(now);
            self.recovery.unconfirmed = 0;
        }
        self.recovery.unconfirmed += 1;
        self.recovery.ranges_in_round += u32::from(!packet.continues_run);
    }

    /// OnEnterRTO: nothing is in flight, and one packet may be sent.
    pub(super) fn on_enter_rto(&mut self, now: Timestamp) {
        self.save_cwnd();
        self.save_state_upon_loss();
        self.recovery.since = Some(now);
        self.cwnd = self.packet;
    }

    /// SaveStateUponLoss.
    pub(super) fn save_state_upon_loss(&mut self) {
        self.save_cwnd();
        self.recovery.undo_state = None;
        self.recovery.undo_bw_shortterm = self.bounds.bw_shortterm;
        self.recovery.undo_inflight_shortterm = self.bounds.inflight_shortterm;
        self.recovery.undo_inflight_longterm = self.bounds.inflight_longterm;
    }

    /// HandleSpuriousLossDetection.
    pub(super) fn handle_spurious_loss_detection(&mut self) {
        self.restore_cwnd();
        self.bounds.is_loss_in_round = false;
        self.full_pipe.reset(0);
        let bounds = &mut self.bounds;
        bounds.bw_shortterm = bounds.bw_shortterm.max(self.recovery.undo_bw_shortterm);
        bounds.inflight_shortterm =
            bounds.inflight_shortterm.max(self.recovery.undo_inflight_shortterm);
        bounds.inflight_longterm =
            bounds.inflight_longterm.max(self.recovery.undo_inflight_longterm);
        let undo = self.recovery.undo_state.take();
        match undo {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_pipe.is_reached = false;
                if self.state != State::ProbeRtt {
                    self.enter_startup();
                }
            }
            Some(State::ProbeBw(Phase::Up))
                if !matches!(self.state, State::ProbeBw(Phase::Up) | State::ProbeRtt) =>
            {
                self.start_probe_bw_refill();
            }
            _ => {}
        }
    }
}
