//! Whose loss is it? The path's own loss stays when less is sent; loss by overflow goes.
//!
//! Packets are counted by the level at which they were sent. Every phase below the rate, and there
//! is one after each probe, is a trial: what is lost then is the path's own. Loss at the usual
//! level beyond that is due to a queue too short to show as delay, and tells how far the rate was
//! overestimated.
//!
//! A trial is one only if less was sent than the path carries: then less arrives, too. If as much
//! arrives as before, the link overflowed all the time, and what arrives is its rate.
//!
//! Slow paths send too few packets in one trial for a conclusion: what several trials in a row count
//! is taken together.

use std::collections::VecDeque;

use bats_types::Timestamp;

use crate::congestion::AckSample;

/// Packets of a trial that is worth a conclusion.
const MIN_TRIAL: f64 = 40.0;
/// The same where much is lost, at most.
const MOST_TRIAL: f64 = 120.0;
/// Seconds of trials after which the least number of packets is enough all the same.
const LONG_TRIAL: f64 = 0.3;
/// Packets at the usual level worth a comparison.
const MIN_EVEN: f64 = 100.0;
/// Packets remembered at the usual level: older ones fade.
const EVEN_MEMORY: f64 = 16_000.0;
/// Losses come in bursts, which makes the variance larger than that of independent ones.
const BURST_VARIANCE: f64 = 2.0;
/// Differences below this share do not matter.
const TOLERANCE: f64 = 0.005;
/// Share of the arrivals before a trial above which they have not become fewer, at least and at most.
const SAME_ARRIVALS: f64 = 0.93;
const MOST_ARRIVALS: f64 = 0.97;

/// How fast packets are sent, compared to the rate that the path is believed to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Low,
    Even,
    High,
}

/// What a trial brought to light.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Conclusion {
    /// The rate is right, and this is the path's own loss.
    Own(f64),
    /// This share of the believed rate is real, less than 1.
    Share(f64),
    /// The link overflowed in spite of the trial; it carries so many bytes a second.
    Overrun(f64),
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

    fn arrived(&self) -> f64 {
        self.total - self.lost
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
        self.excess_with(other, 1.0)
    }

    /// The same with `bursts` times the variance.
    fn excess_with(&self, other: &Self, bursts: f64) -> f64 {
        let doubt = 3.0 * ((self.variance() + other.variance()) * bursts).sqrt() + TOLERANCE;
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
    /// Bytes of the packets that arrived at the low level.
    low_bytes: f64,
    even: LossCount,
    before: Option<LossCount>,
    own: Option<LossCount>,
    /// The least loss seen in start-up, before the first trial: overflow only adds to the path's own.
    least: Option<LossCount>,
    /// Seconds of the trials that the counts are of.
    low_seconds: f64,
    /// Packets a second that arrived before these trials, and of how many it is the mean.
    arrivals_before: Option<(f64, u32)>,
    /// The sender had nothing more to send at some time of the trial.
    is_idle: bool,
    /// The last trial seemed to overflow the link.
    is_overrun: bool,
    /// Variance of the losses over that of bursts of two, at least 1.
    bursts: f64,
    /// When packets were sent at the low level last.
    low_began: Timestamp,
    low_ended: Timestamp,
}

impl LossTrial {
    pub(super) fn set_level(&mut self, now: Timestamp, level: Level) {
        let last = self.levels.back().map(|&(_, last)| last);
        if last == Some(level) {
            return;
        }
        if level == Level::Low {
            self.low_began = now;
        } else if last == Some(Level::Low) {
            self.low_ended = now;
        }
        self.levels.push_back((now, level));
    }

    fn level_at(&self, sent_at: Timestamp) -> Option<Level> {
        self.levels.iter().rev().find(|(since, _)| *since <= sent_at).map(|&(_, level)| level)
    }

    pub(super) fn on_ack(&mut self, sample: &AckSample) {
        self.bursts = (sample.burst_factor / BURST_VARIANCE).max(1.0);
        // Losses are known later than arrivals, so each has a level of its own.
        for (sent_at, lost, acked) in [
            (sample.lost_sent_at, sample.lost_packets, 0),
            (sample.largest_sent_at, 0, sample.acked_packets),
        ] {
            match self.level_at(sent_at) {
                Some(Level::Low) => {
                    self.is_idle |= sample.app_limited;
                    self.low.add(lost, acked);
                    // The first of the two holds what was lost, the second what arrived.
                    self.low_bytes += if acked > 0 { sample.acked_bytes as f64 } else { 0.0 };
                }
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
    /// it is that of the usual level. `arrivals` is the number of packets a second that arrive now.
    pub(super) fn begin(&mut self, before: Option<LossCount>, arrivals: Option<f64>) {
        self.before = before.or((self.even.total >= MIN_EVEN).then_some(self.even));
        self.is_over = false;
        // The last trial was too short for a conclusion: this one goes on with it.
        if self.low_seconds == 0.0 {
            self.discard();
        }
        self.arrivals_before = match (self.arrivals_before, arrivals) {
            (Some((mean, trials)), Some(rate)) => {
                let trials = trials + 1;
                Some((mean + (rate - mean) / f64::from(trials), trials))
            }
            (mean, rate) => mean.or(rate.map(|rate| (rate, 1))),
        };
    }

    /// Nothing can be concluded from what was sent until now.
    pub(super) fn void(&mut self, now: Timestamp) {
        let level = self.levels.back().map(|&(_, level)| level);
        self.levels.clear();
        self.levels.extend(level.map(|level| (now, level)));
        self.settled = None;
        self.is_over = false;
        self.before = None;
        self.low_began = now;
        self.low_ended = now;
        self.discard();
    }

    /// What was counted is of a rate that is no more.
    fn discard(&mut self) {
        self.even = LossCount::default();
        self.low = LossCount::default();
        self.low_bytes = 0.0;
        self.low_seconds = 0.0;
        self.arrivals_before = None;
        self.is_idle = false;
    }

    /// Once, when all that was sent at the low level has had its fate.
    pub(super) fn conclude(&mut self) -> Option<Conclusion> {
        if !core::mem::take(&mut self.is_over) {
            return None;
        }
        self.low_seconds += (self.low_ended - self.low_began).as_secs_f64();
        let is_long = self.low_seconds >= LONG_TRIAL;
        if self.low.total < if is_long { MIN_TRIAL } else { self.enough() } {
            return None;
        }
        let low = core::mem::take(&mut self.low);
        let bytes = core::mem::take(&mut self.low_bytes);
        let seconds = core::mem::take(&mut self.low_seconds);
        // Who has little to send sends no less in a trial than before it.
        if let Some((before, _)) = self.arrivals_before.take()
            && !self.is_idle
            && seconds > 0.0
            && low.share() > TOLERANCE
        {
            let arrivals = low.arrived() / seconds;
            if arrivals >= before * Self::same_arrivals(&low) {
                // Noise does this, too, but not twice in a row.
                if !core::mem::replace(&mut self.is_overrun, true) {
                    return None;
                }
                // Nothing is known of the path's own loss. Should it lose much, the next trial, at
                // a rate that fits, tells.
                self.own = Some(LossCount::new(0.0, low.total));
                return Some(Conclusion::Overrun(bytes / seconds));
            }
        }
        self.is_overrun = false;
        self.own = Some(low);
        let own = Conclusion::Own(low.share());
        let Some(before) = self.before.take() else { return Some(own) };
        Some(if !self.is_idle && before.excess_with(&low, self.bursts) > 0.0 {
            Conclusion::Share((1.0 - before.share()) / (1.0 - low.share()))
        } else {
            own
        })
    }

    /// Packets that a trial needs: the more is lost the more, for what arrives to tell three quarters from
    /// all of it, by two standard deviations.
    fn enough(&self) -> f64 {
        let share = self.low.share().min(0.99);
        let noise = 2.0 / (MOST_ARRIVALS - 0.75);
        (noise * noise * 2.0 * share / (1.0 - share)).clamp(MIN_TRIAL, MOST_TRIAL)
    }

    /// Share of the arrivals before a trial that must arrive in it, too, for the link to be overrun:
    /// beyond what losing packets at random makes of three quarters.
    fn same_arrivals(low: &LossCount) -> f64 {
        let share = low.share().min(0.99);
        let noise = (share / (1.0 - share) * 2.0 / low.total).sqrt();
        (0.75 + 3.0 * noise).clamp(SAME_ARRIVALS, MOST_ARRIVALS)
    }

    /// The path's own loss. What is lost at the usual level is more than that or the same. Before
    /// the first trial it is the least that was lost in start-up.
    fn own(&self) -> Option<LossCount> {
        let even = (self.even.total >= MIN_EVEN).then_some(self.even);
        let own = self.own.or(self.least);
        match (own, even) {
            (Some(own), Some(even)) if even.share() < own.share() => Some(even),
            (own, _) => own,
        }
    }

    /// What was lost over a while of start-up.
    pub(super) fn note_start(&mut self, loss: LossCount) {
        if loss.total >= MIN_TRIAL && self.least.is_none_or(|least| loss.share() < least.share()) {
            self.least = Some(loss);
        }
    }

    /// The share of packets that the path itself loses, as far as it is known.
    pub(super) fn own_share(&self) -> f64 {
        self.own().map_or(0.0, |own| own.share())
    }

    /// The link overflows, and nobody knows since when: the path's own loss is to be found anew.
    pub(super) fn forget_own(&mut self) {
        self.own = Some(LossCount::new(0.0, MIN_EVEN));
        self.discard();
    }

    /// Nothing is known of the path, as at the beginning.
    pub(super) fn start_anew(&mut self) {
        self.own = None;
        self.least = None;
        self.before = None;
        self.is_over = false;
        self.is_overrun = false;
        self.discard();
    }

    pub(super) fn excess(&self, loss: &LossCount) -> f64 {
        self.own().map_or(0.0, |own| loss.excess_over(&own))
    }

    pub(super) fn is_suspicious(&self) -> bool {
        let own = self.own();
        let is_more = |own: &LossCount| self.even.excess_with(own, self.bursts) > 0.0;
        self.is_overrun || self.even.total >= MIN_EVEN && own.as_ref().is_some_and(is_more)
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
            burst_factor: 1.0,
            ce_packets: 0,
            rtt,
            smoothed_rtt: rtt,
            min_rtt: rtt,
            in_flight: 0,
            packet: 1_200,
            rate: crate::congestion::RateSample::default(),
            after_blackout: false,
        }
    }

    /// Sends at the usual level, then low, then at the usual level; what the trial concludes.
    fn trial(even_loss: u64, low_loss: u64) -> Option<Conclusion> {
        let mut trial = LossTrial::default();
        let at = Timestamp::from_millis;
        trial.set_level(at(0), Level::Even);
        (0..20).for_each(|x| trial.on_ack(&ack(at(x), 100 - even_loss, even_loss)));
        trial.begin(None, None);
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
            assert_eq!(trial(loss, loss), Some(Conclusion::Own(loss as f64 / 100.0)), "{loss}");
        }
    }

    #[test]
    fn loss_that_goes_tells_how_much_too_fast_it_was() {
        // 1.25 times the rate of a link with 10 % of its own and no queue.
        for (even, low) in [(28, 10), (20, 0)] {
            let conclusion = trial(even, low);
            let Some(Conclusion::Share(share)) = conclusion else { panic!("{conclusion:?}") };
            assert!((share - 0.8).abs() < 1e-9, "{share}");
        }
    }

    /// Ten times the rate of a link: three quarters of that overflow it, too.
    #[test]
    fn a_trial_that_overflows_is_none_and_tells_the_rate() {
        let mut trial = LossTrial::default();
        let at = Timestamp::from_millis;
        let mut conclusions = Vec::new();
        for round in [0, 40] {
            trial.set_level(at(round), Level::Even);
            (0..20).for_each(|x| trial.on_ack(&ack(at(round + x), 10, 90)));
            trial.begin(None, Some(10_000.0));
            trial.set_level(at(round + 20), Level::Low);
            (20..40).for_each(|x| trial.on_ack(&ack(at(round + x), 10, 65)));
            trial.set_level(at(round + 40), Level::Even);
            trial.on_ack(&ack(at(round + 40), 10, 90));
            conclusions.push(trial.conclude());
        }
        assert_eq!(conclusions, [None, Some(Conclusion::Overrun(10_000.0 * 1_400.0))]);
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
