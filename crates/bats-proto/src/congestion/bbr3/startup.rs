//! Startup (draft-ietf-ccwg-bbr-06 section 5.3.1).

use super::constants::{DEFAULT_CWND_GAIN, STARTUP_FULL_LOSS_COUNT, STARTUP_PACING_GAIN};
use super::{Bbr3, RateSample, State};

impl Bbr3 {
    /// EnterStartup.
    pub(super) fn enter_startup(&mut self) {
        self.state = State::Startup;
        self.pacing_gain = STARTUP_PACING_GAIN;
        self.cwnd_gain = DEFAULT_CWND_GAIN;
    }

    /// CheckStartupDone.
    pub(super) fn check_startup_done(&mut self, rs: &RateSample) {
        self.check_startup_high_loss(rs);
        if self.state == State::Startup && self.is_startup_queue() {
            self.take_startup_rate();
            self.full_pipe.is_reached = true;
            self.full_pipe.is_now = true;
        }
        if self.state == State::Startup && self.full_pipe.is_reached {
            self.note_end_of_startup();
            self.enter_drain();
        }
    }

    /// CheckStartupHighLoss, section 5.3.1.3.
    fn check_startup_high_loss(&mut self, rs: &RateSample) {
        if self.state != State::Startup || !self.bounds.loss_round_start {
            return;
        }
        let ranges = core::mem::take(&mut self.recovery.ranges_in_round);
        let is_sustained = self.recovery.is_active() && ranges >= STARTUP_FULL_LOSS_COUNT;
        if is_sustained && self.is_inflight_too_high(rs.lost, self.judged_inflight_of(rs)) {
            self.exit_startup_on_congestion(rs);
        }
    }

    /// Ends Startup with the inflight that the network delivered.
    pub(super) fn exit_startup_on_congestion(&mut self, _rs: &RateSample) {
        self.recovery.undo_state = Some(State::Startup);
        self.full_pipe.is_reached = true;
        self.full_pipe.is_now = true;
        let bdp = self.bdp_multiple(self.bw, 1.0);
        self.bounds.inflight_longterm = bdp.max(self.bounds.inflight_latest);
    }
}
