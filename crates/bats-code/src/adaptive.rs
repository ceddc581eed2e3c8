//! Adaptive recoding: how many packets a relay sends of a batch, by the batch's rank and the loss of
//! the next hop, when nobody tells it what arrived there.
//!
//! A batch of rank r of which t packets are sent (the r independent ones first, then random
//! combinations over a large field) has rank `min(r, received of t)` at the next hop. The expected
//! rank is concave in t for every stationary loss process, so that giving each packet of the budget
//! to the batch where it raises the expected rank most is optimal (H. H. F. Yin and others, "Adaptive
//! Recoding for BATS Codes", ISIT 2016, and "A Unified Adaptive Recoding Framework for Batched
//! Network Coding", ISIT 2019).
//!
//! With q = 256 a random combination is innovative but for 0.4 % of the cases, which this ignores;
//! with q = 2 it overestimates. Loss estimates and rank counts are the caller's.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Most packets of one batch that a plan sends.
pub const MAX_PACKETS: usize = 512;

/// Longest batch that a plan is made for: the largest M of RFC 9426.
pub const MAX_RANK: usize = 128;

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdaptiveError {
    /// A loss rate is 0 at least and below 1; a mean burst has one packet at least, and as many
    /// that such a rate can come about.
    Loss,
    /// Rank weights are finite, not negative, not all zero, at most [`MAX_RANK`] + 1.
    Ranks,
    /// The budget is between 0 and [`MAX_PACKETS`].
    Budget,
}

impl fmt::Display for AdaptiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loss => "the loss rate is not below 1, or its bursts are too short for it",
            Self::Ranks => "the rank weights are no distribution",
            Self::Budget => "the budget of packets for a batch is out of range",
        })
    }
}

impl core::error::Error for AdaptiveError {}

/// Loss of packets on a hop: a Markov chain of two states (Gilbert), stationary when a batch begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopLoss {
    rate: f64,
    /// Probability that a packet is lost after one that was received.
    begin: f64,
    /// Probability that a packet is received after one that was lost.
    end: f64,
}

impl HopLoss {
    /// Each packet is lost with probability `rate`, whatever happened to others.
    ///
    /// # Errors
    /// [`AdaptiveError::Loss`].
    pub fn independent(rate: f64) -> Result<Self, AdaptiveError> {
        if !(0.0..1.0).contains(&rate) {
            return Err(AdaptiveError::Loss);
        }
        Ok(Self { rate, begin: rate, end: 1.0 - rate })
    }

    /// A share `rate` of the packets is lost, in bursts of `mean_burst` packets on average.
    ///
    /// # Errors
    /// [`AdaptiveError::Loss`], also if the bursts would have to touch each other.
    pub fn bursty(rate: f64, mean_burst: f64) -> Result<Self, AdaptiveError> {
        let valid = (0.0..1.0).contains(&rate) && mean_burst.is_finite() && mean_burst >= 1.0;
        if !valid {
            return Err(AdaptiveError::Loss);
        }
        let end = 1.0 / mean_burst;
        let begin = end * rate / (1.0 - rate);
        if begin > 1.0 {
            return Err(AdaptiveError::Loss);
        }
        Ok(Self { rate, begin, end })
    }
}

/// What becomes of t packets in a row, for t = 0, 1, ... as far as it was asked for.
struct Reception {
    loss: HopLoss,
    max_rank: usize,
    /// For each t: probability that c packets arrived (the last entry: or more), 0 <= c <= M.
    received: Vec<Vec<f64>>,
    /// For each t: probability that fewer than r arrived and the next one does, 0 <= r <= M.
    gain: Vec<Vec<f64>>,
    /// The chain after the packets so far: by number received, then whether the last was lost.
    state: Vec<[f64; 2]>,
}

impl Reception {
    fn new(loss: HopLoss, max_rank: usize) -> Self {
        let mut state = vec![[0.0; 2]; max_rank + 1];
        state[0] = [1.0 - loss.rate, loss.rate];
        let mut new = Self { loss, max_rank, received: Vec::new(), gain: Vec::new(), state };
        new.record();
        new
    }

    /// Notes what the present state means.
    fn record(&mut self) {
        let HopLoss { begin, end, .. } = self.loss;
        self.received.push(self.state.iter().map(|[up, down]| up + down).collect());
        let mut fewer = 0.0;
        let mut gain = vec![0.0; self.max_rank + 1];
        for (r, gain) in gain.iter_mut().enumerate() {
            *gain = fewer;
            let [up, down] = self.state[r];
            fewer += up * (1.0 - begin) + down * end;
        }
        self.gain.push(gain);
    }

    /// Probabilities for t packets.
    fn reach(&mut self, t: usize) {
        let HopLoss { begin, end, .. } = self.loss;
        while self.received.len() <= t {
            let mut next = vec![[0.0; 2]; self.max_rank + 1];
            for (c, [up, down]) in self.state.iter().enumerate() {
                next[(c + 1).min(self.max_rank)][0] += up * (1.0 - begin) + down * end;
                next[c][1] += up * begin + down * (1.0 - end);
            }
            self.state = next;
            self.record();
        }
    }

    /// What one packet more after t adds to the expected rank of a batch of rank r.
    fn gain(&mut self, t: usize, r: usize) -> f64 {
        self.reach(t);
        self.gain[t][r]
    }
}

/// Packets to send of a batch of some rank: `whole`, and with probability `fraction` one more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    whole: usize,
    fraction: f64,
}

/// How many packets to send of batches of each rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RecodingPlan {
    counts: Vec<Count>,
    ranks_after: Vec<f64>,
    average: f64,
}

impl RecodingPlan {
    /// The plan with the greatest expected rank at the next hop among those that send at most
    /// `budget` packets a batch on average. `ranks[r]` is the share (or the count: only ratios
    /// matter) of batches that have rank r here; its length is M + 1.
    ///
    /// Ranks of weight zero get what the worth of a packet elsewhere says they should. Time and
    /// memory grow with M times the packets for the highest rank: some thousand steps for M = 16.
    ///
    /// # Errors
    /// [`AdaptiveError::Ranks`], [`AdaptiveError::Budget`].
    pub fn adaptive(ranks: &[f64], loss: HopLoss, budget: f64) -> Result<Self, AdaptiveError> {
        let weights = normalised(ranks)?;
        check_budget(budget)?;
        let max_rank = weights.len() - 1;
        let mut reception = Reception::new(loss, max_rank);
        let mut counts = vec![Count::default(); weights.len()];
        let mut left = budget;
        // What the packets given so far were worth at least.
        let mut worth: f64 = 1.0;
        loop {
            let mut best: Option<(f64, usize)> = None;
            for (r, count) in counts.iter().enumerate().skip(1) {
                if weights[r] > 0.0 && count.whole < MAX_PACKETS {
                    let gain = reception.gain(count.whole, r);
                    if best.is_none_or(|(most, _)| gain > most) {
                        best = Some((gain, r));
                    }
                }
            }
            let Some((gain, r)) = best.filter(|&(gain, _)| gain > 0.0) else { break };
            if left <= 0.0 {
                break;
            }
            worth = worth.min(gain);
            if weights[r] > left {
                counts[r].fraction = left / weights[r];
                break;
            }
            left -= weights[r];
            counts[r].whole += 1;
        }
        for (r, count) in counts.iter_mut().enumerate().skip(1) {
            while weights[r] == 0.0
                && budget > 0.0
                && count.whole < MAX_PACKETS
                && reception.gain(count.whole, r) >= worth
            {
                count.whole += 1;
            }
        }
        Ok(Self::of(counts, &weights, &mut reception))
    }

    /// The plan that sends `packets` of every batch, whatever its rank (none of rank 0): what
    /// adaptive recoding is compared with.
    ///
    /// # Errors
    /// As [`RecodingPlan::adaptive`].
    pub fn equal(ranks: &[f64], loss: HopLoss, packets: f64) -> Result<Self, AdaptiveError> {
        let weights = normalised(ranks)?;
        check_budget(packets)?;
        let whole = packets as usize;
        let mut counts = vec![Count { whole, fraction: packets - whole as f64 }; weights.len()];
        counts[0] = Count::default();
        let mut reception = Reception::new(loss, weights.len() - 1);
        Ok(Self::of(counts, &weights, &mut reception))
    }

    fn of(counts: Vec<Count>, weights: &[f64], reception: &mut Reception) -> Self {
        let mut ranks_after = vec![0.0; weights.len()];
        let mut average = 0.0;
        for (r, (count, weight)) in counts.iter().zip(weights).enumerate() {
            average += weight * (count.whole as f64 + count.fraction);
            for (t, share) in
                [(count.whole, 1.0 - count.fraction), (count.whole + 1, count.fraction)]
            {
                if share > 0.0 {
                    reception.reach(t);
                    for (c, probability) in reception.received[t].iter().enumerate() {
                        ranks_after[c.min(r)] += weight * share * probability;
                    }
                }
            }
        }
        Self { counts, ranks_after, average }
    }

    /// Packets to send of a batch of rank `rank` (beyond M: as of M). `draw` is a fresh number,
    /// uniform over all of `u32`, that decides about the last packet where the plan has a fraction.
    #[must_use]
    pub fn packets(&self, rank: usize, draw: u32) -> usize {
        let count = self.count(rank);
        count.whole + usize::from(f64::from(draw) < count.fraction * 4_294_967_296.0)
    }

    /// Packets sent of a batch of rank `rank` on average.
    #[must_use]
    pub fn mean_packets(&self, rank: usize) -> f64 {
        let count = self.count(rank);
        count.whole as f64 + count.fraction
    }

    fn count(&self, rank: usize) -> Count {
        let last = self.counts.len().saturating_sub(1);
        self.counts.get(rank.min(last)).copied().unwrap_or_default()
    }

    /// Packets sent of a batch on average over the ranks: the budget, unless it is more than can be
    /// of use.
    #[must_use]
    pub fn average(&self) -> f64 {
        self.average
    }

    /// Shares of batches of each rank at the next hop, 0 to M: what the plan there starts from.
    #[must_use]
    pub fn ranks_after(&self) -> &[f64] {
        &self.ranks_after
    }

    /// Expected rank at the next hop.
    #[must_use]
    pub fn expected_rank(&self) -> f64 {
        self.ranks_after.iter().enumerate().map(|(r, share)| r as f64 * share).sum()
    }
}

fn check_budget(budget: f64) -> Result<(), AdaptiveError> {
    let valid = (0.0..=MAX_PACKETS as f64).contains(&budget);
    if valid { Ok(()) } else { Err(AdaptiveError::Budget) }
}

/// The weights over their sum.
fn normalised(ranks: &[f64]) -> Result<Vec<f64>, AdaptiveError> {
    let sum: f64 = ranks.iter().sum();
    let valid = ranks.len() <= MAX_RANK + 1
        && ranks.iter().all(|weight| *weight >= 0.0)
        && sum.is_finite()
        && sum > 0.0;
    if !valid {
        return Err(AdaptiveError::Ranks);
    }
    Ok(ranks.iter().map(|weight| weight / sum).collect())
}

#[cfg(test)]
mod tests;
