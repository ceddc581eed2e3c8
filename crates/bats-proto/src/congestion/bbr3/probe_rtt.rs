//! How long ProbeRTT lasts (draft-ietf-ccwg-bbr-06 section 5.3.4).

use bats_types::Timestamp;

use super::constants::PROBE_RTT_DURATION;

/// Progress of ProbeRTT.
#[derive(Debug, Default)]
pub(super) struct ProbeRtt {
    /// probe_rtt_done_stamp; `None` until inflight is low enough.
    done_at: Option<Timestamp>,
    /// probe_rtt_round_done.
    round_done: bool,
}

impl ProbeRtt {
    /// EnterProbeRTT.
    pub(super) fn enter(&mut self) {
        self.done_at = None;
    }

    /// Whether inflight has been low enough.
    pub(super) fn is_inflight_low(&self) -> bool {
        self.done_at.is_some()
    }

    /// Inflight is low enough from now on.
    pub(super) fn on_inflight_low(&mut self, now: Timestamp) {
        self.done_at = Some(now + PROBE_RTT_DURATION);
        self.round_done = false;
    }

    /// Handles an acknowledgement with low inflight. Returns whether a round has passed so.
    pub(super) fn on_ack(&mut self, is_round_start: bool) -> bool {
        self.round_done |= is_round_start;
        self.round_done
    }

    /// Whether inflight has been low for ProbeRTTDuration.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.done_at.is_some_and(|at| now > at)
    }
}
