//! The cycle of ProbeBW (draft-ietf-ccwg-bbr-06 section 5.3.3): when to probe and how fast to grow.

use core::time::Duration;

use bats_types::Timestamp;

use super::bounds::INFINITY;
use super::constants::PROBE_WAIT;
use super::state::AckPhase;

/// State of the cycle, section 2.14.
#[derive(Debug)]
pub(super) struct ProbeBw {
    pub(super) ack_phase: AckPhase,
    /// Losses now belong to packets sent while probing.
    pub(super) is_bw_probe_sample: bool,
    pub(super) prev_probe_too_high: bool,
    pub(super) prev_probe_precautionary: bool,
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
    /// StartProbeBW_DOWN.
    pub(super) fn start_down(&mut self, now: Timestamp) {
        self.acked_per_inc = INFINITY;
        self.pick_wait();
        self.cycle_stamp = now;
        self.ack_phase = AckPhase::ProbeStopping;
    }

    /// StartProbeBW_REFILL.
    pub(super) fn start_refill(&mut self) {
        self.up_rounds = 0;
        self.up_acked = 0;
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
    }

    /// IsTimeToProbeBW, section 5.3.3.8. `reno_rounds`: rounds between losses of a Reno flow of this
    /// rate.
    pub(super) fn is_time_to_probe(&self, now: Timestamp, reno_rounds: u64) -> bool {
        now > self.cycle_stamp + self.wait || self.rounds_since_up >= reno_rounds
    }

    /// RaiseInflightLongtermSlope; `cwnd` and `packet` in bytes.
    pub(super) fn raise_slope(&mut self, cwnd: u64, packet: u64) {
        let growth = 1_u64 << self.up_rounds;
        self.up_rounds = (self.up_rounds + 1).min(30);
        self.acked_per_inc = (cwnd / growth).max(packet);
    }

    /// Packets by which ProbeInflightLongtermUpward raises the bound for `newly_acked` bytes.
    pub(super) fn growth_of(&mut self, newly_acked: u64) -> u64 {
        self.up_acked += newly_acked;
        let delta = self.up_acked / self.acked_per_inc;
        self.up_acked -= delta * self.acked_per_inc;
        delta
    }

    /// Advances ack_phase at the start of a round, as in AdaptLongTermModel. Returns whether the
    /// feedback of the last probe is complete.
    pub(super) fn advance_ack_phase(&mut self) -> bool {
        match self.ack_phase {
            AckPhase::ProbeStarting => self.ack_phase = AckPhase::ProbeFeedback,
            AckPhase::ProbeStopping => {
                self.is_bw_probe_sample = false;
                self.ack_phase = AckPhase::Init;
                return true;
            }
            AckPhase::Init | AckPhase::Refilling | AckPhase::ProbeFeedback => {}
        }
        false
    }

    /// The last probe ended as a precaution, and its feedback shows that it was not too high.
    pub(super) fn was_cut_short(&self) -> bool {
        self.prev_probe_precautionary && !self.prev_probe_too_high
    }
}
