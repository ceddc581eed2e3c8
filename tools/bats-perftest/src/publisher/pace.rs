//! When samples are due.

use crate::clock::now_ns;

/// A schedule of constant rate. Sample `n` is due at `start + n / rate`, however late the samples
/// before it were sent: a publisher that is held up sends the missed samples at once after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    start_ns: u64,
    interval_ns: f64,
}

impl Schedule {
    pub(super) fn new(rate: f64) -> Self {
        Self { start_ns: now_ns(), interval_ns: 1e9 / rate }
    }

    /// When sample `n` is due.
    pub(super) fn due_ns(&self, n: u64) -> u64 {
        self.start_ns.saturating_add((n as f64 * self.interval_ns) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_due_at_a_constant_rate() {
        let schedule = Schedule::new(10_000.0);
        assert_eq!(schedule.due_ns(10_000) - schedule.due_ns(0), 1_000_000_000);
        // A bit per second, in samples of 64 MiB.
        let schedule = Schedule::new(1.0 / (8.0 * f64::from(64 << 20)));
        assert_eq!(schedule.due_ns(u64::MAX), u64::MAX);
    }
}
