//! Detects timers that stay due after they were handled.
//!
//! A correct connection has no timer in the past once its timeout is handled and its output is
//! taken. If one had, the driver would call it again at once, without end, and all connections of
//! the endpoint would wait. So this is asserted at run time, and the connection is closed.

use std::collections::BTreeMap;

use crate::Timestamp;

/// Why such a connection is closed.
pub const STUCK_TIMER: &str = "a timer stayed due after it was handled";

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

/// The connections of an endpoint whose timeout was handled recently, by their key `K`.
#[derive(Debug)]
pub struct StuckTimers<K> {
    handled: BTreeMap<K, Handled>,
}

impl<K> Default for StuckTimers<K> {
    fn default() -> Self {
        Self { handled: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> StuckTimers<K> {
    /// A connection's timeout was handled.
    pub fn on_handled(&mut self, key: K, now: Timestamp) {
        let handled = self.handled.entry(key).or_default();
        (handled.at, handled.is_checked) = (now, false);
    }

    /// A connection has no more output and its next timer is at `next`. Returns whether it makes no
    /// progress: 17 timeouts in a row left a timer due.
    pub fn is_stuck(&mut self, key: K, next: Option<Timestamp>) -> bool {
        let Some(handled) = self.handled.get_mut(&key) else { return false };
        if next.is_none_or(|next| next > handled.at) {
            self.handled.remove(&key);
            return false;
        }
        handled.in_a_row += u32::from(!handled.is_checked);
        handled.is_checked = true;
        handled.in_a_row > MAX_IN_A_ROW
    }

    /// Whether [`is_stuck`](Self::is_stuck) must be called for this connection: a timeout of it was handled.
    #[inline]
    #[must_use]
    pub fn watches(&self, key: K) -> bool {
        self.handled.contains_key(&key)
    }

    /// A connection was removed.
    pub fn forget(&mut self, key: K) {
        self.handled.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_timers_that_stay_due_many_times_are_stuck() {
        let (one, other) = (1, 2);
        let now = Timestamp::from_millis(5);
        let mut timers = StuckTimers::default();
        assert!(!timers.is_stuck(one, Some(now)), "no timeout was handled");
        assert!(!timers.watches(one));
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
        assert!(!timers.is_stuck(other, None));
        assert!(timers.watches(one));
        timers.forget(one);
        assert!(timers.handled.is_empty());
    }
}
