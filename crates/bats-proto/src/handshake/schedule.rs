//! When a flight is repeated; the reasons are in ADR 0002.

use core::time::Duration;

use bats_types::Timestamp;

/// Time to the first copy of a flight, and between the following ones while the round-trip time
/// is unknown.
const INTERVALS: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];
/// Least time between a known round trip's copies but the first.
const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// A flight that was sent this short ago, or less than a known round trip ago, is not repeated
/// because the peer repeats its own: that says nothing about it yet.
const RECENT: Duration = Duration::from_millis(10);

/// Clock of the flights of one end.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Copies of the flight at hand.
    copies: u32,
    due: Option<Timestamp>,
    last_sent: Option<Timestamp>,
}

impl Schedule {
    /// A new flight leaves now.
    pub(super) fn restart(&mut self, now: Timestamp, rtt: Option<Duration>) {
        self.copies = 0;
        self.due = Some(now + interval(0, rtt));
    }

    /// Nothing is left to be repeated.
    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    pub(super) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    pub(super) fn on_sent(&mut self, now: Timestamp) {
        self.last_sent = Some(now);
    }

    /// Whether the flight must be repeated now; if so, the next time is set.
    pub(super) fn expired(&mut self, now: Timestamp, rtt: Option<Duration>) -> bool {
        let expired = self.due.is_some_and(|due| due <= now);
        if expired {
            self.copies += 1;
            self.due = Some(now + interval(self.copies, rtt));
        }
        expired
    }

    /// The peer repeats what has arrived, so it lacks our answer. Whether to repeat that at once;
    /// the clock then waits anew.
    pub(super) fn peer_repeats(&mut self, now: Timestamp, rtt: Option<Duration>) -> bool {
        let recent = rtt.unwrap_or_default().max(RECENT);
        let recent = self.last_sent.is_some_and(|at| now.saturating_since(at) < recent);
        if recent || self.due.is_none() {
            return false;
        }
        self.due = Some(now + interval(self.copies, rtt));
        true
    }
}

fn interval(copies: u32, rtt: Option<Duration>) -> Duration {
    let last = INTERVALS.len() - 1;
    let unknown = INTERVALS[(copies as usize).min(last)];
    match rtt {
        Some(rtt) if copies > 0 => {
            // A quarter more than the round trip, growing by half; longer than for unknown
            // round trips only if the round trip itself is.
            let base = (rtt + rtt / 4).max(MIN_INTERVAL);
            let grown = base * 3_u32.pow(copies.min(8) - 1) / 2_u32.pow(copies.min(8) - 1);
            grown.min(INTERVALS[last].max(base))
        }
        _ => unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(rtt: Option<Duration>, until: u64) -> Vec<u64> {
        let mut schedule = Schedule::default();
        schedule.restart(Timestamp::ZERO, rtt);
        let mut times = Vec::new();
        while let Some(due) = schedule.due()
            && due.as_micros() <= until * 1_000
        {
            assert!(schedule.expired(due, rtt));
            times.push(due.as_micros() / 1_000);
        }
        times
    }

    #[test]
    fn times_of_copies() {
        assert_eq!(copies(None, 1_600), [20, 100, 200, 400, 800, 1_200, 1_600]);
        let rtt = Some(Duration::from_millis(40));
        assert_eq!(copies(rtt, 600), [20, 70, 145, 257, 426]);
        let long = Some(Duration::from_millis(600));
        assert_eq!(copies(long, 3_100), [20, 770, 1_520, 2_270, 3_020]);
    }

    #[test]
    fn an_answer_just_sent_is_not_repeated_for_the_peers_sake() {
        let mut schedule = Schedule::default();
        assert!(!schedule.peer_repeats(Timestamp::ZERO, None));
        schedule.restart(Timestamp::ZERO, None);
        schedule.on_sent(Timestamp::ZERO);
        assert!(!schedule.peer_repeats(Timestamp::from_millis(9), None));
        assert!(schedule.peer_repeats(Timestamp::from_millis(10), None));
        assert_eq!(schedule.due(), Some(Timestamp::from_millis(30)));
        let rtt = Some(Duration::from_millis(25));
        assert!(!schedule.peer_repeats(Timestamp::from_millis(24), rtt));
        assert!(schedule.peer_repeats(Timestamp::from_millis(25), rtt));
        schedule.stop();
        assert!(!schedule.peer_repeats(Timestamp::from_millis(99), None));
    }
}
