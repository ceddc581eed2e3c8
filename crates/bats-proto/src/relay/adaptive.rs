//! How many combinations follow a batch where the next node reports nothing.

use bats_code::BATCH_SIZE;
use bats_code::adaptive::{HopLoss, RecodingPlan};

use super::LinkView;

/// Batches after which the plan is made anew.
const BATCHES_PER_PLAN: u32 = 64;
/// Batches that the ranks are weighted over: older ones fade.
const MEMORY: f64 = 0.75;
/// Ranks that less than one batch in so many has do not count.
const RARE: f64 = 64.0;
/// Packets of a batch in the plan at most.
const MAX_BUDGET: f64 = 4.0 * BATCH_SIZE as f64;

/// Ranks of the batches that came, and the plan made of them (RFC 9426, section 3.3; adaptive
/// recoding: see `bats_code::adaptive`).
#[derive(Debug, Default)]
pub(super) struct AdaptiveCounts {
    ranks: [f64; BATCH_SIZE + 1],
    since: u32,
    draws: u32,
    plan: Option<RecodingPlan>,
}

impl AdaptiveCounts {
    /// Combinations to send of a batch that ended with this rank.
    pub(super) fn extras(&mut self, rank: usize, view: &LinkView) -> usize {
        let rank = rank.min(BATCH_SIZE);
        self.ranks[rank] += 1.0;
        self.since += 1;
        if self.plan.is_none() || self.since >= BATCHES_PER_PLAN {
            self.since = 0;
            self.make_plan(view);
        }
        // A sequence that fills the unit interval evenly.
        self.draws = self.draws.wrapping_add(0x9e37_79b9);
        let packets = self.plan.as_ref().map_or(rank, |plan| plan.packets(rank, self.draws));
        packets.saturating_sub(rank)
    }

    fn make_plan(&mut self, view: &LinkView) {
        let total: f64 = self.ranks.iter().sum();
        let p = view.loss.clamp(0.0, 0.9);
        // The previous nodes were given a link's share for batches that were full when they began:
        // so are the next ones, whatever was lost on the way.
        let full = self.ranks.iter().rposition(|&n| n * RARE >= total).unwrap_or(0);
        let budget = (full as f64 / (1.0 - p)).min(MAX_BUDGET);
        let loss = if view.burst_factor > 1.0 {
            // Variance over that of independent losses: (1 + r) / (1 - r) of a Gilbert chain.
            let correlation = (view.burst_factor - 1.0) / (view.burst_factor + 1.0);
            HopLoss::bursty(p, (1.0 / ((1.0 - p) * (1.0 - correlation))).max(1.0))
        } else {
            HopLoss::independent(p)
        };
        let loss = loss.or_else(|_| HopLoss::independent(p));
        self.plan = loss.and_then(|loss| RecodingPlan::adaptive(&self.ranks, loss, budget)).ok();
        self.ranks.iter_mut().for_each(|n| *n *= MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_ranks_get_more_within_the_share_of_a_full_batch() {
        let view = LinkView { loss: 0.2, ..LinkView::default() };
        let mut counts = AdaptiveCounts::default();
        let ranks = [16, 14, 12, 13, 15, 16, 11, 13];
        let (mut sent, mut low, mut high) = (0, 0, 0);
        for round in 0..200 {
            let rank = ranks[round % ranks.len()];
            let packets = rank + counts.extras(rank, &view);
            if round >= 100 {
                sent += packets;
                low = if rank == 11 { packets } else { low };
                high = if rank == 16 { packets } else { high };
            }
        }
        let mean = f64::from(sent as u32) / 100.0;
        assert!((mean - 16.0 / 0.8).abs() < 0.5, "{mean}");
        assert!(low < high, "{low} {high}");
        assert_eq!(AdaptiveCounts::default().extras(16, &LinkView::default()), 0, "no loss");
    }
}
