//! Message length and deadline that follow the path, for tests that set neither.
//!
//! A message of 64 KiB takes 0.26 s at 2 Mbit/s, and 5 s at 100 kbit/s: longer than the default
//! deadline, so that none would arrive.

use std::time::Duration;

use crate::message_length::DEFAULT_LENGTH;
use crate::stream::PathState;

/// Shortest message that is chosen, in bytes.
const MIN_FITTED_LENGTH: u32 = 1_024;
/// A message is what the path delivers in this time.
const MESSAGE_TIME: Duration = Duration::from_millis(10);
/// Shortest deadline, the library's default.
const MIN_DEADLINE: Duration = Duration::from_millis(200);
/// Longest deadline that is accepted.
const MAX_DEADLINE: Duration = Duration::from_secs(60);
/// The deadline allows this many messages to be queued and sent, and as many round trips for
/// repairs.
const MESSAGES: u32 = 4;
const ROUND_TRIPS: u32 = 2;

/// Part of the data sent so far that the next message may have. The first rates are guesses of the
/// congestion control, which are far too high for slow paths.
const MAX_GROWTH: u64 = 16;

/// Length of the next message: what the path delivers in 10 ms. Messages are short at first.
pub(crate) fn length(path: PathState) -> u32 {
    let bytes = path.delivery_bps / 8 / (1_000 / MESSAGE_TIME.as_millis() as u64);
    let bytes = bytes.min(path.sent_bytes / MAX_GROWTH);
    u32::try_from(bytes).unwrap_or(u32::MAX).clamp(MIN_FITTED_LENGTH, DEFAULT_LENGTH)
}

/// Deadline of a message of this length.
pub(crate) fn deadline(path: PathState, length: usize) -> Duration {
    let bits = length as f64 * 8.0;
    let time = Duration::try_from_secs_f64(bits / path.delivery_bps.max(1) as f64)
        .unwrap_or(MAX_DEADLINE)
        .min(MAX_DEADLINE);
    (time * MESSAGES + path.rtt.min(MAX_DEADLINE) * ROUND_TRIPS).clamp(MIN_DEADLINE, MAX_DEADLINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_deadlines_fit_the_path() {
        let ms = Duration::from_millis;
        let path =
            |delivery_bps, rtt| PathState { delivery_bps, rtt: ms(rtt), sent_bytes: 1 << 20 };
        for (path, bytes, deadline_ms) in [
            (path(0, 0), 1_024, 60_000),
            (path(100_000, 100), 1_024, 527),
            (path(2_000_000, 100), 2_500, 240),
            (path(2_000_000, 10), 2_500, 200),
            (path(50_000_000, 600), 62_500, 1_240),
            (path(10_000_000_000, 1), DEFAULT_LENGTH, 200),
            (path(u64::MAX, u64::MAX), DEFAULT_LENGTH, 60_000),
        ] {
            assert_eq!(length(path), bytes, "{path:?}");
            let early = PathState { sent_bytes: 20_000, ..path };
            assert!(length(early) <= 1_250, "{path:?}");
            let found = deadline(path, bytes as usize).as_millis();
            assert_eq!(found, deadline_ms, "{path:?}");
        }
    }
}
