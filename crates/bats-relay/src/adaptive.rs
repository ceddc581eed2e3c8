//! Adaptive recoding: the number of recoded packets that follow a batch if the next node does not
//! report ranks.

use bats_code::BATCH_SIZE;
use bats_code::adaptive::{HopLoss, RecodingPlan};

use super::link_view::LinkView;

/// Number of batches after which the plan is recomputed.
const BATCHES_PER_PLAN: u32 = 64;
/// Weight that the counts of earlier batches keep at each new plan.
const DECAY: f64 = 0.75;
/// Ranks with fewer than one in this many batches are ignored.
const MIN_RANK_FRACTION: f64 = 64.0;
/// Maximum number of packets of a batch in the plan.
const MAX_BUDGET: f64 = 4.0 * BATCH_SIZE as f64;

/// Rank distribution of received batches, and the recoding plan computed from it (RFC 9426, section
/// 3.3; adaptive recoding: see `bats_code::adaptive`).
#[derive(Debug, Default)]
pub(super) struct AdaptiveCounts {
    ranks: [f64; BATCH_SIZE + 1],
    since: u32,
    draws: u32,
    plan: Option<RecodingPlan>,
}

impl AdaptiveCounts {
    /// Number of recoded packets to send after a batch that ended with this rank.
    pub(super) fn extras(&mut self, rank: usize, view: &LinkView) -> usize {
        let rank = rank.min(BATCH_SIZE);
        self.ranks[rank] += 1.0;
        self.since += 1;
        if self.plan.is_none() || self.since >= BATCHES_PER_PLAN {
            self.since = 0;
            self.make_plan(view);
        }
        // Weyl sequence: covers the unit interval evenly.
        self.draws = self.draws.wrapping_add(0x9e37_79b9);
        let packets = self.plan.as_ref().map_or(rank, |plan| plan.packets(rank, self.draws));
        packets.saturating_sub(rank)
    }

    fn make_plan(&mut self, view: &LinkView) {
        let total: f64 = self.ranks.iter().sum();
        let p = view.loss.clamp(0.0, 0.9);
        // The previous nodes used the whole rate of a link for batches that were full at first. The
        // following nodes do so too, whatever was lost before this node.
        let full = self.ranks.iter().rposition(|&n| n * MIN_RANK_FRACTION >= total).unwrap_or(0);
        let budget = (full as f64 / (1.0 - p)).min(MAX_BUDGET);
        let loss = if view.burst_factor > 1.0 {
            // Variance relative to independent losses: (1 + r) / (1 - r) of a Gilbert model.
            let correlation = (view.burst_factor - 1.0) / (view.burst_factor + 1.0);
            HopLoss::bursty(p, (1.0 / ((1.0 - p) * (1.0 - correlation))).max(1.0))
        } else {
            HopLoss::independent(p)
        };
        let loss = loss.or_else(|_| HopLoss::independent(p));
        self.plan = loss.and_then(|loss| RecodingPlan::adaptive(&self.ranks, loss, budget)).ok();
        self.ranks.iter_mut().for_each(|n| *n *= DECAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_ranks_get_more_packets_within_the_full_batch_budget() {
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
