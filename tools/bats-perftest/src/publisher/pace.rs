//! When samples are due.

use std::thread;
use std::time::Duration;

use crate::cli::Pause;
use crate::clock::now_ns;

/// Longest pause before the test looks at its end conditions again.
const MAX_SLEEP_NS: u64 = 50_000_000;

/// A schedule of constant rate. Sample `n` is due at `start + n / rate`, however late the samples
/// before it were sent: a publisher that is held up sends the missed samples at once after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    start_ns: u64,
    interval_ns: f64,
    pause: Pause,
}

impl Schedule {
    pub(super) fn new(rate: f64, pause: Pause) -> Self {
        Self { start_ns: now_ns(), interval_ns: 1e9 / rate, pause }
    }

    /// When sample `n` is due.
    pub(super) fn due_ns(&self, n: u64) -> u64 {
        self.start_ns + (n as f64 * self.interval_ns) as u64
    }

    /// Waits until this time, or for a moment; returns whether the time has come.
    pub(super) fn wait(&self, due_ns: u64) -> bool {
        let now = now_ns();
        if now >= due_ns {
            return true;
        }
        let left = (due_ns - now).min(MAX_SLEEP_NS);
        match self.pause {
            Pause::Sleep => thread::sleep(Duration::from_nanos(left)),
            Pause::Spin => {
                while now_ns() < now + left {
                    std::hint::spin_loop();
                }
            }
        }
        now_ns() >= due_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_due_at_a_constant_rate() {
        for pause in [Pause::Spin, Pause::Sleep] {
            let schedule = Schedule::new(10_000.0, pause);
            assert_eq!(schedule.due_ns(10_000) - schedule.due_ns(0), 1_000_000_000);
            let due = schedule.due_ns(20);
            while !schedule.wait(due) {}
            assert!(now_ns() >= due);
        }
    }
}
