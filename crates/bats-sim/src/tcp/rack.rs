use core::time::Duration;

use bats_types::Timestamp;

/// Duplicate acknowledgements that start recovery while no reordering was seen (RFC 5681; Linux
/// `sysctl_tcp_reordering`).
const DUPLICATE_THRESHOLD: u64 = 3;
/// Recoveries that the reordering window survives without a DSACK (RFC 8985 section 6.2 step 4).
const PERSIST: u32 = 16;

/// RACK (RFC 8985 section 6): which transmission was delivered last, and the reordering window of
/// the others.
#[derive(Debug)]
pub(super) struct Rack {
    /// Number and send time of the delivered transmission that was sent last.
    pub(super) order: u64,
    pub(super) sent: Timestamp,
    rtt: Duration,
    reordering_seen: bool,
    window_multiplier: u32,
    persist: u32,
    dsack_seen: bool,
    /// Total segments delivered when the window last grew: it grows at most once per round trip.
    grown_at: u64,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            order: 0,
            sent: Timestamp::ZERO,
            rtt: Duration::ZERO,
            reordering_seen: false,
            window_multiplier: 1,
            persist: 0,
            dsack_seen: false,
            grown_at: 0,
        }
    }
}

impl Rack {
    /// Handles the delivery of a transmission (section 6.2 step 2).
    pub(super) fn on_delivered(
        &mut self,
        now: Timestamp,
        (order, sent): (u64, Timestamp),
        is_retransmitted: bool,
        min_rtt: Duration,
    ) {
        let rtt = now - sent;
        // Whether the acknowledgement is for an earlier transmission.
        if is_retransmitted && rtt < min_rtt {
            return;
        }
        self.rtt = rtt;
        if order > self.order {
            (self.order, self.sent) = (order, sent);
        }
    }

    pub(super) fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    pub(super) fn on_dsack(&mut self) {
        self.dsack_seen = true;
    }

    /// Recovery ended; `undone` if it was spurious (Linux `tcp_try_undo_recovery`,
    /// `tcp_try_undo_dsack`).
    pub(super) fn on_recovery_end(&mut self, undone: bool) {
        self.persist =
            if undone { (self.persist + 1).min(PERSIST) } else { self.persist.saturating_sub(1) };
    }

    /// Adapts the reordering window (section 6.2 step 4, Linux `tcp_rack_update_reo_wnd`).
    pub(super) fn adapt(&mut self, delivered_before: u64, delivered: u64) {
        if delivered_before < self.grown_at {
            self.dsack_seen = false;
        }
        if self.dsack_seen {
            self.window_multiplier = (self.window_multiplier + 1).min(255);
            self.dsack_seen = false;
            self.grown_at = delivered;
            self.persist = PERSIST;
        } else if self.persist == 0 {
            self.window_multiplier = 1;
        }
    }

    /// The reordering window.
    pub(super) fn window(
        &self,
        sacked: u64,
        in_recovery: bool,
        min_rtt: Duration,
        smoothed: Duration,
    ) -> Duration {
        if !self.reordering_seen && (in_recovery || sacked >= DUPLICATE_THRESHOLD) {
            return Duration::ZERO;
        }
        if min_rtt == Duration::MAX {
            return smoothed;
        }
        (min_rtt / 4 * self.window_multiplier).min(smoothed)
    }

    /// Time at which a transmission that was sent at `sent` counts as lost.
    pub(super) fn due(&self, sent: Timestamp, window: Duration) -> Timestamp {
        sent + self.rtt + window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    #[test]
    fn the_window_starts_with_three_duplicates_and_grows_by_dsack_once_a_round() {
        let mut rack = Rack::default();
        assert_eq!(rack.window(2, false, RTT, RTT), RTT / 4);
        assert_eq!(rack.window(3, false, RTT, RTT), Duration::ZERO);
        rack.on_reordering();
        assert_eq!(rack.window(3, false, RTT, RTT), RTT / 4);
        for (delivered, quarters) in [(10, 2), (11, 2), (20, 3), (30, 4), (40, 4)] {
            rack.on_dsack();
            rack.adapt(delivered - 10 + u64::from(delivered > 11), delivered);
            assert_eq!(rack.window(3, false, RTT, RTT), RTT / 4 * quarters, "{delivered}");
        }
        for _ in 0..PERSIST {
            assert_eq!(rack.window(3, false, RTT, RTT), RTT);
            rack.on_recovery_end(false);
            rack.adapt(50, 60);
        }
        assert_eq!(rack.window(3, false, RTT, RTT), RTT / 4);
    }
}
