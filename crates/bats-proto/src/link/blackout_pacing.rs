//! Pacing during a blackout.

use core::time::Duration;

use bats_types::Timestamp;

/// Packets between two probe timeouts, at least, as far as the window has them. Some links lose packets
/// until a number of them was sent, which would otherwise be left to the probes.
const MIN_PACKETS: u64 = 64;

/// Paces data during a blackout: until the next probe timeout, one congestion window in as much time
/// as had passed without an answer.
///
/// The link may return at any moment, and data should be in flight then. Or it is congested, and
/// every packet makes it worse, so the rate falls with time. A window sent at once would leave
/// nothing to send when the link returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlackoutPacing {
    /// When the oldest unanswered packet was sent.
    pub(super) since: Timestamp,
    /// When the blackout was detected.
    pub(super) noticed: Timestamp,
    /// The last probe timeout.
    last: Timestamp,
    /// Time from it to the next.
    interval: Duration,
}

impl BlackoutPacing {
    /// A blackout that is noticed at a probe timeout.
    pub(super) fn new(since: Timestamp, now: Timestamp, interval: Duration) -> Self {
        Self { since, noticed: now, last: now, interval }
    }

    /// A probe timeout expired; the next one is `interval` later.
    pub(super) fn on_probe_timeout(&mut self, now: Timestamp, interval: Duration) {
        (self.last, self.interval) = (now, interval);
    }

    /// The last probe timeout.
    pub(super) fn last(&self) -> Timestamp {
        self.last
    }

    /// Pacing rate in bytes per second, from the path's pacing rate, congestion window and packet
    /// size (bytes).
    pub(super) fn pace(&self, rate: u64, window: u64, packet: u64) -> u64 {
        let over =
            |bytes: u64, time: Duration| (bytes as f64 / time.as_secs_f64().max(1e-3)) as u64;
        let least = over(window.min(MIN_PACKETS * packet), self.interval);
        over(window, (self.last - self.since).max(self.interval)).max(least).min(rate / 2)
    }

    /// Number of packets that may be sent from one probe timeout to the next.
    pub(super) fn packets(&self, rate: u64, window: u64, packet: u64) -> u64 {
        let bytes = self.pace(rate, window, packet) as f64 * self.interval.as_secs_f64();
        bytes as u64 / packet.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_window_is_sent_in_the_time_without_an_answer() {
        let blackout = |at: u64, ms| {
            let (noticed, interval) = (Timestamp::from_millis(100), Duration::from_millis(ms));
            let mut blackout = BlackoutPacing::new(Timestamp::ZERO, noticed, interval);
            blackout.on_probe_timeout(Timestamp::from_millis(at), interval);
            blackout
        };
        let pace = |at, ms, rate, window| blackout(at, ms).pace(rate, window, 1_000);
        assert_eq!(pace(200, 250, 6_000_000, 360_000), 1_440_000, "until the next probe");
        assert_eq!(pace(1_000, 250, 6_000_000, 360_000), 360_000);
        assert_eq!(pace(10_000, 250, 6_000_000, 360_000), 256_000, "64 packets at least");
        assert_eq!(pace(200, 100, 3_000_000, 360_000), 1_500_000, "half the rate at most");
        assert_eq!(pace(200, 100, u64::MAX, u64::MAX), u64::MAX / 2);
        assert_eq!(blackout(10_000, 250).packets(6_000_000, 360_000, 1_000), 64);
    }
}
