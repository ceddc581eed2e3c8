//! The time that TLS is told.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use bats_types::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// A clock that stands where it was put last: like all time, TLS's comes from outside.
#[derive(Debug)]
pub(super) struct ToldTime {
    /// The time since 1970 at `from`, or since whatever the teller counts from.
    base: Duration,
    from: Timestamp,
    micros: AtomicU64,
}

impl ToldTime {
    /// It is `base` at `from`.
    pub(super) fn new(base: Duration, from: Timestamp) -> Self {
        Self { base, from, micros: AtomicU64::new(0) }
    }

    /// It is `now`. Time does not run backwards.
    pub(super) fn tell(&self, now: Timestamp) {
        let micros = u64::try_from((now - self.from).as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_max(micros, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> UnixTime {
        let elapsed = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        UnixTime::since_unix_epoch(self.base.saturating_add(elapsed))
    }
}

impl TimeProvider for ToldTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_told_last_and_never_earlier() {
        let start = Timestamp::from_millis(5_000);
        let clock = ToldTime::new(Duration::from_secs(1_000), start);
        let seconds = |clock: &ToldTime| clock.now().as_secs();
        assert_eq!(seconds(&clock), 1_000);
        clock.tell(start + Duration::from_millis(2_999));
        assert_eq!(seconds(&clock), 1_002);
        clock.tell(start + Duration::from_millis(3_000));
        assert_eq!(seconds(&clock), 1_003);
        clock.tell(start + Duration::from_millis(1_000));
        assert_eq!(seconds(&clock), 1_003);
        assert_eq!(clock.current_time().map(|time| time.as_secs()), Some(1_003));
    }
}
