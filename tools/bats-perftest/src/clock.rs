//! Monotonic time of this process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A stopwatch: the time since it was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a measuring tool reads the clock")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Nanoseconds since the first call in this process; monotonic. Samples are stamped with it.
pub(crate) fn now_ns() -> u64 {
    static EPOCH: OnceLock<Clock> = OnceLock::new();
    u64::try_from(EPOCH.get_or_init(Clock::start).elapsed().as_nanos()).unwrap_or(u64::MAX)
}
