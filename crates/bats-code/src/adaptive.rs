//! Adaptive recoding: how many packets a relay sends of a batch, given the batch's rank and the
//! loss of the next hop, without feedback from there.
//!
//! A relay sends t packets of a batch of rank r: first the r independent ones, then random linear
//! combinations over a large field. The batch has rank `min(r, number received of t)` at the next
//! hop. The expected rank is concave in t for every stationary loss process. So it is optimal to
//! assign each packet of the budget to the batch whose expected rank it raises most (H. H. F. Yin
//! and others, "Adaptive Recoding for BATS Codes", ISIT 2016, and "A Unified Adaptive Recoding
//! Framework for Batched Network Coding", ISIT 2019).
//!
//! With q = 256 about 0.4 % of random linear combinations are not innovative; this module ignores
//! them. With q = 2 it overestimates the rank. The caller supplies loss estimates and rank counts.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Maximum number of packets that a plan sends of one batch.
pub const MAX_PACKETS: usize = 512;

/// Maximum rank of a batch: the largest M of RFC 9426.
pub const MAX_RANK: usize = 128;

/// Invalid arguments of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdaptiveError {
    /// The loss rate is not in 0..1, the mean burst is shorter than one packet, or the bursts are
    /// too short for the loss rate.
    Loss,
    /// Rank weights must be finite, non-negative, not all zero, and at most [`MAX_RANK`] + 1 many.
    Ranks,
    /// The budget is not between 0 and [`MAX_PACKETS`].
    Budget,
}

impl fmt::Display for AdaptiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loss => "the loss rate is not in 0..1, or its bursts are too short for it",
            Self::Ranks => "the rank weights are negative, not finite, all zero or too many",
            Self::Budget => "the budget of packets per batch is out of range",
        })
    }
}

impl core::error::Error for AdaptiveError {}

/// Packet loss on a hop: a two-state Markov chain (Gilbert), stationary at the start of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopLoss {
    rate: f64,
    /// Probability that a packet is lost if the one before was received.
    burst_start: f64,
    /// Probability that a packet is received if the one before was lost.
    burst_end: f64,
}

impl HopLoss {
    /// Each packet is lost with probability `rate`, independently of the others.
    ///
    /// # Errors
    /// [`AdaptiveError::Loss`].
    pub fn independent(rate: f64) -> Result<Self, AdaptiveError> {
        if !(0.0..1.0).contains(&rate) {
            return Err(AdaptiveError::Loss);
        }
        Ok(Self { rate, burst_start: rate, burst_end: 1.0 - rate })
    }

    /// A fraction `rate` of the packets is lost, in bursts of `mean_burst` packets on average.
    ///
    /// # Errors
    /// [`AdaptiveError::Loss`], also if such short bursts cannot give this loss rate.
    pub fn bursty(rate: f64, mean_burst: f64) -> Result<Self, AdaptiveError> {
        let valid = (0.0..1.0).contains(&rate) && mean_burst.is_finite() && mean_burst >= 1.0;
        if !valid {
            return Err(AdaptiveError::Loss);
        }
        let burst_end = 1.0 / mean_burst;
        let burst_start = burst_end * rate / (1.0 - rate);
        if burst_start > 1.0 {
            return Err(AdaptiveError::Loss);
        }
        Ok(Self { rate, burst_start, burst_end })
    }
}

/// How many of t consecutive packets arrive, for t = 0, 1, ..., computed on demand.
struct ReceptionModel {
    loss: HopLoss,
    max_rank: usize,
    /// For each t: probability that c packets arrive, 0 <= c <= M (the last entry: M or more).
    received: Vec<Vec<f64>>,
    /// For each t: probability that fewer than r packets arrive and the next one does, 0 <= r <= M.
    gain: Vec<Vec<f64>>,
    /// State of the chain after the packets so far: by number received, then by whether the last
    /// packet was received or lost.
    state: Vec<[f64; 2]>,
}

impl ReceptionModel {
    fn new(loss: HopLoss, max_rank: usize) -> Self {
        let mut state = vec![[0.0; 2]; max_rank + 1];
        state[0] = [1.0 - loss.rate, loss.rate];
        let mut new = Self { loss, max_rank, received: Vec::new(), gain: Vec::new(), state };
        new.record();
        new
    }

    /// Appends the probabilities of the current state.
    fn record(&mut self) {
        let HopLoss { burst_start, burst_end, .. } = self.loss;
        self.received.push(self.state.iter().map(|[received, lost]| received + lost).collect());
        let mut fewer = 0.0;
        let mut gain = vec![0.0; self.max_rank + 1];
        for (r, gain) in gain.iter_mut().enumerate() {
            *gain = fewer;
            let [received, lost] = self.state[r];
            fewer += received * (1.0 - burst_start) + lost * burst_end;
        }
        self.gain.push(gain);
    }

    /// Computes the probabilities for up to t packets.
    fn extend_to(&mut self, t: usize) {
        let HopLoss { burst_start, burst_end, .. } = self.loss;
        while self.received.len() <= t {
            let mut next = vec![[0.0; 2]; self.max_rank + 1];
            for (c, [received, lost]) in self.state.iter().enumerate() {
                next[(c + 1).min(self.max_rank)][0] +=
                    received * (1.0 - burst_start) + lost * burst_end;
                next[c][1] += received * burst_start + lost * (1.0 - burst_end);
            }
            self.state = next;
            self.record();
        }
    }

    /// Increase of the expected rank of a batch of rank r by one packet after t.
    fn gain(&mut self, t: usize, r: usize) -> f64 {
        self.extend_to(t);
        self.gain[t][r]
    }
}

/// Number of packets to send of a batch: `whole`, and with probability `fraction` one more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PacketCount {
    whole: usize,
    fraction: f64,
}

/// How many packets to send of a batch, for each rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RecodingPlan {
    counts: Vec<PacketCount>,
    ranks_after: Vec<f64>,
    average: f64,
}

impl RecodingPlan {
    /// The plan with the highest expected rank at the next hop that sends at most `budget` packets
    /// per batch on average. `ranks[r]` is the weight of batches of rank r at this node: a fraction
    /// or a count, because only ratios matter. Its length is M + 1.
    ///
    /// A rank of weight zero gets packets as long as their gain is at least the smallest gain of an
    /// assigned packet. Time and memory grow with M times the packets for the highest rank: some thousand
    /// steps for M = 16.
    ///
    /// # Errors
    /// [`AdaptiveError::Ranks`], [`AdaptiveError::Budget`].
    pub fn adaptive(ranks: &[f64], loss: HopLoss, budget: f64) -> Result<Self, AdaptiveError> {
        let weights = normalised(ranks)?;
        check_budget(budget)?;
        let max_rank = weights.len() - 1;
        let mut reception = ReceptionModel::new(loss, max_rank);
        let mut counts = vec![PacketCount::default(); weights.len()];
        let mut remaining = budget;
        // Smallest gain of the packets assigned so far.
        let mut least_gain: f64 = 1.0;
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
            if remaining <= 0.0 {
                break;
            }
            least_gain = least_gain.min(gain);
            if weights[r] > remaining {
                counts[r].fraction = remaining / weights[r];
                break;
            }
            remaining -= weights[r];
            counts[r].whole += 1;
        }
        for (r, count) in counts.iter_mut().enumerate().skip(1) {
            while weights[r] == 0.0
                && budget > 0.0
                && count.whole < MAX_PACKETS
                && reception.gain(count.whole, r) >= least_gain
            {
                count.whole += 1;
            }
        }
        Ok(Self::from_counts(counts, &weights, &mut reception))
    }

    /// The plan that sends `packets` of every batch regardless of its rank (none of rank 0): the
    /// baseline for adaptive recoding.
    ///
    /// # Errors
    /// As [`RecodingPlan::adaptive`].
    pub fn equal(ranks: &[f64], loss: HopLoss, packets: f64) -> Result<Self, AdaptiveError> {
        let weights = normalised(ranks)?;
        check_budget(packets)?;
        let whole = packets as usize;
        let mut counts =
            vec![PacketCount { whole, fraction: packets - whole as f64 }; weights.len()];
        counts[0] = PacketCount::default();
        let mut reception = ReceptionModel::new(loss, weights.len() - 1);
        Ok(Self::from_counts(counts, &weights, &mut reception))
    }

    fn from_counts(
        counts: Vec<PacketCount>,
        weights: &[f64],
        reception: &mut ReceptionModel,
    ) -> Self {
        let mut ranks_after = vec![0.0; weights.len()];
        let mut average = 0.0;
        for (r, (count, weight)) in counts.iter().zip(weights).enumerate() {
            average += weight * (count.whole as f64 + count.fraction);
            for (t, fraction) in
                [(count.whole, 1.0 - count.fraction), (count.whole + 1, count.fraction)]
            {
                if fraction > 0.0 {
                    reception.extend_to(t);
                    for (c, probability) in reception.received[t].iter().enumerate() {
                        ranks_after[c.min(r)] += weight * fraction * probability;
                    }
                }
            }
        }
        Self { counts, ranks_after, average }
    }

    /// Number of packets to send of a batch of rank `rank` (above M: as for M). `draw` is a new
    /// random number, uniform over all of `u32`; it decides on the last packet if the count is not
    /// whole.
    #[must_use]
    pub fn packets(&self, rank: usize, draw: u32) -> usize {
        let count = self.count(rank);
        count.whole + usize::from(f64::from(draw) < count.fraction * 4_294_967_296.0)
    }

    /// Mean number of packets sent of a batch of rank `rank`.
    #[must_use]
    pub fn mean_packets(&self, rank: usize) -> f64 {
        let count = self.count(rank);
        count.whole as f64 + count.fraction
    }

    fn count(&self, rank: usize) -> PacketCount {
        let last = self.counts.len().saturating_sub(1);
        self.counts.get(rank.min(last)).copied().unwrap_or_default()
    }

    /// Mean number of packets sent per batch over all ranks: the budget, or less if more packets
    /// would not raise the rank.
    #[must_use]
    pub fn average(&self) -> f64 {
        self.average
    }

    /// Fraction of batches of each rank, 0 to M, at the next hop: the input of the plan there.
    #[must_use]
    pub fn ranks_after(&self) -> &[f64] {
        &self.ranks_after
    }

    /// Expected rank at the next hop.
    #[must_use]
    pub fn expected_rank(&self) -> f64 {
        self.ranks_after.iter().enumerate().map(|(r, fraction)| r as f64 * fraction).sum()
    }
}

fn check_budget(budget: f64) -> Result<(), AdaptiveError> {
    let valid = (0.0..=MAX_PACKETS as f64).contains(&budget);
    if valid { Ok(()) } else { Err(AdaptiveError::Budget) }
}

/// The weights divided by their sum.
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
