//! Expiry of timers.

use bats_types::Timestamp;

/// Whether a timer has expired; clears it if so.
pub(crate) fn take_expired(timer: &mut Option<Timestamp>, now: Timestamp) -> bool {
    let due = timer.is_some_and(|at| at <= now);
    if due {
        *timer = None;
    }
    due
}

/// The earlier of two timers.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_expires_once_at_its_time() {
        let at = Timestamp::from_millis(5);
        let mut timer = Some(at);
        assert!(!take_expired(&mut timer, Timestamp::from_millis(4)));
        assert!(take_expired(&mut timer, at));
        assert!(!take_expired(&mut timer, at));
    }

    #[test]
    fn earlier_timer_is_chosen_of_those_that_are_armed() {
        let (a, b) = (Some(Timestamp::from_millis(1)), Some(Timestamp::from_millis(2)));
        assert_eq!([earlier(a, b), earlier(b, a)], [a, a]);
        assert_eq!([earlier(None, b), earlier(a, None), earlier(None, None)], [b, a, None]);
    }
}
