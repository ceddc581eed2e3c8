//! How far packets overtake each other, seen by the receiver of a flow.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

/// Moments remembered.
const MAX_MARKS: usize = 64;
/// Share of a round trip that is waited for what was overtaken, at most: repairs come later by that.
const MAX_SHARE: u32 = 2;
/// Round trips without a late packet after which half is waited.
const CALM_ROUNDS: u32 = 16;

/// Tells what is missing from what is merely late (after RFC 8985, section 6.2: the window follows the
/// reordering that is seen). Asking for what is on its way costs a repair each time.
#[derive(Debug, Default)]
pub(super) struct Reordering {
    /// What had been seen when, the oldest first: (time, one past the largest symbol).
    marks: VecDeque<(Timestamp, u64)>,
    window: Duration,
    last_late: Timestamp,
}

impl Reordering {
    /// A report is being made and all below `seen_end` was sent. Below the number returned, which is at
    /// least `reported`, everything that has not come is missing.
    pub(super) fn settled(
        &mut self,
        now: Timestamp,
        seen_end: u64,
        reported: u64,
        rtt: Duration,
    ) -> u64 {
        if self.window > Duration::ZERO && now - self.last_late > rtt * CALM_ROUNDS {
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

    /// Symbol `number` arrived after later ones.
    pub(super) fn on_late(&mut self, now: Timestamp, number: u64, rtt: Duration) {
        // What was passed between two reports was not missed by any.
        let Some(&(at, _)) = self.marks.iter().find(|&&(_, end)| end > number) else { return };
        // Who comes a round trip late was not overtaken but sent again, by the network or a liar.
        let late = now - at;
        if late <= rtt {
            self.window = self.window.max(late + late / 4).min(rtt / MAX_SHARE);
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
    fn in_order_everything_is_settled_at_once() {
        let mut order = Reordering::default();
        for ms in 0..100 {
            assert_eq!(order.settled(at(ms), ms * 10, 0, RTT), ms * 10);
        }
    }

    #[test]
    fn what_was_overtaken_is_waited_for_and_forgotten_when_it_stops() {
        let mut order = Reordering::default();
        assert_eq!(order.settled(at(100), 50, 0, RTT), 50);
        order.on_late(at(104), 47, RTT);
        assert_eq!(order.window, 5 * MS);
        assert_eq!(order.settled(at(106), 80, 50, RTT), 50, "those may be on their way");
        assert_eq!(order.settled(at(110), 90, 50, RTT), 50);
        assert_eq!(order.settled(at(111), 95, 50, RTT), 80, "no longer");
        // Calm: half, and half again, and nothing.
        for ms in 112..2_000 {
            order.settled(at(ms), ms, 95, RTT);
        }
        assert_eq!(order.window, Duration::ZERO);
    }

    #[test]
    fn the_wait_is_bounded_and_so_is_the_memory() {
        let mut order = Reordering::default();
        for ms in 0..10_000 {
            order.settled(at(ms), ms + 1, 0, RTT);
            order.on_late(at(ms), ms.saturating_sub(15), RTT);
            assert!(order.window <= RTT / 2 && order.marks.len() <= MAX_MARKS);
        }
        order.on_late(at(60_000), 3, RTT);
        assert!(order.window <= RTT / 2, "an echo of long ago says nothing");
    }
}
