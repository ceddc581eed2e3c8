//! The monotonic clock as the core counts it.

use std::time::{Duration, Instant};

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

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::ZERO + BEGINNING + self.origin.elapsed()
    }
}
