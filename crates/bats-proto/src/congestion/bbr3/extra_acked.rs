//! extra_acked, the degree of aggregation (draft-ietf-ccwg-bbr-06 section 5.5.9).

use bats_types::Timestamp;

use super::constants::EXTRA_ACKED_ROUNDS;
use super::windowed_filter::WindowedMax;

/// Estimates how much more is acknowledged at once than the rate explains.
#[derive(Debug, Default)]
pub(super) struct ExtraAcked {
    interval_start: Timestamp,
    delivered: u64,
    filter: WindowedMax,
}

impl ExtraAcked {
    /// extra_acked in bytes.
    pub(super) fn get(&self) -> u64 {
        self.filter.max()
    }

    /// The flow restarts from idle.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.interval_start = now;
        self.delivered = 0;
    }

    /// UpdateACKAggregation: `bw` in bytes per second, `cwnd` in bytes.
    pub(super) fn update(
        &mut self,
        now: Timestamp,
        newly_acked: u64,
        bw: u64,
        cwnd: u64,
        round: u64,
        is_full: bool,
    ) {
        let interval = now - self.interval_start;
        let mut expected = (bw as f64 * interval.as_secs_f64()) as u64;
        if self.delivered <= expected {
            self.delivered = 0;
            self.interval_start = now;
            expected = 0;
        }
        self.delivered += newly_acked;
        let extra = self.delivered.saturating_sub(expected).min(cwnd);
        let window = if is_full { EXTRA_ACKED_ROUNDS } else { 1 };
        self.filter.update(extra, round, window);
    }
}
