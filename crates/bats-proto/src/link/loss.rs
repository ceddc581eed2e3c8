use std::collections::VecDeque;

/// Packets in one bin of the burst statistic (`coding.md` 7: variance per 32-packet bin).
const BIN_PACKETS: u32 = 32;
/// Least number of bins in the estimate: 256 packets.
const MIN_BINS: usize = 8;
/// Most bins kept, 65,536 packets: two round trips of 200 ms at 1 Gbit/s.
const MAX_BINS: usize = 2_048;
/// Largest burst factor believed; more would let a few bursts steer the redundancy without bound.
const MAX_BURST_FACTOR: f64 = 8.0;

/// Loss of a path before repair, from packet numbers: its share and how bursty it is.
#[derive(Clone, Debug)]
pub struct LossEstimator {
    bins: VecDeque<u8>,
    open_packets: u32,
    open_losses: u32,
    sum: u64,
    sum_of_squares: u64,
    losses_ever: u64,
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
            losses_ever: 0,
            window_bins: MIN_BINS,
        }
    }
}

impl LossEstimator {
    /// The estimate covers the last `packets` packets (at least 256, at most 65,536).
    pub fn set_window(&mut self, packets: u64) {
        let bins = usize::try_from(packets / u64::from(BIN_PACKETS)).unwrap_or(MAX_BINS);
        self.window_bins = bins.clamp(MIN_BINS, MAX_BINS);
    }

    /// The fate of the next packet in sending order is known.
    pub fn on_resolved(&mut self, lost: bool) {
        self.open_packets += 1;
        self.open_losses += u32::from(lost);
        self.losses_ever += u64::from(lost);
        if self.open_packets == BIN_PACKETS {
            let losses = self.open_losses as u8;
            self.bins.push_back(losses);
            self.sum += u64::from(losses);
            self.sum_of_squares += u64::from(losses) * u64::from(losses);
            self.open_packets = 0;
            self.open_losses = 0;
        }
        while self.bins.len() > self.window_bins {
            self.forget_oldest_bin();
        }
    }

    /// A packet counted as lost arrived after all.
    pub fn on_spurious(&mut self) {
        self.losses_ever = self.losses_ever.saturating_sub(1);
        if self.open_losses > 0 {
            self.open_losses -= 1;
        } else if let Some(bin) = self.bins.iter_mut().rev().find(|bin| **bin > 0) {
            let losses = u64::from(*bin);
            *bin -= 1;
            self.sum -= 1;
            self.sum_of_squares -= 2 * losses - 1;
        }
    }

    fn forget_oldest_bin(&mut self) {
        if let Some(losses) = self.bins.pop_front() {
            self.sum -= u64::from(losses);
            self.sum_of_squares -= u64::from(losses) * u64::from(losses);
        }
    }

    /// Packets that the estimate rests on.
    pub fn packets(&self) -> u64 {
        self.bins.len() as u64 * u64::from(BIN_PACKETS) + u64::from(self.open_packets)
    }

    /// Losses among those packets.
    pub fn losses(&self) -> u64 {
        self.sum + u64::from(self.open_losses)
    }

    /// Share of packets lost, 0 to 1: (L + 1/2)/(N + 1), and 0 while no loss is in sight.
    pub fn estimate(&self) -> f64 {
        if self.losses() == 0 {
            return 0.0;
        }
        (self.losses() as f64 + 0.5) / (self.packets() as f64 + 1.0)
    }

    /// Variance of the losses per bin over that of independent losses, 1 to 8.
    pub fn burst_factor(&self) -> f64 {
        let n = self.bins.len() as f64;
        let p = self.estimate();
        if self.bins.len() < MIN_BINS || p <= 0.0 || p >= 1.0 {
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
    fn no_loss_means_zero_not_a_prior() {
        let mut loss = LossEstimator::default();
        (0..1000).for_each(|_| loss.on_resolved(false));
        assert_eq!(loss.estimate(), 0.0);
        assert_eq!(loss.burst_factor(), 1.0);
    }

    #[test]
    fn every_tenth_packet_is_ten_percent_and_not_bursty() {
        let mut loss = LossEstimator::default();
        loss.set_window(4096);
        (0..8192).for_each(|i| loss.on_resolved(i % 10 == 0));
        assert!((loss.estimate() - 0.1).abs() < 0.002, "{}", loss.estimate());
        assert_eq!(loss.burst_factor(), 1.0);
    }

    #[test]
    fn bursts_of_eight_are_seen_as_bursty() {
        let mut loss = LossEstimator::default();
        loss.set_window(4096);
        // Bursts at irregular places: positions by a multiplicative sequence.
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
    fn the_window_forgets() {
        let mut loss = LossEstimator::default();
        (0..512).for_each(|_| loss.on_resolved(true));
        (0..512).for_each(|_| loss.on_resolved(false));
        assert_eq!(loss.estimate(), 0.0);
    }

    #[test]
    fn spurious_losses_are_taken_back() {
        let mut loss = LossEstimator::default();
        (0..64).for_each(|_| loss.on_resolved(true));
        (0..64).for_each(|_| loss.on_spurious());
        assert_eq!(loss.losses(), 0);
        assert_eq!(loss.sum_of_squares, 0);
    }
}
