//! The pacing rate and the send quantum (draft-ietf-ccwg-bbr-06 sections 5.6.2 and 5.6.3).

use super::constants::{MAX_QUANTUM, PACING_MARGIN};

/// C.pacing_rate, in bytes per second.
#[derive(Debug)]
pub(super) struct PacingRate(u64);

impl PacingRate {
    pub(super) fn new(rate: u64) -> Self {
        Self(rate)
    }

    /// C.pacing_rate.
    pub(super) fn get(&self) -> u64 {
        self.0
    }

    /// SetPacingRateWithGain, section 5.6.2, of `bw` bytes per second. Until the pipe is full, the rate only grows.
    pub(super) fn set_with_gain(&mut self, gain: f64, bw: u64, is_full: bool) {
        let rate = (gain * bw as f64 * PACING_MARGIN) as u64;
        if rate > 0 && (is_full || rate > self.0) {
            self.0 = rate;
        }
    }

    /// Raises the rate to at least `least`.
    pub(super) fn raise(&mut self, least: u64) {
        self.0 = self.0.max(least);
    }

    /// Reduces the rate to at most `most`.
    pub(super) fn bound(&mut self, most: u64) {
        self.0 = self.0.min(most);
    }

    /// SetSendQuantum, section 5.6.3, in bytes; at least two packets of `packet` bytes.
    pub(super) fn send_quantum(&self, packet: u64) -> u64 {
        (self.0 / 1_000).min(MAX_QUANTUM).max(2 * packet)
    }
}
