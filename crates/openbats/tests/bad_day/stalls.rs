//! How long this host kept threads from running: what a test cannot blame on the protocol.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Sleep of the watching thread.
const INTERVAL: Duration = Duration::from_millis(1);
/// The least probe timeout of this implementation: 1 ms of variation and an acknowledgement delay of 3 ms, at
/// a round trip of nearly nothing. (The default of RFC 9002, section 6.2.1, has 25 ms instead of 3.)
pub(crate) const LEAST_PROBE_TIMEOUT: Duration = Duration::from_millis(4);
/// Threads that run one after the other from a probe to its effect: the sender's I/O thread, the receiver's, the
/// application that receives, and for the acknowledgement the sender's again.
const WAKEUPS: u32 = 4;
/// Shorter delays than this do not add up to a probe timeout in one round trip. A host has very many of them,
/// whose sum would excuse every timeout.
const MATERIAL: Duration = LEAST_PROBE_TIMEOUT.checked_div(WAKEUPS).unwrap();

/// A thread that sleeps again and again, and adds up how much later than asked it woke up.
#[derive(Clone, Copy)]
pub(crate) struct Stalls(&'static Totals);

struct Totals {
    /// Microseconds of all delays of at least [`MATERIAL`].
    delays: AtomicU64,
    wakeups: AtomicU64,
}

impl Stalls {
    /// Starts the thread at the first call; it ends with the process of the case.
    #[expect(
        clippy::disallowed_methods,
        reason = "the host's delays are measured, not the protocol"
    )]
    pub(crate) fn watch() -> Self {
        static TOTALS: Totals = Totals { delays: AtomicU64::new(0), wakeups: AtomicU64::new(0) };
        static START: Once = Once::new();
        START.call_once(|| {
            thread::spawn(|| {
                loop {
                    let before = Instant::now();
                    thread::sleep(INTERVAL);
                    let late = before.elapsed().saturating_sub(INTERVAL);
                    if late >= MATERIAL {
                        let late = u64::try_from(late.as_micros()).unwrap();
                        TOTALS.delays.fetch_add(late, Ordering::SeqCst);
                    }
                    TOTALS.wakeups.fetch_add(1, Ordering::SeqCst);
                }
            });
        });
        Self(&TOTALS)
    }

    /// The delays that have ended.
    pub(crate) fn ended(self) -> Duration {
        Duration::from_micros(self.0.delays.load(Ordering::SeqCst))
    }

    /// The delays so far. Waits for the end of one that goes on: what ends it wakes all threads at once, and
    /// the caller may be the first of them.
    pub(crate) fn all(self) -> Duration {
        let wakeups = self.0.wakeups.load(Ordering::SeqCst);
        while self.0.wakeups.load(Ordering::SeqCst) == wakeups {
            thread::sleep(INTERVAL);
        }
        self.ended()
    }
}
