//! Light probes: while no queue stands in ProbeBW_CRUISE, the flow sends a little more than its
//! bandwidth. What a varying link gains is found within rounds, not at the next cycle; where nothing
//! is to gain the queue shows it before anything is dropped.

use super::probe_bw::Phase;
use super::variation::{Constant, Mechanism};
use super::{Bbr3, State};

/// State of the light probe.
#[derive(Debug, Default)]
pub(super) struct LightProbe {
    /// Rounds so far; 0 while none is sent.
    rounds: u32,
    /// Bandwidth when it began, bytes per second.
    base: u64,
    /// None until the next cycle: the last one lost packets without a queue, or gained nothing.
    is_held: bool,
    /// It found more: a full probe is due.
    pub(super) is_due: bool,
}

impl LightProbe {
    /// Whether one is being sent.
    pub(super) fn is_on(&self) -> bool {
        self.rounds > 0
    }
}

impl Bbr3 {
    /// Growth of the bandwidth that a light probe looks for.
    fn light_probe_growth(&self) -> f64 {
        1.0 + 2.0 * self.ext.value(Constant::LightGain)
    }

    /// Bytes in flight at that growth. `inflight_longterm` may be of a time when the rate was lower, and
    /// would keep a light probe from finding more.
    pub(super) fn light_probe_inflight(&self) -> u64 {
        self.inflight(self.bw, self.light_probe_growth())
    }

    /// A round began: begins, goes on with or ends a light probe.
    pub(super) fn update_light_probe(&mut self) {
        let is_cruise = self.state == State::ProbeBw(Phase::Cruise);
        let is_short = self.ext.queue.last_round * 2 < self.queue_threshold();
        let is_possible =
            self.ext.has(Mechanism::LightProbes) && is_cruise && !self.ext.trial.is_on();
        let (bw, latest) = (self.bw, self.bounds.bw_latest);
        // A shallow buffer or a policer drops the excess without a queue before it. Losses behind a
        // queue say that the rate has fallen: once the queue is gone, it may rise again.
        let is_excess_lost =
            self.bounds.had_congestion && self.ext.queue.last_round < self.queue_threshold();
        let growth = self.light_probe_growth();
        let most_rounds = self.ext.value(Constant::LightRounds) as u32;

        let light = &mut self.ext.light;
        light.is_due = false;
        light.is_held = is_cruise && (light.is_held || (light.is_on() && is_excess_lost));
        if !is_possible || light.is_held || !is_short {
            light.rounds = 0;
            return;
        }
        if !light.is_on() {
            light.base = bw;
        }
        light.rounds += 1;
        if latest as f64 > light.base as f64 * growth {
            light.is_due = true;
            light.rounds = 0;
        } else if light.rounds > most_rounds {
            light.is_held = true;
            light.rounds = 0;
        }
    }
}
