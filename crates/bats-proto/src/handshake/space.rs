//! One packet number space: keys, numbers, acknowledgements and both halves of its TLS stream.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use smallvec::SmallVec;

use super::outgoing::Outgoing;
use super::range_set::RangeSet;
use super::reassembly::Reassembly;
use crate::crypto::Keys;
use crate::wire::handshake_frame::{MAX_RANGES, Ranges};

/// Packets whose acknowledgement is still of interest; older ones count as lost.
const MAX_SENT: usize = 256;

#[derive(Debug)]
struct Sent {
    number: u64,
    at: Timestamp,
    ranges: SmallVec<[(u64, u64); 2]>,
}

#[derive(Debug)]
pub(super) struct Space {
    /// Absent before they exist and after they were discarded.
    pub(super) keys: Option<Keys>,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Reassembly,
    /// An acknowledgement is owed.
    pub(super) ack_pending: bool,
    /// A PING is to be sent.
    pub(super) ping_pending: bool,
    next_number: u64,
    sent: VecDeque<Sent>,
    received: RangeSet,
    /// Packets below count as received.
    floor: u64,
    largest_at: Timestamp,
}

impl Space {
    pub(super) fn new(keys: Option<Keys>) -> Self {
        Self {
            keys,
            outgoing: Outgoing::default(),
            incoming: Reassembly::default(),
            ack_pending: false,
            ping_pending: false,
            next_number: 0,
            sent: VecDeque::new(),
            received: RangeSet::default(),
            floor: 0,
            largest_at: Timestamp::ZERO,
        }
    }

    /// Forgets keys and streams; nothing more is sent or received here.
    pub(super) fn discard(&mut self) {
        self.keys = None;
        self.outgoing.clear();
        self.incoming.clear();
        self.sent = VecDeque::new();
        self.ack_pending = false;
        self.ping_pending = false;
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.keys.is_some()
            && (self.ack_pending || self.ping_pending || self.outgoing.has_pending())
    }

    /// The number of the next packet; `None` when all are used up.
    pub(super) fn next_number(&self) -> Option<u32> {
        u32::try_from(self.next_number).ok()
    }

    /// A packet left with these parts of the stream.
    pub(super) fn on_sent(&mut self, now: Timestamp, ranges: SmallVec<[(u64, u64); 2]>) {
        for &(start, end) in &ranges {
            self.outgoing.on_sent(start, end);
        }
        self.sent.push_back(Sent { number: self.next_number, at: now, ranges });
        if self.sent.len() > MAX_SENT {
            self.sent.pop_front();
        }
        self.next_number += 1;
        self.ack_pending = false;
        self.ping_pending = false;
    }

    /// Forgets what is under way, for instance because a retry changed the keys.
    pub(super) fn forget_sent(&mut self) {
        self.sent.clear();
    }

    pub(super) fn is_duplicate(&self, number: u64) -> bool {
        number < self.floor || self.received.contains(number)
    }

    pub(super) fn on_received(&mut self, now: Timestamp, number: u64) {
        if self.received.last().is_none_or(|(_, end)| number >= end) {
            self.largest_at = now;
        }
        self.received.insert(number, number + 1);
        if self.received.count() > MAX_RANGES {
            if let Some((_, end)) = self.received.first() {
                self.floor = end;
            }
            self.received.remove_first();
        }
    }

    /// Packets received, newest range first, and how long ago the newest came.
    pub(super) fn acknowledgement(&self, now: Timestamp) -> (Ranges, Duration) {
        let ranges = self.received.iter().rev().map(|(start, end)| (start, end - 1)).collect();
        (ranges, now.saturating_since(self.largest_at))
    }

    /// The peer has these packets. What was sent before the newest of them and is not among them
    /// counts as lost: flights are short, and a superfluous copy costs less than a round trip.
    /// Returns a round-trip time if there is a new one.
    pub(super) fn on_ack(
        &mut self,
        now: Timestamp,
        delay: Duration,
        ranges: &Ranges,
    ) -> Result<Option<Duration>, &'static str> {
        let Some(&(_, largest)) = ranges.first() else { return Ok(None) };
        if largest >= self.next_number {
            return Err("acknowledged a packet that was not sent");
        }
        let mut rtt = None;
        let Self { sent, outgoing, .. } = self;
        // Acknowledged ones first, so that no part counts as lost that arrived in a later packet.
        sent.retain(|packet| {
            let arrived = ranges.iter().any(|&(f, l)| (f..=l).contains(&packet.number));
            if arrived {
                if packet.number == largest {
                    let elapsed = now.saturating_since(packet.at);
                    rtt = Some(elapsed.saturating_sub(delay)).filter(|rtt| !rtt.is_zero());
                }
                for &(start, end) in &packet.ranges {
                    outgoing.on_acknowledged(start, end);
                }
            }
            !arrived
        });
        while let Some(packet) = sent.front()
            && packet.number < largest
        {
            for &(start, end) in &packet.ranges {
                outgoing.on_lost(start, end);
            }
            sent.pop_front();
        }
        Ok(rtt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space::new(None)
    }

    fn ranges(list: &[(u64, u64)]) -> Ranges {
        Ranges::from_slice(list)
    }

    #[test]
    fn an_acknowledgement_shows_what_is_missing_and_the_round_trip() {
        let mut space = space();
        space.outgoing.push(&[0; 30]);
        for part in 0..3 {
            let at = Timestamp::from_millis(part);
            space.on_sent(at, SmallVec::from_slice(&[(part * 10, part * 10 + 10)]));
        }
        let now = Timestamp::from_millis(42);
        let rtt = space.on_ack(now, Duration::from_millis(3), &ranges(&[(2, 2), (0, 0)]));
        assert_eq!(rtt, Ok(Some(Duration::from_millis(37))));
        assert_eq!(space.outgoing.next().map(|(at, data)| (at, data.len())), Some((10, 10)));
        // Again: nothing new, no sample.
        assert_eq!(space.on_ack(now, Duration::ZERO, &ranges(&[(2, 2)])), Ok(None));
        assert!(space.on_ack(now, Duration::ZERO, &ranges(&[(3, 3)])).is_err());
    }

    #[test]
    fn duplicates_are_known_even_beyond_the_ranges_kept() {
        let mut space = space();
        for number in 0..200 {
            assert!(!space.is_duplicate(2 * number));
            space.on_received(Timestamp::from_millis(number), 2 * number);
            assert!(space.is_duplicate(2 * number));
        }
        assert!((0..200).all(|number| space.is_duplicate(2 * number)));
        assert!(!space.is_duplicate(2 * 199 - 1));
        let (ranges, delay) = space.acknowledgement(Timestamp::from_millis(200));
        assert_eq!((ranges.len(), ranges[0], delay.as_millis()), (MAX_RANGES, (398, 398), 1));
    }

    #[test]
    fn memory_of_sent_packets_is_bounded() {
        let mut space = space();
        for _ in 0..10 * MAX_SENT {
            space.on_sent(Timestamp::ZERO, SmallVec::new());
        }
        assert_eq!(space.sent.len(), MAX_SENT);
    }
}
