//! Measurement: loss patterns and timing.
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index;

use crate::block::{Block, SYMBOL};
use crate::schemes::Scheme;

/// Duration of one measurement, after the first rounds.
const TIME: Duration = Duration::from_millis(250);
/// Maximum duration of the first rounds; no round starts after it.
const MAX_TIME: Duration = Duration::from_secs(3);
const MAX_ROUNDS: usize = 2000;
/// Maximum number of loss patterns for the mean of the extra symbols.
const MAX_PATTERNS: usize = 200;

/// Results of a scheme.
pub struct Figures {
    /// MB/s.
    pub encode: f64,
    /// MB/s.
    pub decode: f64,
    /// Mean number of extra symbols.
    pub extra: f64,
}

/// Seconds of the fastest round. `prepare` is not timed.
fn fastest<T>(mut prepare: impl FnMut() -> T, mut run: impl FnMut(T)) -> f64 {
    let mut least = f64::MAX;
    let begin = Instant::now();
    for round in 0..MAX_ROUNDS {
        let limit = if round > 2 { TIME } else { MAX_TIME };
        if round > 0 && begin.elapsed() > limit {
            break;
        }
        let input = prepare();
        let start = Instant::now();
        run(input);
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}

/// MB/s of a plain copy of the block.
pub fn copy(block: &Block) -> f64 {
    let mut target = vec![0; block.data.len()];
    let time = fastest(
        || (),
        |()| {
            target.copy_from_slice(black_box(&block.data));
            black_box(&mut target);
        },
    );
    block.data.len() as f64 / time / 1e6
}

/// Measures a scheme. Encoding makes as many repairs as this loss requires on average; decoding
/// restores the lost source symbols.
///
/// # Panics
/// A restored symbol differs from the source.
pub fn measure(scheme: &mut dyn Scheme, block: &Block, loss: usize) -> Figures {
    let count = block.count();
    let repairs = (count * loss).div_ceil(100 - loss);
    let lost_count = (count * loss / 100).max(1);
    let encoding = fastest(|| (), |()| scheme.encode(block, repairs));

    let mut random = StdRng::seed_from_u64(loss as u64);
    let mut restored = vec![vec![0; SYMBOL]; lost_count];
    let (mut extra, mut patterns, mut least) = (0, 0, f64::MAX);
    let begin = Instant::now();
    while patterns < MAX_PATTERNS {
        let limit = if patterns > 2 { 4 * TIME } else { MAX_TIME };
        if patterns > 0 && begin.elapsed() > limit {
            break;
        }
        let mut lost = index::sample(&mut random, count, lost_count).into_vec();
        lost.sort_unstable();
        scheme.prepare(block, &lost, repairs);
        let start = Instant::now();
        let used = scheme.decode(block, &lost, &mut restored);
        least = least.min(start.elapsed().as_secs_f64());
        for (&index, content) in lost.iter().zip(&restored) {
            assert!(content == block.symbol(index), "{}: symbol {index} differs", scheme.name());
        }
        restored.iter_mut().for_each(|content| content.fill(0));
        extra += used - scheme.min_repairs(count, lost_count);
        patterns += 1;
    }
    let bytes = block.data.len() as f64 / 1e6;
    Figures {
        encode: bytes / encoding,
        decode: bytes / least,
        extra: extra as f64 / patterns as f64,
    }
}
