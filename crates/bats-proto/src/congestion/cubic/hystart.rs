//! HyStart++ (RFC 9406): ends slow start before it overflows the queue.

use core::time::Duration;

/// `MIN_RTT_THRESH`, `MAX_RTT_THRESH`: growth of the RTT that indicates a queue.
const MIN_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_THRESHOLD: Duration = Duration::from_millis(16);
/// `MIN_RTT_DIVISOR`: the same growth as a fraction of the RTT.
const THRESHOLD_SHARE: u32 = 8;
/// `N_RTT_SAMPLE`: number of samples required per round.
const SAMPLES: u32 = 8;
/// `CSS_GROWTH_DIVISOR`: factor by which conservative slow start grows more slowly.
const CONSERVATIVE_DIVISOR: f64 = 4.0;
/// `CSS_ROUNDS`: number of rounds of conservative slow start.
const CONSERVATIVE_ROUNDS: u32 = 5;

/// RTT samples of slow start.
#[derive(Debug, Default)]
pub(super) struct HyStart {
    last: Option<Duration>,
    current: Option<Duration>,
    samples: u32,
    /// In conservative slow start: the RTT at its start, and the number of rounds since.
    conservative: Option<(Duration, u32)>,
}

impl HyStart {
    /// Takes an RTT sample.
    pub(super) fn on_sample(&mut self, rtt: Duration) {
        let least = self.current.map_or(rtt, |current| current.min(rtt));
        self.current = Some(least);
        self.samples += 1;
        if self.samples < SAMPLES {
            return;
        }
        match (self.conservative, self.last) {
            // The RTT has fallen again: another flow caused the queue.
            (Some((baseline, _)), _) if least < baseline => self.conservative = None,
            (None, Some(last)) => {
                let threshold = (last / THRESHOLD_SHARE).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
                if least >= last + threshold {
                    self.conservative = Some((least, 0));
                }
            }
            _ => {}
        }
    }

    /// Handles the end of a round. Returns whether slow start ends.
    pub(super) fn on_round(&mut self) -> bool {
        self.last = self.current.take();
        self.samples = 0;
        let Some((_, rounds)) = &mut self.conservative else { return false };
        *rounds += 1;
        *rounds > CONSERVATIVE_ROUNDS
    }

    /// Growth of the window per byte acknowledged.
    pub(super) fn growth(&self) -> f64 {
        if self.conservative.is_some() { 1.0 / CONSERVATIVE_DIVISOR } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(start: &mut HyStart, millis: u64) -> bool {
        for _ in 0..SAMPLES {
            start.on_sample(Duration::from_millis(millis));
        }
        start.on_round()
    }

    #[test]
    fn a_longer_round_trip_slows_down_and_then_ends() {
        let mut start = HyStart::default();
        assert!(!round(&mut start, 40) && !round(&mut start, 44));
        assert_eq!(start.growth(), 1.0, "less than an eighth");
        assert!(!round(&mut start, 50));
        assert_eq!(start.growth(), 0.25);
        let ended = (0..10).position(|_| round(&mut start, 50));
        assert_eq!(ended, Some(CONSERVATIVE_ROUNDS as usize - 1));
    }

    #[test]
    fn a_queue_that_goes_speeds_up_again() {
        let mut start = HyStart::default();
        round(&mut start, 40);
        round(&mut start, 60);
        assert_eq!(start.growth(), 0.25);
        round(&mut start, 41);
        assert_eq!(start.growth(), 1.0);
    }

    #[test]
    fn few_samples_tell_nothing() {
        let mut start = HyStart::default();
        round(&mut start, 40);
        (0..SAMPLES - 1).for_each(|_| start.on_sample(Duration::from_secs(1)));
        assert_eq!(start.growth(), 1.0);
    }
}
