//! ProbeBW (draft-ietf-ccwg-bbr-06 section 5.3.3).

use core::time::Duration;

use bats_types::Timestamp;

use super::bounds::INFINITY;
use super::constants::{
    DEFAULT_CWND_GAIN, DOWN_PACING_GAIN, PROBE_WAIT, RENO_ROUNDS, UP_CWND_GAIN, UP_PACING_GAIN,
};
use super::{Bbr3, RateSample, State};

/// Phase of the cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Down,
    Cruise,
    Refill,
    Up,
}

/// ack_phase, section 2.14: what acknowledgements say about the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// State of the cycle, section 2.14.
#[derive(Debug)]
pub(super) struct ProbeBw {
    pub(super) ack_phase: AckPhase,
    /// Losses now belong to packets sent while probing.
    pub(super) is_bw_probe_sample: bool,
    pub(super) prev_probe_too_high: bool,
    prev_probe_precautionary: bool,
    pub(super) rounds_since_up: u64,
    up_acked: u64,
    acked_per_inc: u64,
    up_rounds: u32,
    wait: Duration,
    cycle_stamp: Timestamp,
    random: u64,
}

impl ProbeBw {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            ack_phase: AckPhase::Init,
            is_bw_probe_sample: false,
            prev_probe_too_high: false,
            prev_probe_precautionary: false,
            rounds_since_up: 0,
            up_acked: 0,
            acked_per_inc: INFINITY,
            up_rounds: 0,
            wait: Duration::ZERO,
            cycle_stamp: Timestamp::ZERO,
            random: seed,
        }
    }

    /// The next number of a SplitMix64 generator.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// PickProbeWait, section 5.3.3.8.
    fn pick_wait(&mut self) {
        let random = self.next_random();
        self.rounds_since_up = random & 1;
        self.wait = PROBE_WAIT + Duration::from_micros((random >> 1) % 1_000_000);
    }
}

impl Bbr3 {
    /// IsProbingBW.
    pub(super) fn is_probing_bw(&self) -> bool {
        matches!(self.state, State::Startup | State::ProbeBw(Phase::Refill | Phase::Up))
    }

    fn is_in_probe_bw(&self) -> bool {
        matches!(self.state, State::ProbeBw(_))
    }

    fn set_phase(&mut self, phase: Phase) {
        self.state = State::ProbeBw(phase);
        (self.pacing_gain, self.cwnd_gain) = match phase {
            Phase::Down => (DOWN_PACING_GAIN, DEFAULT_CWND_GAIN),
            Phase::Cruise | Phase::Refill => (1.0, DEFAULT_CWND_GAIN),
            Phase::Up => (UP_PACING_GAIN, UP_CWND_GAIN),
        };
    }

    /// EnterProbeBW.
    pub(super) fn enter_probe_bw(&mut self, now: Timestamp) {
        self.start_probe_bw_down(now);
    }

    /// StartProbeBW_DOWN.
    pub(super) fn start_probe_bw_down(&mut self, now: Timestamp) {
        self.bounds.reset_congestion_signals();
        self.probe_bw.acked_per_inc = INFINITY;
        self.probe_bw.pick_wait();
        self.probe_bw.cycle_stamp = now;
        self.probe_bw.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.set_phase(Phase::Down);
    }

    /// StartProbeBW_CRUISE.
    pub(super) fn start_probe_bw_cruise(&mut self) {
        self.set_phase(Phase::Cruise);
    }

    /// StartProbeBW_REFILL.
    pub(super) fn start_probe_bw_refill(&mut self) {
        self.bounds.reset_short_term_model();
        self.probe_bw.up_rounds = 0;
        self.probe_bw.up_acked = 0;
        self.probe_bw.prev_probe_precautionary = false;
        self.probe_bw.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.set_phase(Phase::Refill);
    }

    /// StartProbeBW_UP.
    fn start_probe_bw_up(&mut self, rs: &RateSample) {
        self.probe_bw.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.full_pipe.reset(rs.delivery_rate);
        self.note_queue_before_up();
        self.set_phase(Phase::Up);
        self.raise_inflight_longterm_slope();
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
        let rounds = (self.target_inflight() / self.packet).clamp(1, RENO_ROUNDS);
        self.ext.light.is_due
            || now > self.probe_bw.cycle_stamp + self.probe_bw.wait
            || self.probe_bw.rounds_since_up >= rounds
    }

    /// IsTimeToCruise.
    fn is_time_to_cruise(&self) -> bool {
        self.in_flight <= self.inflight_with_headroom()
            && self.in_flight <= self.inflight(self.max_bw.get(), 1.0)
    }

    /// IsTimeToGoDown.
    fn is_time_to_go_down(&mut self, rs: &RateSample) -> bool {
        let longterm = self.bounds.inflight_longterm;
        if self.probe_bw.prev_probe_too_high && self.in_flight >= longterm {
            self.probe_bw.prev_probe_precautionary = true;
            return true;
        }
        if self.is_cwnd_limited() && self.cwnd >= longterm {
            self.full_pipe.reset(rs.delivery_rate);
            return false;
        }
        self.full_pipe.is_now || self.is_queue_growing()
    }

    /// RaiseInflightLongtermSlope.
    fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1_u64 << self.probe_bw.up_rounds;
        self.probe_bw.up_rounds = (self.probe_bw.up_rounds + 1).min(30);
        self.probe_bw.acked_per_inc = (self.cwnd / growth).max(self.packet);
    }

    /// ProbeInflightLongtermUpward.
    fn probe_inflight_longterm_upward(&mut self, newly_acked: u64) {
        if !self.is_cwnd_limited() || self.cwnd < self.bounds.inflight_longterm {
            return;
        }
        self.probe_bw.up_acked += newly_acked;
        let delta = self.probe_bw.up_acked / self.probe_bw.acked_per_inc;
        self.probe_bw.up_acked -= delta * self.probe_bw.acked_per_inc;
        self.bounds.inflight_longterm += delta * self.packet;
        if self.round.is_start {
            self.raise_inflight_longterm_slope();
        }
    }

    /// AdaptLongTermModel: true if it decided a state transition.
    fn adapt_long_term_model(&mut self, rs: &RateSample, newly_acked: u64) -> bool {
        if self.round.is_start {
            match self.probe_bw.ack_phase {
                AckPhase::ProbeStarting => self.probe_bw.ack_phase = AckPhase::ProbeFeedback,
                AckPhase::ProbeStopping => {
                    self.probe_bw.is_bw_probe_sample = false;
                    self.probe_bw.ack_phase = AckPhase::Init;
                    if self.is_in_probe_bw() && !rs.is_app_limited {
                        self.max_bw.advance();
                    }
                    if self.is_in_probe_bw()
                        && self.probe_bw.prev_probe_precautionary
                        && !self.probe_bw.prev_probe_too_high
                    {
                        self.start_probe_bw_refill();
                        return true;
                    }
                }
                AckPhase::Init | AckPhase::Refilling | AckPhase::ProbeFeedback => {}
            }
        }
        if !self.is_inflight_too_high(rs.lost, self.judged_inflight_of(rs)) {
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
