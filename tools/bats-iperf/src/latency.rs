//! Distributions of message latencies.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest recorded time, one hour; longer times count as this.
const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Significant digits of a recorded value.
const DIGITS: u8 = 3;

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) min_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) stddev_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) p9999_us: f64,
    pub(crate) max_us: f64,
    /// Error bound of the offset between two hosts' clocks; 0 if only one clock was used.
    pub(crate) clock_error_us: f64,
}

/// A histogram of the message times of one stream, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(Option<Histogram<u64>>);

impl Recorder {
    pub(crate) fn new() -> Self {
        // The bounds are valid, so this never fails.
        Self(Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS).ok())
    }

    pub(crate) fn record(&mut self, nanoseconds: u64) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(nanoseconds);
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if let (Some(histogram), Some(other)) = (&mut self.0, &other.0) {
            // Both have the same bounds, so it cannot fail.
            let _ = histogram.add(other);
        }
    }

    /// The number of recorded times.
    pub(crate) fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// `None` if nothing was recorded.
    pub(crate) fn percentiles(&self, clock_error_ns: u64) -> Option<Percentiles> {
        let histogram = self.0.as_ref().filter(|histogram| !histogram.is_empty())?;
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Some(Percentiles {
            count: histogram.len(),
            min_us: histogram.min() as f64 / 1e3,
            mean_us: histogram.mean() / 1e3,
            stddev_us: histogram.stdev() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: histogram.max() as f64 / 1e3,
            clock_error_us: clock_error_ns as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_match_a_sorted_list() {
        let mut recorder = Recorder::new();
        let mut other = Recorder::new();
        for value in 1..=10_000_u64 {
            if value % 2 == 0 { &mut recorder } else { &mut other }.record(value * 1_000);
        }
        recorder.merge(&other);
        let found = recorder.percentiles(2_000).unwrap();
        assert_eq!(found.count, 10_000);
        for (value, expected) in [
            (found.min_us, 1.0),
            (found.mean_us, 5_000.0),
            (found.p50_us, 5_000.0),
            (found.p90_us, 9_000.0),
            (found.p99_us, 9_900.0),
            (found.p999_us, 9_990.0),
            (found.max_us, 10_000.0),
            (found.clock_error_us, 2.0),
        ] {
            assert!((value / expected - 1.0).abs() < 0.002, "{value} instead of {expected}");
        }
        assert_eq!(Recorder::new().percentiles(0), None);
    }

    #[test]
    fn out_of_range_times_are_clamped() {
        let mut recorder = Recorder::new();
        recorder.record(u64::MAX);
        recorder.record(0);
        assert_eq!(recorder.percentiles(0).unwrap().count, 2);
    }
}
