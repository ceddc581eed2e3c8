//! Light probes: while no queue stands in ProbeBW_CRUISE, the flow sends a little more than its
//! bandwidth. What a varying link gains is found within rounds, not at the next cycle; where nothing
//! is to gain the queue shows it before anything is dropped.

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
    /// A round began. `is_excess_lost`: packets were lost without a queue before them.
    pub(super) fn on_round(&mut self, is_cruise: bool, is_excess_lost: bool) {
        self.is_due = false;
        self.is_held = is_cruise && (self.is_held || (self.is_on() && is_excess_lost));
    }

    /// Begins or goes on with a light probe, if `is_possible`: for at most `most_rounds`, until the rate
    /// `latest` shows that `bw`, both in bytes per second, has become `growth` times as much.
    pub(super) fn probe(
        &mut self,
        is_possible: bool,
        bw: u64,
        latest: u64,
        growth: f64,
        most_rounds: u32,
    ) {
        if !is_possible || self.is_held {
            self.rounds = 0;
            return;
        }
        if !self.is_on() {
            self.base = bw;
        }
        self.rounds += 1;
        if latest as f64 > self.base as f64 * growth {
            self.is_due = true;
            self.rounds = 0;
        } else if self.rounds > most_rounds {
            self.is_held = true;
            self.rounds = 0;
        }
    }
}
