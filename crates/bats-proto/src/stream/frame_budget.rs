//! A limit of frames that are work for the receiver without content: PING, receipts that say nothing new, parts of
//! a few bytes, and empty frames of later versions.

use core::time::Duration;

use bats_types::Timestamp;

/// Frames at once when the connection begins. Chosen, as all of these: floods of them end in the first packets.
const BURST: u32 = 256;
/// One more in each of these intervals. Both ends may send a PING each 10 ms, the least interval of keep-alives, and
/// answer those of the other: 200 frames per second from each.
const INTERVAL: Duration = Duration::from_millis(2);
/// Most frames at once: those of the default idle timeout, which wait if this process is stopped.
const MAX: u32 = 16_384;
/// Frames of this payload in bytes and longer are not limited: their content costs more than the frame.
pub(super) const LONG: usize = 1_024;

/// Counts the frames that are still allowed.
#[derive(Debug)]
pub(super) struct FrameBudget {
    left: u32,
    /// Time of the last frame that was added for an interval.
    refilled: Timestamp,
}

impl FrameBudget {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { left: BURST, refilled: now }
    }

    fn add(&mut self, frames: u32) {
        self.left = self.left.saturating_add(frames).min(MAX);
    }

    /// Whether a frame with a payload of this length is allowed.
    pub(super) fn allows(&mut self, now: Timestamp, len: usize) -> bool {
        if len >= LONG {
            return true;
        }
        if self.left == 0 {
            let intervals = (now - self.refilled).as_nanos() / INTERVAL.as_nanos();
            self.add(u32::try_from(intervals).unwrap_or(u32::MAX));
            self.refilled = now;
        }
        let is_allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_allowed
    }

    /// The peer has acknowledged something, has got a receipt, after which it may send a part as long as its credit, or
    /// has completed a message, which takes credit: it may send one more frame.
    pub(super) fn on_progress(&mut self) {
        self.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_frames_are_limited_to_a_burst_and_one_in_each_interval() {
        let start = Timestamp::from_millis(1_000);
        let mut budget = FrameBudget::new(start);
        let mut allowed = |now, count| (0..count).filter(|_| budget.allows(now, LONG - 1)).count();
        assert_eq!(allowed(start, 1_000), BURST as usize);
        assert_eq!(allowed(start + INTERVAL * 5, 1_000), 5);
        assert_eq!(allowed(start + INTERVAL * 6, 1_000), 1);
        assert_eq!(allowed(start + Duration::from_secs(3_600), 100_000), MAX as usize);
        assert!(budget.allows(start, LONG), "content is not limited");
        budget.on_progress();
        budget.on_progress();
        let later = start + Duration::from_secs(3_600);
        assert_eq!((0..9).filter(|_| budget.allows(later, 0)).count(), 2);
    }

    #[test]
    fn frames_at_the_rate_of_the_interval_are_always_allowed() {
        let start = Timestamp::from_millis(1_000);
        let mut budget = FrameBudget::new(start);
        assert!((1..10_000).all(|count| budget.allows(start + INTERVAL * count, 0)));
    }
}
