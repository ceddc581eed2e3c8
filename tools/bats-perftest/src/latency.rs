//! Statistics of one-way latencies in nanoseconds.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Largest latency of the histogram: an hour. Longer ones count as an hour in percentiles.
const MAX_NS: u64 = 3_600_000_000_000;
/// Significant digits of percentiles.
const DIGITS: u8 = 3;
/// The percentiles of a summary.
pub(crate) const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.9999, 0.999_999];

/// Latencies of a test.
#[derive(Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    count: u64,
    sum: f64,
    sum_of_squares: f64,
    min: u64,
    max: u64,
}

/// The figures of latencies so far, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LatencyFigures {
    pub(crate) count: u64,
    pub(crate) ave: f64,
    pub(crate) std: f64,
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Latencies {
    pub(crate) fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, DIGITS)
            .context("cannot create the histogram of latencies")?;
        Ok(Self { histogram, count: 0, sum: 0.0, sum_of_squares: 0.0, min: 0, max: 0 })
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.min = if self.count == 0 { ns } else { self.min.min(ns) };
        self.max = self.max.max(ns);
        self.count += 1;
        self.sum += ns as f64;
        self.sum_of_squares += ns as f64 * ns as f64;
    }

    pub(crate) fn figures(&self) -> LatencyFigures {
        if self.count == 0 {
            return LatencyFigures::default();
        }
        let count = self.count as f64;
        let ave = self.sum / count;
        let std = (self.sum_of_squares / count - ave * ave).max(0.0).sqrt();
        LatencyFigures { count: self.count, ave, std, min: self.min, max: self.max }
    }

    /// The latency at a quantile: that of rank `floor(n q) + 1`, as in the original.
    pub(crate) fn at(&self, quantile: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let count = self.count as f64;
        // The histogram takes the rank `ceil(n q)`.
        let rank = (count * quantile).floor() + 0.5;
        self.histogram.value_at_quantile((rank / count).min(1.0)).clamp(self.min, self.max)
    }

    /// The latencies at [`QUANTILES`].
    pub(crate) fn percentiles(&self) -> [u64; 5] {
        QUANTILES.map(|quantile| self.at(quantile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut state = 3u64;
        for n in [1usize, 2, 7, 10, 100, 1_001, 20_000] {
            let mut latencies = Latencies::new().unwrap();
            let mut all: Vec<u64> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    10_000 + (state >> 44)
                })
                .collect();
            all.iter().for_each(|&ns| latencies.record(ns));
            all.sort_unstable();
            for quantile in QUANTILES {
                let exact = all[(n as f64 * quantile) as usize] as f64;
                let found = latencies.at(quantile) as f64;
                assert!((found / exact - 1.0).abs() < 1e-3, "{n} {quantile}: {found} {exact}");
            }
            assert_eq!(latencies.figures().max, *all.last().unwrap());
        }
    }

    #[test]
    fn mean_and_deviation_are_those_of_all_values() {
        let mut latencies = Latencies::new().unwrap();
        assert_eq!(latencies.figures(), LatencyFigures::default());
        assert_eq!(latencies.percentiles(), [0; 5]);
        [2_000, 4_000, 4_000, 4_000, 5_000, 5_000, 7_000, 9_000]
            .into_iter()
            .for_each(|ns| latencies.record(ns));
        let figures = latencies.figures();
        assert_eq!((figures.ave, figures.std), (5_000.0, 2_000.0));
        assert_eq!((figures.min, figures.max), (2_000, 9_000));
        latencies.record(u64::MAX);
        assert_eq!(latencies.at(1.0), MAX_NS.max(latencies.at(1.0)));
    }
}
