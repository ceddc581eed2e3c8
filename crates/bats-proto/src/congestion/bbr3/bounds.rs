//! Short- and long-term bounds of the model (draft-ietf-ccwg-bbr-06 section 5.5.10).

use bats_types::Timestamp;

use super::constants::{BETA, LOSS_THRESH};
use super::probe_bw::Phase;
use super::{Bbr3, LostPacket, Mechanism, RateSample, State};

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

    /// InitLowerBounds and LossLowerBounds.
    fn adapt_lower_bounds(&mut self, max_bw: u64, cwnd: u64) {
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

impl Bbr3 {
    /// UpdateCongestionSignals and AdaptLowerBoundsFromCongestion.
    pub(super) fn update_congestion_signals(&mut self, rs: &RateSample) {
        self.max_bw.update(rs);
        if !self.bounds.loss_round_start {
            return;
        }
        let lost = core::mem::take(&mut self.ext.round_lost);
        let acked = core::mem::take(&mut self.ext.round_acked);
        let is_random = self.is_random(lost, acked) || self.ext.trial.is_on();
        self.bounds.had_congestion =
            self.bounds.is_loss_in_round && (self.bounds.is_mark_in_round || !is_random);
        if !self.bounds.had_congestion {
            self.raise_lower_bounds();
        } else if !self.is_probing_bw() {
            self.bounds.adapt_lower_bounds(self.max_bw.get(), self.cwnd);
        }
        self.bounds.is_loss_in_round = false;
        self.bounds.is_mark_in_round = false;
    }

    /// IsInflightTooHigh: `lost` of what was in flight, in bytes. See [`Self::judged_inflight`].
    pub(super) fn is_inflight_too_high(&self, lost: u64, in_flight: u64) -> bool {
        let bytes = in_flight as f64;
        lost as f64 > bytes * (LOSS_THRESH + self.forgiven(bytes / self.packet as f64))
    }

    /// Bytes that losses are compared with: what was in flight when a packet was sent, as in the draft.
    /// Where most acknowledgements are lost, too, more may have been lost since; then it is all that was
    /// lost or delivered since.
    pub(super) fn judged_inflight(&self, tx_in_flight: u64, lost: u64, delivered: u64) -> u64 {
        let is_credited = self.ext.has(Mechanism::LossCredit);
        if is_credited { tx_in_flight.max(lost + delivered) } else { tx_in_flight }
    }

    /// The same for a rate sample.
    pub(super) fn judged_inflight_of(&self, rs: &RateSample) -> u64 {
        self.judged_inflight(rs.tx_in_flight, rs.lost, rs.delivered)
    }

    /// Whether chance explains the losses of a round.
    fn is_random(&self, lost: u64, acked: u64) -> bool {
        let packets = (lost + acked) as f64;
        let forgiven = self.forgiven(packets);
        forgiven > 0.0 && lost as f64 <= (LOSS_THRESH + forgiven) * packets
    }

    /// HandleInflightTooHigh.
    pub(super) fn handle_inflight_too_high(
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

    /// NoteLoss. State is saved once per recovery episode, as section 5.5.11.1 says: saving it in
    /// each round with a loss would forget the state to return to.
    pub(super) fn note_loss(&mut self) {
        if !self.bounds.is_loss_in_round {
            self.bounds.loss_round_delivered = self.delivered;
        }
        self.bounds.is_loss_in_round = true;
    }

    /// HandleLostPacket.
    pub(super) fn handle_lost_packet(&mut self, now: Timestamp, packet: &LostPacket) {
        self.enter_recovery(now, packet);
        self.note_loss();
        if !self.probe_bw.is_bw_probe_sample {
            return;
        }
        let (lost, tx_in_flight) = (packet.lost_since_sent, u64::from(packet.state.in_flight));
        let delivered = self.delivered.saturating_sub(packet.state.delivered);
        if self.is_inflight_too_high(lost, self.judged_inflight(tx_in_flight, lost, delivered)) {
            let threshold = LOSS_THRESH + self.forgiven(tx_in_flight as f64 / self.packet as f64);
            let level = inflight_at_loss(packet.bytes, lost, tx_in_flight, threshold);
            self.handle_inflight_too_high(now, level, packet.state.app_limited);
        }
    }
}

/// InflightAtLoss: the level of in-flight data at which losses crossed LossThresh.
fn inflight_at_loss(bytes: u64, lost: u64, tx_in_flight: u64, threshold: f64) -> u64 {
    let inflight_prev = tx_in_flight.saturating_sub(bytes) as f64;
    let lost_prev = lost.saturating_sub(bytes) as f64;
    let lost_prefix = (threshold * inflight_prev - lost_prev) / (1.0 - threshold);
    (inflight_prev + lost_prefix).max(0.0) as u64
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn inflight_at_loss_solves_for_the_prefix_that_crosses_the_threshold() {
        // 100 packets of 1,000 bytes in flight, the third loss crosses 2 %.
        let level = inflight_at_loss(1_000, 3_000, 100_000, LOSS_THRESH);
        let lost_then = 2_000.0 + (level as f64 - 99_000.0);
        assert!((lost_then / level as f64 - LOSS_THRESH).abs() < 1e-4, "{level}");
    }
}
