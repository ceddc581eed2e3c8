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
