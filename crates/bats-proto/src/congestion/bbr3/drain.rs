//! Drain (draft-ietf-ccwg-bbr-06 section 5.3.2).

use bats_types::Timestamp;

use super::constants::{DEFAULT_CWND_GAIN, DRAIN_PACING_GAIN, DRAIN_ROUNDS};
use super::{Bbr3, State};

impl Bbr3 {
    /// EnterDrain.
    pub(super) fn enter_drain(&mut self) {
        self.state = State::Drain;
        self.pacing_gain = DRAIN_PACING_GAIN;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
        self.drain_start_round = self.round.count;
    }

    /// CheckDrainDone.
    pub(super) fn check_drain_done(&mut self, now: Timestamp) {
        if self.state == State::Drain
            && (self.in_flight <= self.inflight(self.bw, 1.0)
                || self.round.count > self.drain_start_round + DRAIN_ROUNDS)
        {
            self.enter_probe_bw(now);
        }
    }
}
