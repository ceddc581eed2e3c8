//! What `--server-bitrate-limit` lets through, whatever a client has said that it would send.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Clock;
use crate::signals;

/// How much may come at once after a time of less: a sender that was held up catches up.
const BURST: Duration = Duration::from_secs(5);
/// The longest sleep without a look at what else happens.
const NAP: Duration = Duration::from_millis(100);

/// A rate that is allowed, and what is left of it.
#[derive(Debug)]
pub(crate) struct Allowance {
    bits_per_second: f64,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Bits that may come now; below nothing where there were too many.
    left: f64,
    at: Duration,
    /// Bytes that have come so far.
    bytes: u64,
}

impl Allowance {
    pub(crate) fn new(bits_per_second: u64) -> Self {
        let bits_per_second = bits_per_second as f64;
        let left = bits_per_second * BURST.as_secs_f64();
        let state = Mutex::new(State { left, at: Duration::ZERO, bytes: 0 });
        Self { bits_per_second, clock: Clock::start(), state }
    }

    /// So many bytes have come in all by `now`; the bits that are left.
    fn spend(&self, bytes: u64, now: Duration) -> f64 {
        let Ok(mut state) = self.state.lock() else { return 0.0 };
        let passed = now.saturating_sub(state.at).as_secs_f64();
        let most = self.bits_per_second * BURST.as_secs_f64();
        let more = bytes.saturating_sub(state.bytes) as f64 * 8.0;
        state.left = (state.left + passed * self.bits_per_second).min(most) - more;
        state.at = state.at.max(now);
        state.bytes = state.bytes.max(bytes);
        state.left
    }

    /// Whether all that has come so far, `bytes`, is too much.
    pub(crate) fn is_exceeded(&self, bytes: u64) -> bool {
        self.spend(bytes, self.clock.elapsed()) < 0.0
    }

    /// Waits until all that has come so far is allowed: who is not read from cannot send on.
    pub(crate) fn wait(&self, bytes: impl Fn() -> u64) {
        loop {
            let left = self.spend(bytes(), self.clock.elapsed());
            if left >= 0.0 || signals::requested() {
                return;
            }
            let needed = Duration::try_from_secs_f64(-left / self.bits_per_second.max(1.0));
            std::thread::sleep(needed.unwrap_or(NAP).min(NAP));
        }
    }

    /// Why a test ends that goes beyond it.
    pub(crate) fn words(&self) -> String {
        format!(
            "more than the {} bits a second that this server allows",
            self.bits_per_second as u64
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_on_the_average_and_bursts_are_bounded() {
        let allowance = Allowance::new(8_000);
        let at = Duration::from_secs;
        // Five seconds' worth at once, and not a byte more.
        assert_eq!(allowance.spend(5_000, at(0)), 0.0);
        assert!(allowance.spend(5_001, at(0)) < 0.0);
        assert_eq!(allowance.spend(5_001, at(1)), 8_000.0 - 8.0);
        // What is told twice counts once, and time does not run back.
        assert_eq!(allowance.spend(4_000, at(0)), 8_000.0 - 8.0);
        // A pause is worth no more than the burst.
        assert_eq!(allowance.spend(5_001, at(1_000)), 40_000.0);
        assert!(allowance.spend(u64::MAX, at(1_000)) < 0.0);
    }
}
