//! The rate that a link had to spare, which extra recoded packets may take from new packets.
//!
//! Senders that wait for acknowledgements send in bursts. During a burst the link has no idle slots, and
//! after it reports arrive as early as extra packets. So the idle time before the burst counts.

use bats_types::Timestamp;

use super::LinkView;

/// Idle time that counts, in round trips. In-order delivery of a burst waits for several rounds of
/// repairs, and only then the acknowledgements of the sender's data let the next burst out.
const ROUND_TRIPS: f64 = 4.0;

/// Packets that a link could have sent in its idle time of the last round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpareRate {
    packets: f64,
    idle_since: Option<Timestamp>,
}

impl SpareRate {
    /// The link has nothing to send.
    pub(super) fn begin_idle_time(&mut self, now: Timestamp) {
        self.idle_since.get_or_insert(now);
    }

    /// The link may have something to send.
    pub(super) fn end_idle_time(&mut self, now: Timestamp, view: &LinkView) {
        let Some(since) = self.idle_since.take() else { return };
        let per_second = view.rate as f64 / view.packet.max(1) as f64;
        let limit = ROUND_TRIPS * per_second * view.smoothed_rtt.as_secs_f64();
        let added = per_second * (now - since).as_secs_f64();
        self.packets = (self.packets + added).min(limit);
    }

    /// Whether there is spare rate for a packet.
    pub(super) fn has_packet(&self) -> bool {
        self.packets >= 1.0
    }

    /// An extra packet took its share, or a new one after which others wait.
    pub(super) fn take_packet(&mut self) {
        self.packets = (self.packets - 1.0).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn idle_time_counts_up_to_some_round_trips() {
        let view = LinkView {
            rate: 1_000_000,
            packet: 1_000,
            smoothed_rtt: Duration::from_millis(20),
            ..LinkView::default()
        };
        let mut spare = SpareRate::default();
        let mut now = Timestamp::from_millis(1);
        let count = |spare: &mut SpareRate| {
            let mut count = 0;
            while spare.has_packet() {
                spare.take_packet();
                count += 1;
            }
            count
        };
        assert_eq!(count(&mut spare), 0);
        // Two looks at an idle link.
        spare.begin_idle_time(now);
        spare.begin_idle_time(now + Duration::from_millis(4));
        now += Duration::from_millis(7);
        spare.end_idle_time(now, &view);
        assert_eq!(count(&mut spare), 7);
        // Busy time adds nothing.
        spare.end_idle_time(now + Duration::from_millis(90), &view);
        assert_eq!(count(&mut spare), 0);
        spare.begin_idle_time(now);
        spare.end_idle_time(now + Duration::from_secs(5), &view);
        assert_eq!(count(&mut spare), 80);
    }
}
