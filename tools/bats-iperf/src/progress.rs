//! Whether a transfer of files makes progress, and fast enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openbats::file::set::Progress;

use crate::clock::Clock;

/// Least rate of a transfer that a server receives, in bytes per second: Apache's default for requests
/// (mod_reqtimeout, MinRate). Chunks have 256 KiB, so that at 2,184 bytes per second or less those that cannot be
/// compressed take longer than the default of `--rcv-timeout`.
pub(crate) const MIN_RATE: u64 = 500;
/// What each file or directory counts whose transfer has ended, in addition to its content: as in the quotas of a
/// server.
const ENTRY_BYTES: u64 = 4_096;

/// Measures the progress of a transfer. Only content counts, and the end of a file: a peer can send other messages
/// without end.
#[derive(Debug)]
pub(crate) struct ProgressMeter {
    clock: Clock,
    /// When the last progress was made, in milliseconds.
    progress_at: AtomicU64,
    /// Bytes of content, and of ended files.
    bytes: AtomicU64,
    window: Mutex<Window>,
}

/// The time over which the rate is measured now.
#[derive(Debug, Default)]
struct Window {
    began_ms: u64,
    /// Bytes that were counted before.
    before: u64,
}

impl ProgressMeter {
    pub(crate) fn start() -> Self {
        Self {
            clock: Clock::start(),
            progress_at: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            window: Mutex::default(),
        }
    }

    /// Time since the start of the transfer.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn on(&self, event: Progress<'_>) {
        let bytes = match event {
            // Comparing existing content counts, too.
            Progress::Bytes { bytes, .. } | Progress::Checking { bytes, .. } => bytes,
            Progress::End { .. } => ENTRY_BYTES,
            // Nothing has arrived yet.
            Progress::Begin { .. } => 0,
        };
        if bytes > 0 {
            self.progress_at.store(self.now_ms(), Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// How long the transfer has made no progress.
    pub(crate) fn idle_time(&self) -> Duration {
        let progress_at = self.progress_at.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(progress_at))
    }

    /// Whether the transfer was slower than `min_rate` bytes per second over the last whole `window`. To be
    /// called more often than a window is long.
    pub(crate) fn is_slower_than(&self, min_rate: u64, window: Duration) -> bool {
        self.is_slower_at(self.now_ms(), min_rate, window)
    }

    fn is_slower_at(&self, now_ms: u64, min_rate: u64, window: Duration) -> bool {
        let mut current = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now_ms.saturating_sub(current.began_ms);
        if u128::from(elapsed) < window.as_millis() {
            return false;
        }
        let bytes = self.bytes.load(Ordering::Relaxed);
        let counted = bytes.wrapping_sub(current.before);
        *current = Window { began_ms: now_ms, before: bytes };
        u128::from(counted) * 1_000 < u128::from(min_rate) * u128::from(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn bytes(bytes: u64) -> Progress<'static> {
        Progress::Bytes { id: 0, bytes }
    }

    #[test]
    fn a_rate_counts_over_each_window() {
        let meter = ProgressMeter::start();
        let is_slower = |at_s: u64| meter.is_slower_at(at_s * 1_000, 500, WINDOW);
        assert!(!is_slower(9), "the first window has not ended");
        meter.on(bytes(1_000_000));
        assert!(!is_slower(10));
        // What came before gives no credit.
        meter.on(bytes(4_999));
        assert!(!is_slower(19) && is_slower(20));
        meter.on(Progress::Checking { id: 0, bytes: 5_000 });
        assert!(!is_slower(30));
        // The next look comes late: the window is longer.
        meter.on(bytes(9_999));
        assert!(is_slower(50));
    }

    #[test]
    fn a_message_without_content_is_no_progress() {
        let meter = ProgressMeter::start();
        let pause = Duration::from_millis(20);
        std::thread::sleep(pause);
        meter.on(Progress::Begin { id: 0, name: "x", size: 1 << 40 });
        meter.on(bytes(0));
        meter.on(Progress::Checking { id: 0, bytes: 0 });
        assert!(meter.idle_time() >= pause);
        meter.on(bytes(1));
        assert!(meter.idle_time() < pause);
    }
}
