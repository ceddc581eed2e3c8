//! Loss credit: how much of the loss is the path's own and no sign of congestion.
//!
//! The path's own loss is what a trial loses: packets sent while the flow sends less than was
//! delivered recently. Trials begin at common instants (see [`super::trial`]), so that flows which
//! share a bottleneck leave it together: a queue or policer that they overload drops nothing then.
//! Losses while a queue stands say nothing about the path, in a trial, too.

use bats_types::Timestamp;

use super::variation::{Constant, Variation};

/// Trials that may end without enough packets: the queue of Startup can stand in the first one.
const TRIALS_WITHOUT_PROOF: u32 = 2;

/// Runs of losses up to this length are as usual behind a full queue as in bursts of the path.
const SHORT_RUN: f64 = 2.0;

/// Losses that remain of those that fade, from which on they are recent.
const RECENT_LOSSES: f64 = 0.25;

/// Packets and losses among them; old ones fade.
#[derive(Debug, Default)]
struct Pool {
    packets: f64,
    lost: f64,
}

impl Pool {
    fn add(&mut self, packets: f64, lost: f64, limit: f64) {
        self.packets += packets;
        self.lost += lost;
        if self.packets > limit {
            let keep = limit / self.packets;
            self.packets *= keep;
            self.lost *= keep;
        }
    }

    fn loss_rate(&self, min_evidence: f64) -> Option<f64> {
        (self.packets >= min_evidence).then(|| self.lost / self.packets)
    }
}

/// An interval of send times that may not have ended.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: Timestamp,
    end: Option<Timestamp>,
}

impl Interval {
    fn contains(&self, at: Timestamp) -> bool {
        at >= self.from && self.end.is_none_or(|end| at < end)
    }
}

/// Runs of consecutive losses, and the packets of these; old ones fade.
#[derive(Debug, Default)]
struct Runs {
    number: f64,
    packets: f64,
}

impl Runs {
    fn add(&mut self, new: &Self, most: f64) {
        self.number += new.number;
        self.packets += new.packets;
        if self.number > most {
            self.packets *= most / self.number;
            self.number = most;
        }
    }
}

/// What the queue at the next acknowledgement decides about: only what meets a short queue counts.
#[derive(Debug, Default)]
struct Pending {
    trial: Pool,
    all: Pool,
    runs: Runs,
}

/// Estimates the path's own loss.
#[derive(Debug)]
pub(super) struct Credit {
    constants: Variation,
    trials: Pool,
    all: Pool,
    /// Those that met a short queue.
    unqueued: Pool,
    pending: Pending,
    /// Least bound of their loss so far: at a lower rate the path lost no more.
    least_unqueued: Option<f64>,
    /// Runs of losses that met a short queue.
    runs: Runs,
    /// When more than the bandwidth was sent last: what is lost then may be too much.
    excess: Option<Interval>,
    /// Send times of the newest trial's packets.
    window: Option<Interval>,
    /// Losses are the path's own only as far as trials have shown it.
    is_proof_due: bool,
    trials_ended: u32,
}

impl Credit {
    pub(super) fn new(constants: Variation) -> Self {
        Self {
            constants,
            trials: Pool::default(),
            all: Pool::default(),
            unqueued: Pool::default(),
            pending: Pending::default(),
            least_unqueued: None,
            runs: Runs::default(),
            excess: None,
            window: None,
            is_proof_due: false,
            trials_ended: 0,
        }
    }

    /// From `now` on, more than the bandwidth is sent or not.
    pub(super) fn on_pace(&mut self, now: Timestamp, is_excess: bool) {
        match &mut self.excess {
            Some(Interval { end: end @ None, .. }) if !is_excess => *end = Some(now),
            Some(Interval { end: None, .. }) => {}
            _ if is_excess => self.excess = Some(Interval { from: now, end: None }),
            _ => {}
        }
    }

    /// Packets sent from `from` on belong to a trial.
    pub(super) fn begin_trial(&mut self, from: Timestamp) {
        self.window = Some(Interval { from, end: None });
    }

    /// Packets sent after `until` do not.
    pub(super) fn end_trial(&mut self, until: Timestamp) {
        match &mut self.window {
            Some(Interval { end: end @ None, .. }) => {
                *end = Some(until);
                self.trials_ended = self.trials_ended.saturating_add(1);
                self.is_proof_due |= self.trials_ended >= TRIALS_WITHOUT_PROOF;
            }
            // No trial was needed: what is lost from now on is not the path's until one shows it.
            _ => self.is_proof_due = true,
        }
    }

    /// `packets` were acknowledged, the newest of which was sent at `sent_at` and met a short queue or
    /// not.
    pub(super) fn on_ack(&mut self, sent_at: Timestamp, packets: u64, is_queue_short: bool) {
        self.count(sent_at, packets as f64, 0.0);
        let pending = core::mem::take(&mut self.pending);
        if is_queue_short {
            self.runs.add(&pending.runs, self.constants.value(Constant::PoolRuns));
            let limit = self.limit();
            self.unqueued.add(pending.all.packets, pending.all.lost, limit);
            if self.unqueued.packets >= self.min_evidence() {
                let rate = self.upper_bound(&self.unqueued);
                self.least_unqueued =
                    Some(self.least_unqueued.map_or(rate, |least| least.min(rate)));
            }
            self.trials.add(pending.trial.packets, pending.trial.lost, limit);
            self.is_proof_due |= self.trials.packets >= self.min_evidence();
        }
    }

    /// A packet sent at `sent_at` was lost.
    pub(super) fn on_lost(&mut self, sent_at: Timestamp, continues_run: bool) {
        let run = Runs { number: f64::from(u8::from(!continues_run)), packets: 1.0 };
        if !self.excess.is_some_and(|excess| excess.contains(sent_at)) {
            self.pending.runs.add(&run, self.constants.value(Constant::PoolRuns));
        }
        self.count(sent_at, 1.0, 1.0);
    }

    fn count(&mut self, sent_at: Timestamp, packets: f64, lost: f64) {
        let limit = self.limit();
        self.all.add(packets, lost, limit);
        self.pending.all.add(packets, lost, limit);
        if self.window.is_some_and(|window| window.contains(sent_at)) {
            self.pending.trial.add(packets, lost, limit);
        }
    }

    /// Mean length of a run of losses, 1 if there was none.
    fn mean_run(&self) -> f64 {
        let runs = &self.runs;
        if runs.number < 1.0 { 1.0 } else { (runs.packets / runs.number).max(1.0) }
    }

    /// Variance of the losses over that of independent ones: twice the mean run, less one.
    fn burst_factor(&self) -> f64 {
        (2.0 * self.mean_run() - 1.0).min(64.0)
    }

    /// Size of the pools in packets.
    fn limit(&self) -> f64 {
        let in_runs = self.constants.value(Constant::PoolRuns) * self.burst_factor();
        in_runs.max(self.constants.value(Constant::PoolPackets))
    }

    /// Whether packets were lost recently.
    pub(super) fn has_losses(&self) -> bool {
        self.all.lost > RECENT_LOSSES
    }

    /// The path's own loss as far as trials have shown it.
    pub(super) fn proven_loss(&self) -> f64 {
        self.bounded(self.trials.loss_rate(self.min_evidence()).unwrap_or(0.0))
    }

    /// The path's own loss, 0 to [`Constant::MaxCredit`].
    ///
    /// Until trials could prove it, it is what packets lose that meet no queue; Startup would end at
    /// a fraction of the rate otherwise.
    pub(super) fn own_loss(&self) -> f64 {
        if !self.is_proof_due {
            let few = self.unqueued.loss_rate(1.0);
            return self.bounded(self.least_unqueued.or(few).unwrap_or(1.0));
        }
        let all = self.all.loss_rate(self.min_evidence()).unwrap_or(0.0);
        self.proven_loss().min(self.bounded(all))
    }

    /// The largest loss rate that explains the losses of `pool`, had one more been lost.
    fn upper_bound(&self, pool: &Pool) -> f64 {
        let rate = (pool.lost + 1.0) / (pool.packets + 1.0);
        let variance = rate * (1.0 - rate) * self.burst_factor() / pool.packets.max(1.0);
        rate + self.constants.value(Constant::Sigma) * variance.max(0.0).sqrt()
    }

    fn min_evidence(&self) -> f64 {
        self.constants.value(Constant::MinEvidence)
    }

    fn bounded(&self, rate: f64) -> f64 {
        rate.min(self.constants.value(Constant::MaxCredit))
    }

    /// Loss of `packets` that the path's own loss and chance explain.
    pub(super) fn forgiven(&self, packets: f64) -> f64 {
        let pool = if self.is_proof_due { &self.trials } else { &self.unqueued };
        let n = packets.max(1.0);
        let evidence = pool.packets.max(1.0);
        let p = self.own_loss();
        // Trials can miss the bursts of a path: one more of them would have been no surprise.
        let missed = (self.mean_run() - SHORT_RUN).max(0.0) / evidence;
        let q = (p + missed).min(self.constants.value(Constant::MaxCredit));
        let spread = (q * (1.0 - q) * self.burst_factor() * (1.0 / n + 1.0 / evidence)).sqrt();
        (p + self.constants.value(Constant::Sigma) * spread).min(1.0)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

    /// 100 packets sent at `ms`, of which `lost` are lost, evenly spread.
    fn flight(credit: &mut Credit, ms: u64, lost: u64) {
        for _ in 0..lost {
            credit.on_lost(AT(ms), false);
            credit.on_ack(AT(ms), 100 / lost - 1, true);
        }
    }

    #[test]
    fn own_loss_is_that_of_trials_and_not_that_of_overload() {
        let mut credit = Credit::new(Variation::default());
        for cycle in 0..5 {
            flight(&mut credit, cycle * 1_000, 25);
            credit.begin_trial(AT(cycle * 1_000 + 500));
            flight(&mut credit, cycle * 1_000 + 600, 5);
            credit.end_trial(AT(cycle * 1_000 + 700));
        }
        assert!((credit.own_loss() - 0.05).abs() < 0.01, "{}", credit.own_loss());
        assert_eq!(credit.own_loss(), credit.proven_loss());
        assert!(credit.forgiven(100.0) > credit.forgiven(1e6), "chance allows more of few packets");
    }

    #[test]
    fn losses_are_credited_until_trials_could_prove_them_and_then_only_as_proven() {
        let mut credit = Credit::new(Variation::default());
        flight(&mut credit, 0, 20);
        // Their bound: of the packets so far, and of chance.
        assert!((0.2..0.35).contains(&credit.own_loss()), "{}", credit.own_loss());
        assert_eq!(credit.proven_loss(), 0.0);
        for trial in 1..=TRIALS_WITHOUT_PROOF {
            assert!(credit.own_loss() > 0.1);
            credit.begin_trial(AT(u64::from(trial) * 100));
            credit.on_ack(AT(u64::from(trial) * 100 + 10), 3, true);
            credit.end_trial(AT(u64::from(trial) * 100 + 20));
        }
        assert_eq!(credit.own_loss(), 0.0, "too few packets prove nothing");
        assert_eq!(credit.forgiven(100.0), 0.0);
    }

    #[test]
    fn overload_before_a_proof_does_not_raise_the_credit() {
        let mut credit = Credit::new(Variation::default());
        flight(&mut credit, 0, 2);
        let before = credit.own_loss();
        flight(&mut credit, 100, 50);
        assert!(before < 0.1 && credit.own_loss() <= before, "{before} {}", credit.own_loss());
    }

    /// 1,000 packets of which one run of 30 is lost, sent in trials or not.
    fn burst(credit: &mut Credit, ms: u64) {
        credit.on_ack(AT(ms), 970, true);
        for number in 0..30 {
            credit.on_lost(AT(ms), number > 0);
        }
        credit.on_ack(AT(ms), 1, true);
    }

    #[test]
    fn bursts_that_trials_missed_are_forgiven_unless_more_than_the_bandwidth_was_sent() {
        let forgiven = |is_excess: bool| {
            let mut credit = Credit::new(Variation::default());
            credit.begin_trial(AT(100));
            credit.on_ack(AT(110), 100, true);
            credit.on_ack(AT(110), 1, true);
            credit.end_trial(AT(200));
            credit.on_pace(AT(300), is_excess);
            burst(&mut credit, 310);
            assert_eq!(credit.own_loss(), 0.0, "trials lost nothing");
            credit.forgiven(150.0)
        };
        assert!(forgiven(false) > 0.2, "{}", forgiven(false));
        assert_eq!(forgiven(true), 0.0);
    }

    #[test]
    fn losses_behind_a_standing_queue_are_not_the_paths() {
        let mut credit = Credit::new(Variation::default());
        credit.begin_trial(AT(100));
        for _ in 0..50 {
            credit.on_lost(AT(110), false);
            credit.on_ack(AT(110), 2, false);
            credit.on_ack(AT(110), 2, true);
        }
        credit.end_trial(AT(200));
        assert_eq!(credit.proven_loss(), 0.0);
        assert_eq!(credit.own_loss(), 0.0);
    }
}
