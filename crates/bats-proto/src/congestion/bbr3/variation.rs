//! The mechanisms that make `ltcc` of BBRv3, and their constants. Experiments switch one off or scale
//! one, by the name of the algorithm: `ltcc/without-light-probes`, `ltcc/light-gain*2`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::fmt;

/// A mechanism beyond the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// The path's own loss, as trials show it, is no congestion.
    LossCredit,
    /// A growing queue ends Startup and ProbeBW_UP.
    DelayExit,
    /// While a queue stands in ProbeBW_CRUISE, the flow sends less than its bandwidth.
    QueueDrain,
    /// While no queue stands in ProbeBW_CRUISE, the flow sends a little more than its bandwidth.
    LightProbes,
    /// A round trip close to the minimum puts ProbeRTT off.
    FreshMinRtt,
    /// Probe time-outs do not reduce the window: what is in flight bounds it while nothing arrives.
    SteadyTimeout,
    /// The window may fall to two packets.
    SmallPipe,
    /// Startup goes on when trials have shown that it ended for the path's own loss.
    ResumedStartup,
    /// Startup follows the rate of the last part of a round trip.
    FastStartup,
    /// A delay that rises at once and stays is the path's.
    DelayStep,
    /// The window covers what is delivered while acknowledgements wait in the reverse direction.
    ReverseWindow,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LossCredit,
        Self::DelayExit,
        Self::QueueDrain,
        Self::LightProbes,
        Self::FreshMinRtt,
        Self::SteadyTimeout,
        Self::SmallPipe,
        Self::ResumedStartup,
        Self::FastStartup,
        Self::DelayStep,
        Self::ReverseWindow,
    ];

    /// The name, as after `ltcc/without-`.
    pub fn name(self) -> &'static str {
        match self {
            Self::LossCredit => "loss-credit",
            Self::DelayExit => "delay-exit",
            Self::QueueDrain => "queue-drain",
            Self::LightProbes => "light-probes",
            Self::FreshMinRtt => "fresh-min-rtt",
            Self::SteadyTimeout => "steady-timeout",
            Self::SmallPipe => "small-pipe",
            Self::ResumedStartup => "resumed-startup",
            Self::FastStartup => "fast-startup",
            Self::DelayStep => "delay-step",
            Self::ReverseWindow => "reverse-window",
        }
    }
}

/// A constant of the mechanisms that no document gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Constant {
    /// Rounds for which a queue stands until every loss counts.
    StandingRounds,
    /// Rounds in the mean of the delivery rate.
    MeanRounds,
    /// Most that the bandwidth may exceed the mean delivery rate.
    MaxOverMean,
    /// Least size of the pool of trial packets.
    PoolPackets,
    /// Size of that pool in runs of losses.
    PoolRuns,
    /// Packets of trials before they say anything.
    MinEvidence,
    /// Largest loss that is credited.
    MaxCredit,
    /// Standard deviations of chance that are forgiven.
    Sigma,
    /// Seconds between trials.
    TrialPeriod,
    /// Trials take at most one part in this many of the time.
    TrialSpacing,
    /// What a light probe sends above the bandwidth.
    LightGain,
    /// Rounds of a light probe without growth, after which it waits for the next cycle.
    LightRounds,
}

impl Constant {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::StandingRounds,
        Self::MeanRounds,
        Self::MaxOverMean,
        Self::PoolPackets,
        Self::PoolRuns,
        Self::MinEvidence,
        Self::MaxCredit,
        Self::Sigma,
        Self::TrialPeriod,
        Self::TrialSpacing,
        Self::LightGain,
        Self::LightRounds,
    ];

    /// The name, as after `ltcc/`.
    pub fn name(self) -> &'static str {
        match self {
            Self::StandingRounds => "standing-rounds",
            Self::MeanRounds => "mean-rounds",
            Self::MaxOverMean => "max-over-mean",
            Self::PoolPackets => "pool-packets",
            Self::PoolRuns => "pool-runs",
            Self::MinEvidence => "min-evidence",
            Self::MaxCredit => "max-credit",
            Self::Sigma => "sigma",
            Self::TrialPeriod => "trial-period",
            Self::TrialSpacing => "trial-spacing",
            Self::LightGain => "light-gain",
            Self::LightRounds => "light-rounds",
        }
    }

    const fn default(self) -> f64 {
        match self {
            Self::StandingRounds => 4.0,
            Self::MeanRounds => 6.0,
            Self::MaxOverMean => 3.0,
            Self::PoolPackets => 600.0,
            Self::PoolRuns => 60.0,
            Self::MinEvidence => 40.0,
            Self::MaxCredit => 0.6,
            Self::Sigma => 2.0,
            Self::TrialPeriod => 4.0,
            Self::TrialSpacing => 8.0,
            Self::LightGain => 1.0 / 16.0,
            Self::LightRounds => 6.0,
        }
    }
}

/// `ltcc` with at most one mechanism switched off and one constant scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Variation {
    /// The mechanism that is off.
    pub without: Option<Mechanism>,
    /// The constant that is multiplied by this factor.
    pub scaled: Option<(Constant, f64)>,
}

/// Largest and smallest factor of a constant.
const FACTORS: core::ops::RangeInclusive<f64> = 0.1..=10.0;

impl Variation {
    /// Parses what follows `ltcc/`: `without-MECHANISM`, or `CONSTANT*FACTOR` with a factor from 0.1
    /// to 10.
    pub(in crate::congestion) fn parse(text: &str) -> Option<Self> {
        if let Some(name) = text.strip_prefix("without-") {
            let mechanism = Mechanism::ALL.into_iter().find(|known| known.name() == name)?;
            return Some(Self { without: Some(mechanism), scaled: None });
        }
        let (name, factor) = text.split_once('*')?;
        let constant = Constant::ALL.into_iter().find(|known| known.name() == name)?;
        let factor = factor.parse().ok().filter(|factor| FACTORS.contains(factor))?;
        Some(Self { without: None, scaled: Some((constant, factor)) })
    }

    pub(super) fn has(&self, mechanism: Mechanism) -> bool {
        self.without != Some(mechanism)
    }

    pub(super) fn value(&self, constant: Constant) -> f64 {
        match self.scaled {
            Some((scaled, factor)) if scaled == constant => constant.default() * factor,
            _ => constant.default(),
        }
    }
}

impl fmt::Display for Variation {
    /// The form that follows `ltcc/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.without, self.scaled) {
            (Some(mechanism), _) => write!(f, "without-{}", mechanism.name()),
            (None, Some((constant, factor))) => write!(f, "{}*{factor}", constant.name()),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn every_variation_is_read_back_and_changes_what_it_names() {
        for mechanism in Mechanism::ALL {
            let variation = Variation { without: Some(mechanism), scaled: None };
            assert_eq!(Variation::parse(&variation.to_string()), Some(variation));
            assert!(!variation.has(mechanism));
            assert_eq!(
                Mechanism::ALL.into_iter().filter(|&other| variation.has(other)).count(),
                10
            );
        }
        for constant in Constant::ALL {
            let variation = Variation { without: None, scaled: Some((constant, 0.5)) };
            assert_eq!(Variation::parse(&variation.to_string()), Some(variation));
            assert_eq!(variation.value(constant) * 2.0, Variation::default().value(constant));
        }
    }

    #[test]
    fn unknown_names_and_factors_out_of_range_are_refused() {
        for text in
            ["", "without-", "without-all", "sigma", "sigma*", "sigma*0", "sigma*nan", "x*2"]
        {
            assert_eq!(Variation::parse(text), None, "{text}");
        }
    }
}
