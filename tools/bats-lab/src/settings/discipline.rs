//! Queue disciplines, as test files set them.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::quantities::{Bytes, Time};

/// How a queue is managed: a name, or a name with parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Discipline {
    /// First in, first out; full queues drop what arrives.
    #[default]
    DropTail,
    /// RFC 8289.
    Codel(CoDel),
    /// RFC 8290.
    FqCodel(FqCoDel),
    /// RFC 8033.
    Pie(Pie),
    /// Marks ECN-capable packets above a delay (RFC 9332).
    StepMark(StepMark),
}

/// Parameters of CoDel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CoDel {
    /// Acceptable delay; default: 5 ms.
    pub(crate) target: Option<Time>,
    /// Time that the delay must persist; default: 100 ms.
    pub(crate) interval: Option<Time>,
    /// Whether ECN-capable packets are marked instead of dropped; default: true.
    pub(crate) ecn: Option<bool>,
}

/// Parameters of FQ-CoDel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FqCoDel {
    /// As in `codel`.
    pub(crate) target: Option<Time>,
    /// As in `codel`.
    pub(crate) interval: Option<Time>,
    /// As in `codel`.
    pub(crate) ecn: Option<bool>,
    /// Bytes that a flow may send in a turn; default: 1514.
    pub(crate) quantum: Option<Bytes>,
    /// Number of queues; default: 1024.
    pub(crate) flows: Option<u32>,
}

/// Parameters of PIE.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pie {
    /// Delay to keep; default: 15 ms.
    pub(crate) target: Option<Time>,
    /// Time between updates; default: 15 ms.
    pub(crate) update: Option<Time>,
    /// Time in which bursts pass without drops; default: 150 ms.
    pub(crate) max_burst: Option<Time>,
    /// Whether ECN-capable packets are marked instead of dropped; default: true.
    pub(crate) ecn: Option<bool>,
}

/// Parameters of step marking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StepMark {
    /// Delay above which packets are marked; default: 1 ms.
    pub(crate) threshold: Option<Time>,
}

impl<'de> Deserialize<'de> for Discipline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NAMES: &[&str] = &["drop_tail", "codel", "fq_codel", "pie", "step_mark"];
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum WithParameters {
            Codel(CoDel),
            FqCodel(FqCoDel),
            Pie(Pie),
            StepMark(StepMark),
        }
        struct NameOrMap;
        impl<'de> Visitor<'de> for NameOrMap {
            type Value = Discipline;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name, or a name with parameters")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Discipline, E> {
                match text {
                    "drop_tail" => Ok(Discipline::DropTail),
                    "codel" => Ok(Discipline::Codel(CoDel::default())),
                    "fq_codel" => Ok(Discipline::FqCodel(FqCoDel::default())),
                    "pie" => Ok(Discipline::Pie(Pie::default())),
                    "step_mark" => Ok(Discipline::StepMark(StepMark::default())),
                    _ => Err(E::unknown_variant(text, NAMES)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Discipline, A::Error> {
                WithParameters::deserialize(MapAccessDeserializer::new(map)).map(|one| match one {
                    WithParameters::Codel(codel) => Discipline::Codel(codel),
                    WithParameters::FqCodel(fq_codel) => Discipline::FqCodel(fq_codel),
                    WithParameters::Pie(pie) => Discipline::Pie(pie),
                    WithParameters::StepMark(step_mark) => Discipline::StepMark(step_mark),
                })
            }
        }
        deserializer.deserialize_any(NameOrMap)
    }
}

fn codel(target: Option<Time>, interval: Option<Time>, ecn: Option<bool>) -> bats_netem::CoDel {
    let default = bats_netem::CoDel::default();
    bats_netem::CoDel {
        target: target.map_or(default.target, |time| time.0),
        interval: interval.map_or(default.interval, |time| time.0),
        ecn: ecn.unwrap_or(default.ecn),
        ..default
    }
}

impl Discipline {
    pub(super) fn model(&self) -> bats_netem::Discipline {
        match self {
            Self::DropTail => bats_netem::Discipline::DropTail,
            Self::Codel(CoDel { target, interval, ecn }) => {
                bats_netem::Discipline::CoDel(codel(*target, *interval, *ecn))
            }
            Self::FqCodel(FqCoDel { target, interval, ecn, quantum, flows }) => {
                let default = bats_netem::FqCoDel::default();
                bats_netem::Discipline::FqCoDel(bats_netem::FqCoDel {
                    codel: codel(*target, *interval, *ecn),
                    quantum: quantum.map_or(default.quantum, |bytes| bytes.0 as usize),
                    flows: flows.map_or(default.flows, |flows| flows as usize),
                })
            }
            Self::Pie(Pie { target, update, max_burst, ecn }) => {
                let default = bats_netem::Pie::default();
                bats_netem::Discipline::Pie(bats_netem::Pie {
                    target: target.map_or(default.target, |time| time.0),
                    update: update.map_or(default.update, |time| time.0),
                    max_burst: max_burst.map_or(default.max_burst, |time| time.0),
                    ecn: ecn.unwrap_or(default.ecn),
                    ..default
                })
            }
            Self::StepMark(StepMark { threshold }) => {
                let default = bats_netem::StepMark::default();
                let threshold = threshold.map_or(default.threshold, |time| time.0);
                bats_netem::Discipline::StepMark(bats_netem::StepMark { threshold })
            }
        }
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ecn = |ecn: bool| if ecn { "" } else { ", without ECN" };
        let time = |time| Time(time).to_string();
        match self.model() {
            bats_netem::Discipline::DropTail => f.write_str("drop-tail queue"),
            bats_netem::Discipline::CoDel(one) => {
                let (target, interval) = (time(one.target), time(one.interval));
                write!(f, "CoDel (target {target}, interval {interval}{})", ecn(one.ecn))
            }
            bats_netem::Discipline::FqCoDel(one) => {
                let (target, interval) = (time(one.codel.target), time(one.codel.interval));
                let ecn = ecn(one.codel.ecn);
                write!(
                    f,
                    "FQ-CoDel (target {target}, interval {interval}, quantum {}, {} queues{ecn})",
                    one.quantum, one.flows
                )
            }
            bats_netem::Discipline::Pie(one) => {
                let [target, update, burst] = [one.target, one.update, one.max_burst].map(time);
                write!(f, "PIE (target {target}, updates each {update}, bursts of {burst}")?;
                write!(f, "{})", ecn(one.ecn))
            }
            bats_netem::Discipline::StepMark(one) => {
                write!(f, "marks above {}", time(one.threshold))
            }
        }
    }
}
