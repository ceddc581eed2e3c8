use core::time::Duration;

use bats_types::Timestamp;

/// Linux `tcp_cubic.c`: `hystart_low_window`, `hystart_ack_delta_us`, `HYSTART_MIN_SAMPLES`,
/// `HYSTART_DELAY_MIN`, `HYSTART_DELAY_MAX`.
const LOW_WINDOW: f64 = 16.0;
const ACK_DELTA: Duration = Duration::from_millis(2);
const MIN_SAMPLES: u32 = 8;
const MIN_DELAY: Duration = Duration::from_millis(4);
const MAX_DELAY: Duration = Duration::from_millis(16);
/// Maximum time for which offload may delay acknowledgements (`hystart_ack_delay`).
const MAX_ACK_DELAY: Duration = Duration::from_millis(1);
const OFFLOAD_BYTES: f64 = 4.0 * 65_536.0;

/// HyStart of Linux: ends slow start when an acknowledgement train is long or the delay grows.
#[derive(Debug, Default)]
pub(super) struct HyStart {
    round_start: Timestamp,
    last_ack: Timestamp,
    round_end: Option<u64>,
    round_min: Option<Duration>,
    samples: u32,
    is_found: bool,
}

/// Sender state that HyStart uses.
pub(super) struct Observation {
    pub(super) now: Timestamp,
    pub(super) rtt: Duration,
    pub(super) min_rtt: Duration,
    pub(super) smoothed_rtt: Duration,
    pub(super) window: f64,
    pub(super) base: u64,
    pub(super) next: u64,
}

impl HyStart {
    /// Returns whether slow start ends.
    pub(super) fn on_ack(&mut self, ack: &Observation) -> bool {
        if self.is_found || ack.window < LOW_WINDOW {
            return false;
        }
        if self.round_end.is_none_or(|end| ack.base > end) {
            (self.round_start, self.last_ack) = (ack.now, ack.now);
            self.round_end = Some(ack.next);
            (self.round_min, self.samples) = (None, 0);
        }
        if ack.now - self.last_ack <= ACK_DELTA {
            self.last_ack = ack.now;
            // In slow start the pacing rate is twice the window per round trip.
            let rate = 2.0 * ack.window * super::SEGMENT as f64 / ack.smoothed_rtt.as_secs_f64();
            let offload = Duration::from_secs_f64((OFFLOAD_BYTES / rate.max(1.0)).min(1.0));
            let threshold = (ack.min_rtt + offload.min(MAX_ACK_DELAY)) / 2;
            self.is_found |= ack.now - self.round_start > threshold;
        }
        let round_min = self.round_min.map_or(ack.rtt, |min| min.min(ack.rtt));
        self.round_min = Some(round_min);
        if self.samples < MIN_SAMPLES {
            self.samples += 1;
        } else {
            let margin = (ack.min_rtt / 8).clamp(MIN_DELAY, MAX_DELAY);
            self.is_found |= round_min > ack.min_rtt + margin;
        }
        self.is_found
    }

    /// After a timeout slow start begins again.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}
