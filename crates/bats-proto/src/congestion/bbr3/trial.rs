//! When trials take place: at common instants of the clock.
//!
//! A flow among many cannot tell by its own rate whether losses are the path's own: its share hardly
//! changes what the others lose. All flows of a host read one clock, and hosts with synchronised
//! clocks nearly one. So every flow that sees losses sends less than was delivered at the same
//! instants, for the same time: a bottleneck that they overload together has room then.

use core::time::Duration;

use bats_types::Timestamp;

/// Trials begin at multiples of this.
const PERIOD: Duration = Duration::from_secs(4);
/// Shortest trial.
const MIN_LENGTH: Duration = Duration::from_millis(200);
/// Trials take at most this part of the time.
const MOST_OF_PERIOD: u32 = 8;

/// Whether a trial is on.
#[derive(Debug, Default)]
pub(super) struct TrialClock {
    pub(super) is_on: bool,
}

/// What happens to the trial now.
pub(super) enum Change {
    /// It begins; packets count from then on.
    Begin(Timestamp),
    End,
    None,
}

impl TrialClock {
    /// Checks the clock.
    pub(super) fn update(&mut self, now: Timestamp, rtt: Duration, is_allowed: bool) -> Change {
        let length = MIN_LENGTH.max(rtt * 3);
        let mut period = PERIOD;
        while period < length * MOST_OF_PERIOD && period < PERIOD * 64 {
            period *= 2;
        }
        let phase = Duration::from_nanos(now.as_nanos() % period.as_nanos() as u64);
        let was_on = core::mem::replace(&mut self.is_on, is_allowed && phase < length);
        match (was_on, self.is_on) {
            // What is sent first meets the queue that stood before.
            (false, true) => Change::Begin(now + length / 3),
            (true, false) => Change::End,
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    /// The times of a minute, in milliseconds, at which trials of a flow with this round trip begin.
    fn begins(rtt: u64, from: u64) -> Vec<u64> {
        let mut clock = TrialClock::default();
        let rtt = Duration::from_millis(rtt);
        (from..60_000)
            .filter(|&ms| {
                matches!(clock.update(Timestamp::from_millis(ms), rtt, true), Change::Begin(_))
            })
            .collect()
    }

    #[test]
    fn flows_with_any_round_trip_and_start_begin_together() {
        let near = begins(20, 0);
        assert_eq!(near[..3], [0, 4_000, 8_000]);
        assert_eq!(begins(20, 1_234), near[1..]);
        // Three round trips take more than an eighth of 4 s.
        let far = begins(300, 0);
        assert_eq!(far[..3], [0, 8_000, 16_000]);
        assert!(far.iter().all(|at| near.contains(at)));
    }

    #[test]
    fn trials_last_three_round_trips_and_stop_when_they_are_not_allowed() {
        let mut clock = TrialClock::default();
        let rtt = Duration::from_millis(100);
        assert!(matches!(clock.update(Timestamp::from_millis(4_000), rtt, true), Change::Begin(_)));
        assert!(matches!(clock.update(Timestamp::from_millis(4_299), rtt, true), Change::None));
        assert!(matches!(clock.update(Timestamp::from_millis(4_300), rtt, true), Change::End));
        clock.update(Timestamp::from_millis(8_000), rtt, true);
        assert!(matches!(clock.update(Timestamp::from_millis(8_001), rtt, false), Change::End));
    }
}
