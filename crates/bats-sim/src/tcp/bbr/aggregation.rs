use core::time::Duration;

use bats_types::Timestamp;

/// Linux `bbr_extra_acked_win_rtts`, `bbr_extra_acked_max_us`, `bbr_ack_epoch_acked_reset_thresh`.
const ROUNDS: u32 = 5;
const MAX_TIME: Duration = Duration::from_millis(100);
const MAX_EPOCH: u64 = 1 << 20;

/// Segments acknowledged in excess of the rate (Linux `bbr_update_ack_aggregation`).
#[derive(Debug, Default)]
pub(super) struct Aggregation {
    extra: [u64; 2],
    index: usize,
    rounds: u32,
    epoch_acked: u64,
    epoch: Timestamp,
}

impl Aggregation {
    pub(super) fn begin_epoch(&mut self, now: Timestamp) {
        (self.epoch, self.epoch_acked) = (now, 0);
    }

    pub(super) fn on_ack(
        &mut self,
        now: Timestamp,
        acked: u64,
        (rate, window): (f64, u64),
        (is_round, is_full): (bool, bool),
    ) {
        if is_round {
            self.rounds += 1;
            if self.rounds >= if is_full { ROUNDS } else { 1 } {
                self.rounds = 0;
                self.index = 1 - self.index;
                self.extra[self.index] = 0;
            }
        }
        let mut expected = (rate * (now - self.epoch).as_secs_f64()) as u64;
        if self.epoch_acked <= expected || self.epoch_acked + acked >= MAX_EPOCH {
            self.begin_epoch(now);
            expected = 0;
        }
        self.epoch_acked += acked;
        let extra = self.epoch_acked.saturating_sub(expected).min(window);
        self.extra[self.index] = self.extra[self.index].max(extra);
    }

    /// Number of segments by which the window is raised.
    pub(super) fn window(&self, rate: f64) -> u64 {
        let limit = (rate * MAX_TIME.as_secs_f64()) as u64;
        self.extra[0].max(self.extra[1]).min(limit)
    }
}
