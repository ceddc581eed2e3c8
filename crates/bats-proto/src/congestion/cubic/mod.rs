//! CUBIC (RFC 9438), with bytes counted and recovery as in RFC 9002, and HyStart++ (RFC 9406).
//!
//! It reacts to loss as TCP does: every round trip with a loss reduces the window by three tenths,
//! for random loss as for congestion. So it yields where queues overflow, and it is slow on lossy
//! links: with random loss `p` the window is about `1.05 (RTT / p)^(3/4)` packets (RFC 9438, 5.1),
//! or Reno's `1.2 / sqrt(p)` if that is more; at 1 % and 100 ms that is 12 packets or a Mbit/s,
//! at any link rate. Coding hides such losses from the application, not from CUBIC; use
//! [`Ltcc`](crate::CongestionAlgorithm::Ltcc) there.

mod curve;
mod hystart;

use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller};
use curve::{BETA, Curve};
use hystart::HyStart;

/// Initial window and minimum window in packets (RFC 9002 section 7.2).
const INITIAL_PACKETS: f64 = 10.0;
const LEAST_PACKETS: f64 = 2.0;
/// Pacing: the window is sent within this fraction of a round trip (RFC 9002 section 7.7); in slow
/// start twice as fast as it was acknowledged.
const PACE: f64 = 1.25;
const START_PACE: f64 = 2.0;
/// Consecutive probe timeouts that indicate persistent congestion; together they last three times
/// as long as the first one (RFC 9002 section 7.6).
const PERSISTENT: u32 = 2;

#[derive(Debug)]
pub(super) struct Cubic {
    packet: f64,
    /// Congestion window in packets.
    window: f64,
    /// Slow start threshold in packets.
    threshold: f64,
    start: HyStart,
    epoch: Option<(Timestamp, Curve)>,
    last_max: f64,
    /// Losses of packets sent before this time belong to a recovery period that has begun already.
    recovery: Option<Timestamp>,
    sent: u64,
    round_end: u64,
    rtt: Duration,
    queue: Duration,
    /// Time of the last acknowledgement, and whether the window was fully used then.
    last_ack: Timestamp,
}

impl Cubic {
    pub(super) fn new(initial_rtt: Duration, packet: u16) -> Self {
        Self {
            packet: f64::from(packet.max(1)),
            window: INITIAL_PACKETS,
            threshold: f64::INFINITY,
            start: HyStart::default(),
            epoch: None,
            last_max: 0.0,
            recovery: None,
            sent: 0,
            round_end: 0,
            rtt: initial_rtt,
            queue: Duration::ZERO,
            last_ack: Timestamp::ZERO,
        }
    }

    fn is_starting(&self) -> bool {
        self.window < self.threshold
    }

    /// Handles the loss or marking of packets sent at `sent_at`: at most one reduction per window
    /// in flight.
    fn on_congestion(&mut self, now: Timestamp, sent_at: Timestamp) {
        if self.recovery.is_some_and(|since| sent_at <= since) {
            return;
        }
        self.recovery = Some(now);
        let curve = Curve::after_loss(self.window, self.last_max);
        self.last_max = curve.w_max();
        self.window = (self.window * BETA).max(LEAST_PACKETS);
        self.threshold = self.window;
        self.epoch = Some((now, curve));
    }

    fn grow(&mut self, sample: &AckSample) {
        let acked = sample.acked_bytes as f64 / self.packet;
        if sample.app_limited {
            // A window that is not fully used does not grow, and time without use does not count.
            if let Some((since, _)) = &mut self.epoch {
                *since += sample.now - self.last_ack;
            }
        } else if self.is_starting() {
            self.window = (self.window + acked * self.start.growth()).min(self.threshold);
        } else {
            let window = self.window;
            let fresh = || (sample.now, Curve::from_slow_start(window));
            let (since, curve) = self.epoch.get_or_insert_with(fresh);
            let t = (sample.now - *since).as_secs_f64();
            self.window = curve.grow(window, t, self.rtt.as_secs_f64(), acked);
        }
    }

    fn on_round(&mut self) {
        if self.is_starting() && self.start.on_round() {
            self.threshold = self.window;
        }
    }
}

impl Controller for Cubic {
    fn on_sent(&mut self, _now: Timestamp, bytes: u64, _in_flight: u64) {
        self.sent += bytes;
    }

    fn on_ack(&mut self, sample: &AckSample) {
        self.rtt = sample.smoothed_rtt;
        self.queue = sample.smoothed_rtt.saturating_sub(sample.min_rtt);
        if sample.lost_packets > 0 {
            self.on_congestion(sample.now, sample.lost_sent_at);
        }
        if sample.ce_packets > 0 {
            self.on_congestion(sample.now, sample.largest_sent_at);
        }
        if self.is_starting() {
            self.start.on_sample(sample.rtt);
        }
        if self.recovery.is_none_or(|since| sample.largest_sent_at > since) {
            self.grow(sample);
        }
        self.last_ack = sample.now;
        if sample.cumulative_sent >= self.round_end {
            self.round_end = self.sent;
            self.on_round();
        }
    }

    fn on_probe_timeout(&mut self, now: Timestamp, count: u32) {
        if count == PERSISTENT {
            self.on_congestion(now, now);
            self.window = LEAST_PACKETS;
            self.epoch = None;
        }
    }

    fn window(&self) -> u64 {
        (self.window * self.packet) as u64
    }

    fn pacing_rate(&self) -> u64 {
        let pace = if self.is_starting() { START_PACE } else { PACE };
        (self.bandwidth() as f64 * pace) as u64
    }

    fn bandwidth(&self) -> u64 {
        let seconds = self.rtt.as_secs_f64().max(1e-4);
        ((self.window * self.packet / seconds) as u64).max(1)
    }

    fn queue_delay(&self) -> Duration {
        self.queue
    }

    fn state(&self) -> &'static str {
        if self.is_starting() { "slow_start" } else { "avoidance" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::testing;

    const MS: Duration = Duration::from_millis(1);

    fn cubic() -> Cubic {
        Cubic::new(100 * MS, 1_200)
    }

    #[test]
    fn slow_start_doubles_and_a_round_of_losses_is_one_loss() {
        let mut cubic = cubic();
        let at = Timestamp::from_millis;
        cubic.on_ack(&testing::ack(at(100), at(1), 10, 0));
        assert_eq!(cubic.window(), 20 * 1_200);
        cubic.on_ack(&testing::ack(at(200), at(101), 0, 3));
        assert_eq!(cubic.window(), 14 * 1_200);
        // Sent before the first loss was detected.
        cubic.on_ack(&testing::ack(at(210), at(199), 0, 3));
        assert_eq!(cubic.window(), 14 * 1_200);
        cubic.on_ack(&testing::ack(at(310), at(205), 0, 3));
        assert_eq!((cubic.window() as f64 / 1_200.0 * 10.0).round(), 98.0);
        assert_eq!(cubic.state(), "avoidance");
    }

    #[test]
    fn marks_count_as_loss_once_a_round() {
        let mut cubic = cubic();
        let at = Timestamp::from_millis;
        for (now, sent, window) in [(100, 1, 7), (110, 11, 7), (210, 101, 4)] {
            let sample = AckSample { ce_packets: 1, ..testing::ack(at(now), at(sent), 0, 0) };
            cubic.on_ack(&sample);
            assert_eq!(cubic.window() / 1_200, window, "at {now} ms");
        }
    }

    #[test]
    fn what_is_not_used_does_not_grow() {
        let mut cubic = cubic();
        let at = Timestamp::from_millis;
        for step in 1..50 {
            let sample = testing::ack(at(step * 100), at(step * 100 - 99), 10, 0);
            cubic.on_ack(&AckSample { app_limited: true, ..sample });
        }
        assert_eq!(cubic.window(), 10 * 1_200);
    }

    #[test]
    fn blackout_ends_in_the_minimum_window_and_slow_start() {
        let mut cubic = cubic();
        let at = Timestamp::from_millis;
        cubic.on_ack(&testing::ack(at(100), at(1), 90, 0));
        cubic.on_probe_timeout(at(500), 1);
        assert_eq!(cubic.window(), 100 * 1_200, "one proves nothing");
        cubic.on_probe_timeout(at(900), 2);
        assert_eq!((cubic.window(), cubic.state()), (2 * 1_200, "slow_start"));
        cubic.on_ack(&testing::ack(at(1_100), at(1_000), 200, 0));
        assert_eq!(cubic.window(), 70 * 1_200, "up to beta of where it was");
    }
}
