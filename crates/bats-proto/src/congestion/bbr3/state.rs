//! States of the state machine (draft-ietf-ccwg-bbr-06 section 5.1.1) and their gains.

use super::constants::{
    DEFAULT_CWND_GAIN, DOWN_PACING_GAIN, DRAIN_PACING_GAIN, PROBE_RTT_CWND_GAIN,
    STARTUP_PACING_GAIN, UP_CWND_GAIN, UP_PACING_GAIN,
};

/// State of the state machine, section 5.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Startup,
    Drain,
    ProbeBw(Phase),
    ProbeRtt,
}

/// Phase of the ProbeBW cycle, section 5.3.3.
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

impl State {
    /// pacing_gain and cwnd_gain.
    pub(super) fn gains(self) -> (f64, f64) {
        match self {
            Self::Startup => (STARTUP_PACING_GAIN, DEFAULT_CWND_GAIN),
            Self::Drain => (DRAIN_PACING_GAIN, DEFAULT_CWND_GAIN),
            Self::ProbeBw(Phase::Down) => (DOWN_PACING_GAIN, DEFAULT_CWND_GAIN),
            Self::ProbeBw(Phase::Cruise | Phase::Refill) => (1.0, DEFAULT_CWND_GAIN),
            Self::ProbeBw(Phase::Up) => (UP_PACING_GAIN, UP_CWND_GAIN),
            Self::ProbeRtt => (1.0, PROBE_RTT_CWND_GAIN),
        }
    }

    /// IsProbingBW.
    pub(super) fn is_probing_bw(self) -> bool {
        matches!(self, Self::Startup | Self::ProbeBw(Phase::Refill | Phase::Up))
    }

    /// IsInAProbeBWState.
    pub(super) fn is_probe_bw(self) -> bool {
        matches!(self, Self::ProbeBw(_))
    }

    /// Name for statistics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Drain => "drain",
            Self::ProbeBw(Phase::Down) => "probe_bw_down",
            Self::ProbeBw(Phase::Cruise) => "probe_bw_cruise",
            Self::ProbeBw(Phase::Refill) => "probe_bw_refill",
            Self::ProbeBw(Phase::Up) => "probe_bw_up",
            Self::ProbeRtt => "probe_rtt",
        }
    }
}
