use std::collections::VecDeque;

/// Packets per bin of the burst statistic, the variance of the losses per bin: chosen.
const BIN_PACKETS: u32 = 32;
/// Least window of the estimate in bins: 256 packets.
const MIN_BINS: usize = 8;
/// Largest window in bins, 65,536 packets: two round trips of 200 ms at 1 Gbit/s.
const MAX_BINS: usize = 2_048;
/// Upper bound of the burst factor, so that a few bursts cannot raise the redundancy without limit.
const MAX_BURST_FACTOR: f64 = 8.0;

/// Estimates the packet loss of a path before repair: loss fraction and burst factor.
#[derive(Clone, Debug)]
pub struct LossEstimator {
    bins: VecDeque<u8>,
    open_packets: u32,
    open_losses: u32,
    sum: u64,
    sum_of_squares: u64,
    window_bins: usize,
}

impl Default for LossEstimator {
    fn default() -> Self {
        Self {
            bins: VecDeque::with_capacity(MIN_BINS),
            open_packets: 0,
            open_losses: 0,
            sum: 0,
            sum_of_squares: 0,
            window_bins: MIN_BINS,
        }
    }
}

impl LossEstimator {
    /// Sets the window of the estimate to the last `packets` packets (256 to 65,536).
    pub fn set_window(&mut self, packets: u64) {
        let bins = usize::try_from(packets / u64::from(BIN_PACKETS)).unwrap_or(MAX_BINS);
        self.window_bins = bins.clamp(MIN_BINS, MAX_BINS);
    }

    /// The next packet in sending order was lost or acknowledged.
    pub fn on_resolved(&mut self, lost: bool) {
        self.open_packets += 1;
        self.open_losses += u32::from(lost);
        if self.open_packets == BIN_PACKETS {
            let losses = self.open_losses as u8;
            self.bins.push_back(losses);
            self.sum += u64::from(losses);
            self.sum_of_squares += u64::from(losses) * u64::from(losses);
            self.open_packets = 0;
            self.open_losses = 0;
        }
        while self.bins.len() > self.window_bins {
            self.drop_oldest_bin();
        }
    }

    /// A packet counted as lost was acknowledged later.
    pub fn on_spurious(&mut self) {
        if self.open_losses > 0 {
            self.open_losses -= 1;
        } else if let Some(bin) = self.bins.iter_mut().rev().find(|bin| **bin > 0) {
            let losses = u64::from(*bin);
            *bin -= 1;
            self.sum -= 1;
            self.sum_of_squares -= 2 * losses - 1;
        }
    }

    fn drop_oldest_bin(&mut self) {
        if let Some(losses) = self.bins.pop_front() {
            self.sum -= u64::from(losses);
            self.sum_of_squares -= u64::from(losses) * u64::from(losses);
        }
    }

    /// Number of packets in the window.
    pub fn packets(&self) -> u64 {
        self.bins.len() as u64 * u64::from(BIN_PACKETS) + u64::from(self.open_packets)
    }

    /// Number of losses in the window.
    pub fn losses(&self) -> u64 {
        self.sum + u64::from(self.open_losses)
    }

    /// Fraction of packets lost, 0 to 1: (L + 1/2)/(N + 1), and 0 without any loss in the window.
    pub fn estimate(&self) -> f64 {
        if self.losses() == 0 {
            return 0.0;
        }
        (self.losses() as f64 + 0.5) / (self.packets() as f64 + 1.0)
    }

    /// Burst factor, 1 to 8: variance of the losses per bin divided by that of independent losses.
    pub fn burst_factor(&self) -> f64 {
        let n = self.bins.len() as f64;
        let p = self.estimate();
        if self.bins.len() < MIN_BINS || p == 0.0 {
            return 1.0;
        }
        let mean = self.sum as f64 / n;
        let variance = (self.sum_of_squares as f64 / n - mean * mean) * n / (n - 1.0);
        (variance / (f64::from(BIN_PACKETS) * p * (1.0 - p))).clamp(1.0, MAX_BURST_FACTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_zero_without_loss() {
        let mut loss = LossEstimator::default();
        (0..1000).for_each(|_| loss.on_resolved(false));
        assert_eq!(loss.estimate(), 0.0);
        assert_eq!(loss.burst_factor(), 1.0);
    }

    #[test]
    fn periodic_loss_is_estimated_and_not_bursty() {
        let mut loss = LossEstimator::default();
        loss.set_window(4096);
        (0..8192).for_each(|i| loss.on_resolved(i % 10 == 0));
        assert!((loss.estimate() - 0.1).abs() < 0.002, "{}", loss.estimate());
        assert_eq!(loss.burst_factor(), 1.0);
    }

    #[test]
    fn bursts_of_eight_raise_the_burst_factor() {
        let mut loss = LossEstimator::default();
        loss.set_window(4096);
        // Bursts at irregular positions from a linear congruential generator.
        let mut x = 1_u32;
        let mut left = 0;
        for _ in 0..8192 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if left == 0 && x >> 16 < 820 {
                left = 8;
            }
            loss.on_resolved(left > 0);
            left = i32::max(0, left - 1);
        }
        assert!(loss.burst_factor() > 3.0, "{}", loss.burst_factor());
    }

    #[test]
    fn losses_outside_the_window_do_not_count() {
        let mut loss = LossEstimator::default();
        (0..512).for_each(|_| loss.on_resolved(true));
        (0..512).for_each(|_| loss.on_resolved(false));
        assert_eq!(loss.estimate(), 0.0);
    }

    #[test]
    fn spurious_losses_are_subtracted() {
        let mut loss = LossEstimator::default();
        (0..64).for_each(|_| loss.on_resolved(true));
        (0..64).for_each(|_| loss.on_spurious());
        assert_eq!(loss.losses(), 0);
        assert_eq!(loss.sum_of_squares, 0);
    }

    /// The packets in the window, bin by bin, and the definitions of what the estimator reports.
    #[derive(Default)]
    struct Model {
        bins: VecDeque<Vec<bool>>,
        open: Vec<bool>,
    }

    impl Model {
        fn on_resolved(&mut self, lost: bool, window: u64) {
            self.open.push(lost);
            if self.open.len() == 32 {
                self.bins.push_back(core::mem::take(&mut self.open));
            }
            while self.bins.len() as u64 > window / 32 {
                self.bins.pop_front();
            }
        }

        /// The newest loss did not happen.
        fn on_spurious(&mut self) {
            let packets = self.bins.iter_mut().flatten().chain(&mut self.open);
            if let Some(newest) = packets.filter(|lost| **lost).last() {
                *newest = false;
            }
        }

        fn check(&self, loss: &LossEstimator) {
            let packets = || self.bins.iter().flatten().chain(&self.open);
            let (sent, lost) = (packets().count() as u64, packets().filter(|lost| **lost).count());
            assert_eq!((loss.packets(), loss.losses()), (sent, lost as u64));
            let fraction = (lost as f64 + 0.5) / (sent as f64 + 1.0);
            assert_eq!(loss.estimate(), if lost == 0 { 0.0 } else { fraction });
            let factor = if lost == 0 || self.bins.len() < 8 {
                1.0
            } else {
                let count = |bin: &Vec<bool>| bin.iter().filter(|lost| **lost).count() as f64;
                let bins = self.bins.len() as f64;
                let mean = self.bins.iter().map(count).sum::<f64>() / bins;
                let squares = self.bins.iter().map(|bin| (count(bin) - mean).powi(2));
                let variance = squares.sum::<f64>() / (bins - 1.0);
                (variance / (32.0 * fraction * (1.0 - fraction))).clamp(1.0, 8.0)
            };
            let reported = loss.burst_factor();
            assert!((reported - factor).abs() < 1e-9, "{reported} instead of {factor}");
        }
    }

    /// Runs of losses of random lengths, some of which turn out to be spurious, for windows of 8 to 20
    /// bins.
    #[test]
    fn estimates_agree_with_their_definitions() {
        for (packets, window) in [(0, 256), (287, 256), (288, 288), (640, 640)] {
            let (mut loss, mut model) = (LossEstimator::default(), Model::default());
            loss.set_window(packets);
            let mut x = 1_u32;
            let mut left = 0;
            for step in 0..1_500 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if left == 0 && x >> 16 < 2_000 {
                    left = x % 12;
                }
                loss.on_resolved(left > 0);
                model.on_resolved(left > 0, window);
                left = left.saturating_sub(1);
                if step % 8 == 7 {
                    model.check(&loss);
                }
                if x >> 28 == 0 {
                    loss.on_spurious();
                    model.on_spurious();
                    model.check(&loss);
                }
            }
        }
    }

    #[test]
    fn window_has_256_to_65536_packets() {
        for (packets, window) in [(0, 256), (256, 256), (65_536, 65_536), (u64::MAX, 65_536)] {
            let mut loss = LossEstimator::default();
            loss.set_window(packets);
            (0..window).for_each(|_| loss.on_resolved(true));
            assert_eq!(loss.packets(), window);
            (0..32).for_each(|_| loss.on_resolved(true));
            assert_eq!(loss.packets(), window);
        }
    }
}
