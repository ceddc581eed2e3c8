//! Congestion control and pacing of a link, and the samples that acknowledgements give.

use core::time::Duration;

use bats_types::Timestamp;

use super::mtu::BASE_UDP_PAYLOAD;
use super::rtt::RttEstimator;
use super::sent::{AckOutcome, LargestAcked, LossOutcome, SentPackets};
use super::timer::take_expired;
use crate::config::CongestionAlgorithm;
use crate::congestion::{self, AckSample, Controller, Pacer, RateSample};
use crate::stats::CongestionStats;
use crate::wire::frame::AckHeader;

/// Acknowledgements that gave no rate sample; their sums go into the next sample.
#[derive(Debug, Default)]
struct PendingSample {
    acked_bytes: u64,
    acked_packets: u64,
    lost_bytes: u64,
    lost_packets: u64,
    lost_sent_at: Timestamp,
    ce_packets: u64,
}

/// The controller and the pacer of a link.
#[derive(Debug)]
pub(super) struct Congestion {
    algorithm: CongestionAlgorithm,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    /// The pacer allows the next burst.
    pacing_timer: Option<Timestamp>,
    pending: PendingSample,
    /// The sender ran out of data or credit before it ran out of congestion window.
    app_limited: bool,
    /// CE marks that the peer reported.
    ce_reported: u64,
}

impl Congestion {
    /// For a path about which nothing is known.
    pub(super) fn new(algorithm: CongestionAlgorithm, initial_rtt: Duration) -> Self {
        Self {
            algorithm,
            controller: congestion::build(algorithm, initial_rtt, BASE_UDP_PAYLOAD, 0),
            pacer: Pacer::new(u64::MAX),
            pacing_timer: None,
            pending: PendingSample::default(),
            app_limited: true,
            ce_reported: 0,
        }
    }

    /// Sets the algorithm that [`Self::restart`] uses.
    pub(super) fn set_algorithm(&mut self, algorithm: CongestionAlgorithm) {
        self.algorithm = algorithm;
    }

    /// Replaces the controller: only the round-trip time of the path is known. `seed` determines its
    /// random choices.
    pub(super) fn restart(&mut self, rtt: Duration, seed: u64) {
        self.controller = congestion::build(self.algorithm, rtt, BASE_UDP_PAYLOAD, seed);
    }

    /// The controller.
    pub(super) fn controller(&self) -> &dyn Controller {
        &*self.controller
    }

    /// Adds the controller's state to a sample of statistics.
    pub(super) fn add_stats(&self, stats: &mut CongestionStats) {
        stats.controller_state = self.controller.state();
        stats.limited_by = self.controller.limited_by();
        stats.cwnd_bytes = self.controller.window();
        stats.pacing_bps = self.controller.pacing_rate().saturating_mul(8);
        stats.delivery_bps = self.controller.bandwidth().saturating_mul(8);
        stats.own_loss = self.controller.own_loss();
        stats.ecn_ce = self.ce_reported;
    }

    /// Whether the sender ran out of data or credit before it ran out of congestion window.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited
    }

    pub(super) fn set_app_limited(&mut self, app_limited: bool) {
        self.app_limited = app_limited;
    }

    /// A packet of `bytes` was sent; `in_flight` includes it. Round trips are counted by the bytes of all
    /// packets, acknowledgements included.
    pub(super) fn on_sent(&mut self, now: Timestamp, bytes: u64, in_flight: u64) {
        self.controller.on_sent(now, bytes, in_flight);
    }

    /// A packet with coded data was sent.
    pub(super) fn on_paced(&mut self, now: Timestamp, bytes: u64) {
        self.pacer.on_sent(now, bytes);
    }

    /// Begins a burst at a pacing rate.
    pub(super) fn begin_burst(&mut self, now: Timestamp, rate: u64) {
        self.pacer.set_rate(now, rate);
        self.pacing_timer = None;
    }

    /// Whether a packet of at most `bytes` may be sent, after which `in_flight` bytes would be in flight.
    /// Arms the pacing timer only if there is data.
    pub(super) fn may_send(
        &mut self,
        now: Timestamp,
        in_flight: u64,
        bytes: u64,
        has_data: impl FnOnce() -> bool,
    ) -> bool {
        if in_flight > self.controller.window() {
            self.controller.on_cwnd_limited();
            return false;
        }
        let Some(at) = self.pacer.next_send_time(now, bytes).filter(|&at| at > now) else {
            return true;
        };
        if has_data() {
            self.pacing_timer = Some(at);
        }
        false
    }

    /// See [`Pacer::end_blackout`].
    pub(super) fn end_blackout(&mut self, now: Timestamp, rising_until: Timestamp) {
        self.pacer.end_blackout(now, rising_until);
    }

    /// A probe timeout expired; `count` in a row.
    pub(super) fn on_probe_timeout(&mut self, now: Timestamp, count: u32) {
        self.controller.on_probe_timeout(now, count);
    }

    /// Packets that had been declared lost were acknowledged.
    pub(super) fn on_spurious_loss(&mut self, now: Timestamp, packets: u64) {
        if packets > 0 {
            self.controller.on_spurious_loss(now, packets);
        }
    }

    /// Declares packets lost by time.
    pub(super) fn detect_losses(
        &mut self,
        now: Timestamp,
        sent: &mut SentPackets,
        rtt: &RttEstimator,
    ) -> LossOutcome {
        sent.detect_losses(rtt.min(), rtt.smoothed() * 2, |packet| {
            self.controller.on_lost(now, packet);
        })
    }

    /// Adds an acknowledgement and the losses that it shows to the next sample.
    pub(super) fn collect(&mut self, outcome: &AckOutcome, losses: &LossOutcome, ce_count: u64) {
        let pending = &mut self.pending;
        pending.acked_bytes += outcome.acked_bytes;
        pending.acked_packets += outcome.acked_packets;
        pending.lost_bytes += losses.lost_bytes;
        pending.lost_packets += losses.lost_packets;
        pending.lost_sent_at = losses.lost_sent_at.unwrap_or(pending.lost_sent_at);
        pending.ce_packets += ce_count.saturating_sub(self.ce_reported);
        self.ce_reported = self.ce_reported.max(ce_count);
    }

    /// Whether the next sample would cover a packet.
    pub(super) fn has_sample(&self) -> bool {
        self.pending.acked_packets > 0
    }

    /// Hands a sample to the controller. The frame gives the arrival time of its largest packet only.
    pub(super) fn on_sample(
        &mut self,
        now: Timestamp,
        (largest, header): (&LargestAcked, &AckHeader),
        rate: RateSample,
        (sent, rtt): (&SentPackets, &RttEstimator),
        packet: u16,
    ) {
        let pending = core::mem::take(&mut self.pending);
        self.controller.on_ack(&AckSample {
            now,
            largest_sent_at: largest.sent_at,
            largest_received_at: header.received_at,
            cumulative_sent: largest.cumulative,
            app_limited: largest.app_limited,
            acked_bytes: pending.acked_bytes,
            acked_packets: pending.acked_packets,
            lost_bytes: pending.lost_bytes,
            lost_packets: pending.lost_packets,
            lost_sent_at: pending.lost_sent_at,
            burst_factor: sent.loss.burst_factor(),
            ce_packets: pending.ce_packets,
            rtt: rtt.latest(),
            smoothed_rtt: rtt.smoothed(),
            min_rtt: rtt.min(),
            in_flight: sent.bytes_in_flight(),
            packet: u64::from(packet),
            rate,
        });
    }

    /// When the pacer allows the next burst.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.pacing_timer
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        take_expired(&mut self.pacing_timer, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congestion(algorithm: CongestionAlgorithm) -> Congestion {
        Congestion::new(algorithm, Duration::from_millis(100))
    }

    #[test]
    fn window_and_pacer_limit_sending() {
        let now = Timestamp::from_millis(1_000);
        let mut link = congestion(CongestionAlgorithm::Bbr3);
        let window = link.controller().window();
        assert!(link.may_send(now, window, 1_200, || panic!("it may send")));
        assert!(!link.may_send(now, window + 1, 1_200, || panic!("the window is full")));
        link.begin_burst(now, 100_000);
        link.on_paced(now, 50_000);
        assert!(!link.may_send(now, 0, 1_200, || false));
        assert_eq!(link.next_timeout(), None, "there is no data");
        assert!(!link.may_send(now, 0, 1_200, || true));
        let at = link.next_timeout().expect("data waits for the pacer");
        link.handle_timeout(at);
        assert_eq!(link.next_timeout(), None);
        link.end_blackout(now, now);
        assert!(link.may_send(now, 0, 1_200, || true), "what was sent before does not count");
    }

    #[test]
    fn marks_count_once_however_often_they_are_reported() {
        let mut link = congestion(CongestionAlgorithm::None);
        let outcome = AckOutcome { acked_packets: 1, ..AckOutcome::default() };
        assert!(!link.has_sample());
        for count in [3, 3, 2, 5] {
            link.collect(&outcome, &LossOutcome::default(), count);
        }
        assert!(link.has_sample());
        assert_eq!((link.ce_reported, link.pending.ce_packets), (5, 5));
    }
}
