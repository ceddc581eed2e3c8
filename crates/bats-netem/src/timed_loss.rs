//! Loss that depends on time, not on the packet sequence.

use core::time::Duration;

use bats_types::Timestamp;
use rand::Rng;

use crate::loss::LossState;
use crate::{Loss, noise};

/// Periods in which all packets are lost whose transmission ends within them. Times are relative to
/// the link's `epoch`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holes {
    /// A hole at the end of each `period`.
    Periodic {
        /// Time from the end of a hole to the end of the next one.
        period: Duration,
        /// Length of a hole. If it is not below the period, all packets are lost.
        length: Duration,
    },
    /// Exponentially distributed lengths and intervals.
    Random {
        /// Mean time from the end of a hole to the start of the next.
        mean_gap: Duration,
        /// Mean length of a hole.
        mean_length: Duration,
    },
}

/// A second loss model that alternates with the link's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlternateLoss {
    /// The second model. Each model keeps its state while the other one applies.
    pub loss: Loss,
    /// Duration of each turn from the link's `epoch` on; the link's own model is first.
    pub every: Duration,
}

/// Loss that depends on the rate: a weak radio signal makes a link slow and lossy.
///
/// At `high_bps` and above the loss is zero, at `low_bps` and below it is `loss`; in between it is
/// linear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fade {
    /// Rate in bit/s at and above which the loss is zero.
    pub high_bps: u64,
    /// Rate in bit/s at and below which the loss is `loss`.
    pub low_bps: u64,
    /// Maximum loss, 0..=1.
    pub loss: f64,
}

impl Fade {
    /// Probability of loss at a rate in bit/s.
    pub fn probability(&self, rate: u64) -> f64 {
        if rate >= self.high_bps {
            return 0.0;
        }
        let below = (self.high_bps - rate.max(self.low_bps).min(self.high_bps)) as f64;
        let range = self.high_bps.saturating_sub(self.low_bps).max(1) as f64;
        self.loss * (below / range).min(1.0)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Number of holes after which a gap between calls is skipped instead of walked through.
const MAX_WALK: u64 = 1_000_000;

/// Position of a link in its sequence of holes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoleState {
    index: u64,
    /// In nanoseconds since the epoch.
    start: u64,
    end: u64,
}

impl HoleState {
    /// Whether `time` is in a hole. Times must not decrease between calls.
    pub(crate) fn is_inside(
        &mut self,
        holes: &Holes,
        epoch: Timestamp,
        time: Timestamp,
        seed: u64,
    ) -> bool {
        let offset = time.as_nanos().saturating_sub(epoch.as_nanos());
        match *holes {
            Holes::Periodic { period, length } => {
                let (period, length) = (nanos(period).max(1), nanos(length));
                offset % period >= period.saturating_sub(length)
            }
            Holes::Random { mean_gap, mean_length } => {
                let draw =
                    |mean, index| (nanos(mean) as f64 * noise::exponential(seed, index)) as u64;
                let mean = nanos(mean_gap).saturating_add(nanos(mean_length)).max(1);
                if offset.saturating_sub(self.end) / mean > MAX_WALK {
                    (self.start, self.end) = (offset, offset);
                }
                while self.end <= offset {
                    // At least one nanosecond, so that the loop ends.
                    self.start = self.end.saturating_add(draw(mean_gap, 2 * self.index).max(1));
                    self.end = self.start.saturating_add(draw(mean_length, 2 * self.index + 1));
                    self.index += 1;
                    if self.end == u64::MAX {
                        break;
                    }
                }
                offset >= self.start
            }
        }
    }
}

impl AlternateLoss {
    /// Whether the second model applies.
    fn has_turn(&self, epoch: Timestamp, time: Timestamp) -> bool {
        let offset = time.as_nanos().saturating_sub(epoch.as_nanos());
        (offset / nanos(self.every).max(1)) % 2 == 1
    }
}

/// State of both loss models, and which of them applies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    own: LossState,
    other: LossState,
}

impl Turns {
    pub(crate) fn draw(
        &mut self,
        loss: &Loss,
        alternate: Option<&AlternateLoss>,
        epoch: Timestamp,
        time: Timestamp,
        rng: &mut impl Rng,
    ) -> bool {
        match alternate {
            Some(other) if other.has_turn(epoch, time) => self.other.draw(&other.loss, rng),
            _ => self.own.draw(loss, rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn periodic_holes_end_each_period() {
        let period = Duration::from_millis(500);
        let holes = Holes::Periodic { period, length: Duration::from_millis(50) };
        let mut state = HoleState::default();
        let epoch = Timestamp::from_millis(7);
        let mut at =
            |ms: u64| state.is_inside(&holes, epoch, epoch + Duration::from_micros(1_000 * ms), 0);
        let inside: Vec<bool> = [0, 449, 450, 499, 500, 949, 950, 999].map(&mut at).into();
        assert_eq!(inside, [false, false, true, true, false, false, true, true]);
        let odd = Holes::Periodic { period: Duration::ZERO, length: Duration::MAX };
        assert!(HoleState::default().is_inside(&odd, epoch, epoch, 0));
    }

    #[test]
    fn random_holes_have_their_mean_length_for_any_call_pattern() {
        let millis = Duration::from_millis;
        let holes = Holes::Random { mean_gap: millis(300), mean_length: millis(100) };
        let (mut fine, mut coarse) = (HoleState::default(), HoleState::default());
        let (mut inside, mut count, mut last) = (0, 0, false);
        const N: u64 = 2_000_000;
        for ms in 0..N {
            let time = Timestamp::from_millis(ms);
            let now = fine.is_inside(&holes, Timestamp::ZERO, time, 5);
            inside += u64::from(now);
            count += u64::from(now && !last);
            last = now;
            if ms % 97 == 0 {
                assert_eq!(coarse.is_inside(&holes, Timestamp::ZERO, time, 5), now);
            }
        }
        assert!((inside as f64 / N as f64 - 0.25).abs() < 0.01, "{inside}");
        assert!((count as f64 / (N as f64 / 400.0) - 1.0).abs() < 0.05, "{count}");
        // Far in the future, and with lengths of zero.
        fine.is_inside(&holes, Timestamp::ZERO, Timestamp::MAX, 5);
        let nothing = Holes::Random { mean_gap: Duration::ZERO, mean_length: Duration::ZERO };
        HoleState::default().is_inside(&nothing, Timestamp::ZERO, Timestamp::from_millis(5), 1);
        HoleState::default().is_inside(&nothing, Timestamp::ZERO, Timestamp::MAX, 1);
    }

    #[test]
    fn models_take_turns() {
        let other = AlternateLoss { loss: Loss::Iid(1.0), every: Duration::from_secs(3) };
        let (mut turns, mut rng) = (Turns::default(), ChaCha8Rng::seed_from_u64(1));
        for second in 0..12 {
            let time = Timestamp::from_millis(1_000 * second);
            let lost = turns.draw(&Loss::None, Some(&other), Timestamp::ZERO, time, &mut rng);
            assert_eq!(lost, (second / 3) % 2 == 1);
        }
    }

    #[test]
    fn a_fade_is_linear_between_its_rates() {
        let fade = Fade { high_bps: 40, low_bps: 20, loss: 0.5 };
        let at: Vec<f64> = [50, 40, 30, 20, 0].map(|rate| fade.probability(rate)).into();
        assert_eq!(at, [0.0, 0.0, 0.25, 0.5, 0.5]);
        let reversed = Fade { high_bps: 20, low_bps: 40, loss: 0.5 };
        assert!((0.0..=0.5).contains(&reversed.probability(10)));
    }
}
