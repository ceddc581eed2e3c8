//! Which losses are a sign of congestion: IsInflightTooHigh and InflightAtLoss of
//! draft-ietf-ccwg-bbr-06 section 5.5.10, with the path's own loss credited in `ltcc`.

use super::constants::LOSS_THRESH;
use super::credit::Credit;
use crate::congestion::{LostPacket, RateSample};

/// What losses are compared with now.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossThreshold<'a> {
    /// The path's own loss, while it is credited.
    pub(super) credit: Option<&'a Credit>,
    /// The controller credits the path's own loss at times.
    pub(super) has_credit: bool,
    /// SMSS in bytes.
    pub(super) packet: u64,
}

impl LossThreshold<'_> {
    /// Loss of `packets` that is no sign of congestion beyond LossThresh.
    fn forgiven(&self, packets: f64) -> f64 {
        self.credit.map_or(0.0, |credit| credit.forgiven(packets))
    }

    /// LossThresh of `bytes` in flight, and what is forgiven.
    fn of(&self, bytes: f64) -> f64 {
        LOSS_THRESH + self.forgiven(bytes / self.packet as f64)
    }

    /// IsInflightTooHigh: `lost` of what was in flight, in bytes. See [`Self::judged_inflight`].
    fn is_exceeded(&self, lost: u64, in_flight: u64) -> bool {
        let bytes = in_flight as f64;
        lost as f64 > bytes * self.of(bytes)
    }

    /// IsInflightTooHigh by a rate sample.
    pub(super) fn is_inflight_too_high(&self, rs: &RateSample) -> bool {
        self.is_exceeded(rs.lost, self.judged_inflight(rs.tx_in_flight, rs.lost, rs.delivered))
    }

    /// Bytes that losses are compared with: what was in flight when a packet was sent, as in the draft.
    /// Where most acknowledgements are lost, too, more may have been lost since; then it is all that was
    /// lost or delivered since.
    fn judged_inflight(&self, tx_in_flight: u64, lost: u64, delivered: u64) -> u64 {
        if self.has_credit { tx_in_flight.max(lost + delivered) } else { tx_in_flight }
    }

    /// Whether chance explains the losses of a round, both in packets.
    pub(super) fn is_random(&self, lost: u64, acked: u64) -> bool {
        let packets = (lost + acked) as f64;
        let forgiven = self.forgiven(packets);
        forgiven > 0.0 && lost as f64 <= (LOSS_THRESH + forgiven) * packets
    }

    /// InflightAtLoss in bytes, if the loss of `packet` shows that inflight was too high. `delivered` is
    /// C.delivered now.
    pub(super) fn inflight_at_loss(&self, packet: &LostPacket, delivered: u64) -> Option<u64> {
        let (lost, tx_in_flight) = (packet.lost_since_sent, u64::from(packet.state.in_flight));
        let delivered = delivered.saturating_sub(packet.state.delivered);
        self.is_exceeded(lost, self.judged_inflight(tx_in_flight, lost, delivered)).then(|| {
            inflight_at_loss(packet.bytes, lost, tx_in_flight, self.of(tx_in_flight as f64))
        })
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
