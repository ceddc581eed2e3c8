//! Loss classification: the part of the loss that is random loss of the path and not congestion
//! loss.
//!
//! Two tests estimate it, and the smaller result counts.
//!
//! Queue test: an overflowing queue drops packets when it is long; random loss hits packets at any
//! queue length. So losses among packets with less than the median delay are random, and the other
//! packets have the same fraction of random loss.
//!
//! Rate test: losses while the sender stays below the recent delivery rate are not caused by a lack
//! of capacity.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

/// Number of round trips whose delays form the distribution.
const ROUNDS: usize = 8;
/// Maximum number of delays kept.
const MAX_SAMPLES: usize = 512;
/// Maximum size of a pool: this many packets, or `POOL_RUNS` times the burst factor if that is more.
const POOL_PACKETS: f64 = 200.0;
const POOL_RUNS: f64 = 60.0;
/// Minimum number of packets for an estimate from a pool.
const MIN_EVIDENCE: f64 = 40.0;
/// Maximum fraction of loss attributed to random loss.
pub(super) const CREDIT_MAX: f64 = 0.6;
/// Margin above the random loss, in standard deviations.
const SIGMA: f64 = 2.0;

/// Packets and the losses among them; old ones decay.
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

    fn share(&self) -> Option<f64> {
        (self.packets >= MIN_EVIDENCE).then(|| self.lost / self.packets)
    }
}

/// Estimates the random loss of the path.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// Send times of packets, and their one-way delays in nanoseconds with an arbitrary origin.
    delays: VecDeque<(Timestamp, i64)>,
    /// Number of delays of each of the last rounds.
    round_sizes: VecDeque<usize>,
    in_round: usize,
    median: i64,
    /// Losses whose neighbouring packets do not all have a known fate yet.
    pending: Vec<Timestamp>,
    acked_in_round: f64,
    queue: Pool,
    rate: Pool,
    total: Pool,
    runs: f64,
    run_packets: f64,
    /// Period in which the sending rate was below the delivery rate before it.
    pub(super) trial: Option<(Timestamp, Option<Timestamp>)>,
    pub(super) had_trial: bool,
    own_loss: f64,
}

impl Credit {
    /// Records that a packet sent at `sent_at` arrived at `received_at`. `packets` packets were
    /// acknowledged with it.
    pub(super) fn on_ack(&mut self, sent_at: Timestamp, received_at: Timestamp, packets: u64) {
        let delay = received_at.as_nanos().wrapping_sub(sent_at.as_nanos()) as i64;
        if self.delays.back().is_none_or(|&(last, _)| last <= sent_at) {
            self.delays.push_back((sent_at, delay));
            self.in_round += 1;
            if self.delays.len() > MAX_SAMPLES {
                self.delays.pop_front();
            }
        }
        self.acked_in_round += packets as f64;
        if self.is_trial(sent_at) {
            self.rate.add(packets as f64, 0.0, self.limit());
        }
    }

    /// Records that a packet sent at `sent_at` was lost.
    pub(super) fn on_lost(&mut self, sent_at: Timestamp, continues_run: bool) {
        self.pending.push(sent_at);
        self.runs += f64::from(u8::from(!continues_run));
        self.run_packets += 1.0;
        if self.runs > POOL_RUNS {
            self.run_packets *= POOL_RUNS / self.runs;
            self.runs = POOL_RUNS;
        }
        if self.is_trial(sent_at) {
            self.rate.add(1.0, 1.0, self.limit());
        }
    }

    fn is_trial(&self, sent_at: Timestamp) -> bool {
        self.trial.is_some_and(|(from, until)| {
            sent_at >= from && until.is_none_or(|until| sent_at < until)
        })
    }

    /// Variance of the losses relative to independent losses: 2 * mean run length - 1.
    pub(super) fn burst_factor(&self) -> f64 {
        if self.runs < 1.0 {
            1.0
        } else {
            (2.0 * self.run_packets / self.runs - 1.0).clamp(1.0, 64.0)
        }
    }

    fn limit(&self) -> f64 {
        POOL_PACKETS.max(POOL_RUNS * self.burst_factor())
    }

    /// Handles the end of a round trip.
    pub(super) fn on_round(&mut self) {
        self.round_sizes.push_back(core::mem::take(&mut self.in_round));
        if self.round_sizes.len() > ROUNDS {
            let old = self.round_sizes.pop_front().unwrap_or(0);
            let keep: usize = self.round_sizes.iter().sum();
            let surplus = self.delays.len().saturating_sub(keep.max(8)).min(old);
            self.delays.drain(..surplus);
        }
        let mut sorted: Vec<i64> = self.delays.iter().map(|&(_, delay)| delay).collect();
        if !sorted.is_empty() {
            let middle = sorted.len() / 2;
            self.median = *sorted.select_nth_unstable(middle).1;
        }
        let lost = core::mem::take(&mut self.pending);
        let low: f64 = lost.iter().map(|&at| self.weight_below_median(at)).sum();
        let packets = self.acked_in_round + lost.len() as f64;
        let limit = self.limit();
        self.queue.add(packets, low, limit);
        self.total.add(packets, lost.len() as f64, limit);
        self.acked_in_round = 0.0;
        let by_queue = self.queue.share().map_or(0.0, |share| 2.0 * share);
        let by_rate = self.rate.share().unwrap_or(if self.had_trial { 0.0 } else { 1.0 });
        let all = self.total.share().unwrap_or(0.0);
        self.own_loss = by_queue.min(by_rate).min(all).min(CREDIT_MAX);
    }

    /// 1 if the last packet sent before `at` had less than the median delay, 0 if it had more.
    fn weight_below_median(&self, at: Timestamp) -> f64 {
        let after = self.delays.partition_point(|&(sent, _)| sent <= at);
        let Some(&(_, delay)) = after.checked_sub(1).and_then(|i| self.delays.get(i)) else {
            return 0.5;
        };
        match delay.cmp(&self.median) {
            core::cmp::Ordering::Less => 1.0,
            core::cmp::Ordering::Equal => 0.5,
            core::cmp::Ordering::Greater => 0.0,
        }
    }

    /// Whether there were losses recently.
    pub(super) fn has_losses(&self) -> bool {
        self.total.lost > 1.0
    }

    /// Estimated random loss of the path, 0 to [`CREDIT_MAX`].
    pub(super) fn own_loss(&self) -> f64 {
        self.own_loss
    }

    /// Upper bound of the loss of `packets` packets that random loss explains.
    pub(super) fn forgiven(&self, packets: f64) -> f64 {
        let p = self.own_loss;
        if p <= 0.0 {
            return 0.0;
        }
        let n = packets.max(1.0);
        let spread = (p * (1.0 - p) * self.burst_factor() * (1.0 / n + 1.0 / self.limit())).sqrt();
        (p + SIGMA * spread).min(0.95)
    }
}

/// One-way delay above its minimum, and its minimum in each round.
#[derive(Debug, Default)]
pub(super) struct QueueDelay {
    min: Option<(i64, Timestamp)>,
    next_min: Option<(i64, Timestamp)>,
    round_min: Option<i64>,
    /// Minimum queueing delay of the last complete round.
    pub(super) last_round: Duration,
    /// Latest queueing delay.
    pub(super) latest: Duration,
}

/// How long a minimum is valid.
const MIN_DELAY_LIFETIME: Duration = Duration::from_secs(60);

impl QueueDelay {
    pub(super) fn on_ack(&mut self, now: Timestamp, sent_at: Timestamp, received_at: Timestamp) {
        let delay = received_at.as_nanos().wrapping_sub(sent_at.as_nanos()) as i64;
        if self.next_min.is_none_or(|(min, _)| delay <= min) {
            self.next_min = Some((delay, now));
        }
        match self.min {
            Some((min, at)) if delay > min => {
                if now - at > MIN_DELAY_LIFETIME {
                    self.min = self.next_min.take();
                }
            }
            _ => {
                self.min = Some((delay, now));
                self.next_min = None;
            }
        }
        let base = self.min.map_or(delay, |(min, _)| min);
        self.latest = Duration::from_nanos(delay.saturating_sub(base).max(0) as u64);
        self.round_min = Some(self.round_min.map_or(delay, |min| min.min(delay)));
    }

    pub(super) fn on_round(&mut self) {
        if let (Some(least), Some((base, _))) = (self.round_min.take(), self.min) {
            self.last_round = Duration::from_nanos(least.saturating_sub(base).max(0) as u64);
        }
    }
}
