//! Measures packet reordering at the receiver of a flow.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

/// Maximum number of marks remembered.
const MAX_MARKS: usize = 64;
/// The reordering window is at most a round trip divided by this, because it delays repairs.
const WINDOW_RTT_DIVISOR: u32 = 2;
/// Round trips without a late packet after which the window is halved.
const DECAY_ROUNDS: u32 = 16;

/// Distinguishes lost packets from reordered ones. The window follows the observed reordering, as
/// in RFC 8985, section 6.2. Requesting the repair of a reordered packet would waste the repair.
#[derive(Debug, Default)]
pub(super) struct Reordering {
    /// Progress of the newest symbol, oldest mark first: (time, one past the largest symbol).
    marks: VecDeque<(Timestamp, u64)>,
    window: Duration,
    last_late: Timestamp,
}

impl Reordering {
    /// Called for each report, with all symbols below `seen_end` sent. Symbols below the returned
    /// number, which is at least `reported`, that have not arrived are missing.
    pub(super) fn missing_below(
        &mut self,
        now: Timestamp,
        seen_end: u64,
        reported: u64,
        rtt: Duration,
    ) -> u64 {
        if now - self.last_late > rtt * DECAY_ROUNDS {
            self.last_late = now;
            self.window /= 2;
            if self.window <= rtt / 64 {
                self.window = Duration::ZERO;
            }
        }
        if self.marks.back().is_none_or(|&(_, end)| end < seen_end) {
            if self.marks.len() == MAX_MARKS {
                self.marks.pop_front();
            }
            self.marks.push_back((now, seen_end));
        }
        let old = self.marks.iter().rev().find(|&&(at, _)| at + self.window <= now);
        old.map_or(reported, |&(_, end)| end.max(reported))
    }

    /// Frees memory that only a busy flow needs: packets from before a pause are not expected any more.
    pub(super) fn trim(&mut self) {
        let newest = self.marks.pop_back();
        self.marks = newest.into_iter().collect();
    }

    /// Records that symbol `number` arrived after later ones.
    pub(super) fn on_late(&mut self, now: Timestamp, number: u64, rtt: Duration) {
        // A packet that was overtaken between two reports was not reported as missing.
        let Some(&(at, _)) = self.marks.iter().find(|&&(_, end)| end > number) else { return };
        // A packet that is more than a round trip late was not reordered but duplicated, by the
        // network or an attacker.
        let late = now - at;
        if late <= rtt {
            self.window = self.window.max(late + late / 4).min(rtt / WINDOW_RTT_DIVISOR);
            self.last_late = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RTT: Duration = Duration::from_millis(20);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn without_reordering_gaps_are_missing_at_once() {
        let mut order = Reordering::default();
        for ms in 0..100 {
            assert_eq!(order.missing_below(at(ms), ms * 10, 0, RTT), ms * 10);
        }
    }

    #[test]
    fn reordering_window_grows_with_late_packets_and_decays() {
        let mut order = Reordering::default();
        assert_eq!(order.missing_below(at(100), 50, 0, RTT), 50);
        order.on_late(at(104), 47, RTT);
        assert_eq!(order.window, 5 * MS);
        assert_eq!(order.missing_below(at(106), 80, 50, RTT), 50, "they may be reordered");
        assert_eq!(order.missing_below(at(110), 90, 50, RTT), 50);
        assert_eq!(order.missing_below(at(111), 95, 50, RTT), 80, "the window has passed");
        // Without late packets the window is halved repeatedly, down to zero.
        for ms in 112..2_000 {
            order.missing_below(at(ms), ms, 95, RTT);
        }
        assert_eq!(order.window, Duration::ZERO);
    }

    #[test]
    fn reordering_window_and_memory_are_bounded() {
        let mut order = Reordering::default();
        for ms in 0..10_000 {
            order.missing_below(at(ms), ms + 1, 0, RTT);
            order.on_late(at(ms), ms.saturating_sub(15), RTT);
            assert!(order.window <= RTT / 2 && order.marks.len() <= MAX_MARKS);
        }
        order.on_late(at(60_000), 3, RTT);
        assert!(order.window <= RTT / 2, "a very late duplicate does not count");
    }

    #[test]
    fn reordering_window_is_halved_after_sixteen_round_trips_down_to_a_64th() {
        let mut order = Reordering::default();
        order.missing_below(at(100), 50, 0, RTT);
        order.on_late(at(104), 47, RTT);
        let mut last = at(104);
        for window in [5_000, 2_500, 1_250, 625, 0] {
            order.missing_below(last + RTT * 16, 50, 0, RTT);
            assert_eq!(order.window, Duration::from_micros(window));
            last = last + RTT * 16 + Duration::from_nanos(1);
            order.missing_below(last, 50, 0, RTT);
        }
    }

    #[test]
    fn lateness_counts_from_the_first_report_with_a_later_symbol() {
        let mut order = Reordering::default();
        order.missing_below(at(100), 50, 0, RTT);
        // Reports without progress leave no marks.
        for report in 0..2 * MAX_MARKS as u64 {
            order.missing_below(at(100) + Duration::from_micros(report), 50, 0, RTT);
        }
        order.missing_below(at(102), 80, 0, RTT);
        order.on_late(at(104), 50, RTT);
        assert_eq!(order.window, MS * 5 / 2, "symbol 50 is not below 50");
        order.on_late(at(104), 49, RTT);
        assert_eq!(order.window, MS * 5);
    }
}
