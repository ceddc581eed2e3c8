//! The state machine: when each state ends and what entering the next one changes
//! (draft-ietf-ccwg-bbr-06 sections 5.3 and 5.4.1).

use bats_types::Timestamp;

use super::Bbr3;
use super::bounds::INFINITY;
use super::constants::{DRAIN_ROUNDS, RENO_ROUNDS, STARTUP_FULL_LOSS_COUNT};
use super::full_pipe::FullPipe;
use super::state::{AckPhase, Phase, State};
use crate::congestion::RateSample;

/// All states.
impl Bbr3 {
    /// Enters `state`, whose gains hold from now on.
    pub(super) fn enter(&mut self, state: State) {
        self.state = state;
    }

    /// StartRound, section 5.5.1.
    fn start_round(&mut self) {
        self.round.restart(self.delivered);
    }

    /// HandleRestartFromIdle, section 5.4.1.
    pub(super) fn handle_restart_from_idle(&mut self, now: Timestamp) {
        self.idle_restart = true;
        self.extra_acked.restart(now);
        match self.state {
            State::ProbeBw(Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up) => {
                self.pacing_rate.set_with_gain(1.0, self.bw, self.full_pipe.is_reached);
            }
            State::ProbeRtt => self.check_probe_rtt_done(now),
            State::Startup | State::Drain => {}
        }
    }
}

/// Startup, section 5.3.1, and Drain, section 5.3.2.
impl Bbr3 {
    /// CheckStartupDone.
    pub(super) fn check_startup_done(&mut self, rs: &RateSample) {
        self.check_startup_high_loss(rs);
        let min_rtt = self.min_rtt.get();
        if self.state == State::Startup && self.ext.is_startup_queue(min_rtt) {
            self.max_bw.raise(self.ext.take_startup_rate(self.state, min_rtt));
            self.full_pipe.is_reached = true;
            self.full_pipe.is_now = true;
        }
        if self.state == State::Startup && self.full_pipe.is_reached {
            self.ext.note_end_of_startup();
            self.enter_drain();
        }
    }

    /// CheckStartupHighLoss, section 5.3.1.3.
    fn check_startup_high_loss(&mut self, rs: &RateSample) {
        if self.state != State::Startup || !self.bounds.loss_round_start {
            return;
        }
        let ranges = self.recovery.take_ranges();
        let is_sustained = self.recovery.is_active() && ranges >= STARTUP_FULL_LOSS_COUNT;
        if is_sustained && self.loss_threshold().is_inflight_too_high(rs) {
            self.exit_startup_on_congestion();
        }
    }

    /// Ends Startup with the inflight that the network delivered.
    pub(super) fn exit_startup_on_congestion(&mut self) {
        self.recovery.undo_state = Some(State::Startup);
        self.full_pipe.is_reached = true;
        self.full_pipe.is_now = true;
        let bdp = self.inflight().bdp_multiple(self.bw, 1.0);
        self.bounds.inflight_longterm = bdp.max(self.bounds.inflight_latest);
    }

    /// Returns to Startup without the bounds and the plateau that ended it.
    pub(super) fn resume_startup(&mut self) {
        self.bounds.reset_short_term_model();
        self.bounds.inflight_longterm = INFINITY;
        self.full_pipe = FullPipe::default();
        self.enter(State::Startup);
    }

    /// EnterDrain.
    fn enter_drain(&mut self) {
        self.enter(State::Drain);
        self.drain_start_round = self.round.count;
    }

    /// CheckDrainDone and EnterProbeBW.
    pub(super) fn check_drain_done(&mut self, now: Timestamp) {
        if self.state == State::Drain
            && (self.in_flight <= self.inflight().of(self.bw, 1.0)
                || self.round.count > self.drain_start_round + DRAIN_ROUNDS)
        {
            self.start_probe_bw_down(now);
        }
    }
}

/// ProbeBW, section 5.3.3.
impl Bbr3 {
    /// StartProbeBW_DOWN.
    pub(super) fn start_probe_bw_down(&mut self, now: Timestamp) {
        self.bounds.reset_congestion_signals();
        self.probe_bw.start_down(now);
        self.start_round();
        self.enter(State::ProbeBw(Phase::Down));
    }

    /// StartProbeBW_CRUISE.
    fn start_probe_bw_cruise(&mut self) {
        self.enter(State::ProbeBw(Phase::Cruise));
    }

    /// StartProbeBW_REFILL.
    pub(super) fn start_probe_bw_refill(&mut self) {
        self.bounds.reset_short_term_model();
        self.probe_bw.start_refill();
        self.start_round();
        self.enter(State::ProbeBw(Phase::Refill));
    }

    /// StartProbeBW_UP.
    fn start_probe_bw_up(&mut self, rs: &RateSample) {
        self.probe_bw.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.full_pipe.reset(rs.delivery_rate);
        self.ext.note_queue_before_up();
        self.enter(State::ProbeBw(Phase::Up));
        self.probe_bw.raise_slope(self.cwnd.get(), self.packet);
    }

    /// UpdateProbeBWCyclePhase; `newly_acked` in bytes.
    pub(super) fn update_probe_bw_cycle_phase(
        &mut self,
        now: Timestamp,
        rs: &RateSample,
        newly_acked: u64,
    ) {
        if !self.full_pipe.is_reached || self.adapt_long_term_model(rs, newly_acked) {
            return;
        }
        let State::ProbeBw(phase) = self.state else { return };
        match phase {
            Phase::Down if self.is_time_to_probe_bw(now) => self.start_probe_bw_refill(),
            Phase::Down if self.is_time_to_cruise() => self.start_probe_bw_cruise(),
            Phase::Cruise if self.is_time_to_probe_bw(now) => self.start_probe_bw_refill(),
            Phase::Refill if self.round.is_start => {
                self.probe_bw.is_bw_probe_sample = true;
                self.start_probe_bw_up(rs);
            }
            Phase::Up if self.is_time_to_go_down(rs) => {
                self.probe_bw.prev_probe_too_high = false;
                self.start_probe_bw_down(now);
            }
            Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up => {}
        }
    }

    /// IsTimeToProbeBW, section 5.3.3.8.
    fn is_time_to_probe_bw(&self, now: Timestamp) -> bool {
        // IsRenoCoexistenceProbeTime.
        let reno_rounds = (self.target_inflight() / self.packet).clamp(1, RENO_ROUNDS);
        self.ext.light.is_due || self.probe_bw.is_time_to_probe(now, reno_rounds)
    }

    /// IsTimeToCruise.
    fn is_time_to_cruise(&self) -> bool {
        let inflight = self.inflight();
        self.in_flight <= inflight.with_headroom()
            && self.in_flight <= inflight.of(self.max_bw.get(), 1.0)
    }

    /// IsTimeToGoDown.
    fn is_time_to_go_down(&mut self, rs: &RateSample) -> bool {
        let longterm = self.bounds.inflight_longterm;
        if self.probe_bw.prev_probe_too_high && self.in_flight >= longterm {
            self.probe_bw.prev_probe_precautionary = true;
            return true;
        }
        if self.is_cwnd_limited() && self.cwnd.get() >= longterm {
            self.full_pipe.reset(rs.delivery_rate);
            return false;
        }
        self.full_pipe.is_now || self.ext.is_queue_growing(self.min_rtt.get())
    }

    /// ProbeInflightLongtermUpward.
    fn probe_inflight_longterm_upward(&mut self, newly_acked: u64) {
        if !self.is_cwnd_limited() || self.cwnd.get() < self.bounds.inflight_longterm {
            return;
        }
        self.bounds.inflight_longterm += self.probe_bw.growth_of(newly_acked) * self.packet;
        if self.round.is_start {
            self.probe_bw.raise_slope(self.cwnd.get(), self.packet);
        }
    }

    /// AdaptLongTermModel: true if it decided a state transition.
    fn adapt_long_term_model(&mut self, rs: &RateSample, newly_acked: u64) -> bool {
        let is_feedback_complete = self.round.is_start && self.probe_bw.advance_ack_phase();
        if is_feedback_complete && self.state.is_probe_bw() {
            if !rs.is_app_limited {
                self.max_bw.advance();
            }
            if self.probe_bw.was_cut_short() {
                self.start_probe_bw_refill();
                return true;
            }
        }
        if !self.loss_threshold().is_inflight_too_high(rs) {
            if self.bounds.inflight_longterm == INFINITY {
                return false;
            }
            self.bounds.inflight_longterm = self.bounds.inflight_longterm.max(rs.tx_in_flight);
            if self.state == State::ProbeBw(Phase::Up) {
                self.probe_inflight_longterm_upward(newly_acked);
            }
        }
        false
    }
}

/// ProbeRTT, section 5.3.4.
impl Bbr3 {
    /// CheckProbeRTT.
    pub(super) fn check_probe_rtt(&mut self, now: Timestamp, rs: &RateSample) {
        if self.state != State::ProbeRtt && self.min_rtt.is_expired && !self.idle_restart {
            self.save_cwnd();
            self.enter(State::ProbeRtt);
            self.probe_rtt.enter();
            self.probe_bw.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(now);
        }
        if rs.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// HandleProbeRTT.
    fn handle_probe_rtt(&mut self, now: Timestamp) {
        if self.probe_rtt.is_inflight_low() {
            if self.probe_rtt.on_ack(self.round.is_start) {
                self.check_probe_rtt_done(now);
            }
        } else if self.in_flight <= self.inflight().probe_rtt_cwnd(self.bw) {
            self.probe_rtt.on_inflight_low(now);
            self.start_round();
        }
    }

    /// CheckProbeRTTDone and ExitProbeRTT.
    fn check_probe_rtt_done(&mut self, now: Timestamp) {
        if !self.probe_rtt.is_over(now) {
            return;
        }
        self.min_rtt.on_probe_done(now);
        self.cwnd.restore();
        self.bounds.reset_short_term_model();
        if self.full_pipe.is_reached {
            self.start_probe_bw_down(now);
            self.start_probe_bw_cruise();
        } else {
            self.enter(State::Startup);
        }
    }
}
