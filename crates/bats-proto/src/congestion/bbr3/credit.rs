//! Loss credit: how much of the loss is the path's own and no sign of congestion.
//!
//! The path's own loss is what a trial loses: packets sent while the flow sends less than was
//! delivered recently. Trials begin at common instants (see [`super::trial`]), so that flows which
//! share a bottleneck leave it together: a queue or policer that they overload drops nothing then.

use bats_types::Timestamp;

/// Least size of the pool of trial packets, and its size in runs of losses.
const POOL_PACKETS: f64 = 200.0;
const POOL_RUNS: f64 = 60.0;
/// Packets of trials before they say anything.
const MIN_EVIDENCE: f64 = 40.0;
/// Largest loss that is forgiven.
const CREDIT_MAX: f64 = 0.6;
/// Standard deviations of chance that are forgiven.
const SIGMA: f64 = 2.0;

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

    fn loss_rate(&self) -> Option<f64> {
        (self.packets >= MIN_EVIDENCE).then(|| self.lost / self.packets)
    }
}

/// Estimates the path's own loss.
#[derive(Debug, Default)]
pub(super) struct Credit {
    trials: Pool,
    all: Pool,
    /// Runs of consecutive losses, and the packets of these.
    runs: f64,
    run_packets: f64,
    /// First and last send time of the newest trial's packets.
    window: Option<(Timestamp, Option<Timestamp>)>,
    /// The first trial is over.
    had_trial: bool,
}

impl Credit {
    /// Packets sent from `from` on belong to a trial.
    pub(super) fn begin_trial(&mut self, from: Timestamp) {
        self.window = Some((from, None));
    }

    /// Packets sent after `until` do not.
    pub(super) fn end_trial(&mut self, until: Timestamp) {
        if let Some((_, end @ None)) = &mut self.window {
            *end = Some(until);
            self.had_trial = true;
        }
    }

    /// `packets` were acknowledged, the newest of which was sent at `sent_at`.
    pub(super) fn on_ack(&mut self, sent_at: Timestamp, packets: u64) {
        self.count(sent_at, packets as f64, 0.0);
    }

    /// A packet sent at `sent_at` was lost.
    pub(super) fn on_lost(&mut self, sent_at: Timestamp, continues_run: bool) {
        self.runs += f64::from(u8::from(!continues_run));
        self.run_packets += 1.0;
        if self.runs > POOL_RUNS {
            self.run_packets *= POOL_RUNS / self.runs;
            self.runs = POOL_RUNS;
        }
        self.count(sent_at, 1.0, 1.0);
    }

    fn count(&mut self, sent_at: Timestamp, packets: f64, lost: f64) {
        let limit = self.limit();
        self.all.add(packets, lost, limit);
        let is_trial = self
            .window
            .is_some_and(|(from, end)| sent_at >= from && end.is_none_or(|end| sent_at < end));
        if is_trial {
            self.trials.add(packets, lost, limit);
        }
    }

    /// Variance of the losses over that of independent ones: twice the mean run, less one.
    fn burst_factor(&self) -> f64 {
        if self.runs < 1.0 {
            return 1.0;
        }
        (2.0 * self.run_packets / self.runs - 1.0).clamp(1.0, 64.0)
    }

    /// Size of the pools in packets.
    fn limit(&self) -> f64 {
        POOL_PACKETS.max(POOL_RUNS * self.burst_factor())
    }

    /// Whether packets were lost recently.
    pub(super) fn has_losses(&self) -> bool {
        self.all.lost > 1.0
    }

    /// The path's own loss as far as trials have shown it.
    pub(super) fn proven_loss(&self) -> f64 {
        self.trials.loss_rate().unwrap_or(0.0).min(CREDIT_MAX)
    }

    /// The path's own loss, 0 to [`CREDIT_MAX`].
    pub(super) fn own_loss(&self) -> f64 {
        let all = self.all.loss_rate().unwrap_or(0.0);
        // Before the first trial every loss may be the path's own; Startup would end at a fraction of
        // the rate otherwise.
        let unproven = if self.had_trial { 0.0 } else { 1.0 };
        self.trials.loss_rate().unwrap_or(unproven).min(all).min(CREDIT_MAX)
    }

    /// Loss of `packets` that the path's own loss and chance explain.
    pub(super) fn forgiven(&self, packets: f64) -> f64 {
        let p = self.own_loss();
        if p <= 0.0 {
            return 0.0;
        }
        let n = packets.max(1.0);
        let evidence = 1.0 / n + 1.0 / self.trials.packets.max(1.0);
        let spread = (p * (1.0 - p) * self.burst_factor() * evidence).sqrt();
        (p + SIGMA * spread).min(0.95)
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
            credit.on_ack(AT(ms), 100 / lost - 1);
        }
    }

    #[test]
    fn own_loss_is_that_of_trials_and_not_that_of_overload() {
        let mut credit = Credit::default();
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
    fn losses_are_credited_until_the_first_trial_and_then_only_as_proven() {
        let mut credit = Credit::default();
        flight(&mut credit, 0, 20);
        assert!((credit.own_loss() - 0.2).abs() < 0.01);
        assert_eq!(credit.proven_loss(), 0.0);
        credit.begin_trial(AT(100));
        credit.on_ack(AT(110), 3);
        credit.end_trial(AT(120));
        assert_eq!(credit.own_loss(), 0.0, "too few packets prove nothing");
        assert_eq!(credit.forgiven(100.0), 0.0);
    }
}
