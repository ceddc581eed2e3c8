//! Control parameters: the pacing rate and the congestion window (draft-ietf-ccwg-bbr-06 section 5.6).

use super::Bbr3;
use super::bounds::INFINITY;
use super::constants::{INITIAL_PACKETS, MAX_QUANTUM, PACING_MARGIN, PROBE_RTT_CWND_GAIN};
use super::startup_rate::STARTUP_GAIN;
use super::state::{Phase, State};

impl Bbr3 {
    /// The pacing gain of the state or of a mechanism beyond the draft.
    pub(super) fn effective_pacing_gain(&self) -> f64 {
        self.ext.pacing_gain(self.state, self.min_rtt.get(), self.pacing_gain)
    }

    /// SetPacingRateWithGain, section 5.6.2.
    pub(super) fn set_pacing_rate_with_gain(&mut self, gain: f64) {
        let rate = (gain * self.bw as f64 * PACING_MARGIN) as u64;
        if rate > 0 && (self.full_pipe.is_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// SetPacingRate, section 5.6.2.
    pub(super) fn set_pacing_rate(&mut self) {
        self.set_pacing_rate_with_gain(self.effective_pacing_gain());
        let startup = STARTUP_GAIN * self.ext.startup_rate(self.state) as f64 * PACING_MARGIN;
        self.pacing_rate = self.pacing_rate.max(startup as u64);
        if let Some(most) = self.ext.trial_pacing_rate() {
            self.pacing_rate = self.pacing_rate.min(most);
        }
    }

    /// MinPipeCwnd, section 2.8, in bytes.
    fn min_pipe_cwnd(&self) -> u64 {
        self.ext.min_pipe_cwnd(self.packet)
    }

    /// BDPMultiple in bytes, of `bw` bytes per second.
    pub(super) fn bdp_multiple(&self, bw: u64, gain: f64) -> u64 {
        if bw == 0 {
            return INITIAL_PACKETS * self.packet;
        }
        (gain * bw as f64 * self.min_rtt.get().as_secs_f64()) as u64
    }

    /// SetSendQuantum, section 5.6.3, in bytes.
    fn send_quantum(&self) -> u64 {
        (self.pacing_rate / 1_000).min(MAX_QUANTUM).max(2 * self.packet)
    }

    /// QuantizationBudget with the offload budget of section 5.5.8.2.
    fn quantization_budget(&self, inflight_cap: u64) -> u64 {
        let cap = inflight_cap.max(self.send_quantum()).max(self.min_pipe_cwnd());
        let is_up = self.state == State::ProbeBw(Phase::Up);
        cap + if is_up { 2 * self.packet } else { 0 }
    }

    /// Inflight in bytes, of `bw` bytes per second.
    pub(super) fn inflight(&self, bw: u64, gain: f64) -> u64 {
        self.quantization_budget(self.bdp_multiple(bw, gain))
    }

    /// TargetInflight, section 5.3.3.8.
    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp_multiple(self.bw, 1.0).min(self.cwnd)
    }

    /// InflightWithHeadroom, section 5.3.3.9.
    pub(super) fn inflight_with_headroom(&self) -> u64 {
        self.bounds.inflight_with_headroom(self.packet, self.min_pipe_cwnd())
    }

    /// Bytes in flight of a light probe. `inflight_longterm` may be of a time when the rate was lower,
    /// and would keep a light probe from finding more.
    fn light_probe_inflight(&self) -> u64 {
        self.inflight(self.bw, self.ext.light_probe_growth())
    }

    /// ProbeRTTCwnd, section 5.6.4.5.
    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp_multiple(self.bw, PROBE_RTT_CWND_GAIN).max(self.min_pipe_cwnd())
    }

    /// SetCwnd, section 5.6.4.6.
    pub(super) fn set_cwnd(&mut self, newly_acked: u64) {
        let cap = self.bdp_multiple(self.bw, self.cwnd_gain)
            + self.extra_acked.get()
            + self.ext.reverse_window(self.bw);
        let max_inflight = self.quantization_budget(cap);
        if self.full_pipe.is_reached {
            self.cwnd = (self.cwnd + newly_acked).min(max_inflight);
        } else if self.cwnd < max_inflight || self.delivered < INITIAL_PACKETS * self.packet {
            self.cwnd += newly_acked;
        }
        if let rate @ 1.. = self.ext.startup_rate(self.state) {
            self.cwnd = self.cwnd.max(self.bdp_multiple(rate, self.cwnd_gain));
        }
        self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        self.bound_cwnd_for_model();
    }

    /// BoundCwndForModel, section 5.6.4.7.
    fn bound_cwnd_for_model(&mut self) {
        let cap = match self.state {
            State::ProbeBw(Phase::Cruise) if self.ext.light.is_on() => {
                self.inflight_with_headroom().max(self.light_probe_inflight())
            }
            State::ProbeRtt | State::ProbeBw(Phase::Cruise) => self.inflight_with_headroom(),
            State::ProbeBw(_) => self.bounds.inflight_longterm,
            State::Startup | State::Drain => INFINITY,
        };
        let cap = cap.min(self.bounds.inflight_shortterm).max(self.min_pipe_cwnd());
        self.cwnd = self.cwnd.min(cap);
    }

    /// SaveCwnd, section 5.6.4.4.
    pub(super) fn save_cwnd(&mut self) {
        let is_modulated = self.recovery.is_active() || self.state == State::ProbeRtt;
        let floor = if is_modulated { self.prior_cwnd } else { 0 };
        self.prior_cwnd = self.cwnd.max(floor);
    }

    /// RestoreCwnd, section 5.6.4.4.
    pub(super) fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }
}
