//! Elements of a link that few links have, as test files set them: schedules, queue disciplines,
//! policers, losses in time. `bats-netem` implements them.

use std::fmt;
use std::time::Duration;

use bats_netem::LinkConfig;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::quantities::{Bytes, LossModel, Rate, Share, Time};
use super::{Loss, TraceFile};

/// Seed of generated schedules that have none: so all protocols and repetitions of a test meet the
/// same rates.
const DEFAULT_SEED: u64 = 1;

/// An element, or `none`, which removes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OrNone<T> {
    /// Remove it.
    None,
    /// The element.
    Set(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OrNone<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`none`, or keys with values")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                if text == "none" {
                    return Ok(OrNone::None);
                }
                Err(E::custom(format!("`{text}` is not `none`, and no keys with values")))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OrNone::Set)
            }
        }
        deserializer.deserialize_any(Either(std::marker::PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for OrNone<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}OrNone", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "none" }, one] })
    }
}

/// A rate that changes with time, from the start of a tool on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RateSchedule {
    /// Rates, each for a time, from the beginning again after the last.
    Steps(Vec<RateStep>),
    /// The same once: the last remains.
    StepsOnce(Vec<RateStep>),
    /// Rises linearly, falls linearly, and begins again.
    Saw(Saw),
    /// A file in mahimahi's format, repeated; its name is relative to the test file.
    Trace(TraceFile),
    /// Generated, as of a cellular link.
    Lte(Lte),
    /// Generated, as of satellites in low orbit.
    Leo(Leo),
}

/// A step of a rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateStep {
    /// Rate: `10M`; 0 lets nothing pass.
    pub(crate) rate: Rate,
    /// Length of the step: `5s`.
    #[serde(rename = "for")]
    pub(crate) length: Time,
}

/// A rate that rises and falls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saw {
    /// Lowest rate.
    pub(crate) low: Rate,
    /// Highest rate.
    pub(crate) high: Rate,
    /// Time from low to high.
    pub(crate) rise: Time,
    /// Time from high to low; default: at once.
    pub(crate) fall: Option<Time>,
}

/// The logarithm of the rate is a first-order autoregression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lte {
    /// Long-run mean, before the limits.
    pub(crate) mean: Rate,
    /// Correlation of a step with the next, 0 to 1; default: 0.9.
    pub(crate) correlation: Option<f64>,
    /// Standard deviation of what a step adds to the logarithm; default: 0.35.
    pub(crate) sigma: Option<f64>,
    /// Length of a step; default: 100 ms.
    pub(crate) step: Option<Time>,
    /// Lowest rate; default: a fiftieth of the mean.
    pub(crate) floor: Option<Rate>,
    /// Highest rate; default: five times the mean.
    pub(crate) ceiling: Option<Rate>,
    /// Determines the rates; default: 1.
    pub(crate) seed: Option<u64>,
}

/// Another rate after each handover.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leo {
    /// Rate at factor 1.
    pub(crate) base: Rate,
    /// Least factor; default: 0.5.
    pub(crate) low: Option<f64>,
    /// Greatest factor; default: 1.5.
    pub(crate) high: Option<f64>,
    /// Time between handovers; default: 15 s.
    pub(crate) period: Option<Time>,
    /// Determines the factors; default: 1.
    pub(crate) seed: Option<u64>,
}

impl Lte {
    fn model(&self) -> bats_netem::LteRate {
        let default = bats_netem::LteRate::new(self.mean.0, self.seed.unwrap_or(DEFAULT_SEED));
        bats_netem::LteRate {
            correlation: self.correlation.unwrap_or(default.correlation),
            sigma: self.sigma.unwrap_or(default.sigma),
            step: self.step.map_or(default.step, |time| time.0),
            floor_bps: self.floor.map_or(default.floor_bps, |rate| rate.0),
            ceiling_bps: self.ceiling.map_or(default.ceiling_bps, |rate| rate.0),
            ..default
        }
    }
}

impl Leo {
    fn factors(&self) -> (f64, f64) {
        (self.low.unwrap_or(0.5), self.high.unwrap_or(1.5))
    }

    fn period(&self) -> Duration {
        self.period.map_or(Duration::from_secs(15), |time| time.0)
    }

    fn model(&self) -> bats_netem::LeoRate {
        let (low, high) = self.factors();
        let seed = self.seed.unwrap_or(DEFAULT_SEED);
        bats_netem::LeoRate { base_bps: self.base.0, low, high, period: self.period(), seed }
    }
}

impl RateSchedule {
    /// The schedule of `bats-netem`.
    ///
    /// # Errors
    /// If a trace cannot be read or the values are out of range.
    pub(crate) fn model(&self) -> Result<bats_netem::RateSchedule, String> {
        let steps = |steps: &[RateStep], repeat| {
            let steps: Vec<_> = steps.iter().map(|step| (step.length.0, step.rate.0)).collect();
            bats_netem::RateSchedule::steps(&steps, repeat).map_err(|error| error.to_string())
        };
        match self {
            Self::Steps(all) => steps(all, true),
            Self::StepsOnce(all) => steps(all, false),
            Self::Saw(saw) => {
                if saw.low.0 > saw.high.0 {
                    return Err(format!("`low` ({}) is above `high` ({})", saw.low, saw.high));
                }
                let fall = saw.fall.map_or(Duration::ZERO, |time| time.0);
                bats_netem::RateSchedule::saw(saw.low.0, saw.high.0, saw.rise.0, fall)
                    .map_err(|error| error.to_string())
            }
            Self::Trace(trace) => trace.schedule(),
            Self::Lte(lte) => Ok(bats_netem::RateSchedule::Lte(lte.model())),
            Self::Leo(leo) => Ok(bats_netem::RateSchedule::Leo(leo.model())),
        }
    }

    /// Mean rate in bits per second.
    pub(crate) fn mean_bps(&self) -> u64 {
        match self {
            Self::Trace(trace) => trace.mean_bps,
            Self::Lte(lte) => lte.mean.0,
            Self::Leo(leo) => {
                let (low, high) = leo.factors();
                (leo.base.0 as f64 * (low + high) / 2.0) as u64
            }
            Self::Steps(_) | Self::StepsOnce(_) | Self::Saw(_) => match self.model() {
                Ok(bats_netem::RateSchedule::Pieces(pieces)) => pieces.mean_bps(),
                _ => 0,
            },
        }
    }

    /// Mean rate in bits per second between two times, in seconds from its start.
    pub(crate) fn mean_between(&self, from: f64, to: f64) -> f64 {
        let at = |seconds: f64| {
            let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            bats_netem::Timestamp::ZERO + seconds
        };
        match self.model() {
            Ok(model) if to > from => {
                model.bits(bats_netem::Timestamp::ZERO, at(from), at(to)) / (to - from)
            }
            _ => self.mean_bps() as f64,
        }
    }
}

impl fmt::Display for RateSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = |steps: &[RateStep]| {
            const MAX_SHOWN: usize = 6;
            let of = |step: &RateStep| format!("{} for {}", step.rate, step.length);
            let mut shown: Vec<String> = steps.iter().take(MAX_SHOWN).map(of).collect();
            if steps.len() > MAX_SHOWN {
                shown.push(format!("{} more", steps.len() - MAX_SHOWN));
            }
            shown.join(", ")
        };
        match self {
            Self::Steps(all) => write!(f, "steps of the rate ({})", steps(all)),
            Self::StepsOnce(all) => write!(f, "steps of the rate, once ({})", steps(all)),
            Self::Saw(saw) => {
                write!(f, "rate from {} to {} within {}", saw.low, saw.high, saw.rise)?;
                match &saw.fall {
                    Some(fall) => write!(f, " and back within {fall}"),
                    None => Ok(()),
                }
            }
            Self::Trace(trace) => {
                write!(f, "trace {} (mean {})", trace.name(), Rate(trace.mean_bps))
            }
            Self::Lte(lte) => {
                let model = lte.model();
                write!(
                    f,
                    "LTE-like rate, mean {} ({} to {}, correlation {}, sigma {}, steps of {}, seed {})",
                    lte.mean,
                    Rate(model.floor_bps),
                    Rate(model.ceiling_bps),
                    model.correlation,
                    model.sigma,
                    Time(model.step),
                    model.seed
                )
            }
            Self::Leo(leo) => {
                let model = leo.model();
                write!(
                    f,
                    "LEO-like rate, {} to {} of {}, handovers each {}, seed {}",
                    model.low,
                    model.high,
                    leo.base,
                    Time(model.period),
                    model.seed
                )
            }
        }
    }
}

/// A delay in addition that changes with time, from the start of a tool on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DelaySchedule {
    /// Delays, each for a time, from the beginning again after the last.
    Steps(Vec<DelayStep>),
    /// The same once: the last remains.
    StepsOnce(Vec<DelayStep>),
    /// The last part of each period has a longer delay.
    Spikes(Spikes),
    /// Another delay after each handover of satellites.
    Leo(LeoDelay),
}

/// A step of a delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DelayStep {
    /// Additional delay: `20ms`.
    pub(crate) delay: Time,
    /// Length of the step: `5s`.
    #[serde(rename = "for")]
    pub(crate) length: Time,
}

/// Periodic spikes of the delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spikes {
    /// Additional delay in a spike.
    pub(crate) extra: Time,
    /// Length of a spike.
    pub(crate) length: Time,
    /// From the end of a spike to the end of the next.
    pub(crate) period: Time,
}

/// Delays of a link over satellites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeoDelay {
    /// Greatest additional delay; delays are uniform from 0.
    pub(crate) span: Time,
    /// Time between handovers; default: 15 s.
    pub(crate) period: Option<Time>,
    /// Determines the delays; default: 1.
    pub(crate) seed: Option<u64>,
}

impl DelaySchedule {
    fn model(&self) -> Result<bats_netem::DelaySchedule, String> {
        let steps = |all: &[DelayStep], repeat| {
            let all: Vec<_> = all.iter().map(|step| (step.length.0, step.delay.0)).collect();
            bats_netem::DelaySteps::new(&all, repeat)
                .map(bats_netem::DelaySchedule::Steps)
                .map_err(|error| error.to_string())
        };
        match self {
            Self::Steps(all) => steps(all, true),
            Self::StepsOnce(all) => steps(all, false),
            Self::Spikes(spikes) if spikes.length.0 >= spikes.period.0 => {
                Err("`length` of a spike must be less than the `period`".to_owned())
            }
            Self::Spikes(Spikes { extra, length, period }) => {
                let (extra, length, period) = (extra.0, length.0, period.0);
                Ok(bats_netem::DelaySchedule::Spikes { extra, length, period })
            }
            Self::Leo(leo) => Ok(bats_netem::DelaySchedule::Leo {
                period: leo.period.map_or(Duration::from_secs(15), |time| time.0),
                span: leo.span.0,
                seed: leo.seed.unwrap_or(DEFAULT_SEED),
            }),
        }
    }
}

impl fmt::Display for DelaySchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = |all: &[DelayStep]| {
            let of = |step: &DelayStep| format!("{} for {}", step.delay, step.length);
            all.iter().map(of).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Steps(all) => write!(f, "additional delay in steps ({})", steps(all)),
            Self::StepsOnce(all) => write!(f, "additional delay in steps, once ({})", steps(all)),
            Self::Spikes(Spikes { extra, length, period }) => {
                write!(f, "{extra} more delay for {length} of each {period}")
            }
            Self::Leo(leo) => write!(
                f,
                "0 to {} more delay, drawn each {}, seed {}",
                leo.span,
                leo.period.unwrap_or(Time(Duration::from_secs(15))),
                leo.seed.unwrap_or(DEFAULT_SEED)
            ),
        }
    }
}

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
    fn model(&self) -> bats_netem::Discipline {
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

/// A token bucket in front of the queue, which drops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Policer {
    /// Rate of the tokens.
    pub(crate) rate: Rate,
    /// Bytes that the bucket holds; it begins full.
    pub(crate) burst: Bytes,
    /// Whether each flow has a bucket of its own.
    #[serde(default)]
    pub(crate) per_flow: bool,
}

/// Of small packets of a flow that come in a row only some pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckThinning {
    /// Of so many packets one passes.
    pub(crate) keep_one_of: u32,
    /// How long a packet is held; default: 10 ms.
    pub(crate) window: Option<Time>,
    /// IP packets of at most so many bytes are thinned; default: 120.
    pub(crate) max_size: Option<Bytes>,
}

/// Waiting for a Wi-Fi medium that is shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contention {
    /// Jitter in all: `1ms` for little, `7ms` for a bad, `85ms` for a very bad medium.
    pub(crate) jitter: Time,
}

/// Packets arrive at slot boundaries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Slots {
    /// Distance of the boundaries.
    pub(crate) interval: Time,
    /// Packets that arrive at a boundary; default: no limit.
    pub(crate) limit: Option<u32>,
}

/// Another loss model that takes turns with `loss`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AlternateLoss {
    /// As `loss` of a link.
    pub(crate) loss: LossModel,
    /// Length of each turn; `loss` begins.
    pub(crate) every: Time,
}

/// Times in which nothing passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holes {
    /// The last part of each period.
    Periodic(PeriodicHoles),
    /// Gaps and lengths are exponentially distributed.
    Random(RandomHoles),
}

/// Periodic holes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeriodicHoles {
    /// From the end of a hole to the end of the next.
    pub(crate) period: Time,
    /// Length of a hole.
    pub(crate) length: Time,
}

/// Random holes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RandomHoles {
    /// Mean time from a hole to the next.
    pub(crate) mean_gap: Time,
    /// Mean length of a hole.
    pub(crate) mean_length: Time,
}

/// Loss that grows as the rate falls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fade {
    /// Rate from which on there is no loss by it.
    pub(crate) high: Rate,
    /// Rate up to which the loss is full.
    pub(crate) low: Rate,
    /// The full loss.
    pub(crate) loss: Share,
}

macro_rules! elements {
    ($($field:ident: $kind:ty),* $(,)?) => {
        /// Elements of one direction of a link.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub(crate) struct Elements {
            $(#[serde(skip_serializing_if = "Option::is_none")] pub(crate) $field: Option<$kind>,)*
            /// How the queue is managed.
            pub(crate) discipline: Discipline,
            /// Further limit of the queue, in packets.
            pub(crate) queue_packets: Option<u32>,
            /// Additional delay of each flow, in turn.
            pub(crate) flow_delays: Vec<Time>,
            /// Whether preamble, check sequence and gap use the rate.
            pub(crate) ethernet_overhead: bool,
        }

        /// Changes to the elements; `None` leaves one unchanged.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub(crate) struct ElementChanges {
            $(pub(crate) $field: Option<OrNone<$kind>>,)*
            pub(crate) discipline: Option<Discipline>,
            /// 0 for no limit.
            pub(crate) queue_packets: Option<u32>,
            pub(crate) flow_delays: Option<Vec<Time>>,
            pub(crate) ethernet_overhead: Option<bool>,
        }

        impl ElementChanges {
            /// Applies the changes.
            pub(crate) fn apply(&self, elements: &mut Elements) {
                $(match &self.$field {
                    None => {}
                    Some(OrNone::None) => elements.$field = None,
                    Some(OrNone::Set(value)) => elements.$field = Some(value.clone()),
                })*
                if let Some(discipline) = &self.discipline {
                    elements.discipline = discipline.clone();
                }
                if let Some(packets) = self.queue_packets {
                    elements.queue_packets = (packets > 0).then_some(packets);
                }
                if let Some(delays) = &self.flow_delays {
                    elements.flow_delays = delays.clone();
                }
                if let Some(is_on) = self.ethernet_overhead {
                    elements.ethernet_overhead = is_on;
                }
            }

            /// Adds the settings of `other`, which replace those of `self`.
            pub(crate) fn extend(&mut self, other: Self) {
                $(if other.$field.is_some() {
                    self.$field = other.$field;
                })*
                if other.discipline.is_some() {
                    self.discipline = other.discipline;
                }
                self.queue_packets = other.queue_packets.or(self.queue_packets);
                if other.flow_delays.is_some() {
                    self.flow_delays = other.flow_delays;
                }
                self.ethernet_overhead = other.ethernet_overhead.or(self.ethernet_overhead);
            }

            /// A description of each change.
            pub(crate) fn describe(&self) -> Vec<String> {
                let mut all = Vec::new();
                $(if matches!(self.$field, Some(OrNone::None)) {
                    all.push(concat!(stringify!($field), " none").to_owned());
                })*
                let mut set = Elements::default();
                self.apply(&mut set);
                if let Some(schedule) = &set.rate_schedule {
                    all.push(schedule.to_string());
                }
                let text = set.to_string();
                if !text.is_empty() {
                    all.push(text.trim_start_matches(", ").to_owned());
                }
                if self.discipline == Some(Discipline::DropTail) {
                    all.push(Discipline::DropTail.to_string());
                }
                if self.queue_packets == Some(0) {
                    all.push("queue_packets 0".to_owned());
                }
                if self.flow_delays.as_ref().is_some_and(Vec::is_empty) {
                    all.push("flow_delays []".to_owned());
                }
                if self.ethernet_overhead == Some(false) {
                    all.push("ethernet_overhead false".to_owned());
                }
                all
            }
        }
    };
}

elements! {
    rate_schedule: RateSchedule,
    delay_schedule: DelaySchedule,
    policer: Policer,
    ack_thinning: AckThinning,
    contention: Contention,
    slots: Slots,
    alternate_loss: AlternateLoss,
    holes: Holes,
    fade: Fade,
}

/// Bytes of an Ethernet frame on the wire beyond header and payload: check sequence, preamble, gap.
const BEYOND_FRAME: usize = 24;
/// Ethernet header in bytes.
const ETHERNET: usize = 14;

impl Elements {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nothing changes with time, drops at random or depends on the flow.
    pub(crate) fn is_steady(&self) -> bool {
        let Self {
            rate_schedule,
            delay_schedule,
            policer,
            ack_thinning,
            contention,
            slots,
            alternate_loss,
            holes,
            fade,
            discipline,
            queue_packets: _,
            flow_delays,
            ethernet_overhead,
        } = self;
        rate_schedule.is_none()
            && delay_schedule.is_none()
            && policer.is_none()
            && ack_thinning.is_none()
            && contention.is_none()
            && slots.is_none()
            && alternate_loss.is_none()
            && holes.is_none()
            && fade.is_none()
            && *discipline == Discipline::DropTail
            && flow_delays.is_empty()
            && !ethernet_overhead
    }

    /// Long-term loss of `loss` and the model that takes turns with it.
    pub(crate) fn mean_loss(&self, loss: &Loss) -> f64 {
        match &self.alternate_loss {
            Some(other) => f64::midpoint(loss.mean(), other.loss.0.mean()),
            None => loss.mean(),
        }
    }

    /// Share of the time in which nothing passes.
    pub(crate) fn in_holes(&self) -> f64 {
        let share = |length: Time, of: Duration| {
            (length.0.as_secs_f64() / of.as_secs_f64().max(1e-9)).min(1.0)
        };
        match &self.holes {
            None => 0.0,
            Some(Holes::Periodic(holes)) => share(holes.length, holes.period.0),
            Some(Holes::Random(holes)) => {
                share(holes.mean_length, holes.mean_gap.0 + holes.mean_length.0)
            }
        }
    }

    /// Sets the elements in the configuration of a link, whose packets are IP packets with
    /// `header` bytes less or more: positive for frames, negative for UDP payload.
    ///
    /// # Errors
    /// If a trace cannot be read or a value is out of range.
    pub(crate) fn configure(&self, config: &mut LinkConfig, header: isize) -> Result<(), String> {
        config.rate_schedule = self.rate_schedule.as_ref().map(RateSchedule::model).transpose()?;
        config.delay_schedule =
            self.delay_schedule.as_ref().map(DelaySchedule::model).transpose()?;
        config.discipline = self.discipline.model();
        config.queue_packets = self.queue_packets.map(|packets| packets as usize);
        config.policer = self.policer.as_ref().map(|policer| bats_netem::Policer {
            rate_bps: policer.rate.0,
            burst_bytes: policer.burst.0 as usize,
            per_flow: policer.per_flow,
        });
        config.thinning = self.ack_thinning.as_ref().map(|thinning| {
            let size = thinning.max_size.map_or(120, |size| size.0);
            bats_netem::AckThinning {
                max_len: usize::try_from(size).unwrap_or(usize::MAX).saturating_add_signed(header),
                keep_one_of: thinning.keep_one_of,
                window: thinning.window.map_or(Duration::from_millis(10), |window| window.0),
            }
        });
        config.flow_delays = self.flow_delays.iter().map(|delay| delay.0).collect();
        config.contention =
            self.contention.as_ref().map(|one| bats_netem::Contention::wifi(one.jitter.0));
        config.slots = self.slots.as_ref().map(|slots| bats_netem::Slots {
            interval: slots.interval.0,
            limit: slots.limit.unwrap_or(0),
        });
        config.alternate_loss = self.alternate_loss.as_ref().map(|other| {
            bats_netem::AlternateLoss { loss: other.loss.0.model(), every: other.every.0 }
        });
        config.holes = self.holes.as_ref().map(|holes| match holes {
            Holes::Periodic(holes) => {
                bats_netem::Holes::Periodic { period: holes.period.0, length: holes.length.0 }
            }
            Holes::Random(holes) => bats_netem::Holes::Random {
                mean_gap: holes.mean_gap.0,
                mean_length: holes.mean_length.0,
            },
        });
        config.fade = self.fade.as_ref().map(|fade| bats_netem::Fade {
            high_bps: fade.high.0,
            low_bps: fade.low.0,
            loss: fade.loss.0,
        });
        if self.ethernet_overhead {
            config.frame_overhead += BEYOND_FRAME;
        }
        config.validate().map_err(|error| error.to_string())
    }

    /// The difference of a frame with its Ethernet header to the IP packet, for
    /// [`Elements::configure`].
    pub(crate) const FRAMES: isize = ETHERNET as isize;
    /// The same of the UDP payload of an IPv4 packet.
    pub(crate) const UDP_PAYLOAD: isize = -(bats_netem::IPV4_UDP_HEADERS as isize);
}

impl fmt::Display for Elements {
    /// All but the schedule of the rate, which stands in place of the rate.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.discipline != Discipline::DropTail {
            write!(f, ", {}", self.discipline)?;
        }
        if let Some(packets) = self.queue_packets {
            write!(f, ", queue of at most {packets} packets")?;
        }
        if let Some(policer) = &self.policer {
            let each = if policer.per_flow { " for each flow" } else { "" };
            write!(f, ", policer of {} and {}{each}", policer.rate, policer.burst)?;
        }
        if let Some(schedule) = &self.delay_schedule {
            write!(f, ", {schedule}")?;
        }
        if !self.flow_delays.is_empty() {
            let all: Vec<String> = self.flow_delays.iter().map(ToString::to_string).collect();
            write!(f, ", more delay by flow: {}", all.join(", "))?;
        }
        if let Some(contention) = &self.contention {
            write!(f, ", Wi-Fi contention of {}", contention.jitter)?;
        }
        if let Some(slots) = &self.slots {
            write!(f, ", arrivals each {}", slots.interval)?;
            if let Some(limit) = slots.limit.filter(|&limit| limit > 0) {
                write!(f, ", at most {limit}")?;
            }
        }
        if let Some(other) = &self.alternate_loss {
            write!(f, ", in turns of {} loss {}", other.every, other.loss.0)?;
        }
        match &self.holes {
            None => {}
            Some(Holes::Periodic(holes)) => {
                write!(f, ", nothing passes for {} of each {}", holes.length, holes.period)?;
            }
            Some(Holes::Random(holes)) => write!(
                f,
                ", nothing passes for {} about each {} (means, random)",
                holes.mean_length, holes.mean_gap
            )?,
        }
        if let Some(fade) = &self.fade {
            write!(f, ", loss up to {} from {} down to {}", fade.loss, fade.high, fade.low)?;
        }
        if let Some(thinning) = &self.ack_thinning {
            write!(f, ", one of {} ACKs passes", thinning.keep_one_of)?;
            write!(f, " (within {}", thinning.window.unwrap_or(Time(Duration::from_millis(10))))?;
            write!(f, ", up to {})", thinning.max_size.unwrap_or(Bytes(120)))?;
        }
        if self.ethernet_overhead {
            write!(f, ", with Ethernet overhead")?;
        }
        Ok(())
    }
}
