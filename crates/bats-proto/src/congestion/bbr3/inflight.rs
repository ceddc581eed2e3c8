//! How much may be in flight: the bandwidth-delay product and what follows from it (draft-ietf-ccwg-bbr-06 section
//! 5.6.4.2).

use core::time::Duration;

use super::bounds::Bounds;
use super::constants::{INITIAL_PACKETS, PROBE_RTT_CWND_GAIN};
use super::extensions::Extensions;
use super::state::{Phase, State};

/// What the bytes in flight follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inflight<'a> {
    pub(super) ext: &'a Extensions,
    pub(super) bounds: &'a Bounds,
    pub(super) state: State,
    pub(super) min_rtt: Duration,
    /// SMSS in bytes.
    pub(super) packet: u64,
    /// C.send_quantum in bytes.
    pub(super) send_quantum: u64,
}

impl Inflight<'_> {
    /// MinPipeCwnd, section 2.8, in bytes.
    pub(super) fn min_pipe_cwnd(&self) -> u64 {
        self.ext.min_pipe_cwnd(self.packet)
    }

    /// BDPMultiple in bytes, of `bw` bytes per second.
    pub(super) fn bdp_multiple(&self, bw: u64, gain: f64) -> u64 {
        if bw == 0 {
            return INITIAL_PACKETS * self.packet;
        }
        (gain * bw as f64 * self.min_rtt.as_secs_f64()) as u64
    }

    /// QuantizationBudget with the offload budget of section 5.5.8.2.
    pub(super) fn quantization_budget(&self, inflight_cap: u64) -> u64 {
        let cap = inflight_cap.max(self.send_quantum).max(self.min_pipe_cwnd());
        let is_up = self.state == State::ProbeBw(Phase::Up);
        cap + if is_up { 2 * self.packet } else { 0 }
    }

    /// Inflight in bytes, of `bw` bytes per second.
    pub(super) fn of(&self, bw: u64, gain: f64) -> u64 {
        self.quantization_budget(self.bdp_multiple(bw, gain))
    }

    /// InflightWithHeadroom, section 5.3.3.9.
    pub(super) fn with_headroom(&self) -> u64 {
        self.bounds.inflight_with_headroom(self.packet, self.min_pipe_cwnd())
    }

    /// Bytes in flight of a light probe. `inflight_longterm` may be of a time when the rate was lower,
    /// and would keep a light probe from finding more.
    pub(super) fn of_light_probe(&self, bw: u64) -> u64 {
        self.of(bw, self.ext.light_probe_growth())
    }

    /// ProbeRTTCwnd, section 5.6.4.5.
    pub(super) fn probe_rtt_cwnd(&self, bw: u64) -> u64 {
        self.bdp_multiple(bw, PROBE_RTT_CWND_GAIN).max(self.min_pipe_cwnd())
    }
}
