//! Random numbers that derive from a seed.

use core::time::Duration;

/// A random number generator (SplitMix64; Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct SeededRng(u64);

/// The finaliser of SplitMix64: maps similar arguments to unrelated numbers.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl SeededRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5357_4152_4d00))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Uniform in [low, high).
    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + self.unit() * (high - low)
    }

    /// Log-uniform in [low, high).
    pub(crate) fn magnitude(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    /// Uniform from `low` to `high`, both included.
    pub(crate) fn integer(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// A duration, log-uniform in [low, high) seconds.
    pub(crate) fn time(&mut self, low: f64, high: f64) -> Duration {
        Duration::from_secs_f64(self.magnitude(low, high))
    }

    /// One of the choices, all equally likely.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_range_and_magnitudes_are_log_uniform() {
        let mut rng = SeededRng::new(3);
        let mut low = 0;
        for _ in 0..10_000 {
            assert!((1..=3).contains(&rng.integer(1, 3)));
            let magnitude = rng.magnitude(1.0, 10_000.0);
            assert!((1.0..10_000.0).contains(&magnitude));
            low += u32::from(magnitude < 100.0);
        }
        assert!((4_700..5_300).contains(&low), "{low}");
    }
}
