//! Reno for TCP (RFC 5681): slow start, congestion avoidance by one segment per round trip, half of
//! the window after a loss, one segment after a time-out. The sender detects losses from selective
//! ACKs, so recovery follows RFC 6675: it ends when a segment sent after the loss detection is
//! acknowledged, and the window does not grow before.

use bats_types::Timestamp;

use super::{AckSample, Control};

/// Initial window in segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Minimum slow-start threshold in segments (RFC 5681, equation 4).
const MIN_THRESHOLD: f64 = 2.0;

/// The controller.
#[derive(Debug)]
pub struct Reno {
    window: f64,
    threshold: f64,
    /// Segments delivered when the last loss was detected.
    recovery_end: Option<u64>,
}

impl Default for Reno {
    fn default() -> Self {
        Self { window: INITIAL_WINDOW, threshold: f64::INFINITY, recovery_end: None }
    }
}

impl Control for Reno {
    fn on_ack(&mut self, sample: &AckSample) {
        if sample.is_loss_event {
            // The flight size of a bulk transfer is its window.
            self.threshold = (self.window / 2.0).max(MIN_THRESHOLD);
            self.window = self.threshold;
            self.recovery_end = Some(sample.delivered);
            return;
        }
        if self.recovery_end.is_some_and(|end| sample.delivered_before < end) {
            return;
        }
        self.recovery_end = None;
        if self.window < self.threshold {
            // At most one segment for each acknowledgement (RFC 5681, equation 2).
            self.window += sample.acked.min(1) as f64;
        } else {
            self.window += sample.acked as f64 / self.window;
        }
    }

    fn on_timeout(&mut self, _now: Timestamp) {
        // Repeated time-outs without an acknowledgement do not lower the threshold further.
        if self.window > 1.0 {
            self.threshold = (self.window / 2.0).max(MIN_THRESHOLD);
        }
        self.window = 1.0;
        self.recovery_end = None;
    }

    fn window(&self) -> u64 {
        self.window as u64
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::tcp::Sender;
    use crate::tcp::tests::run_over;

    fn ack(acked: u64, delivered: u64, delivered_before: u64, is_loss_event: bool) -> AckSample {
        AckSample {
            now: Timestamp::ZERO,
            acked,
            is_loss_event,
            rtt: None,
            in_flight: 0,
            delivered,
            delivered_before,
            rate: None,
        }
    }

    #[test]
    fn the_window_is_halved_once_and_grows_by_one_segment_per_round_trip() {
        let mut reno = Reno::default();
        for _ in 0..30 {
            reno.on_ack(&ack(1, 0, 0, false));
        }
        assert_eq!(reno.window(), 40);
        reno.on_ack(&ack(1, 100, 60, true));
        assert_eq!(reno.window(), 20);
        // Acknowledgements of segments sent before the loss detection do not increase the window.
        for delivered in 101..140 {
            reno.on_ack(&ack(1, delivered, delivered - 40, false));
        }
        assert_eq!(reno.window(), 20);
        for _ in 0..21 {
            reno.on_ack(&ack(1, 160, 140, false));
        }
        assert_eq!(reno.window(), 21);
    }

    #[test]
    fn a_timeout_sets_one_segment_and_the_next_keeps_the_threshold() {
        let mut reno = Reno { window: 40.0, ..Reno::default() };
        reno.on_timeout(Timestamp::ZERO);
        assert_eq!((reno.window(), reno.threshold), (1, 20.0));
        reno.on_timeout(Timestamp::ZERO);
        assert_eq!((reno.window(), reno.threshold), (1, 20.0));
        // An acknowledgement of many segments counts as one in slow start.
        reno.on_ack(&ack(12, 12, 0, false));
        assert_eq!(reno.window(), 2);
    }

    /// Segments per second that arrive over a path without a rate limit, with an RTT of 100 ms and
    /// this loss rate.
    fn rate(loss: f64, seed: u64) -> f64 {
        const SECONDS: u64 = 1_000;
        let sender = Sender::new(Box::<Reno>::default());
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let is_dropped = |_| random.random_bool(loss);
        let trip = Duration::from_millis(100);
        let (_, receiver) = run_over(trip, sender, is_dropped, SECONDS * 1_000);
        receiver.in_order() as f64 / SECONDS as f64
    }

    /// Mathis, Semke, Mahdavi and Ott, "The macroscopic behavior of the TCP congestion avoidance
    /// algorithm", 1997: with an acknowledgement for every segment, one segment per round trip
    /// times the square root of 1.5 / loss. Valid for rare losses only, because it ignores
    /// time-outs.
    #[test]
    fn throughput_follows_the_mathis_formula() {
        for loss in [0.0003_f64, 0.001, 0.004] {
            let expected = (1.5 / loss).sqrt() / 0.1;
            let ratio = rate(loss, 7) / expected;
            assert!((0.85..1.15).contains(&ratio), "{loss}: {ratio}");
        }
    }
}
