//! Rates that change with time, as test files set them.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TraceFile;
use super::quantities::{Rate, Time};

/// Seed of generated schedules that have none: so all protocols and repetitions of a test meet the
/// same rates.
pub(super) const DEFAULT_SEED: u64 = 1;

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
            let more = steps.len().saturating_sub(MAX_SHOWN);
            if more > 0 {
                shown.push(format!("{more} more"));
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
