//! Congestion control and pacing of one path.

use core::fmt::Debug;
use core::time::Duration;

use bats_types::Timestamp;

use crate::config::CongestionAlgorithm;

mod bbr;
mod bbr3;
mod cubic;
mod fixed;
mod gcc;
mod names;
mod pacer;
mod rate_sample;
#[cfg(test)]
mod testing;

pub use names::UnknownCongestion;
pub use pacer::Pacer;
pub use rate_sample::{LostPacket, RateSample, RateSampler, SendState};

/// A controller for a fresh path: `initial_rtt` as the handshake saw it, `packet` bytes of a
/// full packet. `seed` decides what controllers randomise.
pub fn build(
    algorithm: CongestionAlgorithm,
    initial_rtt: Duration,
    packet: u16,
    seed: u64,
) -> Box<dyn Controller> {
    match algorithm {
        CongestionAlgorithm::Bbr => Box::new(bbr::Bbr::new(initial_rtt, packet)),
        CongestionAlgorithm::Bbr3 => Box::new(bbr3::Bbr3::new(initial_rtt, packet, seed)),
        CongestionAlgorithm::Ltcc => Box::new(bbr3::Bbr3::loss_tolerant(initial_rtt, packet, seed)),
        CongestionAlgorithm::Cubic => Box::new(cubic::Cubic::new(initial_rtt, packet)),
        CongestionAlgorithm::Gcc => Box::new(gcc::Gcc::new(initial_rtt, packet)),
        CongestionAlgorithm::FixedRate { bits_per_second } => {
            Box::new(fixed::Fixed::at_rate(bits_per_second / 8))
        }
        CongestionAlgorithm::None => Box::new(fixed::Fixed::unlimited()),
    }
}

/// What one acknowledgement says about the path. All byte counts are UDP payload.
///
/// Rates are taken at the receiver: between two acknowledgements the bytes
/// `cumulative_sent - previous.cumulative_sent` passed the receiver's clock in
/// `largest_received_at - previous.largest_received_at`, lost ones included, so neither
/// acknowledgement loss nor random data loss disturbs the rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// Arrival of the acknowledgement.
    pub now: Timestamp,
    /// When the largest newly acknowledged packet was sent.
    pub largest_sent_at: Timestamp,
    /// When it was received, on the receiver's clock (arbitrary epoch).
    pub largest_received_at: Timestamp,
    /// Bytes sent on this path up to and including that packet, ever.
    pub cumulative_sent: u64,
    /// Whether that packet was sent when the sender had nothing more to send or was limited by
    /// credit rather than by the controller.
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
    /// The fate of all packets sent before this time is known.
    pub settled_until: Timestamp,
    /// Variance of the losses over that of independent ones, at least 1.
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
    /// The delivery rate that it shows.
    pub rate: RateSample,
    /// The first acknowledgement after a blackout of several probe time-outs. Losses of the blackout
    /// are not counted.
    pub after_blackout: bool,
}

/// Decides how fast a path is used. Implementations own no clock and no randomness.
pub trait Controller: Send + Debug {
    /// A packet of `bytes` was sent; `in_flight` includes it.
    fn on_sent(&mut self, now: Timestamp, bytes: u64, in_flight: u64);
    /// The window alone kept a packet from being sent.
    fn on_cwnd_limited(&mut self) {}
    /// A packet was declared lost; called before [`Self::on_ack`] of the acknowledgement that
    /// showed it.
    fn on_lost(&mut self, _now: Timestamp, _packet: &LostPacket) {}
    /// This many packets that had been declared lost were acknowledged; called before
    /// [`Self::on_ack`].
    fn on_spurious_loss(&mut self, _now: Timestamp, _packets: u64) {}
    /// An acknowledgement arrived that newly acknowledged at least one packet.
    fn on_ack(&mut self, sample: &AckSample);
    /// Nothing was heard for a probe time-out; `count` in a row.
    fn on_probe_timeout(&mut self, now: Timestamp, count: u32);
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
    /// Pacing rate in bytes per second, `u64::MAX` for none.
    fn pacing_rate(&self) -> u64;
    /// Estimate of the path's rate in bytes per second, before random loss.
    fn bandwidth(&self) -> u64;
    /// Current one-way delay above its minimum.
    fn queue_delay(&self) -> Duration;
    /// Name of the state, for statistics.
    fn state(&self) -> &'static str;
}
