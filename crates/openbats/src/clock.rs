//! Converts the system's clocks to the time stamps of the protocol core.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bats_types::Timestamp;

/// Time stamps begin above zero, so that the core can subtract durations from early ones.
const FIRST_TIMESTAMP: Duration = Duration::from_secs(1);

/// Converts the system's monotonic clock to [`Timestamp`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the driver's clock")]
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// Converts to the time type of `quinn-proto`.
    #[cfg(feature = "quic")]
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        self.origin + (at - (Timestamp::ZERO + FIRST_TIMESTAMP))
    }

    /// Converts from the time type of `quinn-proto`.
    #[cfg(feature = "quic")]
    pub(crate) fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp::ZERO + FIRST_TIMESTAMP + at.saturating_duration_since(self.origin)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::ZERO + FIRST_TIMESTAMP + self.origin.elapsed()
    }
}

/// The time since the Unix epoch; a clock before the epoch counts as the epoch.
#[expect(clippy::disallowed_methods, reason = "this is the driver's clock")]
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
