//! Fairness of competing flows on one link.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::CongestionAlgorithm;
use serde::Serialize;

use crate::flows::jain_index;
use crate::links::queued;
use crate::shared_link::{Flow, Kind, SharedLink, SharedLinkSample};

/// A bound on a figure of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Jain's index of the flows' goodput is at least this.
    Jain(f64),
    /// The throughput share of the first flow is within these limits.
    Share(f64, f64),
    /// The mean queue is at most this fraction of its length.
    Queue(f64),
}

/// Competing flows on one link, and the bounds of their figures.
#[derive(Clone, Debug)]
pub struct FairnessScenario {
    /// Short description.
    pub name: String,
    /// The flows on the link.
    pub flows: Vec<Flow>,
    /// Link rate in Mbit/s, frames included.
    pub rate_mbps: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Queue length in BDP.
    pub queue: f64,
    /// Independent loss in both directions, 0 to 1.
    pub loss: f64,
    /// Bounds of the figures.
    pub bounds: Vec<Bound>,
    /// A goal that the figures do not reach (ADR 0024), if the bounds are weaker.
    pub goal: Option<Bound>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The figures of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Name of the scenario.
    pub name: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Queue length in BDP.
    pub queue_bdp: f64,
    /// Loss in per cent.
    pub loss_percent: f64,
    /// Throughput of each flow in Mbit/s, headers and redundancy included.
    pub throughput_mbps: Vec<f64>,
    /// Jain's fairness index of the goodputs.
    pub jain: f64,
    /// Throughput share of the first flow.
    pub share: f64,
    /// Mean queue as a fraction of its length.
    pub queue_mean: f64,
    /// Packets dropped by the full queue, in per cent.
    pub queue_loss_percent: f64,
    /// Throughput of all flows divided by the capacity of the link.
    pub utilisation: f64,
    /// The bounds as text; a dash if the figures are for information only.
    pub bound: String,
    /// A goal that is withdrawn, if the bounds are weaker; else empty.
    pub withdrawn_goal: String,
    /// Whether all bounds hold.
    pub is_met: bool,
}

impl Verdict {
    /// The worse of two: one that misses a bound, or else that with the lesser Jain's index.
    fn worse(self, other: Self) -> Self {
        let rank = |verdict: &Self| (verdict.is_met, verdict.jain);
        if rank(&other) < rank(&self) { other } else { self }
    }
}

/// Time from the start of the last flow to the start of the measurement.
const SETTLE: Duration = Duration::from_secs(10);
/// Duration of the measurement.
const MEASURE: Duration = Duration::from_secs(30);

impl FairnessScenario {
    /// Runs the scenario in virtual time.
    pub fn run(&self) -> Verdict {
        self.verdict(&self.samples())
    }

    /// Runs the scenario with so many seeds, from its own up, and returns the worst verdict: one that misses a bound,
    /// or else that with the least Jain's index. A scenario with TCP runs once; `tests/scenarios/fairness_with_tcp.rs`
    /// judges its share with eight seeds.
    pub fn worst_of(&self, seeds: u64) -> Verdict {
        let of_one_kind = self.flows.windows(2).all(|pair| pair[0].kind == pair[1].kind);
        let more = if of_one_kind { seeds.saturating_sub(1) } else { 0 };
        let seeds = (1..=more).map(|offset| self.seed.wrapping_add(offset));
        let verdicts = seeds.map(|seed| Self { seed, ..self.clone() }.run());
        verdicts.fold(self.run(), Verdict::worse)
    }

    /// Runs the scenario and returns its samples.
    pub fn samples(&self) -> Vec<SharedLinkSample> {
        let link = self.link();
        SharedLink {
            up: link.clone(),
            down: link,
            flows: self.flows.clone(),
            duration: self.from() + MEASURE + SharedLink::SAMPLE,
            seed: self.seed,
        }
        .run()
    }

    fn link(&self) -> LinkConfig {
        queued(self.rate_mbps * 1_000_000, self.delay, self.queue, self.loss)
    }

    fn from(&self) -> Duration {
        self.flows.iter().map(|flow| flow.start).max().unwrap_or_default() + SETTLE
    }

    fn verdict(&self, samples: &[SharedLinkSample]) -> Verdict {
        let at = |time: Duration| samples.iter().find(|sample| sample.time >= time);
        let (a, b) = match (at(self.from()), samples.last()) {
            (Some(a), Some(b)) => (a, b),
            _ => return self.empty_verdict(),
        };
        let seconds = (b.time - a.time).as_secs_f64().max(1e-9);
        let rates = |a: &[u64], b: &[u64]| -> Vec<f64> {
            b.iter().zip(a).map(|(b, a)| (b - a) as f64 * 8e-6 / seconds).collect()
        };
        let throughput = rates(&a.link_bytes, &b.link_bytes);
        let total: f64 = throughput.iter().sum();
        let link = self.link();
        let waited = b.link.queue_byte_seconds - a.link.queue_byte_seconds;
        let offered = (b.link.offered - a.link.offered).max(1);
        let full = self.rate_mbps as f64 * 1_472.0 / 1_514.0 * (1.0 - self.loss);
        let mut verdict = Verdict {
            jain: jain_index(&rates(&a.received, &b.received)),
            share: throughput.first().map_or(0.0, |first| first / total.max(1e-9)),
            throughput_mbps: throughput,
            queue_mean: waited / seconds / link.queue_bytes.unwrap_or(1).max(1) as f64,
            queue_loss_percent: (b.link.dropped_queue - a.link.dropped_queue) as f64 * 100.0
                / offered as f64,
            utilisation: total / full,
            ..self.empty_verdict()
        };
        verdict.is_met = self.bounds.iter().all(|bound| match *bound {
            Bound::Jain(least) => verdict.jain >= least,
            Bound::Share(least, most) => (least..=most).contains(&verdict.share),
            Bound::Queue(most) => verdict.queue_mean <= most,
        });
        verdict
    }

    fn empty_verdict(&self) -> Verdict {
        let text = |bound: &Bound| match bound {
            Bound::Jain(least) => format!("Jain >= {least}"),
            Bound::Share(least, most) => format!("share {least} to {most}"),
            Bound::Queue(most) => format!("queue <= {most}"),
        };
        let bounds: Vec<String> = self.bounds.iter().map(text).collect();
        Verdict {
            name: self.name.clone(),
            seed: self.seed,
            queue_bdp: self.queue,
            loss_percent: self.loss * 100.0,
            throughput_mbps: Vec::new(),
            jain: 0.0,
            share: 0.0,
            queue_mean: 0.0,
            queue_loss_percent: 0.0,
            utilisation: 0.0,
            bound: if bounds.is_empty() { "-".to_owned() } else { bounds.join(", ") },
            withdrawn_goal: self.goal.as_ref().map(text).unwrap_or_default(),
            is_met: false,
        }
    }
}

/// `count` flows of one kind, each started `apart` after the previous one.
pub fn flows(kind: Kind, count: u32, apart: Duration) -> Vec<Flow> {
    (0..count).map(|number| Flow { kind, start: apart * number }).collect()
}

/// All scenarios of the table, on a link of 100 Mbit/s with a one-way delay of 20 ms.
pub fn scenarios(seed: u64) -> Vec<FairnessScenario> {
    let brtp = Kind::Brtp(CongestionAlgorithm::Ltcc);
    let base = |name: String, flows, queue, bounds| FairnessScenario {
        name,
        flows,
        rate_mbps: 100,
        delay: Duration::from_millis(20),
        queue,
        loss: 0.0,
        bounds,
        goal: None,
        seed,
    };
    let with_goal = |scenario: FairnessScenario, goal, bound| FairnessScenario {
        bounds: vec![bound],
        goal: Some(goal),
        ..scenario
    };
    let mut scenarios = Vec::new();
    // The least of the seeds 1 to 8 less 5 %, where the goal is not met (ADR 0024).
    for (count, apart, least) in
        [(2, 0, 0.97), (2, 3, 0.9), (4, 0, 0.92), (4, 3, 0.83), (8, 0, 0.9), (8, 3, 0.87)]
    {
        let flows = flows(brtp, count, Duration::from_secs(apart));
        let order = if apart == 0 { "together".to_owned() } else { format!("{apart} s apart") };
        let scenario = base(format!("{count} BRTP, {order}"), flows, 1.0, vec![Bound::Jain(0.97)]);
        scenarios.push(match least {
            0.97 => scenario,
            _ => with_goal(scenario, Bound::Jain(0.97), Bound::Jain(least)),
        });
    }
    let competitors = [
        (Kind::TcpCubic, "TCP CUBIC", Bound::Share(0.4, 0.76)),
        (Kind::TcpBbr, "TCP BBR", Bound::Share(0.12, 0.6)),
    ];
    for (kind, name, bound) in competitors {
        for queue in [0.5, 1.0, 4.0] {
            for (first, second, order) in
                [(0, 0, "together"), (0, 5, "BRTP first"), (5, 0, "TCP first")]
            {
                let flows = vec![
                    Flow { kind: brtp, start: Duration::from_secs(first) },
                    Flow { kind, start: Duration::from_secs(second) },
                ];
                // There is no goal for other queue lengths.
                let scenario = base(format!("BRTP vs {name}, {order}"), flows, queue, Vec::new());
                scenarios.push(match queue {
                    1.0 => with_goal(scenario, Bound::Share(0.4, 0.6), bound),
                    _ => scenario,
                });
            }
        }
    }
    let four = flows(brtp, 4, Duration::ZERO);
    let bounds = vec![Bound::Queue(0.5), Bound::Jain(0.6)];
    scenarios.push(FairnessScenario {
        loss: 0.05,
        goal: Some(Bound::Jain(0.97)),
        ..base("4 BRTP, 5 % loss".to_owned(), four, 1.0, bounds)
    });
    scenarios
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worse_verdict_misses_a_bound_or_has_the_lesser_index() {
        let verdict = |seed, is_met, jain| {
            let scenario = FairnessScenario { seed, ..scenarios(1).remove(0) };
            Verdict { is_met, jain, ..scenario.empty_verdict() }
        };
        let worst = |verdicts: [Verdict; 3]| verdicts.into_iter().reduce(Verdict::worse).unwrap();
        let all_met = [verdict(1, true, 0.98), verdict(2, true, 0.97), verdict(3, true, 0.99)];
        let found = worst(all_met);
        assert_eq!((found.seed, found.is_met), (2, true));
        // A missed bound of the queue counts more than a lesser index.
        let one_missed = [verdict(1, true, 0.98), verdict(2, false, 0.99), verdict(3, true, 0.9)];
        let found = worst(one_missed);
        assert_eq!((found.seed, found.is_met), (2, false));
    }
}
