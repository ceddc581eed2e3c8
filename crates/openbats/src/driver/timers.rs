//! The resolution of the timers of I/O threads.

use std::time::Duration;

use bats_types::Timestamp;

/// Shortest sleep: for earlier deadlines the loop polls instead.
pub(super) const SHORTEST_SLEEP: Duration = Duration::from_micros(5);

/// The time up to which expired timers are handled `now`, after the socket was read at `read_at`. What stops a later
/// one may have arrived since: this thread may have waited for a lock or a processor.
pub(super) fn timers_until(read_at: Timestamp, now: Timestamp) -> Timestamp {
    now.min(read_at + SHORTEST_SLEEP)
}
