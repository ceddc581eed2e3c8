//! Loss-based control (draft-ietf-rmcat-gcc-02 section 6), adapted to coding: repairs cover the
//! random loss of the path, so only loss above the recent minimum counts.

use core::time::Duration;

use bats_types::Timestamp;

use crate::congestion::AckSample;

/// Minimum length of a measurement interval, and minimum number of packets in it.
const INTERVAL: Duration = Duration::from_millis(100);
const PACKETS: u64 = 50;
/// Half of the time for which a minimum of the loss is valid.
const MEMORY: Duration = Duration::from_secs(5);
/// Excess loss above which the rate is reduced: 10 % as in the draft, and three standard
/// deviations.
const EXCESS: f64 = 0.1;
/// Fraction of the excess loss by which the rate is reduced (section 6: the draft's factor).
const SHARE: f64 = 0.5;

/// Loss per interval.
#[derive(Debug, Default)]
pub(super) struct Losses {
    lost: u64,
    acked: u64,
    since: Timestamp,
    /// Minimum loss of the current and of the previous half of the validity time.
    least: Option<(f64, f64)>,
    least_since: Timestamp,
}

impl Losses {
    /// Factor for the rate after a loss; `None` if there is nothing to decide.
    pub(super) fn on_ack(&mut self, sample: &AckSample) -> Option<f64> {
        self.lost += sample.lost_packets;
        self.acked += sample.acked_packets;
        let packets = self.lost + self.acked;
        if sample.now - self.since < INTERVAL || packets < PACKETS {
            return None;
        }
        let loss = self.lost as f64 / packets as f64;
        (self.lost, self.acked, self.since) = (0, 0, sample.now);
        let (current, last) = self.least.unwrap_or((loss, loss));
        self.least = Some(if sample.now - self.least_since > MEMORY {
            self.least_since = sample.now;
            (loss, current)
        } else {
            (current.min(loss), last)
        });
        let own = current.min(last).min(loss);
        let share = loss.max(own).clamp(1.0 / packets as f64, 0.5);
        let noise = 3.0 * (share * (1.0 - share) * sample.burst_factor / packets as f64).sqrt();
        let excess = loss - own - noise;
        (excess > EXCESS).then_some(1.0 - SHARE * (loss - own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::testing;

    /// Runs a hundred packets per 100 ms with these losses; returns the reductions.
    fn cuts(losses: impl IntoIterator<Item = u64>) -> Vec<f64> {
        let mut state = Losses::default();
        let steps = losses.into_iter().zip(1_u64..);
        steps
            .filter_map(|(lost, step)| {
                let now = Timestamp::from_millis(100 * step);
                state.on_ack(&testing::ack(now, now, 100 - lost, lost))
            })
            .collect()
    }

    #[test]
    fn what_the_path_loses_is_no_congestion() {
        assert!(cuts([30; 100]).is_empty());
        let noisy = (0..200_u64).map(|i| 10 + (i * 7) % 11);
        assert!(cuts(noisy).is_empty(), "10 to 20 % is noise of a hundred packets");
    }

    #[test]
    fn loss_beyond_that_takes_half_of_it() {
        let cuts = cuts([2; 10].into_iter().chain([42]));
        assert_eq!(cuts, [0.8]);
    }

    #[test]
    fn loss_that_came_to_stay_becomes_the_paths() {
        let cuts = cuts([0; 60].into_iter().chain([40; 300]));
        assert!((1..=110).contains(&cuts.len()), "{} cuts", cuts.len());
    }
}
