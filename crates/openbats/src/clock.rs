//! The clocks of the system, as the core counts time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bats_types::Timestamp;

/// Time stamps begin above zero, so that the core may look back a little.
const BEGINNING: Duration = Duration::from_secs(1);

/// Translates the system's clocks to [`Timestamp`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the driver's clock")]
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// A time as others count it.
    #[cfg(feature = "quic")]
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        self.origin + (at - (Timestamp::ZERO + BEGINNING))
    }

    /// A time of others.
    #[cfg(feature = "quic")]
    pub(crate) fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp::ZERO + BEGINNING + at.saturating_duration_since(self.origin)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::ZERO + BEGINNING + self.origin.elapsed()
    }
}

/// The time since 1970; a clock that stands before counts as 1970.
#[expect(clippy::disallowed_methods, reason = "this is the driver's clock")]
pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
