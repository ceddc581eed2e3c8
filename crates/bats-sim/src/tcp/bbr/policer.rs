use core::time::Duration;

use bats_types::Timestamp;

/// Linux `bbr_lt_intvl_min_rtts`, `bbr_lt_loss_thresh` (50/256), `bbr_lt_bw_ratio`, `bbr_lt_bw_diff`
/// (4,000 bit/s), `bbr_lt_bw_max_rtts`.
const MIN_ROUNDS: u32 = 4;
const LOSS_THRESHOLD: f64 = 50.0 / 256.0;
const MAX_RATIO: f64 = 1.0 / 8.0;
const MAX_DIFFERENCE: f64 = 4_000.0 / 8.0 / crate::tcp::SEGMENT as f64;
const MAX_ROUNDS: u32 = 48;

/// Long-term sampling (Linux `bbr_lt_bw_sampling`): two intervals with equal rate and high loss
/// indicate a token-bucket policer, whose rate then replaces the maximum.
#[derive(Debug, Default)]
pub(super) struct LongTerm {
    rate: Option<f64>,
    is_used: bool,
    is_sampling: bool,
    rounds: u32,
    since: Timestamp,
    delivered: u64,
    lost: u64,
}

/// Contribution of an acknowledgement.
pub(super) struct Interval {
    pub(super) now: Timestamp,
    pub(super) delivered: u64,
    pub(super) lost_total: u64,
    pub(super) lost: u64,
    pub(super) is_round: bool,
    pub(super) is_app_limited: bool,
    /// Whether the state is ProbeBW.
    pub(super) is_probing: bool,
}

impl LongTerm {
    /// The rate of the policer, if one was detected.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate.filter(|_| self.is_used)
    }

    pub(super) fn reset(&mut self, interval: &Interval) {
        (self.rate, self.is_used, self.is_sampling) = (None, false, false);
        self.begin(interval);
    }

    fn begin(&mut self, interval: &Interval) {
        self.rounds = 0;
        self.since = interval.now;
        self.delivered = interval.delivered;
        self.lost = interval.lost_total;
    }

    /// Whether the rate of the policer was used long enough, so that probing starts again.
    pub(super) fn on_ack(&mut self, interval: &Interval) -> bool {
        if self.is_used {
            if interval.is_probing && interval.is_round {
                self.rounds += 1;
                if self.rounds >= MAX_ROUNDS {
                    self.reset(interval);
                    return true;
                }
            }
            return false;
        }
        if !self.is_sampling {
            if interval.lost == 0 {
                return false;
            }
            self.begin(interval);
            self.is_sampling = true;
        }
        self.rounds += u32::from(interval.is_round);
        if interval.is_app_limited || self.rounds > 4 * MIN_ROUNDS {
            self.reset(interval);
            return false;
        }
        if self.rounds < MIN_ROUNDS || interval.lost == 0 {
            return false;
        }
        let lost = (interval.lost_total - self.lost) as f64;
        let delivered = (interval.delivered - self.delivered) as f64;
        let time = interval.now - self.since;
        if delivered == 0.0 || lost < LOSS_THRESHOLD * delivered || time < Duration::from_millis(1)
        {
            return false;
        }
        self.end(interval, delivered / time.as_secs_f64());
        false
    }

    fn end(&mut self, interval: &Interval, rate: f64) {
        if let Some(before) = self.rate
            && ((rate - before).abs() <= MAX_RATIO * before
                || (rate - before).abs() <= MAX_DIFFERENCE)
        {
            self.rate = Some((rate + before) / 2.0);
            self.is_used = true;
            self.rounds = 0;
            return;
        }
        self.rate = Some(rate);
        self.begin(interval);
    }
}
