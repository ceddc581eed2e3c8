use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller};

/// Bytes in flight of a connection without control; bounds memory, not the rate.
const UNLIMITED_WINDOW: u64 = 64 << 20;
/// Round trips that a fixed rate may have in flight.
const WINDOW_ROUNDS: u32 = 3;

/// A fixed pacing rate, or none: the network is not asked.
#[derive(Debug)]
pub(super) struct Fixed {
    rate: u64,
    measured: u64,
    last: Option<(u64, Timestamp)>,
    rtt: Duration,
}

impl Fixed {
    pub(super) fn at_rate(rate: u64) -> Self {
        Self { rate: rate.max(1), measured: 0, last: None, rtt: Duration::from_millis(100) }
    }

    pub(super) fn unlimited() -> Self {
        Self::at_rate(u64::MAX)
    }
}

impl Controller for Fixed {
    fn on_sent(&mut self, _now: Timestamp, _bytes: u64, _in_flight: u64) {}

    fn on_ack(&mut self, sample: &AckSample) {
        self.rtt = sample.smoothed_rtt;
        let (bytes, at) =
            *self.last.get_or_insert((sample.cumulative_sent, sample.largest_received_at));
        let elapsed = sample.largest_received_at - at;
        if elapsed >= Duration::from_millis(10) {
            let sent = sample.cumulative_sent.saturating_sub(bytes);
            self.measured = (sent as f64 / elapsed.as_secs_f64()) as u64;
            self.last = Some((sample.cumulative_sent, sample.largest_received_at));
        }
    }

    fn on_probe_timeout(&mut self, _now: Timestamp, _count: u32) {}

    fn window(&self) -> u64 {
        if self.rate == u64::MAX {
            return UNLIMITED_WINDOW;
        }
        let rounds = (self.rtt * WINDOW_ROUNDS).max(Duration::from_millis(100));
        ((self.rate as f64 * rounds.as_secs_f64()) as u64).max(64 << 10)
    }

    fn pacing_rate(&self) -> u64 {
        self.rate
    }

    fn bandwidth(&self) -> u64 {
        if self.rate == u64::MAX { self.measured.max(1_000_000) } else { self.rate }
    }

    fn queue_delay(&self) -> Duration {
        Duration::ZERO
    }

    fn state(&self) -> &'static str {
        if self.rate == u64::MAX { "none" } else { "fixed" }
    }
}
