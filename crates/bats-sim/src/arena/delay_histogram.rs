//! One-way delays of packets, as a histogram.

use core::time::Duration;

/// Bins of the delay histogram: 0.25 ms each, the last one is for all longer delays.
const DELAY_BINS: usize = 40_000;
const DELAY_BIN_NANOS: u64 = 250_000;

/// One-way delays.
#[derive(Clone, Debug)]
pub struct DelayHistogram {
    bins: Vec<u32>,
    count: u64,
}

impl Default for DelayHistogram {
    fn default() -> Self {
        Self { bins: vec![0; DELAY_BINS], count: 0 }
    }
}

impl DelayHistogram {
    pub(super) fn add(&mut self, delay: Duration) {
        let bin = (delay.as_nanos() as u64 / DELAY_BIN_NANOS) as usize;
        self.bins[bin.min(DELAY_BINS - 1)] += 1;
        self.count += 1;
    }

    /// The delay that the share `quantile` of the packets did not exceed.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let target = (self.count as f64 * quantile).ceil() as u64;
        let mut sum = 0;
        for (bin, &count) in self.bins.iter().enumerate() {
            sum += u64::from(count);
            if sum >= target && sum > 0 {
                return Duration::from_nanos((bin as u64 + 1) * DELAY_BIN_NANOS);
            }
        }
        Duration::ZERO
    }
}
