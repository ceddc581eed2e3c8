//! Rates that are generated from a few parameters and a seed.

use core::time::Duration;

use super::segment::{MAX_RATE, Segment};
use crate::noise;

/// Minimum of generated rates in bit/s, so that every frame is transmitted eventually.
pub(crate) const MIN_GENERATED: u64 = 1_000;
/// Number of steps after which a random walk is drawn again from its long-run distribution, so that
/// a step can be computed without all earlier ones: 1.8 hours at 100 ms.
const BLOCK: u64 = 1 << 16;
/// Minimum length of a step or period.
const MIN_STEP: u64 = 1_000_000;

/// A rate like that of a cellular link: its logarithm is a first-order autoregressive process.
///
/// x(k+1) = `correlation` x(k) + `sigma` e(k), where e is normal, with one step per `step`. The
/// rate is `mean_bps` exp(x - v/2), where v is the long-run variance of x. So its mean is
/// `mean_bps` before it is limited to `floor_bps..=ceiling_bps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LteRate {
    /// Long-run mean in bit/s, before the limits.
    pub mean_bps: u64,
    /// Correlation of consecutive steps, 0..1.
    pub correlation: f64,
    /// Standard deviation of the innovation of the logarithm, 0..10.
    pub sigma: f64,
    /// Length of a step, at least 1 ms.
    pub step: Duration,
    /// Lowest rate in bit/s; values below 1 kbit/s count as 1 kbit/s.
    pub floor_bps: u64,
    /// Highest rate in bit/s.
    pub ceiling_bps: u64,
    /// Seed of the walk.
    pub seed: u64,
}

impl LteRate {
    /// Correlation 0.9 and sigma 0.35 per step of 100 ms, between one fiftieth and five times the
    /// mean (the parameters of the arena's cells).
    pub fn new(mean_bps: u64, seed: u64) -> Self {
        Self {
            mean_bps,
            correlation: 0.9,
            sigma: 0.35,
            step: Duration::from_millis(100),
            floor_bps: mean_bps / 50,
            ceiling_bps: mean_bps.saturating_mul(5),
            seed,
        }
    }

    fn step_nanos(&self) -> u64 {
        step_nanos(self.step)
    }

    fn correlation(&self) -> f64 {
        if self.correlation.is_finite() { self.correlation.clamp(0.0, 0.999_9) } else { 0.0 }
    }

    fn sigma(&self) -> f64 {
        if self.sigma.is_finite() { self.sigma.clamp(0.0, 10.0) } else { 0.0 }
    }

    fn variance(&self) -> f64 {
        self.sigma() * self.sigma() / (1.0 - self.correlation() * self.correlation())
    }

    pub(super) fn segment(&self, offset: u64, walk: &mut Walk) -> Segment {
        let length = self.step_nanos();
        let index = offset / length;
        let level = walk.go_to(self, index);
        let rate = self.mean_bps as f64 * noise::exp(level - self.variance() / 2.0);
        let floor = self.floor_bps.max(MIN_GENERATED);
        // The conversion saturates at 64 bits.
        let rate = (rate as u64).max(floor).min(self.ceiling_bps.clamp(floor, MAX_RATE.max(floor)));
        step_segment(index, length, rate.min(MAX_RATE))
    }
}

/// State of a random walk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walk {
    at: Option<(u64, f64)>,
}

impl Walk {
    fn go_to(&mut self, rate: &LteRate, index: u64) -> f64 {
        let block = index - index % BLOCK;
        let begin = || {
            // A random sequence that differs from that of the steps.
            (block, rate.variance().sqrt() * noise::normal(!rate.seed, block))
        };
        let (mut at, mut level) =
            self.at.filter(|&(at, _)| block <= at && at <= index).unwrap_or_else(begin);
        while at < index {
            at += 1;
            level = rate.correlation() * level + rate.sigma() * noise::normal(rate.seed, at);
        }
        self.at = Some((at, level));
        level
    }
}

/// A rate like that of a link over satellites in low orbit: a new factor after each handover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeoRate {
    /// Rate at factor 1 in bit/s.
    pub base_bps: u64,
    /// Smallest factor.
    pub low: f64,
    /// Largest factor; factors are uniform in `low..=high`.
    pub high: f64,
    /// Time between handovers, at least 1 ms; 15 s for Starlink.
    pub period: Duration,
    /// Seed of the factors.
    pub seed: u64,
}

impl LeoRate {
    pub(super) fn segment(&self, offset: u64) -> Segment {
        let length = step_nanos(self.period);
        let index = offset / length;
        let factor = self.low + (self.high - self.low) * noise::uniform(self.seed, index);
        // The conversion saturates; NaN counts as zero.
        let rate = (self.base_bps as f64 * factor) as u64;
        step_segment(index, length, rate.clamp(MIN_GENERATED, MAX_RATE))
    }
}

pub(crate) fn step_nanos(step: Duration) -> u64 {
    u64::try_from(step.as_nanos()).unwrap_or(u64::MAX).max(MIN_STEP)
}

fn step_segment(index: u64, length: u64, rate: u64) -> Segment {
    let start = index * length;
    Segment { start, end: start.saturating_add(length), from: rate, to: rate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lte_rate_has_its_mean_and_its_limits() {
        let rate = LteRate { ceiling_bps: u64::MAX, floor_bps: 0, ..LteRate::new(20_000_000, 3) };
        let mut walk = Walk::default();
        let step = 100_000_000;
        let rates: Vec<f64> =
            (0..200_000).map(|k| rate.segment(k * step, &mut walk).from as f64).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        assert!((mean / 20e6 - 1.0).abs() < 0.05, "{mean}");
        let logs: Vec<f64> = rates.iter().map(|rate| rate.ln()).collect();
        let centre = logs.iter().sum::<f64>() / logs.len() as f64;
        let variance = |lag: usize| {
            let pairs = logs.windows(lag + 1).map(|w| (w[0] - centre) * (w[lag] - centre));
            pairs.sum::<f64>() / (logs.len() - lag) as f64
        };
        assert!((variance(0) / (0.35_f64.powi(2) / 0.19) - 1.0).abs() < 0.05);
        assert!((variance(1) / variance(0) - 0.9).abs() < 0.01);
        let limited = LteRate { floor_bps: 15_000_000, ceiling_bps: 25_000_000, ..rate };
        let mut walk = Walk::default();
        let all: Vec<u64> = (0..1_000).map(|k| limited.segment(k * step, &mut walk).from).collect();
        assert!(all.iter().all(|rate| (15_000_000..=25_000_000).contains(rate)));
        assert!(all.contains(&15_000_000) && all.contains(&25_000_000));
    }

    #[test]
    fn the_rate_of_a_step_does_not_depend_on_the_order_of_calls() {
        let rate = LteRate::new(10_000_000, 9);
        let mut walk = Walk::default();
        let step = 100_000_000;
        let forward: Vec<u64> =
            (65_400..65_700_u64).map(|k| rate.segment(k * step, &mut walk).from).collect();
        let mut walk = Walk::default();
        for (index, k) in
            (65_400_u64..).zip(0..300).map(|(k, i)| (i, k)).collect::<Vec<_>>().into_iter().rev()
        {
            assert_eq!(rate.segment(k * step, &mut walk).from, forward[index]);
        }
        // A distant step is computed without all earlier ones.
        let far = rate.segment(u64::MAX, &mut walk);
        assert!(far.from >= 200_000 && far.end == u64::MAX);
    }

    #[test]
    fn a_leo_rate_changes_at_each_handover() {
        let leo = LeoRate {
            base_bps: 100_000_000,
            low: 0.3,
            high: 2.0,
            period: Duration::from_secs(15),
            seed: 1,
        };
        let rates: Vec<u64> = (0..1_000).map(|k| leo.segment(k * 15_000_000_000).from).collect();
        assert!(rates.iter().all(|rate| (30_000_000..=200_000_000).contains(rate)));
        assert!(rates.iter().min().unwrap() < &32_000_000);
        assert!(rates.iter().max().unwrap() > &198_000_000);
        assert_eq!(leo.segment(14_999_999_999), leo.segment(0));
        let odd = LeoRate { high: f64::NAN, period: Duration::ZERO, ..leo };
        assert_eq!(odd.segment(5).from, MIN_GENERATED);
    }
}
