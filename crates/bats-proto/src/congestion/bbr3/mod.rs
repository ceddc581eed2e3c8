//! BBRv3 as in draft-ietf-ccwg-bbr-06. Names are the draft's; each file names its section.
//!
//! Where the draft leaves a choice: rates come from the receiver's clock where reports carry it
//! (section 4.1.3.3), a CE mark counts as a loss above the threshold (section 3.7), a probe time-out
//! that abandons what is in flight is the draft's RTO (section 5.6.4.4), and bounds on bytes in
//! flight count UDP payload.

mod bounds;
mod constants;
mod credit;
mod cwnd;
mod delay_step;
mod drain;
mod extensions;
mod extra_acked;
mod full_pipe;
mod light_probe;
mod max_bw;
mod pacing;
mod probe_bw;
mod probe_rtt;
mod queue_delay;
mod recovery;
mod reverse_delay;
mod round;
mod startup;
mod startup_rate;
#[cfg(test)]
mod tests;
mod trial;
mod variation;
mod windowed_filter;

use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller, LostPacket, RateSample};
use bounds::Bounds;
use constants::{DEFAULT_CWND_GAIN, INITIAL_PACKETS, STARTUP_PACING_GAIN};
use extensions::Extensions;
use extra_acked::ExtraAcked;
use full_pipe::FullPipe;
use max_bw::MaxBw;
use probe_bw::{Phase, ProbeBw};
use probe_rtt::MinRtt;
use recovery::Recovery;
use round::RoundCounter;
use startup_rate::{FIRST_FLIGHT_PACKETS, FIRST_FLIGHT_RATE};
pub use variation::{Constant, Mechanism, Variation};

/// State of the state machine, section 5.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    ProbeBw(Phase),
    ProbeRtt,
}

/// Consecutive probe time-outs after which the transport abandons what is in flight: an RTO.
const RTO_PROBES: u32 = 2;

/// The controller.
#[derive(Debug)]
pub(super) struct Bbr3 {
    ext: Extensions,
    state: State,
    /// SMSS in bytes of UDP payload.
    packet: u64,
    pacing_gain: f64,
    cwnd_gain: f64,
    /// C.cwnd and the last-known good value of it, in bytes.
    cwnd: u64,
    prior_cwnd: u64,
    /// C.pacing_rate in bytes per second.
    pacing_rate: u64,
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
            controller.cwnd = FIRST_FLIGHT_PACKETS * u64::from(packet);
            controller.pacing_rate = (FIRST_FLIGHT_RATE * controller.cwnd as f64 / rtt) as u64;
        }
        controller
    }

    fn with(variation: Option<Variation>, initial_rtt: Duration, packet: u16, seed: u64) -> Self {
        let packet = u64::from(packet);
        let cwnd = INITIAL_PACKETS * packet;
        let rtt = initial_rtt.max(Duration::from_micros(1)).as_secs_f64();
        Self {
            ext: Extensions::new(variation),
            state: State::Startup,
            packet,
            pacing_gain: STARTUP_PACING_GAIN,
            cwnd_gain: DEFAULT_CWND_GAIN,
            cwnd,
            prior_cwnd: 0,
            // InitPacingRate, section 5.6.2.
            pacing_rate: (STARTUP_PACING_GAIN * cwnd as f64 / rtt) as u64,
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
            recovery: Recovery::default(),
        }
    }

    fn is_cwnd_limited(&self) -> bool {
        self.is_cwnd_limited.contains(&true)
    }

    /// StartRound, section 5.5.1.
    fn start_round(&mut self) {
        self.round.restart(self.delivered);
    }

    /// UpdateModelAndState, section 5.2.3.
    fn update_model_and_state(&mut self, now: Timestamp, rs: &RateSample, sample: &AckSample) {
        self.bounds.update_latest_delivery_signals(rs, self.delivered);
        self.update_congestion_signals(rs);
        self.extra_acked.update(
            now,
            sample.acked_bytes,
            self.bw,
            self.cwnd,
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
        self.bw = self.max_bw.get().min(self.bounds.bw_shortterm).min(self.max_credited_bw());
    }

    /// A mark is treated as a round with too much loss (section 3.7), once per round.
    fn on_ce(&mut self, now: Timestamp, rs: &RateSample) {
        self.note_loss();
        self.bounds.is_mark_in_round = true;
        if self.probe_bw.is_bw_probe_sample {
            self.handle_inflight_too_high(now, rs.tx_in_flight, rs.is_app_limited);
        } else if self.state == State::Startup && !self.full_pipe.is_reached {
            self.exit_startup_on_congestion(rs);
        }
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
        self.ext.credit.on_lost(packet.sent_at, packet.continues_run);
        self.ext.round_lost += 1;
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
        self.on_ack_of_extensions(sample, &mut rs);
        self.round.on_ack(rs.prior_delivered, self.delivered);
        if self.round.is_start {
            self.probe_bw.rounds_since_up += 1;
            self.is_cwnd_limited = [self.is_cwnd_limited[1], false];
            self.on_round_of_extensions(measured);
        }
        if self.recovery.on_ack(sample.largest_sent_at) {
            self.restore_cwnd();
        }
        if sample.ce_packets > 0 && !self.recovery.has_marks {
            self.recovery.has_marks = true;
            self.on_ce(now, &rs);
        }
        self.recovery.has_marks &= !self.round.is_start;
        self.update_model_and_state(now, &rs, sample);
        self.set_pacing_rate();
        self.ext.credit.on_pace(now, self.effective_pacing_gain() > 1.0);
        self.set_cwnd(sample.acked_bytes);
    }

    fn on_probe_timeout(&mut self, now: Timestamp, count: u32) {
        self.ext.had_timeout = true;
        if count == RTO_PROBES && !self.ext.has(Mechanism::SteadyTimeout) {
            self.on_enter_rto(now);
        }
    }

    fn window(&self) -> u64 {
        self.cwnd
    }

    fn pacing_rate(&self) -> u64 {
        self.pacing_rate.max(1)
    }

    fn bandwidth(&self) -> u64 {
        if self.bw == 0 { self.pacing_rate } else { self.bw }.max(1)
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
            return match self.cwnd {
                cwnd if cwnd == bounds.inflight_shortterm => "inflight_shortterm",
                cwnd if cwnd == bounds.inflight_longterm => "inflight_longterm",
                cwnd if cwnd == self.inflight_with_headroom() => "inflight_with_headroom",
                _ => "cwnd",
            };
        }
        match self.bw {
            bw if bw == bounds.bw_shortterm => "bw_shortterm",
            bw if bw == self.max_credited_bw() => "delivered_mean",
            _ => "max_bw",
        }
    }

    fn state(&self) -> &'static str {
        match self.state {
            State::Startup => "startup",
            State::Drain => "drain",
            State::ProbeBw(Phase::Down) => "probe_bw_down",
            State::ProbeBw(Phase::Cruise) => "probe_bw_cruise",
            State::ProbeBw(Phase::Refill) => "probe_bw_refill",
            State::ProbeBw(Phase::Up) => "probe_bw_up",
            State::ProbeRtt => "probe_rtt",
        }
    }
}
