//! Converts the system's clocks to the time stamps of the protocol core.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bats_types::Timestamp;

/// Time stamps begin at the Unix time modulo this, and above it, so that the core can subtract durations
/// from early ones. The clocks of all endpoints of a host then agree modulo this: congestion control
/// draws the times of its trials by the number of a slot modulo 64, and slots take 4 s (ADR 0019). Peers see no more of the Unix time.
const COMMON_PERIOD: Duration = Duration::from_secs(256);

/// Converts the system's monotonic clock to [`Timestamp`]s, or has a virtual time.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The time stamp of `origin`.
    first: Timestamp,
    /// The virtual time in nanoseconds, in place of the system's clock.
    simulated: Option<Arc<AtomicU64>>,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the driver's clock")]
    pub(crate) fn new() -> Self {
        let unix = unix_time();
        let phase = Duration::new(unix.as_secs() % COMMON_PERIOD.as_secs(), unix.subsec_nanos());
        let first = Timestamp::ZERO + COMMON_PERIOD + phase;
        Self { origin: Instant::now(), first, simulated: None }
    }

    /// A clock of virtual time; its time stamps have the nanoseconds of `time`.
    #[cfg(feature = "virtual-time")]
    pub(crate) fn simulated(time: Arc<AtomicU64>) -> Self {
        Self { simulated: Some(time), ..Self::new() }
    }

    /// Converts to the time type of `quinn-proto`.
    #[cfg(feature = "quic")]
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        self.origin + (at - self.first)
    }

    /// Converts from the time type of `quinn-proto`.
    #[cfg(feature = "quic")]
    pub(crate) fn timestamp(&self, at: Instant) -> Timestamp {
        self.first + at.saturating_duration_since(self.origin)
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.simulated {
            None => self.first + self.origin.elapsed(),
            Some(time) => Timestamp::ZERO + Duration::from_nanos(time.load(Ordering::Relaxed)),
        }
    }
}

/// The time since the Unix epoch; a clock before the epoch counts as the epoch.
#[expect(clippy::disallowed_methods, reason = "this is the driver's clock")]
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_a_host_agree_modulo_the_common_period() {
        let early = Clock::new();
        std::thread::sleep(Duration::from_millis(300));
        let late = Clock::new();
        let (early, late) = (early.now().as_nanos(), late.now().as_nanos());
        let period = COMMON_PERIOD.as_nanos() as u64;
        let difference = early.abs_diff(late) % period;
        let tolerance = Duration::from_millis(100).as_nanos() as u64;
        let is_near = difference < tolerance || difference > period - tolerance;
        assert!(is_near, "{difference} ns");
    }
}
