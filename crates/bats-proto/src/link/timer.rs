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
}
