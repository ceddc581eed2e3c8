//! Whether a transfer of files makes progress, and fast enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openbats::file::set::{Outcome, Progress};

use crate::clock::Clock;

/// Least rate of a transfer that a server receives, in bytes per second: Apache's default for requests
/// (mod_reqtimeout, MinRate). Chunks have 256 KiB, so that at 2,184 bytes per second or less those that cannot be
/// compressed take longer than the default of `--rcv-timeout`.
pub(crate) const MIN_RATE: u64 = 500;
/// What each stored file counts, in addition to what has arrived: as in the quotas of a server, so that a peer has to
/// use up its quota for it.
const ENTRY_BYTES: u64 = 4_096;
/// Bytes read for a check, by either end, that count as one byte. What the sender has read is only its word, and what
/// this end reads costs the sender a short message: at the least rate it has to be as much as a slow disk reads,
/// 100 kB/s.
const CHECKED_BYTES_PER_BYTE: u64 = 200;

/// Measures the progress of a transfer. It stalls without content, checks and ends of files: a peer can send other
/// messages without end. Its rate is of what has arrived, because a few bytes can be decompressed to a whole chunk.
#[derive(Debug)]
pub(crate) struct ProgressMeter {
    clock: Clock,
    /// When the last progress was made, in milliseconds.
    progress_at: AtomicU64,
    /// What stored files count.
    stored: AtomicU64,
    /// Bytes read for checks.
    checked: AtomicU64,
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
            stored: AtomicU64::new(0),
            checked: AtomicU64::new(0),
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
        let is_progress = match event {
            Progress::Bytes { bytes, .. } => bytes > 0,
            // Comparing existing content counts, too.
            Progress::Checking { bytes, .. } => {
                self.checked.fetch_add(bytes, Ordering::Relaxed);
                bytes > 0
            }
            Progress::End { report, .. } => {
                let is_stored =
                    matches!(report.outcome, Outcome::Stored { .. } | Outcome::Renamed { .. });
                // A directory can be offered again and again.
                if is_stored && !report.is_directory {
                    self.stored.fetch_add(ENTRY_BYTES, Ordering::Relaxed);
                }
                true
            }
            // Nothing has arrived yet.
            Progress::Begin { .. } => false,
        };
        if is_progress {
            self.progress_at.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// How long the transfer has made no progress.
    pub(crate) fn idle_time(&self) -> Duration {
        let progress_at = self.progress_at.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(progress_at))
    }

    /// Begins the next window if `window` is over, and returns whether the transfer had at least `min_rate` bytes
    /// per second in the last one; `arrived` are the bytes of all messages until now. To be called more often than a
    /// window is long.
    pub(crate) fn check_rate(&self, arrived: u64, min_rate: u64, window: Duration) -> bool {
        self.check_rate_at(self.now_ms(), arrived, min_rate, window)
    }

    fn check_rate_at(&self, now_ms: u64, arrived: u64, min_rate: u64, window: Duration) -> bool {
        let mut current = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now_ms.saturating_sub(current.began_ms);
        if u128::from(elapsed) < window.as_millis() {
            return true;
        }
        let checked = self.checked.load(Ordering::Relaxed) / CHECKED_BYTES_PER_BYTE;
        let stored = self.stored.load(Ordering::Relaxed);
        let bytes = arrived.saturating_add(stored).saturating_add(checked);
        let counted = bytes.saturating_sub(current.before);
        *current = Window { began_ms: now_ms, before: bytes };
        u128::from(counted) * 1_000 >= u128::from(min_rate) * u128::from(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use openbats::file::set::FileReport;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn bytes(bytes: u64) -> Progress<'static> {
        Progress::Bytes { id: 0, bytes }
    }

    #[test]
    fn a_rate_counts_over_each_window() {
        let meter = ProgressMeter::start();
        let is_enough =
            |at_s: u64, arrived| meter.check_rate_at(at_s * 1_000, arrived, 500, WINDOW);
        assert!(is_enough(9, 0), "the first window has not ended");
        assert!(is_enough(10, 1_000_000));
        // What came before gives no credit.
        assert!(is_enough(19, 1_004_999) && !is_enough(20, 1_004_999));
        assert!(is_enough(30, 1_009_999));
        // The next look comes late: the window is longer.
        assert!(!is_enough(50, 1_019_998));
    }

    #[test]
    fn a_rate_is_of_what_arrives_is_stored_or_read_at_the_rate_of_a_disk() {
        let end = |is_directory, outcome| FileReport {
            name: "x".to_owned(),
            size: 1 << 40,
            is_directory,
            sent: 1 << 40,
            outcome,
        };
        let stored = || Outcome::Stored { hash: None };
        let (file, directory) = (end(false, stored()), end(true, stored()));
        let refused = end(false, Outcome::Failed("exists".to_owned()));
        let unchanged = end(false, Outcome::Unchanged { hash: [0; 32] });
        let ended = |report| Progress::End { id: 0, report };
        for (event, count, is_enough) in [
            (bytes(1 << 40), 1, false),
            (ended(&refused), 1_000, false),
            (ended(&unchanged), 1_000, false),
            (ended(&directory), 1_000, false),
            (ended(&file), 1, false),
            (ended(&file), 2, true),
            (Progress::Checking { id: 0, bytes: 999_999 }, 1, false),
            (Progress::Checking { id: 0, bytes: 500_000 }, 2, true),
        ] {
            let meter = ProgressMeter::start();
            (0..count).for_each(|_| meter.on(event));
            assert_eq!(meter.check_rate_at(10_000, 0, 500, WINDOW), is_enough, "{event:?}");
        }
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
