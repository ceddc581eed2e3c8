//! BBRv3 as in draft-ietf-ccwg-bbr-06. Names are the draft's; each file names its section.
//!
//! Where the draft leaves a choice: rates come from the receiver's clock where reports carry it
//! (section 4.1.3.3), a CE mark counts as a loss above the threshold (section 3.7), a probe time-out
//! that abandons what is in flight is the draft's RTO (section 5.6.4.4), and bounds on bytes in
//! flight count UDP payload.
//!
//! Layers, each of which knows only those before it: the constants and [`state`]; a type for each part
//! of the model and for each control parameter, which takes what it needs as arguments and does not know
//! [`Bbr3`]; and [`Bbr3`]. Its methods are here (the entry points, and what each acknowledgement updates,
//! section 5.2), in [`machine`] (transitions between states) and in [`losses`] (responses to losses and
//! marks).

mod bounds;
mod constants;
mod credit;
mod cwnd;
mod delay_step;
mod extensions;
mod extra_acked;
mod full_pipe;
mod inflight;
mod light_probe;
mod loss_threshold;
mod losses;
mod machine;
mod max_bw;
mod min_rtt;
mod pacing_rate;
mod probe_bw;
mod probe_rtt;
mod queue_delay;
mod recovery;
mod reverse_delay;
mod round;
mod startup_rate;
mod state;
#[cfg(test)]
mod tests;
mod trial;
mod variation;
mod windowed_filter;

use core::time::Duration;

use bats_types::Timestamp;

use bounds::{Bounds, INFINITY};
use constants::{INITIAL_PACKETS, PACING_MARGIN};
use cwnd::Cwnd;
use extensions::Extensions;
use extra_acked::ExtraAcked;
use full_pipe::FullPipe;
use inflight::Inflight;
use loss_threshold::LossThreshold;
use max_bw::MaxBw;
use min_rtt::MinRtt;
use pacing_rate::PacingRate;
use probe_bw::ProbeBw;
use probe_rtt::ProbeRtt;
use recovery::Recovery;
use round::RoundCounter;
use startup_rate::{FIRST_FLIGHT_PACKETS, FIRST_FLIGHT_RATE, STARTUP_GAIN};
use state::{Phase, State};
pub use variation::{Constant, Mechanism, Variation};

use super::{AckSample, Controller, LostPacket, RateSample};

/// Consecutive probe time-outs after which the transport abandons what is in flight: an RTO.
const RTO_PROBES: u32 = 2;

/// The controller: the model of the path, and the state and control parameters that follow from it.
#[derive(Debug)]
pub(super) struct Bbr3 {
    ext: Extensions,
    state: State,
    /// SMSS in bytes of UDP payload.
    packet: u64,
    cwnd: Cwnd,
    pacing_rate: PacingRate,
    /// C.delivered, C.inflight in bytes.
    delivered: u64,
    in_flight: u64,
    /// C.is_cwnd_limited, over the last and the current round.
    is_cwnd_limited: [bool; 2],
    idle_restart: bool,
    /// bw = min(max_bw, bw_shortterm), bytes per second.
    bw: u64,
    drain_start_round: u64,
    round: RoundCounter,
    full_pipe: FullPipe,
    max_bw: MaxBw,
    min_rtt: MinRtt,
    extra_acked: ExtraAcked,
    bounds: Bounds,
    probe_bw: ProbeBw,
    probe_rtt: ProbeRtt,
    recovery: Recovery,
}

impl Bbr3 {
    /// OnInit, section 5.2.1. `seed` decides the randomised waits of section 5.3.3.8.
    pub(super) fn new(initial_rtt: Duration, packet: u16, seed: u64) -> Self {
        Self::with(None, initial_rtt, packet, seed)
    }

    /// `ltcc`: the draft with the mechanisms of `variation` beyond it.
    pub(super) fn loss_tolerant(
        variation: Variation,
        initial_rtt: Duration,
        packet: u16,
        seed: u64,
    ) -> Self {
        let mut controller = Self::with(Some(variation), initial_rtt, packet, seed);
        if variation.has(Mechanism::FastStartup) {
            let rtt = initial_rtt.max(Duration::from_micros(1)).as_secs_f64();
            let cwnd = FIRST_FLIGHT_PACKETS * u64::from(packet);
            controller.cwnd.set(cwnd);
            controller.pacing_rate =
                PacingRate::new((FIRST_FLIGHT_RATE * cwnd as f64 / rtt) as u64);
        }
        controller
    }

    fn with(variation: Option<Variation>, initial_rtt: Duration, packet: u16, seed: u64) -> Self {
        let packet = u64::from(packet);
        let cwnd = INITIAL_PACKETS * packet;
        let rtt = initial_rtt.max(Duration::from_micros(1)).as_secs_f64();
        let state = State::Startup;
        let (pacing_gain, _) = state.gains();
        Self {
            ext: Extensions::new(variation),
            state,
            packet,
            cwnd: Cwnd::new(cwnd),
            // InitPacingRate, section 5.6.2.
            pacing_rate: PacingRate::new((pacing_gain * cwnd as f64 / rtt) as u64),
            delivered: 0,
            in_flight: 0,
            is_cwnd_limited: [false; 2],
            idle_restart: false,
            bw: 0,
            drain_start_round: 0,
            round: RoundCounter::default(),
            full_pipe: FullPipe::default(),
            max_bw: MaxBw::default(),
            min_rtt: MinRtt::new(initial_rtt),
            extra_acked: ExtraAcked::default(),
            bounds: Bounds::default(),
            probe_bw: ProbeBw::new(seed),
            probe_rtt: ProbeRtt::default(),
            recovery: Recovery::default(),
        }
    }

    /// C.is_cwnd_limited.
    fn is_cwnd_limited(&self) -> bool {
        self.is_cwnd_limited.contains(&true)
    }

    /// What losses are compared with now.
    fn loss_threshold(&self) -> LossThreshold<'_> {
        self.ext.loss_threshold(self.state, self.min_rtt.get(), self.packet)
    }

    /// A round began; `measured` is the delivery rate without credit.
    fn on_round(&mut self, measured: u64) {
        let min_rtt = self.min_rtt.get();
        self.ext.on_round(measured, min_rtt);
        self.ext.update_light_probe(self.state, min_rtt, self.bw, &self.bounds);
        if self.ext.take_resumed_startup(self.state, min_rtt) {
            self.resume_startup();
        }
    }

    /// UpdateModelAndState, section 5.2.3.
    fn update_model_and_state(&mut self, now: Timestamp, rs: &RateSample, sample: &AckSample) {
        self.bounds.update_latest_delivery_signals(rs, self.delivered);
        self.update_congestion_signals(rs);
        self.extra_acked.update(
            now,
            sample.acked_bytes,
            self.bw,
            self.cwnd.get(),
            self.round.count,
            self.full_pipe.is_reached,
        );
        if self.round.is_start && !rs.is_app_limited {
            self.full_pipe.on_round(rs.delivery_rate);
        }
        self.check_startup_done(rs);
        self.check_drain_done(now);
        self.update_probe_bw_cycle_phase(now, rs, sample.acked_bytes);
        self.min_rtt.update(now, sample.rtt, self.ext.has(Mechanism::FreshMinRtt));
        self.check_probe_rtt(now, rs);
        self.bounds.advance_latest_delivery_signals(rs);
        let max_credited_bw = self.ext.max_credited_bw(self.full_pipe.is_reached);
        self.bw = self.max_bw.get().min(self.bounds.bw_shortterm).min(max_credited_bw);
    }

    /// The pacing gain of the state or of a mechanism beyond the draft.
    fn pacing_gain(&self) -> f64 {
        let (gain, _) = self.state.gains();
        self.ext.pacing_gain(self.state, self.min_rtt.get(), gain)
    }

    /// SetPacingRate, section 5.6.2.
    fn set_pacing_rate(&mut self) {
        let gain = self.pacing_gain();
        self.pacing_rate.set_with_gain(gain, self.bw, self.full_pipe.is_reached);
        let startup = STARTUP_GAIN * self.ext.startup_rate(self.state) as f64 * PACING_MARGIN;
        self.pacing_rate.raise(startup as u64);
        if let Some(most) = self.ext.trial_pacing_rate() {
            self.pacing_rate.bound(most);
        }
    }

    /// What the bytes in flight follow from now.
    fn inflight(&self) -> Inflight<'_> {
        Inflight {
            ext: &self.ext,
            bounds: &self.bounds,
            state: self.state,
            min_rtt: self.min_rtt.get(),
            packet: self.packet,
            send_quantum: self.pacing_rate.send_quantum(self.packet),
        }
    }

    /// TargetInflight, section 5.3.3.8.
    fn target_inflight(&self) -> u64 {
        self.inflight().bdp_multiple(self.bw, 1.0).min(self.cwnd.get())
    }

    /// SetCwnd, section 5.6.4.6.
    fn set_cwnd(&mut self, newly_acked: u64) {
        let (_, gain) = self.state.gains();
        let inflight = self.inflight();
        let cap = inflight.bdp_multiple(self.bw, gain)
            + self.extra_acked.get()
            + self.ext.reverse_window(self.bw);
        let max_inflight = inflight.quantization_budget(cap);
        let startup_rate = self.ext.startup_rate(self.state);
        let startup_window =
            if startup_rate > 0 { inflight.bdp_multiple(startup_rate, gain) } else { 0 };
        let min_pipe_cwnd = inflight.min_pipe_cwnd();
        let is_probe_rtt = self.state == State::ProbeRtt;
        let probe_rtt_cwnd = is_probe_rtt.then(|| inflight.probe_rtt_cwnd(self.bw));
        let model_cap = self.inflight_cap();

        let is_first_window = self.delivered < INITIAL_PACKETS * self.packet;
        if self.full_pipe.is_reached {
            self.cwnd.grow_to(newly_acked, max_inflight);
        } else if self.cwnd.get() < max_inflight || is_first_window {
            self.cwnd.grow(newly_acked);
        }
        self.cwnd.raise(startup_window);
        self.cwnd.raise(min_pipe_cwnd);
        if let Some(most) = probe_rtt_cwnd {
            self.cwnd.bound(most);
        }
        self.cwnd.bound(model_cap);
    }

    /// Bound of the window in BoundCwndForModel, section 5.6.4.7.
    fn inflight_cap(&self) -> u64 {
        let inflight = self.inflight();
        let cap = match self.state {
            State::ProbeBw(Phase::Cruise) if self.ext.light.is_on() => {
                inflight.with_headroom().max(inflight.of_light_probe(self.bw))
            }
            State::ProbeRtt | State::ProbeBw(Phase::Cruise) => inflight.with_headroom(),
            State::ProbeBw(_) => self.bounds.inflight_longterm,
            State::Startup | State::Drain => INFINITY,
        };
        cap.min(self.bounds.inflight_shortterm).max(inflight.min_pipe_cwnd())
    }

    /// SaveCwnd, section 5.6.4.4.
    fn save_cwnd(&mut self) {
        self.cwnd.save(self.recovery.is_active() || self.state == State::ProbeRtt);
    }
}

impl Controller for Bbr3 {
    fn on_sent(&mut self, now: Timestamp, bytes: u64, in_flight: u64) {
        // HandleRestartFromIdle, section 5.4.1: nothing was in flight, so the application limited.
        if in_flight <= bytes && self.delivered > 0 {
            self.handle_restart_from_idle(now);
        }
        self.in_flight = in_flight;
    }

    fn on_cwnd_limited(&mut self) {
        self.is_cwnd_limited[1] = true;
    }

    fn on_lost(&mut self, now: Timestamp, packet: &LostPacket) {
        self.ext.on_lost(packet);
        self.handle_lost_packet(now, packet);
    }

    fn on_spurious_loss(&mut self, _now: Timestamp, packets: u64) {
        if self.recovery.on_spurious(packets) {
            self.handle_spurious_loss_detection();
        }
    }

    fn on_ack(&mut self, sample: &AckSample) {
        let now = sample.now;
        self.in_flight = sample.in_flight;
        self.packet = sample.packet;
        let mut rs = sample.rate;
        self.delivered = rs.prior_delivered + rs.delivered;
        let measured = rs.delivery_rate;
        let is_full = self.full_pipe.is_reached;
        self.ext.on_ack(sample, &mut rs, self.state, is_full, &mut self.min_rtt);
        self.round.on_ack(rs.prior_delivered, self.delivered);
        if self.round.is_start {
            self.probe_bw.rounds_since_up += 1;
            self.is_cwnd_limited = [self.is_cwnd_limited[1], false];
            self.on_round(measured);
        }
        if self.recovery.on_ack(sample.largest_sent_at) {
            self.cwnd.restore();
        }
        if sample.ce_packets > 0 && !self.recovery.has_marks {
            self.recovery.has_marks = true;
            self.on_ce(now, &rs);
        }
        self.recovery.has_marks &= !self.round.is_start;
        self.update_model_and_state(now, &rs, sample);
        self.set_pacing_rate();
        self.ext.credit.on_pace(now, self.pacing_gain() > 1.0);
        self.set_cwnd(sample.acked_bytes);
    }

    fn on_probe_timeout(&mut self, now: Timestamp, count: u32) {
        self.ext.had_timeout = true;
        if count == RTO_PROBES && !self.ext.has(Mechanism::SteadyTimeout) {
            self.on_enter_rto(now);
        }
    }

    fn window(&self) -> u64 {
        self.cwnd.get()
    }

    fn pacing_rate(&self) -> u64 {
        self.pacing_rate.get().max(1)
    }

    fn bandwidth(&self) -> u64 {
        if self.bw == 0 { self.pacing_rate.get() } else { self.bw }.max(1)
    }

    fn queue_delay(&self) -> Duration {
        self.ext.queue.standing()
    }

    fn own_loss(&self) -> f64 {
        self.ext.own_loss()
    }

    fn limited_by(&self) -> &'static str {
        let bounds = &self.bounds;
        if self.is_cwnd_limited() {
            return match self.cwnd.get() {
                cwnd if cwnd == bounds.inflight_shortterm => "inflight_shortterm",
                cwnd if cwnd == bounds.inflight_longterm => "inflight_longterm",
                cwnd if cwnd == self.inflight().with_headroom() => "inflight_with_headroom",
                _ => "cwnd",
            };
        }
        match self.bw {
            bw if bw == bounds.bw_shortterm => "bw_shortterm",
            bw if bw == self.ext.max_credited_bw(self.full_pipe.is_reached) => "delivered_mean",
            _ => "max_bw",
        }
    }

    fn state(&self) -> &'static str {
        self.state.name()
    }
}
