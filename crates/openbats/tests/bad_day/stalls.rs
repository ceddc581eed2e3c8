//! How long this host kept threads from running: what a test cannot blame on the protocol.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Sleep of the watching thread.
const INTERVAL: Duration = Duration::from_millis(1);
/// Delays of a wakeup up to this are those of an idle host.
const USUAL: Duration = Duration::from_millis(1);

/// A thread that sleeps again and again, and adds up how much later than asked it woke up.
#[derive(Clone, Copy)]
pub(crate) struct Stalls(&'static AtomicU64);

impl Stalls {
    /// Starts the thread at the first call; it ends with the process of the case.
    #[expect(
        clippy::disallowed_methods,
        reason = "the host's delays are measured, not the protocol"
    )]
    pub(crate) fn watch() -> Self {
        static TOTAL: AtomicU64 = AtomicU64::new(0);
        static START: Once = Once::new();
        START.call_once(|| {
            thread::spawn(|| {
                loop {
                    let before = Instant::now();
                    thread::sleep(INTERVAL);
                    let late = before.elapsed().saturating_sub(INTERVAL + USUAL);
                    TOTAL.fetch_add(u64::try_from(late.as_micros()).unwrap(), Ordering::Relaxed);
                }
            });
        });
        Self(&TOTAL)
    }

    /// The delays so far.
    pub(crate) fn total(self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}
