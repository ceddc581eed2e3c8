//! Queueing delay: one-way delay above its minimum, free of what the reverse direction adds.

use core::time::Duration;

use bats_types::Timestamp;

use super::constants::MIN_RTT_FILTER;

/// The delay, and its minimum in each round.
#[derive(Debug, Default)]
pub(super) struct QueueDelay {
    min: Option<(i64, Timestamp)>,
    next_min: Option<(i64, Timestamp)>,
    round_min: Option<i64>,
    latest: Option<i64>,
    /// Least queueing delay of the last full round.
    pub(super) last_round: Duration,
}

impl QueueDelay {
    /// A packet sent at `sent_at` was received at `received_at`, on the receiver's clock.
    pub(super) fn on_ack(&mut self, now: Timestamp, sent_at: Timestamp, received_at: Timestamp) {
        // The clocks have different epochs; only differences of delays are used.
        let delay = received_at.as_nanos().wrapping_sub(sent_at.as_nanos()) as i64;
        if self.next_min.is_none_or(|(min, _)| delay <= min) {
            self.next_min = Some((delay, now));
        }
        match self.min {
            Some((min, at)) if delay > min => {
                if now - at > MIN_RTT_FILTER {
                    self.min = self.next_min.take();
                }
            }
            _ => {
                self.min = Some((delay, now));
                self.next_min = None;
            }
        }
        self.latest = Some(delay);
        self.round_min = Some(self.round_min.map_or(delay, |min| min.min(delay)));
    }

    /// A round ended.
    pub(super) fn on_round(&mut self) {
        if let Some(least) = self.round_min.take() {
            self.last_round = self.above_min(least);
        }
    }

    /// Queueing delay of the newest acknowledged packet.
    pub(super) fn latest(&self) -> Duration {
        self.latest.map_or(Duration::ZERO, |delay| self.above_min(delay))
    }

    fn above_min(&self, delay: i64) -> Duration {
        let base = self.min.map_or(delay, |(min, _)| min);
        Duration::from_nanos(delay.saturating_sub(base).max(0) as u64)
    }
}
