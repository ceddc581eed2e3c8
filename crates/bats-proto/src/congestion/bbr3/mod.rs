//! BBRv3 as in draft-ietf-ccwg-bbr-06. Names are the draft's; each file names its section.
//!
//! Where the draft leaves a choice: rates come from the receiver's clock where reports carry it
//! (section 4.1.3.3), a CE mark counts as a loss above the threshold (section 3.7), a probe time-out
//! that abandons what is in flight is the draft's RTO (section 5.6.4.4), and bounds on bytes in
//! flight count UDP payload.
//!
//! Layers, each of which knows only those before it: the constants and [`state`]; a type for each part
//! of the model, which takes what it needs as arguments and does not know [`Bbr3`]; [`Bbr3`] itself; and
//! its methods: [`control`] (pacing rate and window), [`machine`] (transitions between states),
//! [`losses`] (responses to losses and marks) and [`controller`] (the entry points).

mod bounds;
mod constants;
mod control;
mod controller;
mod credit;
mod delay_step;
mod extensions;
mod extra_acked;
mod full_pipe;
mod light_probe;
mod loss_threshold;
mod losses;
mod machine;
mod max_bw;
mod min_rtt;
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

use bounds::Bounds;
use constants::INITIAL_PACKETS;
use extensions::Extensions;
use extra_acked::ExtraAcked;
use full_pipe::FullPipe;
use loss_threshold::LossThreshold;
use max_bw::MaxBw;
use min_rtt::MinRtt;
use probe_bw::ProbeBw;
use probe_rtt::ProbeRtt;
use recovery::Recovery;
use round::RoundCounter;
use startup_rate::{FIRST_FLIGHT_PACKETS, FIRST_FLIGHT_RATE};
use state::State;
pub use variation::{Constant, Mechanism, Variation};

/// The controller: the model of the path, and the state and control parameters that follow from it.
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
            controller.cwnd = FIRST_FLIGHT_PACKETS * u64::from(packet);
            controller.pacing_rate = (FIRST_FLIGHT_RATE * controller.cwnd as f64 / rtt) as u64;
        }
        controller
    }

    fn with(variation: Option<Variation>, initial_rtt: Duration, packet: u16, seed: u64) -> Self {
        let packet = u64::from(packet);
        let cwnd = INITIAL_PACKETS * packet;
        let rtt = initial_rtt.max(Duration::from_micros(1)).as_secs_f64();
        let state = State::Startup;
        let (pacing_gain, cwnd_gain) = state.gains();
        Self {
            ext: Extensions::new(variation),
            state,
            packet,
            pacing_gain,
            cwnd_gain,
            cwnd,
            prior_cwnd: 0,
            // InitPacingRate, section 5.6.2.
            pacing_rate: (pacing_gain * cwnd as f64 / rtt) as u64,
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
}
