//! The monotonic clock, and conversion of the kernel's real-time timestamps to it.

use std::time::Duration;

use bats_types::Timestamp;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

/// The current monotonic time, since the machine started.
pub(crate) fn now() -> Timestamp {
    stamp(read(ClockId::CLOCK_MONOTONIC))
}

/// The current monotonic time and the real-time clock at the same moment.
pub(crate) fn now_and_real() -> (Timestamp, Duration) {
    (now(), read(ClockId::CLOCK_REALTIME))
}

/// Monotonic arrival time of a frame with the kernel timestamp `at`. If the real-time clock was set
/// meanwhile, the timestamp is invalid and the arrival time is `now`.
pub(crate) fn arrival(now: Timestamp, real: Duration, at: Option<Duration>) -> Timestamp {
    let age = at.and_then(|at| real.checked_sub(at)).unwrap_or_default();
    if age > Duration::from_secs(2) { now } else { now.saturating_sub(age) }
}

/// Sleeps with the precision of the kernel's high-resolution timers.
pub(crate) fn sleep(time: Duration) {
    // A signal may end the sleep early, which is fine.
    let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &time.into());
}

fn read(clock: ClockId) -> Duration {
    // Both clocks exist on every Linux.
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

fn stamp(time: Duration) -> Timestamp {
    Timestamp::ZERO + time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_converted_and_invalid_ones_ignored() {
        let now = Timestamp::from_millis(10_000);
        let real = Duration::from_secs(1_000_000);
        let at = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        assert_eq!(arrival(now, real, at(999_999.5)), Timestamp::from_millis(9_500));
        assert_eq!(arrival(now, real, at(1_000_001.0)), now);
        assert_eq!(arrival(now, real, at(1.0)), now);
        assert_eq!(arrival(now, real, None), now);
    }
}
