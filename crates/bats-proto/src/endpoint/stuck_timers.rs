//! Detects timers that stay due after they were handled.
//!
//! A correct connection has no timer in the past once its timeout is handled and its output is
//! taken. If one had, the driver would call it again at once, without end, and all connections of
//! the endpoint would wait. So this is asserted at run time, and the connection is closed.

use std::collections::BTreeMap;

use bats_types::Timestamp;

use super::ConnectionHandle;

/// Timeouts in a row that may leave a timer due. A datagram between them may arm one for the same
/// instant, so one is no proof of a defect.
const MAX_IN_A_ROW: u32 = 16;

/// When a timeout was last handled, and how many in a row left a timer due.
#[derive(Clone, Copy, Debug, Default)]
struct Handled {
    at: Timestamp,
    is_checked: bool,
    in_a_row: u32,
}

/// The connections whose timeout was handled recently.
#[derive(Debug, Default)]
pub(super) struct StuckTimers {
    handled: BTreeMap<ConnectionHandle, Handled>,
}

impl StuckTimers {
    /// A connection's timeout was handled.
    pub(super) fn on_handled(&mut self, handle: ConnectionHandle, now: Timestamp) {
        let handled = self.handled.entry(handle).or_default();
        (handled.at, handled.is_checked) = (now, false);
    }

    /// A connection has no more output and its next timer is at `next`. Returns whether it makes no
    /// progress.
    pub(super) fn is_stuck(&mut self, handle: ConnectionHandle, next: Option<Timestamp>) -> bool {
        let Some(handled) = self.handled.get_mut(&handle) else { return false };
        if next.is_none_or(|next| next > handled.at) {
            self.handled.remove(&handle);
            return false;
        }
        handled.in_a_row += u32::from(!handled.is_checked);
        handled.is_checked = true;
        handled.in_a_row > MAX_IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_timers_that_stay_due_many_times_are_stuck() {
        let (one, other) = (ConnectionHandle(1), ConnectionHandle(2));
        let now = Timestamp::from_millis(5);
        let mut timers = StuckTimers::default();
        assert!(!timers.is_stuck(one, Some(now)), "no timeout was handled");
        for _ in 0..MAX_IN_A_ROW {
            timers.on_handled(one, now);
            assert!(!timers.is_stuck(one, Some(now)), "at the limit");
            assert!(!timers.is_stuck(one, Some(now)), "the same timeout counts once");
        }
        timers.on_handled(other, now);
        assert!(!timers.is_stuck(other, Some(now)), "another connection");
        timers.on_handled(one, now);
        assert!(timers.is_stuck(one, Some(Timestamp::ZERO)), "beyond it");
        timers.on_handled(one, now);
        assert!(!timers.is_stuck(one, Some(Timestamp::from_millis(6))), "progress");
        timers.on_handled(one, now);
        assert!(!timers.is_stuck(one, Some(now)), "counted again");
        assert!(!timers.is_stuck(other, None) && !timers.is_stuck(one, None));
        assert!(timers.handled.is_empty());
    }
}
