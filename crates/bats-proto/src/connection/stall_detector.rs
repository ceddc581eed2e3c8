//! A stream of data that stops.

use core::time::Duration;

use bats_types::Timestamp;

/// Intervals between packets, as they were of late, that are a silence.
const INTERVALS: u32 = 8;
/// And least time.
const LEAST: Duration = Duration::from_millis(10);
/// Times that something is said in a silence; each takes twice as long as the one before.
const MAX_PINGS: u32 = 4;

/// Notices on the receiving side that a stream has stopped. Whoever only receives has nothing to say
/// then, and the sender talks to an address that a NAT has given up: a word from here tells it where to
/// send. If the sender has merely paused, it costs four small packets.
#[derive(Debug, Default)]
pub(super) struct StallDetector {
    last: Option<Timestamp>,
    interval: Duration,
    pings: u32,
    due: Option<Timestamp>,
}

impl StallDetector {
    /// Data arrived.
    pub(super) fn on_data(&mut self, now: Timestamp, rtt: Duration) {
        if let Some(last) = self.last {
            self.interval = (self.interval * 7 + (now - last).min(rtt)) / 8;
        }
        self.last = Some(now);
        self.pings = 0;
        self.due = Some(now + (rtt / 4).max(self.interval * INTERVALS).max(LEAST));
    }

    /// When [`Silence::is_due`] wants to be asked.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.due
    }

    /// Whether something should be said now.
    pub(super) fn is_due(&mut self, now: Timestamp) -> bool {
        let (Some(due), Some(last)) = (self.due, self.last) else { return false };
        if due > now {
            return false;
        }
        self.pings += 1;
        self.due = (self.pings < MAX_PINGS).then(|| now + (now - last));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_stops_is_asked_for_four_times() {
        let rtt = Duration::from_millis(100);
        let mut stalls = StallDetector::default();
        assert!(!stalls.is_due(Timestamp::from_millis(500)), "no data, no silence");
        for at in 0..100 {
            stalls.on_data(Timestamp::from_millis(at), rtt);
            assert!(!stalls.is_due(Timestamp::from_millis(at)));
        }
        let pings: Vec<u64> =
            (100..2_000).filter(|&at| stalls.is_due(Timestamp::from_millis(at))).collect();
        assert_eq!(pings, [124, 149, 199, 299]);
        stalls.on_data(Timestamp::from_millis(2_000), rtt);
        assert!(stalls.next_timeout().is_some(), "data makes it listen again");
    }
}
