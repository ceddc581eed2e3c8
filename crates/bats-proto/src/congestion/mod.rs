//! Congestion control and pacing of one path.

use core::fmt::Debug;
use core::time::Duration;

use bats_types::Timestamp;

use crate::config::CongestionAlgorithm;

mod bbr3;
mod cubic;
mod fixed;
mod gcc;
mod names;
mod pacer;
mod rate_sample;
#[cfg(test)]
mod testing;

pub use bbr3::{Constant, Mechanism, Variation};
pub use names::UnknownCongestion;
pub use pacer::Pacer;
pub use rate_sample::{LostPacket, RateSample, RateSampler, SendState};

/// A controller for a new path: `initial_rtt` from the handshake, `packet` bytes in a full packet.
/// `seed` determines random choices of controllers.
pub fn build(
    algorithm: CongestionAlgorithm,
    initial_rtt: Duration,
    packet: u16,
    seed: u64,
) -> Box<dyn Controller> {
    match algorithm {
        CongestionAlgorithm::Bbr3 => Box::new(bbr3::Bbr3::new(initial_rtt, packet, seed)),
        CongestionAlgorithm::Ltcc => {
            let all = Variation::default();
            Box::new(bbr3::Bbr3::loss_tolerant(all, initial_rtt, packet, seed))
        }
        CongestionAlgorithm::LtccVariation(variation) => {
            Box::new(bbr3::Bbr3::loss_tolerant(variation, initial_rtt, packet, seed))
        }
        CongestionAlgorithm::Cubic => Box::new(cubic::Cubic::new(initial_rtt, packet)),
        CongestionAlgorithm::Gcc => Box::new(gcc::Gcc::new(initial_rtt, packet)),
        CongestionAlgorithm::FixedRate { bits_per_second } => {
            Box::new(fixed::Fixed::at_rate(bits_per_second / 8))
        }
        CongestionAlgorithm::None => Box::new(fixed::Fixed::unlimited()),
    }
}

/// What one acknowledgement reports about the path. All byte counts are UDP payload.
///
/// Rates are measured at the receiver. Between two acknowledgements `cumulative_sent -
/// previous.cumulative_sent` bytes passed the receiver in `largest_received_at -
/// previous.largest_received_at` by its clock, including lost ones. So neither acknowledgement loss
/// nor random data loss distorts the rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// Arrival time of the acknowledgement.
    pub now: Timestamp,
    /// When the largest newly acknowledged packet was sent.
    pub largest_sent_at: Timestamp,
    /// When it was received, by the receiver's clock (arbitrary epoch).
    pub largest_received_at: Timestamp,
    /// Total bytes sent on this path, up to and including that packet.
    pub cumulative_sent: u64,
    /// Whether that packet was sent when the application or the credit, not the controller, limited
    /// the sender.
    pub app_limited: bool,
    /// Bytes newly acknowledged.
    pub acked_bytes: u64,
    /// Packets newly acknowledged.
    pub acked_packets: u64,
    /// Bytes newly declared lost.
    pub lost_bytes: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// When the newest of these was sent.
    pub lost_sent_at: Timestamp,
    /// Variance of the losses relative to independent losses, at least 1.
    pub burst_factor: f64,
    /// Packets newly reported as marked with ECN-CE.
    pub ce_packets: u64,
    /// Round-trip time of the largest packet, less the peer's acknowledgement delay.
    pub rtt: Duration,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Minimum round-trip time of the path so far.
    pub min_rtt: Duration,
    /// Bytes in flight after this acknowledgement.
    pub in_flight: u64,
    /// Bytes of a full packet on the path.
    pub packet: u64,
    /// The delivery rate sample.
    pub rate: RateSample,
}

/// A congestion controller of a path. Implementations own no clock and no source of randomness.
pub trait Controller: Send + Debug {
    /// A packet of `bytes` was sent; `in_flight` includes it.
    fn on_sent(&mut self, now: Timestamp, bytes: u64, in_flight: u64);
    /// Only the window prevented a packet from being sent.
    fn on_cwnd_limited(&mut self) {}
    /// A packet was declared lost. Called before [`Self::on_ack`] of the acknowledgement that
    /// revealed the loss.
    fn on_lost(&mut self, _now: Timestamp, _packet: &LostPacket) {}
    /// This many packets that had been declared lost were acknowledged. Called before
    /// [`Self::on_ack`].
    fn on_spurious_loss(&mut self, _now: Timestamp, _packets: u64) {}
    /// An acknowledgement arrived that newly acknowledged at least one packet.
    fn on_ack(&mut self, sample: &AckSample);
    /// A probe timeout expired; `count` in a row.
    fn on_probe_timeout(&mut self, now: Timestamp, count: u32);
    /// Congestion window: limit of inflight, in bytes.
    fn window(&self) -> u64;
    /// Pacing rate in bytes per second; `u64::MAX` for no pacing.
    fn pacing_rate(&self) -> u64;
    /// Estimate of the path's rate in bytes per second, before random loss.
    fn bandwidth(&self) -> u64;
    /// One-way delay above its minimum: the least of the last eighth of a round trip.
    fn queue_delay(&self) -> Duration;
    /// Loss that is taken for the path's own, 0 to 1.
    fn own_loss(&self) -> f64 {
        0.0
    }
    /// The bound that limits sending now, by the draft's name; empty if there is none.
    fn limited_by(&self) -> &'static str {
        ""
    }
    /// Name of the state for statistics.
    fn state(&self) -> &'static str;
}
