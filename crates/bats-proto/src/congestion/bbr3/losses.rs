//! Responses to losses and marks, and undoing them (draft-ietf-ccwg-bbr-06 sections 5.5.10, 5.5.11
//! and 5.6.4.4).

use bats_types::Timestamp;

use super::Bbr3;
use super::bounds::scale;
use super::constants::BETA;
use super::state::{Phase, State};
use crate::congestion::{LostPacket, RateSample};

impl Bbr3 {
    /// UpdateCongestionSignals and AdaptLowerBoundsFromCongestion.
    pub(super) fn update_congestion_signals(&mut self, rs: &RateSample) {
        self.max_bw.update(rs);
        if !self.bounds.loss_round_start {
            return;
        }
        let is_random = self.ext.end_loss_round(self.state, self.min_rtt.get(), self.packet);
        if !self.bounds.end_loss_round(is_random) {
            if self.ext.raises_lower_bounds(self.state) {
                self.bounds.raise_short_term_model();
            }
        } else if !self.state.is_probing_bw() {
            self.bounds.adapt_lower_bounds(self.max_bw.get(), self.cwnd.get());
        }
    }

    /// HandleLostPacket.
    pub(super) fn handle_lost_packet(&mut self, now: Timestamp, packet: &LostPacket) {
        self.enter_recovery(now, packet);
        self.bounds.note_loss(self.delivered);
        if self.probe_bw.is_bw_probe_sample
            && let Some(level) = self.loss_threshold().inflight_at_loss(packet, self.delivered)
        {
            self.handle_inflight_too_high(now, level, packet.state.app_limited);
        }
    }

    /// A mark is treated as a round with too much loss (section 3.7), once per round.
    pub(super) fn on_ce(&mut self, now: Timestamp, rs: &RateSample) {
        self.bounds.note_loss(self.delivered);
        self.bounds.is_mark_in_round = true;
        if self.probe_bw.is_bw_probe_sample {
            self.handle_inflight_too_high(now, rs.tx_in_flight, rs.is_app_limited);
        } else if self.state == State::Startup && !self.full_pipe.is_reached {
            self.exit_startup_on_congestion();
        }
    }

    /// HandleInflightTooHigh.
    fn handle_inflight_too_high(
        &mut self,
        now: Timestamp,
        tx_in_flight: u64,
        is_app_limited: bool,
    ) {
        self.probe_bw.prev_probe_too_high = true;
        self.probe_bw.is_bw_probe_sample = false;
        if !is_app_limited {
            self.bounds.inflight_longterm = tx_in_flight.max(scale(self.target_inflight(), BETA));
        }
        if self.state == State::ProbeBw(Phase::Up) {
            self.recovery.undo_state = Some(self.state);
            self.start_probe_bw_down(now);
        }
    }

    /// OnEnterFastRecovery, if the loss begins an episode.
    fn enter_recovery(&mut self, now: Timestamp, packet: &LostPacket) {
        if !self.recovery.is_active() {
            self.save_cwnd();
            self.save_state_upon_loss();
            self.recovery.begin(now);
        }
        self.recovery.on_lost(packet.continues_run);
    }

    /// OnEnterRTO: nothing is in flight, and one packet may be sent.
    pub(super) fn on_enter_rto(&mut self, now: Timestamp) {
        self.save_cwnd();
        self.save_state_upon_loss();
        self.recovery.begin_after_rto(now);
        self.cwnd.set(self.packet);
    }

    /// SaveStateUponLoss.
    fn save_state_upon_loss(&mut self) {
        self.save_cwnd();
        self.recovery.save(&self.bounds);
    }

    /// HandleSpuriousLossDetection.
    pub(super) fn handle_spurious_loss_detection(&mut self) {
        self.cwnd.restore();
        self.full_pipe.reset(0);
        match self.recovery.undo(&mut self.bounds) {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_pipe.is_reached = false;
                if self.state != State::ProbeRtt {
                    self.enter(State::Startup);
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
