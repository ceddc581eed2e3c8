use core::time::Duration;

/// Sub-buckets per power of two. They determine a value to within 3 %.
const SUB: u64 = 32;
/// log2 of [`SUB`].
const SUB_BITS: u32 = 5;
/// Powers of two above the linear part: up to 2^36 units, which is 19 hours.
const POWERS: u32 = 31;
/// Total number of buckets.
const BUCKETS: usize = (SUB as usize) * (POWERS as usize + 1);

/// Sojourn times: from the entry of a frame to the start of its transmission.
///
/// One unit is 1.024 us. Times of up to 32 units are exact, longer ones are accurate to 3 %. Memory
/// grows with the longest time, up to 4 KiB.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sojourn {
    buckets: Vec<u32>,
    zero: u64,
    max: Duration,
}

impl Sojourn {
    #[inline]
    pub(crate) fn record(&mut self, time: Duration) {
        if time.is_zero() {
            self.zero += 1;
            return;
        }
        self.max = self.max.max(time);
        let units = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) >> 10;
        let index = index(units).min(BUCKETS - 1);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, 0);
        }
        self.buckets[index] = self.buckets[index].saturating_add(1);
    }

    /// Number of frames counted. A bucket counts at most 4 billion.
    pub fn count(&self) -> u64 {
        self.zero + self.buckets.iter().map(|&count| u64::from(count)).sum::<u64>()
    }

    /// The longest sojourn time.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The quantile `quantile` (0..=1) of the sojourn times: 0.95 for the 95th percentile. It is
    /// rounded up to the end of a bucket, and at most [`Sojourn::max`]; zero without frames.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let count = self.count();
        // The conversion saturates; NaN counts as 0.
        let rank = ((count as f64 * quantile).ceil() as u64).clamp(1, count.max(1));
        let mut seen = self.zero;
        if seen >= rank {
            return Duration::ZERO;
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += u64::from(*bucket);
            if seen >= rank {
                return Duration::from_nanos((end(index) << 10) - 1).min(self.max);
            }
        }
        self.max
    }

    /// The frames counted since `earlier`, a former state of the same histogram. The maximum
    /// remains that of the whole histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut buckets = self.buckets.clone();
        for (bucket, before) in buckets.iter_mut().zip(&earlier.buckets) {
            *bucket = bucket.saturating_sub(*before);
        }
        Self { buckets, zero: self.zero.saturating_sub(earlier.zero), max: self.max }
    }
}

fn index(units: u64) -> usize {
    let power = (63 - (units | (SUB - 1)).leading_zeros()) - (SUB_BITS - 1);
    // The first power of two uses both halves for exact values.
    let shift = power.saturating_sub(1);
    (u64::from(shift) * SUB + (units >> shift)) as usize
}

/// End of a bucket in units, exclusive.
fn end(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * SUB {
        return index + 1;
    }
    let shift = index / SUB - 1;
    (index - shift * SUB + 1) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut last = 0;
        for units in 0..200_000_u64 {
            let at = index(units);
            assert!(at == last || at == last + 1, "{units}");
            assert!(units < end(at) && (at == 0 || units >= end(at - 1)), "{units} {at}");
            assert!((end(at) - 1 - units) as f64 <= units as f64 / 31.0, "{units}");
            last = at;
        }
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut sojourn = Sojourn::default();
        assert_eq!(sojourn.quantile(0.5), Duration::ZERO);
        for millis in 1..=100 {
            sojourn.record(Duration::from_millis(millis));
        }
        let before = sojourn.clone();
        for (quantile, millis) in [(0.5, 50.0), (0.95, 95.0), (0.99, 99.0), (1.0, 100.0)] {
            let value = sojourn.quantile(quantile).as_secs_f64() * 1_000.0;
            assert!(value >= millis && value < millis * 1.04, "{quantile}: {value}");
        }
        (0..900).for_each(|_| sojourn.record(Duration::ZERO));
        assert_eq!((sojourn.count(), sojourn.quantile(0.9)), (1_000, Duration::ZERO));
        assert_eq!(sojourn.max(), Duration::from_millis(100));
        sojourn.record(Duration::MAX);
        assert_eq!(sojourn.quantile(1.0), Duration::MAX.min(sojourn.quantile(1.0)));
        let since = sojourn.since(&before);
        assert_eq!(since.count(), 901);
        assert_eq!(since.quantile(0.5), Duration::ZERO);
    }
}
