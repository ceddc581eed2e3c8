//! Adaptive recoding: the number of recoded packets that follow a batch if the next node does not
//! report ranks, and that follow each packet of a thin flow if it does.

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

/// Number of recoded packets that follow each packet of a thin flow, because a report takes a round
/// trip. Two from 2 % loss on, as end to end: with one, over three hops at 5 %, one packet in 130
/// waits for a report and delays the messages behind it.
pub(super) fn recoded_per_packet(loss: f64) -> usize {
    match loss {
        p if p < 0.005 => 0,
        p if p <= 0.02 => 1,
        p if p <= 0.2 => 2,
        _ => 3,
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

    /// Bursts of three packets on average at a loss of 0.2: the loss of a packet and that of the next
    /// one have the correlation 1 - 1 / (3 * 0.8) = 7 / 12, which gives 3.8 times the variance of
    /// independent losses.
    #[test]
    fn plans_follow_the_rank_counts_and_the_bursts() {
        let view = LinkView { loss: 0.2, burst_factor: 3.8, ..LinkView::default() };
        let bursts = HopLoss::bursty(0.2, 3.0).unwrap();
        let mut counts = AdaptiveCounts::default();
        let mut count = |batches: u32, rank: usize| {
            (0..batches).for_each(|_| {
                counts.extras(rank, &view);
            });
            let plan = counts.plan.as_ref().unwrap();
            packets(plan)
        };
        let expected = |of_8: f64, of_16: f64, loss: HopLoss| {
            let mut ranks = [0.0; BATCH_SIZE + 1];
            (ranks[8], ranks[16]) = (of_8, of_16);
            packets(&RecodingPlan::adaptive(&ranks, loss, 20.0).unwrap())
        };
        // The first batch makes a plan, and every 64th one after it.
        let first = count(1, 16);
        assert_eq!(first, expected(0.0, 1.0, bursts));
        assert_eq!(count(32, 8), first);
        assert_eq!(count(31, 16), first);
        assert_eq!(count(1, 16), expected(32.0, 32.75, bursts));
        let third = expected(0.75 * 32.0 + 64.0, 0.75 * 32.75, bursts);
        assert_eq!(count(64, 8), third);
        assert_ne!(third, expected(88.0, 24.5625, HopLoss::independent(0.2).unwrap()));
    }

    /// What a plan sends of batches of each rank, for draws over the whole interval.
    fn packets(plan: &RecodingPlan) -> Vec<usize> {
        let draws = (0..1_000).map(|draw| draw * (u32::MAX / 1_000));
        draws.flat_map(|draw| (0..=BATCH_SIZE).map(move |rank| plan.packets(rank, draw))).collect()
    }
}
