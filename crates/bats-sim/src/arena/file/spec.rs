//! The keys of a file of cells.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::time::Duration;

use bats_netem::Loss;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::values::{Bytes, Given, Number, Percent, Queue, Rate, RateOrZero};

/// A file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSpec {
    pub(super) cells: Vec<Spanned<CellSpec>>,
}

/// A cell.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CellSpec {
    pub(super) name: String,
    #[serde(default)]
    pub(super) title: String,
    pub(super) hops: Vec<HopSpec>,
    #[serde(default)]
    pub(super) flows: Vec<FlowSpecification>,
    #[serde(default)]
    pub(super) changes: Vec<ChangeSpec>,
    #[serde(default)]
    pub(super) relays: bool,
    #[serde(default)]
    pub(super) ecn: bool,
    pub(super) warm_up: Option<Given<Duration>>,
    pub(super) measure: Option<Given<Duration>>,
    #[serde(default)]
    pub(super) goals: GoalSpec,
}

/// A hop: the direction of the data, and the settings that differ in the other direction.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HopSpec {
    pub(super) rate: Given<Rate>,
    #[serde(default)]
    pub(super) reverse: LinkSpec,
    pub(super) delay: Option<Given<Duration>>,
    pub(super) queue: Option<Given<Queue>>,
    pub(super) loss: Option<Given<Loss>>,
    pub(super) schedule: Option<ScheduleSpec>,
    pub(super) jitter: Option<Given<Duration>>,
    pub(super) reorder: Option<bool>,
    pub(super) duplicate: Option<Given<Percent>>,
    pub(super) corrupt: Option<Given<Percent>>,
    pub(super) holes: Option<HolesSpec>,
    pub(super) alternate_loss: Option<AlternateSpec>,
    pub(super) spikes: Option<SpikesSpec>,
    pub(super) policer: Option<PolicerSpec>,
    pub(super) discipline: Option<DisciplineName>,
    pub(super) contention: Option<Given<Duration>>,
    pub(super) slots: Option<Given<Duration>>,
    pub(super) keep_one_ack_of: Option<u32>,
    pub(super) down: Option<bool>,
    #[serde(default)]
    pub(super) flow_delays: Vec<Given<Duration>>,
}

impl HopSpec {
    /// The keys of the direction of the data.
    pub(super) fn forward(&self) -> LinkSpec {
        LinkSpec {
            rate: Some(self.rate),
            delay: self.delay,
            queue: self.queue,
            loss: self.loss,
            schedule: self.schedule.clone(),
            jitter: self.jitter,
            reorder: self.reorder,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            holes: self.holes,
            alternate_loss: self.alternate_loss,
            spikes: self.spikes,
            policer: self.policer,
            discipline: self.discipline,
            contention: self.contention,
            slots: self.slots,
            keep_one_ack_of: self.keep_one_ack_of,
            down: self.down,
        }
    }
}

/// A direction of a link, or the settings of it that change.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LinkSpec {
    pub(super) rate: Option<Given<Rate>>,
    pub(super) delay: Option<Given<Duration>>,
    pub(super) queue: Option<Given<Queue>>,
    pub(super) loss: Option<Given<Loss>>,
    pub(super) schedule: Option<ScheduleSpec>,
    pub(super) jitter: Option<Given<Duration>>,
    pub(super) reorder: Option<bool>,
    pub(super) duplicate: Option<Given<Percent>>,
    pub(super) corrupt: Option<Given<Percent>>,
    pub(super) holes: Option<HolesSpec>,
    pub(super) alternate_loss: Option<AlternateSpec>,
    pub(super) spikes: Option<SpikesSpec>,
    pub(super) policer: Option<PolicerSpec>,
    pub(super) discipline: Option<DisciplineName>,
    pub(super) contention: Option<Given<Duration>>,
    pub(super) slots: Option<Given<Duration>>,
    pub(super) keep_one_ack_of: Option<u32>,
    pub(super) down: Option<bool>,
}

/// A rate that changes with time: one of these.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ScheduleSpec {
    pub(super) steps: Option<Vec<StepSpec>>,
    pub(super) once: bool,
    pub(super) saw: Option<SawSpec>,
    pub(super) lte: Option<LteSpec>,
    pub(super) leo: Option<LeoSpec>,
    pub(super) trace: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepSpec {
    #[serde(rename = "for")]
    pub(super) length: Given<Duration>,
    pub(super) rate: Given<RateOrZero>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SawSpec {
    pub(super) low: Given<Rate>,
    pub(super) high: Given<Rate>,
    pub(super) rise: Given<Duration>,
    pub(super) fall: Option<Given<Duration>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LteSpec {
    pub(super) sigma: f64,
    pub(super) step: Given<Duration>,
    pub(super) correlation: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeoSpec {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) period: Given<Duration>,
    pub(super) delay_span: Option<Given<Duration>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HolesSpec {
    pub(super) every: Given<Duration>,
    pub(super) length: Given<Duration>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AlternateSpec {
    pub(super) loss: Given<Loss>,
    pub(super) every: Given<Duration>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpikesSpec {
    pub(super) extra: Given<Duration>,
    pub(super) length: Given<Duration>,
    pub(super) every: Given<Duration>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicerSpec {
    pub(super) rate: Given<Rate>,
    pub(super) bucket: Given<Bytes>,
    #[serde(default)]
    pub(super) per_flow: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DisciplineName {
    DropTail,
    Codel,
    FqCodel,
    Pie,
    StepMark,
}

/// A change of a hop.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeSpec {
    pub(super) at: Given<Duration>,
    #[serde(default)]
    pub(super) hop: usize,
    #[serde(default)]
    pub(super) reverse: bool,
    pub(super) set: LinkSpec,
}

/// A flow, or several equal ones.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowSpecification {
    /// `subject`, or the name of an algorithm.
    pub(super) algorithm: String,
    #[serde(default = "one")]
    pub(super) count: usize,
    pub(super) start: Option<Given<Duration>>,
    /// Between the starts of the flows of this entry.
    pub(super) apart: Option<Given<Duration>>,
    pub(super) end: Option<Given<Duration>>,
    #[serde(default)]
    pub(super) reverse: bool,
    pub(super) bytes: Option<Given<Bytes>>,
    pub(super) rate: Option<Given<Rate>>,
    pub(super) message: Option<usize>,
}

fn one() -> usize {
    1
}

/// Bounds, by measure.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GoalSpec {
    pub(super) efficiency: Option<Given<Number>>,
    pub(super) first_10s: Option<Given<Number>>,
    pub(super) queue_bdp: Option<Given<Number>>,
    pub(super) drops: Option<Given<Number>>,
    pub(super) start_drops: Option<Given<Number>>,
    pub(super) jain: Option<Given<Number>>,
    pub(super) share: Option<[Given<Number>; 2]>,
    pub(super) of_fair_share: Option<Given<Number>>,
    pub(super) latecomer: Option<Given<Number>>,
    pub(super) media_p95: Option<Given<Number>>,
    pub(super) non_innovative: Option<Given<Number>>,
    pub(super) relay_queue_bdp: Option<Given<Number>>,
    pub(super) of_best_peer: Option<Given<Number>>,
    pub(super) queue_over_peer_bdp: Option<Given<Number>>,
    pub(super) of_cubic: Option<Given<Number>>,
    pub(super) delay_of_cubic: Option<Given<Number>>,
    pub(super) completion_of_cubic: Option<Given<Number>>,
    pub(super) drops_over_bbr3: Option<Given<Number>>,
    pub(super) harm_over_cubic: Option<Given<Number>>,
}
