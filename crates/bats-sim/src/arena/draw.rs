//! Parameters of a cell: as published, or redrawn for judging.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Redrawn parameters lie within this factor of the published ones.
const FACTOR: f64 = 1.5;

/// Gives the parameters of a cell.
#[derive(Debug)]
pub struct Draw {
    rng: Option<ChaCha8Rng>,
    /// Seed of what a cell generates: rates, fades.
    pub seed: u64,
}

impl Draw {
    /// As published; `seed` decides generated rates.
    pub fn published(seed: u64) -> Self {
        Self { rng: None, seed }
    }

    /// Half of the parameters are redrawn, log-uniformly within a factor of 1.5, by `held_out` and the
    /// cell's name.
    pub fn held_out(held_out: u64, name: &str, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&held_out.to_le_bytes());
        for (slot, byte) in bytes[8..].iter_mut().zip(name.bytes()) {
            *slot = byte;
        }
        Self { rng: Some(ChaCha8Rng::from_seed(bytes)), seed: seed ^ held_out.rotate_left(17) }
    }

    /// A parameter that may be redrawn.
    pub fn of(&mut self, value: f64) -> f64 {
        let Some(rng) = &mut self.rng else { return value };
        let (is_redrawn, exponent) = (rng.random::<f64>() < 0.5, rng.random_range(-1.0..=1.0));
        if is_redrawn { value * FACTOR.powf(exponent) } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_parameters_move_within_the_factor() {
        let mut draw = Draw::held_out(7, "F1", 1);
        let drawn: Vec<f64> = (0..1_000).map(|_| draw.of(10.0)).collect();
        assert!(drawn.iter().all(|value| (10.0 / 1.5..=15.0).contains(value)));
        let moved = drawn.iter().filter(|&&value| value != 10.0).count();
        assert!((400..600).contains(&moved), "{moved}");
        assert_eq!(Draw::published(1).of(10.0), 10.0);
    }

    #[test]
    fn draws_follow_from_the_seed_and_the_cell() {
        let first = |seed, name| {
            let mut draw = Draw::held_out(seed, name, 1);
            (0..8).map(|_| draw.of(1.0)).collect::<Vec<_>>()
        };
        assert_eq!(first(7, "F1"), first(7, "F1"));
        assert_ne!(first(7, "F1"), first(7, "F2"));
        assert_ne!(first(7, "F1"), first(8, "F1"));
    }
}
