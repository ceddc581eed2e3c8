//! Loss models of a link.
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

use serde::{Deserialize, Serialize};

use super::percent;
use crate::units;

/// Steps after which the correlation of a loss model is neglected.
const MAX_LAG: usize = 100_000;

/// Loss model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loss {
    /// Independent loss of each frame with this probability.
    Independent(f64),
    /// Gilbert-Elliott: two states with a loss each.
    GilbertElliott {
        /// Probability per frame to enter the bad state.
        enter: f64,
        /// Probability per frame to leave the bad state.
        leave: f64,
        /// Loss in the bad state.
        in_bad: f64,
        /// Loss in the good state.
        in_good: f64,
    },
    /// Four states as `loss state` of netem has them: 1 receives in a gap, 2 receives in a burst, 3
    /// loses in a burst, 4 loses one frame in a gap.
    FourState { p13: f64, p31: f64, p32: f64, p23: f64, p14: f64 },
}

impl Loss {
    /// Reads `10%`, `ge:1%,9%` or `4state:2%,20%,10%,30%,1%`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let all = |list: &str| -> Result<Vec<f64>, String> {
            list.split(',').map(|one| units::percentage(one.trim())).collect()
        };
        let wrong = || {
            format!(
                "`{text}` is not a loss: use for example 10%, ge:ENTER%,LEAVE%[,IN_BAD%[,IN_GOOD%]] or 4state:P13%,P31%,P32%,P23%,P14%"
            )
        };
        if let Some(list) = text.strip_prefix("ge:") {
            let (enter, leave, in_bad, in_good) = match *all(list)?.as_slice() {
                [enter, leave] => (enter, leave, 1.0, 0.0),
                [enter, leave, in_bad] => (enter, leave, in_bad, 0.0),
                [enter, leave, in_bad, in_good] => (enter, leave, in_bad, in_good),
                _ => return Err(wrong()),
            };
            if leave == 0.0 {
                return Err(format!("`{text}` would never leave the bad state"));
            }
            return Ok(Self::GilbertElliott { enter, leave, in_bad, in_good });
        }
        if let Some(list) = text.strip_prefix("4state:") {
            let [p13, p31, p32, p23, p14] = *all(list)?.as_slice() else { return Err(wrong()) };
            if p13 + p14 > 1.0 || p31 + p32 > 1.0 {
                return Err(format!(
                    "`{text}` leaves a state with more than 100 %: P13 + P14 and P31 + P32 are at most 100%"
                ));
            }
            if p13 > 0.0 && (p31 == 0.0 || p32 > 0.0 && p23 == 0.0) {
                return Err(format!("`{text}` would never leave a burst: set P31 and P23"));
            }
            return Ok(Self::FourState { p13, p31, p32, p23, p14 });
        }
        units::percentage(text).map(Self::Independent)
    }

    /// The text that [`Loss::parse`] reads.
    pub(crate) fn text(&self) -> String {
        let list = |all: &[f64]| {
            let all: Vec<String> = all.iter().map(|one| format!("{}%", one * 100.0)).collect();
            all.join(",")
        };
        match *self {
            Self::Independent(rate) => list(&[rate]),
            Self::GilbertElliott { enter, leave, in_bad, in_good } => {
                format!("ge:{}", list(&[enter, leave, in_bad, in_good]))
            }
            Self::FourState { p13, p31, p32, p23, p14 } => {
                format!("4state:{}", list(&[p13, p31, p32, p23, p14]))
            }
        }
    }

    /// The model of `bats-netem`.
    pub(crate) fn model(self) -> bats_netem::Loss {
        match self {
            Self::Independent(0.0) => bats_netem::Loss::None,
            Self::Independent(fraction) => bats_netem::Loss::Iid(fraction),
            Self::GilbertElliott { enter, leave, in_bad, in_good } => {
                bats_netem::Loss::GilbertElliott {
                    good_to_bad: enter,
                    bad_to_good: leave,
                    loss_good: in_good,
                    loss_bad: in_bad,
                }
            }
            Self::FourState { p13, p31, p32, p23, p14 } => {
                bats_netem::Loss::FourState { p13, p31, p32, p23, p14 }
            }
        }
    }

    /// Long-term loss probability.
    pub(crate) fn mean(self) -> f64 {
        self.model().mean()
    }

    /// Standard deviation of the measured loss relative to that of independent loss.
    pub(crate) fn burst_factor(self) -> f64 {
        let mean = self.mean();
        let variance = mean * (1.0 - mean);
        if variance <= 0.0 {
            return 1.0;
        }
        // Variance of a mean of many frames: 1 + 2 (sum of the correlations over all lags).
        let correlations = match self {
            Self::Independent(_) => 0.0,
            Self::GilbertElliott { enter, leave, in_bad, in_good } => {
                let bad = enter / (enter + leave);
                let of_states = bad * (1.0 - bad) * (in_bad - in_good).powi(2) / variance;
                of_states * (1.0 - enter - leave) / (enter + leave)
            }
            Self::FourState { p13, p31, p32, p23, p14 } => {
                let next = |[one, two, three, four]: [f64; 4]| {
                    [
                        one * (1.0 - p13 - p14) + three * p31 + four,
                        two * (1.0 - p23) + three * p32,
                        three * (1.0 - p31 - p32) + one * p13 + two * p23,
                        one * p14,
                    ]
                };
                // Visits of the states in the long run, of which those that lose begin each lag.
                let visits = [p31 * p23, p13 * p32, p13 * p23, p31 * p23 * p14];
                let sum: f64 = visits.iter().sum();
                let mut state = [0.0, 0.0, visits[2] / sum, visits[3] / sum];
                let mut total = 0.0;
                for _ in 0..MAX_LAG {
                    state = next(state);
                    let covariance = state[2] + state[3] - mean * mean;
                    total += covariance / variance;
                    if covariance.abs() < 1e-9 * variance {
                        break;
                    }
                }
                total
            }
        };
        (1.0 + 2.0 * correlations).max(1.0).sqrt()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Independent(rate) => write!(f, "{} %", percent(rate)),
            Self::GilbertElliott { enter, leave, in_bad, in_good } => {
                write!(
                    f,
                    "{} % in bursts (enter {} %, leave {} %",
                    percent(self.mean()),
                    percent(enter),
                    percent(leave)
                )?;
                if (in_bad, in_good) != (1.0, 0.0) {
                    write!(f, ", loss {} % and {} %", percent(in_bad), percent(in_good))?;
                }
                write!(f, ")")
            }
            Self::FourState { p13, p31, p32, p23, p14 } => {
                let all = [p13, p31, p32, p23, p14].map(|one| format!("{} %", percent(one)));
                write!(
                    f,
                    "{} % of four states (p13, p31, p32, p23, p14: {})",
                    percent(self.mean()),
                    all.join(", ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_parsed_with_the_loss_of_each_state() {
        assert_eq!(Loss::parse("10%"), Ok(Loss::Independent(0.1)));
        assert_eq!(Loss::parse("0"), Ok(Loss::Independent(0.0)));
        let burst = Loss::parse("ge:1%,9%").unwrap();
        assert!((burst.mean() - 0.1).abs() < 1e-12);
        let weak = Loss::parse("ge:1%, 9%, 50%, 1%").unwrap();
        assert!((weak.mean() - 0.059).abs() < 1e-12);
        for wrong in [
            "0.05",
            "5",
            "ge:1%",
            "ge:1%,0",
            "ge:1%,0.09",
            "4state:1%,2%",
            "4state:60%,9%,1%,9%,60%",
            "4state:1%,0,0,0,1%",
            "101%",
        ] {
            assert!(Loss::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn burst_factor_of_both_models_agrees() {
        // Without state 2 and 4, four states are Gilbert's two.
        let two = Loss::parse("ge:1%,9%").unwrap();
        let four = Loss::parse("4state:1%,9%,0,1%,0").unwrap();
        assert!((two.mean() - four.mean()).abs() < 1e-12);
        assert!((two.burst_factor() - (1.9_f64 / 0.1).sqrt()).abs() < 1e-9);
        assert!((two.burst_factor() / four.burst_factor() - 1.0).abs() < 1e-6);
        assert_eq!(Loss::Independent(0.1).burst_factor(), 1.0);
        assert_eq!(Loss::Independent(0.0).burst_factor(), 1.0);
    }
}
