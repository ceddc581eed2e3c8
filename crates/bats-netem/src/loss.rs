use rand::{Rng, RngExt};

use crate::ConfigError;

/// Loss models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Independent loss with this probability.
    Iid(f64),
    /// Gilbert-Elliott model: two states, each with its own loss (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// Probability per packet to go from the good to the bad state.
        good_to_bad: f64,
        /// Probability per packet to go from the bad to the good state.
        bad_to_good: f64,
        /// Loss in the good state.
        loss_good: f64,
        /// Loss in the bad state.
        loss_bad: f64,
    },
    /// Four-state Markov model, as `loss state` of Linux netem. States: 1 received in a gap, 2
    /// received in a burst, 3 lost in a burst, 4 isolated loss in a gap (always followed by state
    /// 1).
    FourState {
        /// Probability per packet to go from state 1 to 3.
        p13: f64,
        /// From state 3 to 1.
        p31: f64,
        /// From state 3 to 2.
        p32: f64,
        /// From state 2 to 3.
        p23: f64,
        /// From state 1 to 4.
        p14: f64,
    },
}

impl Loss {
    /// Loss in bursts of `mean_burst` packets on average; `loss` is the fraction of packets lost.
    pub fn bursts(loss: f64, mean_burst: f64) -> Self {
        let bad_to_good = 1.0 / mean_burst.max(1.0);
        Self::GilbertElliott {
            good_to_bad: (bad_to_good * loss / (1.0 - loss)).min(1.0),
            bad_to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }

    /// Long-run fraction of packets lost.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Iid(p) => p,
            Self::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let bad = good_to_bad / (good_to_bad + bad_to_good).max(f64::MIN_POSITIVE);
                (1.0 - bad) * loss_good + bad * loss_bad
            }
            Self::FourState { p13, p31, p32, p23, p14 } => {
                // In the stationary state, transitions 1 to 3 balance 3 to 1, and 3 to 2 balance 2
                // to 3.
                let (one, two, three) = (p31 * p23, p13 * p32, p13 * p23);
                let four = one * p14;
                (three + four) / (one + two + three + four).max(f64::MIN_POSITIVE)
            }
        }
    }

    /// Checks that all probabilities are in 0..=1.
    ///
    /// # Errors
    ///
    /// The first one that is not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let all = match *self {
            Self::None => [0.0; 5],
            Self::Iid(p) => [p, 0.0, 0.0, 0.0, 0.0],
            Self::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                [good_to_bad, bad_to_good, loss_good, loss_bad, 0.0]
            }
            Self::FourState { p13, p31, p32, p23, p14 } => [p13, p31, p32, p23, p14],
        };
        match all.into_iter().find(|p| !(0.0..=1.0).contains(p)) {
            Some(p) => Err(ConfigError::new("loss", p, "probabilities of 0 to 1")),
            None => Ok(()),
        }
    }
}

/// State of a loss model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossState {
    bad: bool,
    /// State of the four-state model, less one.
    of_four: u8,
}

impl LossState {
    /// Whether the next packet is lost.
    pub(crate) fn draw(&mut self, loss: &Loss, rng: &mut impl Rng) -> bool {
        match *loss {
            Loss::None => false,
            Loss::Iid(p) => rng.random::<f64>() < p,
            Loss::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let turn = if self.bad { bad_to_good } else { good_to_bad };
                if rng.random::<f64>() < turn {
                    self.bad = !self.bad;
                }
                rng.random::<f64>() < if self.bad { loss_bad } else { loss_good }
            }
            Loss::FourState { p13, p31, p32, p23, p14 } => {
                let x = rng.random::<f64>();
                // Linux `loss_4state` (net/sched/sch_netem.c): the transition comes before the
                // decision.
                self.of_four = match self.of_four {
                    0 if x < p14 => 3,
                    0 if x < p14 + p13 => 2,
                    0 => 0,
                    1 if x < p23 => 2,
                    1 => 1,
                    2 if x < p32 => 1,
                    2 if x < p32 + p31 => 0,
                    2 => 2,
                    _ => 0,
                };
                self.of_four >= 2
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn long_run_shares_and_burst_lengths() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let four = Loss::FourState { p13: 0.02, p31: 0.2, p32: 0.1, p23: 0.3, p14: 0.01 };
        // In the four-state model a burst ends by 3 -> 1 or 3 -> 2, or is an isolated loss in a
        // gap.
        for (loss, burst) in
            [(Loss::Iid(0.1), 1.11), (Loss::bursts(0.1, 4.0), 4.0), (four, 1.0 / 0.3)]
        {
            let (mut state, mut lost, mut bursts, mut last) = (LossState::default(), 0, 0, false);
            const N: usize = 400_000;
            for _ in 0..N {
                let now = state.draw(&loss, &mut rng);
                lost += usize::from(now);
                bursts += usize::from(now && !last);
                last = now;
            }
            let share = lost as f64 / N as f64;
            assert!((share - loss.mean()).abs() < 0.004, "{loss:?}: {share}");
            if !matches!(loss, Loss::FourState { .. }) {
                let mean = lost as f64 / bursts as f64;
                assert!((mean / burst - 1.0).abs() < 0.05, "{loss:?}: {mean}");
            }
        }
    }

    #[test]
    fn four_state_transitions_match_the_model() {
        // The states alternate: 1 -> 4 -> 1 -> 4.
        let loss = Loss::FourState { p13: 0.0, p31: 0.0, p32: 0.0, p23: 0.0, p14: 1.0 };
        let (mut state, mut rng) = (LossState::default(), ChaCha8Rng::seed_from_u64(1));
        let drawn: Vec<bool> = (0..4).map(|_| state.draw(&loss, &mut rng)).collect();
        assert_eq!(drawn, [true, false, true, false]);
        // The states alternate: 1 -> 3 -> 2 -> 3 -> 2.
        let loss = Loss::FourState { p13: 1.0, p31: 0.0, p32: 1.0, p23: 1.0, p14: 0.0 };
        let mut state = LossState::default();
        let drawn: Vec<bool> = (0..4).map(|_| state.draw(&loss, &mut rng)).collect();
        assert_eq!(drawn, [true, false, true, false]);
    }

    #[test]
    fn out_of_range_probabilities_are_rejected() {
        for loss in [Loss::Iid(1.1), Loss::Iid(f64::NAN), Loss::bursts(1.5, 2.0)] {
            assert!(loss.validate().is_err(), "{loss:?}");
        }
        assert!(Loss::bursts(0.3, 50.0).validate().is_ok());
    }
}
