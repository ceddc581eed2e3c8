//! Enforces `--server-bitrate-limit`, independent of the rate that the client requested.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Clock;
use crate::interrupt;

/// Burst that may arrive at once: a sender that was delayed catches up.
const BURST: Duration = Duration::from_secs(5);
/// Maximum sleep between checks for an interrupt.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// A token bucket for one test.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    bits_per_second: f64,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Bits that may arrive now; negative after too many.
    bits_left: f64,
    at: Duration,
    /// Total bytes counted so far.
    bytes: u64,
}

impl RateLimiter {
    pub(crate) fn new(bits_per_second: u64) -> Self {
        let bits_per_second = bits_per_second as f64;
        let bits_left = bits_per_second * BURST.as_secs_f64();
        let state = Mutex::new(State { bits_left, at: Duration::ZERO, bytes: 0 });
        Self { bits_per_second, clock: Clock::start(), state }
    }

    /// Accounts for `bytes` received in total by `now`; returns the remaining bits.
    fn charge(&self, bytes: u64, now: Duration) -> f64 {
        let Ok(mut state) = self.state.lock() else { return 0.0 };
        let passed = now.saturating_sub(state.at).as_secs_f64();
        let max_bits = self.bits_per_second * BURST.as_secs_f64();
        let more = bytes.saturating_sub(state.bytes) as f64 * 8.0;
        state.bits_left = (state.bits_left + passed * self.bits_per_second).min(max_bits) - more;
        state.at = state.at.max(now);
        state.bytes = state.bytes.max(bytes);
        state.bits_left
    }

    /// Whether the total `bytes` received so far exceeds the limit.
    pub(crate) fn is_exceeded(&self, bytes: u64) -> bool {
        self.charge(bytes, self.clock.elapsed()) < 0.0
    }

    /// Waits until the bytes received so far are within the limit. Flow control then stops the
    /// sender.
    pub(crate) fn throttle(&self, bytes: impl Fn() -> u64) {
        loop {
            let bits_left = self.charge(bytes(), self.clock.elapsed());
            if bits_left >= 0.0 || interrupt::requested() {
                return;
            }
            let needed = Duration::try_from_secs_f64(-bits_left / self.bits_per_second.max(1.0));
            std::thread::sleep(needed.unwrap_or(MAX_SLEEP).min(MAX_SLEEP));
        }
    }

    /// The error text of a test that exceeds the limit.
    pub(crate) fn error_text(&self) -> String {
        format!(
            "more than the {} bits per second that this server allows",
            self.bits_per_second as u64
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_rate_is_enforced_and_bursts_are_bounded() {
        let limiter = RateLimiter::new(8_000);
        let at = Duration::from_secs;
        // Five seconds' worth at once, and not a byte more.
        assert_eq!(limiter.charge(5_000, at(0)), 0.0);
        assert!(limiter.charge(5_001, at(0)) < 0.0);
        assert_eq!(limiter.charge(5_001, at(1)), 8_000.0 - 8.0);
        // Bytes reported twice count once, and time does not go backwards.
        assert_eq!(limiter.charge(4_000, at(0)), 8_000.0 - 8.0);
        // An idle period allows no more than the burst.
        assert_eq!(limiter.charge(5_001, at(1_000)), 40_000.0);
        assert!(limiter.charge(u64::MAX, at(1_000)) < 0.0);
    }
}
