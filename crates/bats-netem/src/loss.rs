use rand::{Rng, RngExt};

/// Which packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability.
    Iid(f64),
    /// Two states with a loss of their own (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// Probability to go from the good to the bad state at a packet.
        good_to_bad: f64,
        /// Probability to go back.
        bad_to_good: f64,
        /// Loss in the good state.
        loss_good: f64,
        /// Loss in the bad state.
        loss_bad: f64,
    },
}

impl Loss {
    /// Bursts of `mean_burst` packets on average that make up the share `loss` of all packets.
    pub fn bursts(loss: f64, mean_burst: f64) -> Self {
        let bad_to_good = 1.0 / mean_burst.max(1.0);
        Self::GilbertElliott {
            good_to_bad: (bad_to_good * loss / (1.0 - loss)).min(1.0),
            bad_to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }

    /// Share of packets lost in the long run.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Iid(p) => p,
            Self::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let bad = good_to_bad / (good_to_bad + bad_to_good).max(f64::MIN_POSITIVE);
                (1.0 - bad) * loss_good + bad * loss_bad
            }
        }
    }

    pub(crate) fn draw(&self, bad: &mut bool, rng: &mut impl Rng) -> bool {
        match *self {
            Self::None => false,
            Self::Iid(p) => rng.random::<f64>() < p,
            Self::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let turn = if *bad { bad_to_good } else { good_to_bad };
                if rng.random::<f64>() < turn {
                    *bad = !*bad;
                }
                rng.random::<f64>() < if *bad { loss_bad } else { loss_good }
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
        for (loss, burst) in [(Loss::Iid(0.1), 1.11), (Loss::bursts(0.1, 4.0), 4.0)] {
            let (mut bad, mut lost, mut bursts, mut last) = (false, 0, 0, false);
            const N: usize = 400_000;
            for _ in 0..N {
                let now = loss.draw(&mut bad, &mut rng);
                lost += usize::from(now);
                bursts += usize::from(now && !last);
                last = now;
            }
            let share = lost as f64 / N as f64;
            assert!((share - loss.mean()).abs() < 0.004, "{loss:?}: {share}");
            let mean = lost as f64 / bursts as f64;
            assert!((mean / burst - 1.0).abs() < 0.05, "{loss:?}: {mean}");
        }
    }
}
