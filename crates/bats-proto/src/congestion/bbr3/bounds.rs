//! Short- and long-term bounds of the model (draft-ietf-ccwg-bbr-06 section 5.5.10).

use super::constants::{BETA, HEADROOM};
use crate::congestion::RateSample;

/// No bound.
pub(super) const INFINITY: u64 = u64::MAX;

/// Bounds that congestion signals set, and the signals of the current round.
#[derive(Debug)]
pub(super) struct Bounds {
    /// bw_shortterm in bytes per second.
    pub(super) bw_shortterm: u64,
    /// inflight_shortterm and inflight_longterm in bytes.
    pub(super) inflight_shortterm: u64,
    pub(super) inflight_longterm: u64,
    /// bw_latest and inflight_latest: maxima of one round.
    pub(super) bw_latest: u64,
    pub(super) inflight_latest: u64,
    loss_round_delivered: u64,
    pub(super) loss_round_start: bool,
    pub(super) is_loss_in_round: bool,
    /// A packet was marked in the round: congestion, whatever was lost.
    pub(super) is_mark_in_round: bool,
    /// The last loss round lost more than chance and the path's own loss explain.
    pub(super) had_congestion: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bw_shortterm: INFINITY,
            inflight_shortterm: INFINITY,
            inflight_longterm: INFINITY,
            bw_latest: 0,
            inflight_latest: 0,
            loss_round_delivered: 0,
            loss_round_start: false,
            is_loss_in_round: false,
            is_mark_in_round: false,
            had_congestion: false,
        }
    }
}

impl Bounds {
    /// UpdateLatestDeliverySignals.
    pub(super) fn update_latest_delivery_signals(&mut self, rs: &RateSample, delivered: u64) {
        self.loss_round_start = false;
        self.bw_latest = self.bw_latest.max(rs.delivery_rate);
        self.inflight_latest = self.inflight_latest.max(rs.delivered);
        if rs.prior_delivered >= self.loss_round_delivered {
            self.loss_round_delivered = delivered;
            self.loss_round_start = true;
        }
    }

    /// AdvanceLatestDeliverySignals.
    pub(super) fn advance_latest_delivery_signals(&mut self, rs: &RateSample) {
        if self.loss_round_start {
            self.bw_latest = rs.delivery_rate;
            self.inflight_latest = rs.delivered;
        }
    }

    /// ResetCongestionSignals.
    pub(super) fn reset_congestion_signals(&mut self) {
        self.is_loss_in_round = false;
        self.is_mark_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// ResetShortTermModel.
    pub(super) fn reset_short_term_model(&mut self) {
        self.bw_shortterm = INFINITY;
        self.inflight_shortterm = INFINITY;
    }

    /// Raises what bounds there are to what was delivered in the last round.
    pub(super) fn raise_short_term_model(&mut self) {
        self.bw_shortterm = self.bw_shortterm.max(self.bw_latest);
        self.inflight_shortterm = self.inflight_shortterm.max(self.inflight_latest);
    }

    /// NoteLoss. State is saved once per recovery episode, as section 5.5.11.1 says: saving it in
    /// each round with a loss would forget the state to return to.
    pub(super) fn note_loss(&mut self, delivered: u64) {
        if !self.is_loss_in_round {
            self.loss_round_delivered = delivered;
        }
        self.is_loss_in_round = true;
    }

    /// A loss round ends; `is_random` says that chance and the path's own loss explain its losses.
    /// Returns whether there was congestion.
    pub(super) fn end_loss_round(&mut self, is_random: bool) -> bool {
        let has_losses = core::mem::take(&mut self.is_loss_in_round);
        let has_marks = core::mem::take(&mut self.is_mark_in_round);
        self.had_congestion = has_losses && (has_marks || !is_random);
        self.had_congestion
    }

    /// InflightWithHeadroom, section 5.3.3.9, in bytes; not below `min_pipe_cwnd`.
    pub(super) fn inflight_with_headroom(&self, packet: u64, min_pipe_cwnd: u64) -> u64 {
        let longterm = self.inflight_longterm;
        if longterm == INFINITY {
            return INFINITY;
        }
        let headroom = ((longterm as f64 * HEADROOM) as u64).max(packet);
        longterm.saturating_sub(headroom).max(min_pipe_cwnd)
    }

    /// InitLowerBounds and LossLowerBounds.
    pub(super) fn adapt_lower_bounds(&mut self, max_bw: u64, cwnd: u64) {
        if self.bw_shortterm == INFINITY {
            self.bw_shortterm = max_bw;
        }
        if self.inflight_shortterm == INFINITY {
            self.inflight_shortterm = cwnd;
        }
        self.bw_shortterm = self.bw_latest.max(scale(self.bw_shortterm, BETA));
        self.inflight_shortterm = self.inflight_latest.max(scale(self.inflight_shortterm, BETA));
    }
}

/// `value` times `factor`; no bound stays none.
pub(super) fn scale(value: u64, factor: f64) -> u64 {
    if value == INFINITY { INFINITY } else { (value as f64 * factor) as u64 }
}
