//! Whose loss is it? The path's own loss stays when less is sent; loss by overflow goes.
//!
//! Packets are counted by the level at which they were sent. Every phase below the rate, and there
//! is one after each probe, is a trial: what is lost then is the path's own. Loss at the usual
//! level beyond that is due to a queue too short to show as delay, and tells how far the rate was
//! overestimated.

use std::collections::VecDeque;

use bats_types::Timestamp;

use crate::congestion::AckSample;

/// Packets of a trial that is worth a conclusion.
const MIN_TRIAL: f64 = 40.0;
/// Packets at the usual level worth a comparison.
const MIN_EVEN: f64 = 100.0;
/// Packets remembered at the usual level: older ones fade.
const EVEN_MEMORY: f64 = 16_000.0;
/// Losses come in bursts, which makes the variance larger than that of independent ones.
const BURST_VARIANCE: f64 = 2.0;
/// Differences below this share do not matter.
const TOLERANCE: f64 = 0.005;

/// How fast packets are sent, compared to the rate that the path is believed to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Low,
    Even,
    High,
}

/// Packets lost among packets sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LossCount {
    lost: f64,
    total: f64,
}

impl LossCount {
    pub(super) fn new(lost: f64, total: f64) -> Self {
        Self { lost, total }
    }

    fn add(&mut self, lost: u64, acked: u64) {
        self.lost += lost as f64;
        self.total += (lost + acked) as f64;
    }

    fn fade(&mut self, limit: f64) {
        if self.total > limit {
            self.lost /= 2.0;
            self.total /= 2.0;
        }
    }

    fn share(&self) -> f64 {
        self.lost / self.total.max(1.0)
    }

    /// Variance of the share; a count of zero is no proof of no loss.
    fn variance(&self) -> f64 {
        let total = self.total.max(1.0);
        let share = self.share().max(1.0 / total).min(0.5);
        BURST_VARIANCE * share * (1.0 - share) / total
    }

    /// By how much this share is above another beyond doubt (three standard deviations).
    fn excess_over(&self, other: &Self) -> f64 {
        let doubt = 3.0 * (self.variance() + other.variance()).sqrt() + TOLERANCE;
        (self.share() - other.share() - doubt).max(0.0)
    }
}

/// Counts by level, and the conclusions from them.
#[derive(Debug, Default)]
pub(super) struct LossTrial {
    /// When which level began, for packets still in flight.
    levels: VecDeque<(Timestamp, Level)>,
    /// Level of the packets whose fate was decided last.
    settled: Option<Level>,
    is_over: bool,
    low: LossCount,
    even: LossCount,
    before: Option<LossCount>,
    own: Option<LossCount>,
}

impl LossTrial {
    pub(super) fn set_level(&mut self, now: Timestamp, level: Level) {
        if self.levels.back().is_none_or(|&(_, last)| last != level) {
            self.levels.push_back((now, level));
        }
    }

    fn level_at(&self, sent_at: Timestamp) -> Option<Level> {
        self.levels.iter().rev().find(|(since, _)| *since <= sent_at).map(|&(_, level)| level)
    }

    pub(super) fn on_ack(&mut self, sample: &AckSample) {
        // Losses are known later than arrivals, so each has a level of its own.
        for (sent_at, lost, acked) in [
            (sample.lost_sent_at, sample.lost_packets, 0),
            (sample.largest_sent_at, 0, sample.acked_packets),
        ] {
            match self.level_at(sent_at) {
                Some(Level::Low) => self.low.add(lost, acked),
                Some(Level::Even) => self.even.add(lost, acked),
                Some(Level::High) | None => {}
            }
        }
        self.even.fade(EVEN_MEMORY);
        let settled = self.level_at(sample.settled_until);
        if self.settled == Some(Level::Low) && settled.is_some_and(|level| level != Level::Low) {
            self.is_over = true;
        }
        self.settled = settled;
        while self.levels.len() > 1
            && self.levels[1].0 <= sample.settled_until.min(sample.largest_sent_at)
        {
            self.levels.pop_front();
        }
    }

    /// A phase at a low level begins. `before` is the loss that it is compared with; without one
    /// it is that of the usual level.
    pub(super) fn begin(&mut self, before: Option<LossCount>) {
        self.before = before.or((self.even.total >= MIN_EVEN).then_some(self.even));
        self.even = LossCount::default();
        self.low = LossCount::default();
        self.is_over = false;
    }

    /// Once, when all that was sent at the low level has had its fate: the share of the believed
    /// rate that is real, if it is less than 1.
    pub(super) fn conclude(&mut self) -> Option<f64> {
        if !core::mem::take(&mut self.is_over) {
            return None;
        }
        let low = core::mem::take(&mut self.low);
        if low.total < MIN_TRIAL {
            return None;
        }
        self.own = Some(low);
        let before = self.before.take()?;
        (before.excess_over(&low) > 0.0).then(|| (1.0 - before.share()) / (1.0 - low.share()))
    }

    /// The path's own loss. What is lost at the usual level is more than that or the same.
    fn own(&self) -> Option<LossCount> {
        let even = (self.even.total >= MIN_EVEN).then_some(self.even);
        match (self.own, even) {
            (Some(own), Some(even)) if even.share() < own.share() => Some(even),
            (own, _) => own,
        }
    }

    pub(super) fn excess(&self, loss: &LossCount) -> f64 {
        self.own().map_or(0.0, |own| loss.excess_over(&own))
    }

    pub(super) fn is_suspicious(&self) -> bool {
        self.even.total >= MIN_EVEN && self.excess(&self.even) > 0.0
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn ack(sent_at: Timestamp, acked: u64, lost: u64) -> AckSample {
        let rtt = Duration::from_millis(10);
        AckSample {
            now: sent_at + rtt,
            largest_sent_at: sent_at,
            largest_received_at: sent_at,
            cumulative_sent: 0,
            app_limited: false,
            acked_bytes: acked * 1_400,
            acked_packets: acked,
            lost_bytes: lost * 1_400,
            lost_packets: lost,
            lost_sent_at: sent_at,
            settled_until: sent_at,
            ce_packets: 0,
            rtt,
            smoothed_rtt: rtt,
            min_rtt: rtt,
            in_flight: 0,
        }
    }

    /// Sends at the usual level, then low, then at the usual level; what the trial concludes.
    fn trial(even_loss: u64, low_loss: u64) -> Option<f64> {
        let mut trial = LossTrial::default();
        let at = Timestamp::from_millis;
        trial.set_level(at(0), Level::Even);
        (0..20).for_each(|x| trial.on_ack(&ack(at(x), 100 - even_loss, even_loss)));
        trial.begin(None);
        trial.set_level(at(20), Level::Low);
        (20..25).for_each(|x| trial.on_ack(&ack(at(x), 100 - low_loss, low_loss)));
        assert_eq!(trial.conclude(), None, "not before packets of the next phase are seen");
        trial.set_level(at(25), Level::Even);
        trial.on_ack(&ack(at(25), 100 - even_loss, even_loss));
        let result = trial.conclude();
        assert_eq!(trial.conclude(), None, "only once");
        result
    }

    #[test]
    fn loss_that_stays_is_the_paths_own() {
        for loss in [0, 2, 10, 30] {
            assert_eq!(trial(loss, loss), None, "{loss}");
        }
    }

    #[test]
    fn loss_that_goes_tells_how_much_too_fast_it_was() {
        // 1.25 times the rate of a link with 10 % of its own and no queue.
        let factor = trial(28, 10).unwrap();
        assert!((factor - 0.8).abs() < 1e-9, "{factor}");
        assert!(trial(20, 0).is_some_and(|factor| (factor - 0.8).abs() < 1e-9));
    }

    #[test]
    fn little_evidence_is_none() {
        for total in [0.0, 0.3, 1.0, 1.5] {
            let few = LossCount::new(total / 2.0, total);
            assert_eq!(few.excess_over(&few), 0.0);
        }
        let none = LossCount::new(0.0, 32.0);
        assert_eq!(LossCount::new(3.0, 32.0).excess_over(&none), 0.0);
        assert!(LossCount::new(300.0, 3_000.0).excess_over(&LossCount::new(0.0, 500.0)) > 0.05);
    }
}
