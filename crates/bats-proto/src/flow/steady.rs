//! Redundancy of a steady flow of small messages.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::PathView;
use super::rate::{RateController, RepairClass};

/// Number of symbols that a repair of a steady flow covers, as in a flow with deadlines. Symbols
/// that were repaired before do no harm in it, because the peer knows them.
pub(super) const STEADY_WINDOW: u64 = 64;
/// Losses are repaired within the round trip divided by this, an eighth of the one-way delay.
/// Shorter times cost redundancy: at 5 % loss 0.26 repairs per symbol for 12 symbols, 0.34 for 6
/// (`reliable_messages_at_five_per_cent_loss_have_p99_of_at_most_1_15_delays`).
pub(super) const REPAIR_TIME_RTT_FRACTION: u32 = 16;

/// Repairs of a flow that empties its send queue several times within the repair time. The next
/// messages soon bring repairs, so messages share them. A message by itself would need a whole
/// repair, and its loss would still hold back all messages after it for a round trip.
#[derive(Debug, Default)]
pub(super) struct SteadyFlow {
    /// Send times of the newest symbols, at most [`STEADY_WINDOW`].
    sent_at: VecDeque<Timestamp>,
    /// When the send queue became empty last.
    emptied_at: Option<Timestamp>,
    /// Fraction of a repair that is due.
    due: f64,
    /// Repairs of the newest symbols, if no symbols follow until `flush_at`.
    flush: u64,
    flush_at: Option<Timestamp>,
}

impl SteadyFlow {
    /// Records a sent symbol.
    pub(super) fn on_symbol(&mut self, now: Timestamp) {
        if self.sent_at.len() as u64 == STEADY_WINDOW {
            self.sent_at.pop_front();
        }
        self.sent_at.push_back(now);
    }

    /// Frees memory that only a busy flow needs.
    pub(super) fn trim(&mut self) {
        self.sent_at.shrink_to_fit();
    }

    fn repair_time(path: &PathView) -> Duration {
        path.smoothed_rtt / REPAIR_TIME_RTT_FRACTION
    }

    /// The send queue became empty with the last of `symbols` symbols. Returns the number of
    /// repairs to send now, or `None` if the flow is not steady.
    pub(super) fn on_emptied(
        &mut self,
        now: Timestamp,
        symbols: u64,
        rate: RateController,
        path: &PathView,
    ) -> Option<u64> {
        let time = Self::repair_time(path);
        let before = self.emptied_at.replace(now);
        if before.is_none_or(|at| at + time < now) {
            self.flush_at = None;
            self.due = 0.0;
            return None;
        }
        let older = self.sent_at.partition_point(|&at| at + time < now);
        let window = ((self.sent_at.len() - older) as u64).max(symbols);
        let wanted = rate.proactive(RepairClass::Tail, window, path);
        self.due += wanted * symbols as f64 / window as f64;
        let count = self.due.floor();
        self.due -= count;
        self.flush = wanted.ceil() as u64;
        self.flush_at = (self.flush > 0).then(|| now + time);
        Some(count as u64)
    }

    /// When to call [`SteadyFlow::on_timeout`].
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.flush_at
    }

    /// Returns the number of repairs for the newest symbols if no symbols followed.
    pub(super) fn on_timeout(&mut self, now: Timestamp) -> u64 {
        if self.flush_at.is_none_or(|at| at > now) {
            return 0;
        }
        self.flush_at = None;
        self.due = 0.0;
        self.flush
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Goal;

    fn path(loss: f64) -> PathView {
        PathView {
            rate_bytes_per_second: 125_000_000,
            smoothed_rtt: Duration::from_millis(16),
            ack_interval: Duration::from_millis(1),
            loss,
            burst_factor: 1.0,
            loss_packets: 65_536,
            queue_delay: Duration::ZERO,
        }
    }

    /// Sends `count` symbols, each the last of a message. Returns the repairs, and those of the end.
    fn send(interval: Duration, count: u64, path: &PathView) -> (Option<u64>, u64) {
        let (mut steady, rate) = (SteadyFlow::default(), RateController::new(Goal::Balanced));
        let (mut now, mut repairs) = (Timestamp::from_millis(1), None);
        for _ in 0..count {
            now += interval;
            steady.on_symbol(now);
            if let Some(due) = steady.on_emptied(now, 1, rate, path) {
                repairs = Some(repairs.unwrap_or(0) + due);
            }
        }
        let end = steady.next_timeout().unwrap_or(now);
        assert!(end - now <= Duration::from_millis(1));
        assert_eq!(steady.on_timeout(now), 0);
        let at_end = steady.on_timeout(end);
        assert_eq!((steady.on_timeout(end), steady.next_timeout()), (0, None), "once");
        (repairs, at_end)
    }

    #[test]
    fn messages_of_a_steady_flow_share_repairs() {
        // Ten symbols in the repair time of a millisecond, and as many for the end.
        let (repairs, at_end) = send(Duration::from_micros(100), 1_000, &path(0.05));
        let repairs = repairs.expect("steady");
        assert!((250..=300).contains(&repairs), "{repairs}");
        assert_eq!(at_end, 3);
    }

    #[test]
    fn messages_with_longer_intervals_are_no_steady_flow() {
        assert_eq!(send(Duration::from_micros(1_001), 100, &path(0.05)), (None, 0));
    }

    #[test]
    fn a_path_without_loss_gets_no_repairs_and_no_timer() {
        assert_eq!(send(Duration::from_micros(100), 100, &path(0.0)), (Some(0), 0));
    }

    #[test]
    fn flow_is_steady_if_the_queue_empties_again_within_the_repair_time() {
        let rate = RateController::new(Goal::Balanced);
        for (nanos, expected) in [(1_000_000, Some(0)), (1_000_001, None)] {
            let mut steady = SteadyFlow::default();
            let first = Timestamp::from_millis(5);
            assert_eq!(steady.on_emptied(first, 1, rate, &path(0.05)), None);
            let next = first + Duration::from_nanos(nanos);
            steady.on_symbol(next);
            assert_eq!(steady.on_emptied(next, 1, rate, &path(0.05)), expected);
        }
    }

    /// The share of a message in the repairs of the window is kept until it makes a whole repair.
    #[test]
    fn repairs_of_the_symbols_of_the_repair_time_are_shared_by_its_messages() {
        let (mut steady, rate) = (SteadyFlow::default(), RateController::new(Goal::Throughput));
        let view = PathView { loss_packets: u64::MAX, ..path(0.2) };
        let mut now = Timestamp::from_millis(5);
        steady.on_emptied(now, 1, rate, &view);
        let mut naive = 0.0;
        let mut sent_at = Vec::new();
        for message in 0..100_u64 {
            now += Duration::from_micros(500);
            let symbols = 1 + message % 5;
            for _ in 0..symbols {
                steady.on_symbol(now);
                sent_at.push(now);
            }
            let recent = sent_at.iter().filter(|&&at| at + Duration::from_millis(1) >= now).count();
            let wanted = rate.proactive(RepairClass::Tail, recent as u64, &view);
            naive += wanted * symbols as f64 / recent as f64;
            let count = steady.on_emptied(now, symbols, rate, &view);
            assert_eq!(count, Some(naive as u64), "message {message}");
            naive = naive.fract();
            assert_eq!(steady.flush, wanted.ceil() as u64);
            assert_eq!(steady.next_timeout(), Some(now + Duration::from_millis(1)));
        }
    }

    #[test]
    fn a_message_longer_than_the_window_is_counted_as_a_whole() {
        let (mut steady, rate) = (SteadyFlow::default(), RateController::new(Goal::Throughput));
        let now = Timestamp::from_millis(5);
        steady.on_emptied(now, 1, rate, &path(0.2));
        for _ in 0..200 {
            steady.on_symbol(now);
        }
        assert_eq!(steady.sent_at.len() as u64, STEADY_WINDOW);
        let wanted = rate.proactive(RepairClass::Tail, 200, &path(0.2));
        assert_eq!(steady.on_emptied(now, 200, rate, &path(0.2)), Some(wanted as u64));
    }
}
