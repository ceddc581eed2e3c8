//! The clock for TLS, set from outside.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use bats_types::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// A clock that shows the time that was set last, because the core reads no system clock.
#[derive(Debug)]
pub(super) struct ExternalClock {
    /// Unix time at `from` (servers use an arbitrary epoch).
    base: Duration,
    from: Timestamp,
    micros: AtomicU64,
}

impl ExternalClock {
    /// Creates a clock that shows `base` at `from`.
    pub(super) fn new(base: Duration, from: Timestamp) -> Self {
        Self { base, from, micros: AtomicU64::new(0) }
    }

    /// Sets the time to `now`; it never goes backwards.
    pub(super) fn set(&self, now: Timestamp) {
        let micros = u64::try_from((now - self.from).as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_max(micros, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> UnixTime {
        let elapsed = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        UnixTime::since_unix_epoch(self.base.saturating_add(elapsed))
    }
}

impl TimeProvider for ExternalClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_shows_the_latest_time_set() {
        let start = Timestamp::from_millis(5_000);
        let clock = ExternalClock::new(Duration::from_secs(1_000), start);
        let seconds = |clock: &ExternalClock| clock.now().as_secs();
        assert_eq!(seconds(&clock), 1_000);
        clock.set(start + Duration::from_millis(2_999));
        assert_eq!(seconds(&clock), 1_002);
        clock.set(start + Duration::from_millis(3_000));
        assert_eq!(seconds(&clock), 1_003);
        clock.set(start + Duration::from_millis(1_000));
        assert_eq!(seconds(&clock), 1_003);
        assert_eq!(clock.current_time().map(|time| time.as_secs()), Some(1_003));
    }
}
