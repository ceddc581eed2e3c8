//! Additional delays that change with time, as test files set them.
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
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantities::Time;
use super::rate_schedule::DEFAULT_SEED;

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
    pub(super) fn model(&self) -> Result<bats_netem::DelaySchedule, String> {
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
