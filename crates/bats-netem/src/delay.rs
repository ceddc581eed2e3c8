//! Delays that change with time, and contention for a shared medium.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rand::{Rng, RngExt};

use crate::rate::step_nanos;
use crate::{ConfigError, noise};

/// Variation of the delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Delays are distributed uniformly within this distance of the mean.
    pub amplitude: Duration,
    /// Whether packets may overtake one another. Otherwise an early packet waits for the one before
    /// it.
    pub reorder: bool,
}

/// An additional delay that depends on the time at which the transmission of a frame ends, relative
/// to the link's `epoch`.
#[derive(Clone, Debug, PartialEq)]
pub enum DelaySchedule {
    /// A list of steps.
    Steps(DelaySteps),
    /// A delay spike of length `length` at the end of each `period`.
    Spikes {
        /// Additional delay.
        extra: Duration,
        /// Length of a spike.
        length: Duration,
        /// Time from the end of a spike to the end of the next one.
        period: Duration,
    },
    /// Uniformly distributed in `0..=span`, drawn again in each `period`, as by handovers between
    /// satellites. With the period of a [`LeoRate`](crate::LeoRate), rate and delay change
    /// together.
    Leo {
        /// Time between handovers, at least 1 ms.
        period: Duration,
        /// Largest additional delay.
        span: Duration,
        /// Seed of the delays.
        seed: u64,
    },
}

impl DelaySchedule {
    /// Additional delay at `time`.
    pub fn extra(&self, epoch: Timestamp, time: Timestamp) -> Duration {
        let offset = time.as_nanos().saturating_sub(epoch.as_nanos());
        match self {
            Self::Steps(steps) => steps.extra(offset),
            Self::Spikes { extra, length, period } => {
                let (period, length) = (nanos(*period).max(1), nanos(*length));
                if offset % period >= period.saturating_sub(length) {
                    *extra
                } else {
                    Duration::ZERO
                }
            }
            Self::Leo { period, span, seed } => {
                let index = offset / step_nanos(*period);
                // A random sequence that differs from that of the rates.
                let share = noise::uniform(!*seed, index);
                Duration::from_nanos((nanos(*span) as f64 * share) as u64)
            }
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Steps of a delay.
#[derive(Clone, Debug, PartialEq)]
pub struct DelaySteps {
    /// End of each step in nanoseconds, and its additional delay.
    steps: Arc<[(u64, Duration)]>,
    repeat: bool,
}

impl DelaySteps {
    /// Additional delays with their durations. After the last step the list repeats if `repeat` is
    /// set; otherwise the last delay remains.
    ///
    /// # Errors
    ///
    /// There is no step, or a step has no duration.
    pub fn new(steps: &[(Duration, Duration)], repeat: bool) -> Result<Self, ConfigError> {
        let (mut list, mut end) = (Vec::with_capacity(steps.len()), 0_u64);
        for &(length, delay) in steps {
            if length.is_zero() {
                return Err(ConfigError::new("delay step", length, "a length above zero"));
            }
            end = end.saturating_add(nanos(length));
            list.push((end, delay));
        }
        if list.is_empty() {
            return Err(ConfigError::new("delay steps", "empty", "at least one step"));
        }
        Ok(Self { steps: list.into(), repeat })
    }

    fn extra(&self, offset: u64) -> Duration {
        let Some(&(length, last)) = self.steps.last() else { return Duration::ZERO };
        let offset = if self.repeat { offset % length } else { offset };
        let index = self.steps.partition_point(|&(end, _)| end <= offset);
        self.steps.get(index).map_or(last, |&(_, delay)| delay)
    }
}

/// Contention for a shared and disturbed Wi-Fi medium: the model of picoquic's simulator
/// (`picoquictest_sim_link_wifi_jitter`), which is used to test the congestion controller C4.
/// Packets keep their order.  Each packet waits for N1 slots of `slot`, where N1 has a Poisson
/// distribution with mean 1, less a uniformly distributed part of one slot. With probability
/// `long_probability` it also waits for N2 slots of `long_slot`, where N2 has a Poisson
/// distribution with mean `long_mean`, less a uniformly distributed part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// Length of a normal slot.
    pub slot: Duration,
    /// Fraction of packets with a long wait, 0..=1.
    pub long_probability: f64,
    /// Length of a long slot.
    pub long_slot: Duration,
    /// Mean number of long slots, 0..=50.
    pub long_mean: f64,
}

impl Contention {
    /// picoquic's parameters for a target jitter of `target` (1 ms: no long waits; 7 ms: "bad
    /// Wi-Fi", 85 ms: long waits for all packets).
    pub fn wifi(target: Duration) -> Self {
        let beyond = target.saturating_sub(Duration::from_millis(1));
        Self {
            slot: Duration::from_millis(1),
            long_probability: (beyond.as_secs_f64() / 0.084).min(1.0),
            long_slot: Duration::from_micros(7_500),
            long_mean: 12.0,
        }
    }

    pub(crate) fn draw(&self, rng: &mut impl Rng) -> Duration {
        let mut wait = waits(1.0, 0, self.slot, rng);
        if self.long_probability > 0.0 && rng.random::<f64>() < self.long_probability {
            wait = wait.saturating_add(waits(self.long_mean, 1, self.long_slot, rng));
        }
        wait
    }
}

/// A Poisson-distributed number of slots. If it exceeds `whole`, one slot is shortened by a random
/// part.
fn waits(mean: f64, whole: u32, unit: Duration, rng: &mut impl Rng) -> Duration {
    let mean = if mean.is_finite() { mean.clamp(0.0, 50.0) } else { 0.0 };
    // Knuth's method: multiply uniform random numbers until the result is below exp(-mean).
    let limit = noise::exp(-mean);
    let (mut count, mut factor) = (0, rng.random::<f64>());
    while factor > limit && count < 1_000 {
        count += 1;
        factor *= rng.random::<f64>();
    }
    let all = unit.saturating_mul(count);
    if count > whole {
        let cut = rng.random::<f64>();
        all.saturating_sub(Duration::from_nanos((nanos(unit) as f64 * cut) as u64))
    } else {
        all
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn at(schedule: &DelaySchedule, ms: u64) -> u128 {
        schedule.extra(Timestamp::from_millis(3), Timestamp::from_millis(3 + ms)).as_millis()
    }

    #[test]
    fn steps_spikes_and_handovers() {
        let ms = Duration::from_millis;
        let steps = [(ms(10), ms(1)), (ms(5), ms(7))];
        let repeated = DelaySchedule::Steps(DelaySteps::new(&steps, true).unwrap());
        assert_eq!([0, 9, 10, 14, 15, 24, 25].map(|t| at(&repeated, t)), [1, 1, 7, 7, 1, 1, 7]);
        let once = DelaySchedule::Steps(DelaySteps::new(&steps, false).unwrap());
        assert_eq!([0, 10, 15, 900].map(|t| at(&once, t)), [1, 7, 7, 7]);
        assert!(DelaySteps::new(&[], true).is_err());
        assert!(DelaySteps::new(&[(Duration::ZERO, ms(1))], true).is_err());

        let spikes = DelaySchedule::Spikes { extra: ms(100), length: ms(200), period: ms(2_000) };
        assert_eq!([0, 1_799, 1_800, 1_999, 2_000].map(|t| at(&spikes, t)), [0, 0, 100, 100, 0]);

        let leo = DelaySchedule::Leo { period: ms(15_000), span: ms(40), seed: 1 };
        assert_eq!(at(&leo, 0), at(&leo, 14_999));
        let delays: Vec<u128> = (0..200).map(|k| at(&leo, 15_000 * k)).collect();
        assert!(delays.iter().all(|&delay| delay <= 40));
        assert!(delays.iter().min() < Some(&2) && delays.iter().max() > Some(&37));
    }

    #[test]
    fn contention_has_the_mean_delay_of_its_model() {
        let mean = |target: u64| {
            let contention = Contention::wifi(Duration::from_millis(target));
            let mut rng = ChaCha8Rng::seed_from_u64(2);
            let sum: f64 = (0..100_000).map(|_| contention.draw(&mut rng).as_secs_f64()).sum();
            sum / 100_000.0 * 1e3
        };
        // The mean is E[N] - P(N > 0) / 2 = 1 - 0.632 / 2 ms.
        assert!((mean(1) - 0.684).abs() < 0.02, "{}", mean(1));
        // The long waits add 6/84 of (12 - 1/2) slots of 7.5 ms.
        assert!((mean(7) - 0.684 - 6.0 / 84.0 * 86.25).abs() < 0.3, "{}", mean(7));
        assert!(mean(85) > 80.0);
    }
}
