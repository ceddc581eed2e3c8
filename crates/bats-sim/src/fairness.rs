//! Who gets how much of a link that is shared.

use core::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::CongestionAlgorithm;
use serde::Serialize;

use crate::flows::jain_index;
use crate::links::queued;
use crate::shared::{Flow, Kind, Shared, SharedSample};

/// What is required of a scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Jain's index of the flows' goodput is at least this.
    Jain(f64),
    /// The first flow's share of what the link carries lies within these.
    Share(f64, f64),
    /// The mean queue is at most this share of its length.
    Queue(f64),
}

/// Flows that share a link, and what is required of them.
#[derive(Clone, Debug)]
pub struct Scene {
    /// In a few words.
    pub name: String,
    /// Who shares the link.
    pub flows: Vec<Flow>,
    /// Mbit/s of frames.
    pub rate_mbps: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Queue in bandwidth-delay products.
    pub queue: f64,
    /// Independent loss, both directions.
    pub loss: f64,
    /// What is required.
    pub bounds: Vec<Bound>,
    /// Decides every random choice.
    pub seed: u64,
}

/// What came of a scene.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Name of the scene.
    pub name: String,
    /// Queue in bandwidth-delay products.
    pub queue_bdp: f64,
    /// Loss, per cent.
    pub loss_percent: f64,
    /// Mbit/s of each flow through the link, headers and redundancy counted.
    pub carried_mbps: Vec<f64>,
    /// Jain's index of the goodput.
    pub jain: f64,
    /// Share of the first flow of what is carried.
    pub share: f64,
    /// Mean queue as a share of its length.
    pub queue_mean: f64,
    /// Packets dropped by the full queue, per cent.
    pub queue_loss_percent: f64,
    /// What is carried as a share of what the link can.
    pub utilisation: f64,
    /// Text of the bounds; a dash if the figure is for information.
    pub bound: String,
    /// Whether all bounds hold.
    pub is_met: bool,
}

/// What is measured begins this long after the last flow.
const SETTLE: Duration = Duration::from_secs(10);
/// And lasts this long.
const MEASURE: Duration = Duration::from_secs(30);

impl Scene {
    /// Runs the scene in virtual time.
    pub fn run(&self) -> Verdict {
        self.verdict(&self.samples())
    }

    /// Runs the scene; its samples.
    pub fn samples(&self) -> Vec<SharedSample> {
        let link = self.link();
        Shared {
            up: link.clone(),
            down: link,
            flows: self.flows.clone(),
            duration: self.from() + MEASURE + Shared::SAMPLE,
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

    fn verdict(&self, samples: &[SharedSample]) -> Verdict {
        let at = |time: Duration| samples.iter().find(|sample| sample.time >= time);
        let (a, b) = match (at(self.from()), samples.last()) {
            (Some(a), Some(b)) => (a, b),
            _ => return self.nothing(),
        };
        let seconds = (b.time - a.time).as_secs_f64().max(1e-9);
        let rates = |a: &[u64], b: &[u64]| -> Vec<f64> {
            b.iter().zip(a).map(|(b, a)| (b - a) as f64 * 8e-6 / seconds).collect()
        };
        let carried = rates(&a.carried, &b.carried);
        let total: f64 = carried.iter().sum();
        let link = self.link();
        let waited = b.link.queue_byte_seconds - a.link.queue_byte_seconds;
        let offered = (b.link.offered - a.link.offered).max(1);
        let full = self.rate_mbps as f64 * 1_472.0 / 1_514.0 * (1.0 - self.loss);
        let mut verdict = Verdict {
            jain: jain_index(&rates(&a.received, &b.received)),
            share: carried.first().map_or(0.0, |first| first / total.max(1e-9)),
            carried_mbps: carried,
            queue_mean: waited / seconds / link.queue_bytes.unwrap_or(1).max(1) as f64,
            queue_loss_percent: (b.link.dropped_queue - a.link.dropped_queue) as f64 * 100.0
                / offered as f64,
            utilisation: total / full,
            ..self.nothing()
        };
        verdict.is_met = self.bounds.iter().all(|bound| match *bound {
            Bound::Jain(least) => verdict.jain >= least,
            Bound::Share(least, most) => (least..=most).contains(&verdict.share),
            Bound::Queue(most) => verdict.queue_mean <= most,
        });
        verdict
    }

    fn nothing(&self) -> Verdict {
        let bounds: Vec<String> = self
            .bounds
            .iter()
            .map(|bound| match bound {
                Bound::Jain(least) => format!("Jain >= {least}"),
                Bound::Share(least, most) => format!("share {least} to {most}"),
                Bound::Queue(most) => format!("queue <= {most}"),
            })
            .collect();
        Verdict {
            name: self.name.clone(),
            queue_bdp: self.queue,
            loss_percent: self.loss * 100.0,
            carried_mbps: Vec::new(),
            jain: 0.0,
            share: 0.0,
            queue_mean: 0.0,
            queue_loss_percent: 0.0,
            utilisation: 0.0,
            bound: if bounds.is_empty() { "-".to_owned() } else { bounds.join(", ") },
            is_met: false,
        }
    }
}

/// `count` flows of one kind, `apart` from one another.
pub fn flows(kind: Kind, count: u32, apart: Duration) -> Vec<Flow> {
    (0..count).map(|number| Flow { kind, start: apart * number }).collect()
}

/// All scenes of the table, on a link of 100 Mbit/s and 20 ms one way.
pub fn scenes(seed: u64) -> Vec<Scene> {
    let brtp = Kind::Brtp(CongestionAlgorithm::Bbr);
    let base = |name: String, flows, queue, bounds| Scene {
        name,
        flows,
        rate_mbps: 100,
        delay: Duration::from_millis(20),
        queue,
        loss: 0.0,
        bounds,
        seed,
    };
    let mut scenes = Vec::new();
    for count in [2, 4, 8] {
        for (apart, how) in [(0, "together"), (3, "3 s apart")] {
            let flows = flows(brtp, count, Duration::from_secs(apart));
            scenes.push(base(format!("{count} BRTP, {how}"), flows, 1.0, vec![Bound::Jain(0.97)]));
        }
    }
    for (kind, name) in [(Kind::TcpCubic, "TCP CUBIC"), (Kind::TcpBbr, "TCP BBR")] {
        for queue in [0.5, 1.0, 4.0] {
            for (first, second, how) in
                [(0, 0, "together"), (0, 5, "BRTP first"), (5, 0, "TCP first")]
            {
                let flows = vec![
                    Flow { kind: brtp, start: Duration::from_secs(first) },
                    Flow { kind, start: Duration::from_secs(second) },
                ];
                // At other lengths the figure is for information.
                let bounds = if queue == 1.0 { vec![Bound::Share(0.4, 0.6)] } else { Vec::new() };
                scenes.push(base(format!("BRTP beside {name}, {how}"), flows, queue, bounds));
            }
        }
    }
    let four = flows(brtp, 4, Duration::ZERO);
    let bounds = vec![Bound::Queue(0.5), Bound::Jain(0.97)];
    scenes.push(Scene { loss: 0.05, ..base("4 BRTP, 5 % loss".to_owned(), four, 1.0, bounds) });
    scenes
}
