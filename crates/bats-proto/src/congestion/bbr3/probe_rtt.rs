//! min_rtt and ProbeRTT (draft-ietf-ccwg-bbr-06 sections 5.3.4 and 5.4.1).

use core::time::Duration;

use bats_types::Timestamp;

use super::constants::{
    MIN_RTT_FILTER, PROBE_RTT_CWND_GAIN, PROBE_RTT_DURATION, PROBE_RTT_INTERVAL,
};
use super::probe_bw::{AckPhase, Phase};
use super::{Bbr3, RateSample, State};

/// The minimum round-trip time and the schedule of ProbeRTT.
#[derive(Debug)]
pub(super) struct MinRtt {
    min_rtt: Duration,
    stamp: Timestamp,
    probe_min_delay: Duration,
    probe_min_stamp: Timestamp,
    /// probe_rtt_expired.
    is_expired: bool,
    /// probe_rtt_done_stamp.
    done_at: Option<Timestamp>,
    round_done: bool,
    has_sample: bool,
}

impl MinRtt {
    pub(super) fn new(initial: Duration) -> Self {
        Self {
            min_rtt: initial,
            stamp: Timestamp::ZERO,
            probe_min_delay: initial,
            probe_min_stamp: Timestamp::ZERO,
            is_expired: false,
            done_at: None,
            round_done: false,
            has_sample: false,
        }
    }

    /// min_rtt.
    pub(super) fn get(&self) -> Duration {
        self.min_rtt
    }

    /// The path's round-trip time is known to be `rtt` now.
    pub(super) fn set(&mut self, now: Timestamp, rtt: Duration) {
        (self.min_rtt, self.probe_min_delay) = (rtt, rtt);
        (self.stamp, self.probe_min_stamp) = (now, now);
    }

    /// UpdateMinRTT.
    ///
    /// With `refresh`, a round trip within a sixteenth of the minimum postpones ProbeRTT: the queue
    /// is known to be empty.
    pub(super) fn update(&mut self, now: Timestamp, rtt: Duration, refresh: bool) {
        let is_first = !core::mem::replace(&mut self.has_sample, true);
        self.is_expired = !is_first && now > self.probe_min_stamp + PROBE_RTT_INTERVAL;
        if refresh && !is_first && rtt <= self.min_rtt + self.min_rtt / 16 {
            self.is_expired = false;
            self.probe_min_stamp = now;
            self.stamp = now;
        }
        if is_first || rtt < self.probe_min_delay || self.is_expired {
            self.probe_min_delay = rtt;
            self.probe_min_stamp = now;
        }
        if is_first || self.probe_min_delay < self.min_rtt || now > self.stamp + MIN_RTT_FILTER {
            self.min_rtt = self.probe_min_delay;
            self.stamp = self.probe_min_stamp;
        }
    }
}

impl Bbr3 {
    /// CheckProbeRTT.
    pub(super) fn check_probe_rtt(&mut self, now: Timestamp, rs: &RateSample) {
        if self.state != State::ProbeRtt && self.min_rtt.is_expired && !self.idle_restart {
            self.save_cwnd();
            self.state = State::ProbeRtt;
            self.pacing_gain = 1.0;
            self.cwnd_gain = PROBE_RTT_CWND_GAIN;
            self.min_rtt.done_at = None;
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
        match self.min_rtt.done_at {
            None if self.in_flight <= self.probe_rtt_cwnd() => {
                self.min_rtt.done_at = Some(now + PROBE_RTT_DURATION);
                self.min_rtt.round_done = false;
                self.start_round();
            }
            None => {}
            Some(_) => {
                self.min_rtt.round_done |= self.round.is_start;
                if self.min_rtt.round_done {
                    self.check_probe_rtt_done(now);
                }
            }
        }
    }

    /// CheckProbeRTTDone and ExitProbeRTT.
    fn check_probe_rtt_done(&mut self, now: Timestamp) {
        if self.min_rtt.done_at.is_none_or(|at| now <= at) {
            return;
        }
        self.min_rtt.probe_min_stamp = now;
        self.restore_cwnd();
        self.bounds.reset_short_term_model();
        if self.full_pipe.is_reached {
            self.start_probe_bw_down(now);
            self.start_probe_bw_cruise();
        } else {
            self.enter_startup();
        }
    }

    /// HandleRestartFromIdle, section 5.4.1.
    pub(super) fn handle_restart_from_idle(&mut self, now: Timestamp) {
        self.idle_restart = true;
        self.extra_acked.restart(now);
        match self.state {
            State::ProbeBw(Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up) => {
                self.set_pacing_rate_with_gain(1.0);
            }
            State::ProbeRtt => self.check_probe_rtt_done(now),
            State::Startup | State::Drain => {}
        }
    }
}
