//! The pacing rate (draft-ietf-ccwg-bbr-06 section 5.6.2).

use super::Bbr3;
use super::constants::PACING_MARGIN;
use super::startup_rate::STARTUP_GAIN;

impl Bbr3 {
    /// SetPacingRateWithGain.
    pub(super) fn set_pacing_rate_with_gain(&mut self, gain: f64) {
        let rate = (gain * self.bw as f64 * PACING_MARGIN) as u64;
        if rate > 0 && (self.full_pipe.is_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// SetPacingRate.
    pub(super) fn set_pacing_rate(&mut self) {
        self.set_pacing_rate_with_gain(self.effective_pacing_gain());
        let startup = STARTUP_GAIN * self.startup_rate() as f64 * PACING_MARGIN;
        self.pacing_rate = self.pacing_rate.max(startup as u64);
        if let Some(most) = self.trial_pacing_rate() {
            self.pacing_rate = self.pacing_rate.min(most);
        }
    }
}
