//! Acknowledgements that this end sends: which packets arrived, and when the next acknowledgement is due.

use core::time::Duration;

use bats_types::Timestamp;

use super::received::ReceivedPackets;
use super::timer::take_expired;
use crate::wire::frame::AckHeader;

/// Packets at the start of a link during which every second ack-eliciting packet is
/// acknowledged at once: Startup depends on quick acknowledgements.
const IMMEDIATE_ACK_PACKETS: u64 = 64;

/// Bounds of the acknowledgement delay. Between them it is 1/48 of the minimum RTT, so that a rate
/// change shows within a small part of a round trip.
pub(super) const MIN_ACK_DELAY: Duration = Duration::from_micros(500);
pub(super) const MAX_ACK_DELAY: Duration = Duration::from_millis(3);

/// Packets received, and the acknowledgement that is due for them.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    received: ReceivedPackets,
    /// Packets received with a CE mark.
    ce_received: u64,
    /// Ack-eliciting packets since the last acknowledgement.
    unacknowledged: u32,
    is_due: bool,
    timer: Option<Timestamp>,
    /// Buffer for the ranges of one acknowledgement, sent or received.
    ranges: Vec<(u64, u64)>,
}

impl Acknowledgements {
    /// Takes the buffer for ranges, to read or write an acknowledgement.
    pub(super) fn take_ranges(&mut self) -> Vec<(u64, u64)> {
        core::mem::take(&mut self.ranges)
    }

    /// Gives the buffer back.
    pub(super) fn return_ranges(&mut self, ranges: Vec<(u64, u64)>) {
        self.ranges = ranges;
    }

    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.ranges = Vec::new();
    }

    /// The packet number after the largest one received.
    pub(super) fn expected(&self) -> u64 {
        self.received.expected()
    }

    /// Whether a packet with this number may still be taken.
    pub(super) fn is_new(&self, pn: u64) -> bool {
        self.received.is_new(pn)
    }

    /// Records a packet; false if it is a duplicate or too old.
    pub(super) fn insert(&mut self, now: Timestamp, pn: u64) -> bool {
        self.received.insert(now, pn)
    }

    /// A packet that is no duplicate arrived; `ce` says whether it has a CE mark.
    pub(super) fn on_mark(&mut self, ce: bool) {
        self.ce_received = self.ce_received.saturating_add(u64::from(ce));
    }

    /// The largest packet number received.
    pub(super) fn largest(&self) -> Option<u64> {
        self.received.largest().map(|(number, _)| number)
    }

    /// Acknowledgements that did not have room for all ranges.
    pub(super) fn shortened(&self) -> u64 {
        self.received.shortened()
    }

    /// An ack-eliciting packet arrived, `packets` in total: an acknowledgement is due after `delay`.
    pub(super) fn schedule(&mut self, now: Timestamp, packets: u64, delay: Duration) {
        self.unacknowledged += 1;
        let is_immediate = packets < IMMEDIATE_ACK_PACKETS && self.unacknowledged >= 2;
        let due = if is_immediate { now } else { now + delay };
        self.timer = Some(self.timer.map_or(due, |at| at.min(due)));
    }

    /// When to call [`Self::handle_timeout`].
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.timer
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        self.is_due |= take_expired(&mut self.timer, now);
    }

    /// Whether an acknowledgement must be sent now.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// The acknowledgement for a control packet that is sent anyway, if any packet is unacknowledged.
    pub(super) fn take(
        &mut self,
        now: Timestamp,
        ranges: &mut Vec<(u64, u64)>,
    ) -> Option<AckHeader> {
        let is_pending = self.is_due || self.unacknowledged > 0;
        (self.is_due, self.unacknowledged, self.timer) = (false, 0, None);
        if is_pending { self.write(now, ranges) } else { None }
    }

    /// An acknowledgement of everything received so far.
    pub(super) fn write(
        &mut self,
        now: Timestamp,
        ranges: &mut Vec<(u64, u64)>,
    ) -> Option<AckHeader> {
        let (largest, received_at) = self.received.largest()?;
        self.received.write_ranges(ranges);
        Some(AckHeader {
            largest,
            delay: now - received_at,
            received_at,
            ce_count: self.ce_received,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(2);

    #[test]
    fn every_second_packet_is_acknowledged_at_once_at_the_start_only() {
        let at = Timestamp::from_millis;
        for (packets, second) in [(63, at(11)), (64, at(12))] {
            let mut acks = Acknowledgements::default();
            acks.schedule(at(10), packets, DELAY);
            assert_eq!(acks.next_timeout(), Some(at(12)));
            acks.schedule(at(11), packets, DELAY);
            assert_eq!(acks.next_timeout(), Some(second), "{packets} packets");
        }
    }

    #[test]
    fn acknowledgement_is_due_after_its_delay_and_taken_once() {
        let mut acks = Acknowledgements::default();
        let mut ranges = Vec::new();
        let now = Timestamp::from_millis(10);
        assert!(acks.insert(now, 7) && !acks.insert(now, 7));
        acks.on_mark(true);
        acks.schedule(now, 100, DELAY);
        acks.handle_timeout(now);
        assert!(!acks.is_due());
        acks.handle_timeout(now + DELAY);
        assert!(acks.is_due());
        let header = acks.take(now + DELAY, &mut ranges).unwrap();
        assert_eq!((header.largest, header.delay, header.ce_count), (7, DELAY, 1));
        assert_eq!((acks.is_due(), acks.next_timeout()), (false, None));
        assert!(acks.take(now + DELAY, &mut ranges).is_none());
        assert!(acks.write(now + DELAY, &mut ranges).is_some(), "a CLOSE frame repeats it");
    }

    #[test]
    fn control_packet_carries_an_acknowledgement_that_is_not_due_yet() {
        let mut acks = Acknowledgements::default();
        let now = Timestamp::from_millis(10);
        acks.insert(now, 0);
        acks.schedule(now, 100, DELAY);
        assert!(!acks.is_due());
        assert!(acks.take(now, &mut Vec::new()).is_some());
    }
}
