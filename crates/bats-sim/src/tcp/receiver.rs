//! The receiver of the TCP model.

use std::collections::BTreeMap;

/// An acknowledgement with selective ranges (RFC 2018).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Number of the first missing segment.
    pub next: u64,
    /// Ranges [first, end) of later segments that arrived; the most recently extended one first.
    pub ranges: [Option<(u64, u64)>; 4],
}

/// The receiver.
#[derive(Debug, Default)]
pub struct Receiver {
    next: u64,
    /// Ranges [first, end) beyond the first missing segment.
    ranges: BTreeMap<u64, u64>,
}

impl Receiver {
    /// Number of segments that arrived in order.
    pub fn in_order(&self) -> u64 {
        self.next
    }

    /// Handles an arriving segment and returns its acknowledgement.
    pub fn on_segment(&mut self, number: u64) -> Ack {
        let mut extended = None;
        if number >= self.next {
            let (mut start, mut end) = (number, number + 1);
            if let Some((&before, &until)) = self.ranges.range(..=number).next_back()
                && until >= number
            {
                (start, end) = (before, end.max(until));
            }
            if let Some(until) = self.ranges.remove(&end) {
                end = until;
            }
            if start <= self.next {
                self.ranges.remove(&start);
                self.next = end;
            } else {
                self.ranges.insert(start, end);
                extended = Some((start, end));
            }
        }
        let mut ranges = [None; 4];
        let others = self.ranges.iter().rev().map(|(&start, &end)| (start, end));
        let all = extended.into_iter().chain(others.filter(|&range| Some(range) != extended));
        for (slot, range) in ranges.iter_mut().zip(all) {
            *slot = Some(range);
        }
        Ack { next: self.next, ranges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_merge_and_are_removed_when_in_order() {
        let mut receiver = Receiver::default();
        let ack = |next, first: &[(u64, u64)]| {
            let mut ranges = [None; 4];
            ranges.iter_mut().zip(first).for_each(|(slot, &range)| *slot = Some(range));
            Ack { next, ranges }
        };
        assert_eq!(receiver.on_segment(0), ack(1, &[]));
        assert_eq!(receiver.on_segment(3), ack(1, &[(3, 4)]));
        assert_eq!(receiver.on_segment(5), ack(1, &[(5, 6), (3, 4)]));
        assert_eq!(receiver.on_segment(4), ack(1, &[(3, 6)]));
        assert_eq!(receiver.on_segment(4), ack(1, &[(3, 6)]));
        assert_eq!(receiver.on_segment(1), ack(2, &[(3, 6)]));
        assert_eq!(receiver.on_segment(2), ack(6, &[]));
    }
}
