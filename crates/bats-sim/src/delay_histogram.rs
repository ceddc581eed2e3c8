//! Percentiles of any number of delays in bounded memory.

use core::time::Duration;

/// Buckets per power of two. A percentile is within 0.8 % of the exact value.
const SUB_BUCKETS: u32 = 64;
const SUB_BITS: u32 = SUB_BUCKETS.trailing_zeros();
/// `SUB_BUCKETS` for each position from `SUB_BITS` on of the leading bit of a `u64` of nanoseconds,
/// and `SUB_BUCKETS` for the values below.
const BUCKETS: usize = (u64::BITS - SUB_BITS + 1) as usize * SUB_BUCKETS as usize;

/// A histogram of delays with logarithmic buckets.
#[derive(Clone, PartialEq)]
pub struct DelayHistogram {
    counts: Vec<u64>,
    total: u64,
}

impl core::fmt::Debug for DelayHistogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DelayHistogram")
            .field("count", &self.total)
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .finish()
    }
}

impl Default for DelayHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(SUB_BITS + 1);
    // Each value below 2 * SUB_BUCKETS has a bucket of its own.
    shift as usize * SUB_BUCKETS as usize + (nanos >> shift) as usize
}

/// The middle value of a bucket in nanoseconds: the inverse of `bucket`.
fn middle(bucket: usize) -> u64 {
    let shift = (bucket as u32 / SUB_BUCKETS).saturating_sub(1);
    let low = (bucket as u64 - u64::from(shift * SUB_BUCKETS)) << shift;
    low + ((1 << shift) >> 1)
}

impl DelayHistogram {
    /// Adds a delay. Delays above 584 years count as 584 years.
    pub fn add(&mut self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket(nanos)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// The mean of the shortest `percent` per cent of all delays; `None` without delays.
    pub fn mean_of_shortest(&self, percent: f64) -> Option<Duration> {
        let wanted = (self.total as f64 * percent.clamp(0.0, 100.0) / 100.0).floor() as u64;
        let mut left = wanted;
        let mut sum = 0.0;
        for (index, &count) in self.counts.iter().enumerate() {
            let taken = count.min(left);
            if taken > 0 {
                sum += middle(index) as f64 * taken as f64;
                left -= taken;
            }
        }
        (wanted > 0).then(|| Duration::from_secs_f64(sum / wanted as f64 / 1e9))
    }

    /// Removes all delays.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// Number of delays added.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Number of delays below `limit`. The bucket that contains `limit` is not counted, so that the
    /// result is never too large.
    pub fn below(&self, limit: Duration) -> u64 {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.counts.iter().take(bucket(nanos)).sum()
    }

    /// The percentile by the nearest-rank method; `None` without delays.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let rank =
            ((percent / 100.0 * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(index, &count)| {
            seen += count;
            (seen >= rank).then(|| Duration::from_nanos(middle(index)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_within_one_128th_of_its_values() {
        let mut last = 0;
        for shift in 0..64 {
            for low in [0, 1, 5, 63, 64, 65, 100, 127_u128] {
                let nanos = (1_u64 << shift) + ((low << shift) >> 7) as u64;
                let index = bucket(nanos);
                assert!(index < BUCKETS && index >= last, "{nanos}");
                last = index;
                assert_eq!(bucket(middle(index)), index);
                assert!(middle(index).abs_diff(nanos) as f64 <= nanos as f64 / 128.0, "{nanos}");
            }
        }
        assert_eq!(bucket(0), 0);
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_equal_those_of_the_sorted_list() {
        let mut delays = DelayHistogram::default();
        assert_eq!(delays.percentile(50.0), None);
        for micros in (1..=10_000).rev() {
            delays.add(Duration::from_micros(micros));
        }
        for (percent, micros) in [(0.0, 1.0), (50.0, 5_000.0), (95.0, 9_500.0), (100.0, 10_000.0)] {
            let got = delays.percentile(percent).expect("not empty").as_secs_f64() * 1e6;
            assert!((got / micros - 1.0).abs() < 0.008, "{percent} %: {got}");
        }
        assert_eq!(delays.count(), 10_000);
        delays.clear();
        assert_eq!(delays, DelayHistogram::default());
    }

    #[test]
    fn the_count_below_a_limit_is_close_and_never_too_large() {
        let mut delays = DelayHistogram::default();
        (1..=1_000).for_each(|micros| delays.add(Duration::from_micros(micros)));
        for limit in [1, 2, 10, 500, 1_000, 5_000_u64] {
            let (below, exact) = (delays.below(Duration::from_micros(limit)), 1_000.min(limit - 1));
            assert!(below <= exact && below * 100 >= exact * 98, "{limit}: {below}");
        }
    }

    #[test]
    fn the_mean_of_the_shortest_excludes_the_longest() {
        let mut delays = DelayHistogram::default();
        assert_eq!(delays.mean_of_shortest(50.0), None);
        (1..=99).for_each(|_| delays.add(Duration::from_millis(1)));
        delays.add(Duration::from_secs(1));
        let mean = delays.mean_of_shortest(99.0).unwrap();
        assert!(mean.abs_diff(Duration::from_millis(1)) < Duration::from_micros(10), "{mean:?}");
        assert!(delays.mean_of_shortest(100.0).unwrap() > Duration::from_millis(10));
    }
}
