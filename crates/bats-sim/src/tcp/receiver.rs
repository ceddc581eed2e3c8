use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bats_types::Timestamp;

use super::wire::{Ack, MAX_RANGES, Segment};

/// Delay of an acknowledgement (Linux `TCP_ATO_MIN`).
const DELAYED_ACK: Duration = Duration::from_millis(40);
/// Segments acknowledged immediately at the start and after a duplicate (Linux
/// `TCP_MAX_QUICKACKS`).
const MAX_QUICK_ACKS: u32 = 16;
/// Segments acknowledged immediately after a CE mark (Linux `__tcp_ecn_check_ce`).
const CE_QUICK_ACKS: u32 = 2;
/// Maximum number of segments per acknowledgement (RFC 5681 section 4.2).
const ACK_EVERY: u64 = 2;

/// The receiver: delayed acknowledgements as in Linux `__tcp_ack_snd_check`, SACK (RFC 2018), DSACK
/// (RFC 2883), timestamps (RFC 7323) and ECN (RFC 3168).
///
/// Not modelled: SACK compression, receive offload (GRO) and the receive window.
#[derive(Debug)]
pub struct Receiver {
    next: u64,
    /// Ranges above the first gap, as (first, end).
    ranges: BTreeMap<u64, u64>,
    /// Starts of the recently changed ranges, newest first.
    recent: VecDeque<u64>,
    /// `next` in the last acknowledgement.
    acknowledged: u64,
    quick_acks: u32,
    deadline: Option<Timestamp>,
    /// TS.Recent.
    echo: Option<Timestamp>,
    ece: bool,
    acks_sent: u64,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            next: 0,
            ranges: BTreeMap::new(),
            recent: VecDeque::new(),
            acknowledged: 0,
            quick_acks: MAX_QUICK_ACKS,
            deadline: None,
            echo: None,
            ece: false,
            acks_sent: 0,
        }
    }
}

impl Receiver {
    /// Number of segments received in order.
    pub fn in_order(&self) -> u64 {
        self.next
    }

    /// Number of acknowledgements sent.
    pub fn acks_sent(&self) -> u64 {
        self.acks_sent
    }

    /// Time at which [`Self::poll`] sends a delayed acknowledgement.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// The delayed acknowledgement that is due.
    pub fn poll(&mut self, now: Timestamp) -> Option<Ack> {
        self.deadline.filter(|&at| at <= now)?;
        Some(self.acknowledge(None))
    }

    /// Handles a segment. Returns the acknowledgement to send now; otherwise [`Self::next_timer`]
    /// returns when it is due.
    pub fn on_segment(&mut self, now: Timestamp, segment: Segment) -> Option<Ack> {
        self.on_ecn(segment);
        // RFC 7323 section 4.3, rule 2: only a segment at the left edge updates TS.Recent.
        if segment.number <= self.acknowledged {
            self.echo = self.echo.max(Some(segment.sent_at));
        }
        let had_gap = !self.ranges.is_empty();
        if self.is_duplicate(segment.number) {
            self.quick_acks = MAX_QUICK_ACKS;
            return Some(self.acknowledge(Some(segment.number)));
        }
        self.insert(segment.number);
        let is_due = self.next - self.acknowledged >= ACK_EVERY;
        if had_gap || !self.ranges.is_empty() || is_due || self.quick_acks > 0 {
            return Some(self.acknowledge(None));
        }
        self.deadline.get_or_insert(now + DELAYED_ACK);
        None
    }

    fn on_ecn(&mut self, segment: Segment) {
        if segment.cwr {
            self.ece = false;
        }
        if segment.ecn == 3 {
            if !self.ece {
                self.quick_acks = self.quick_acks.max(CE_QUICK_ACKS);
            }
            self.ece = true;
        }
    }

    fn is_duplicate(&self, number: u64) -> bool {
        let range = self.ranges.range(..=number).next_back();
        number < self.next || range.is_some_and(|(_, &end)| number < end)
    }

    fn insert(&mut self, number: u64) {
        let (mut start, mut end) = (number, number + 1);
        if let Some((&before, &until)) = self.ranges.range(..number).next_back()
            && until == number
        {
            self.remove(before);
            start = before;
        }
        if let Some(until) = self.ranges.get(&end).copied() {
            self.remove(end);
            end = until;
        }
        if start <= self.next {
            self.next = end;
        } else {
            self.ranges.insert(start, end);
            self.recent.push_front(start);
            // Linux keeps four (`selective_acks`); older ranges are not reported again.
            self.recent.truncate(4);
        }
    }

    fn remove(&mut self, start: u64) {
        self.ranges.remove(&start);
        self.recent.retain(|&recent| recent != start);
    }

    fn acknowledge(&mut self, dsack: Option<u64>) -> Ack {
        self.deadline = None;
        self.acknowledged = self.next;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        self.acks_sent += 1;
        let mut ranges = [None; MAX_RANGES];
        let known = self.recent.iter().filter_map(|start| self.ranges.get_key_value(start));
        // A DSACK takes the place of a range (RFC 2883 section 4).
        let room = MAX_RANGES - usize::from(dsack.is_some());
        for (slot, (&start, &end)) in ranges.iter_mut().take(room).zip(known) {
            *slot = Some((start, end));
        }
        Ack { next: self.next, ranges, dsack, echo: self.echo, ece: self.ece }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u64) -> Segment {
        Segment { number, ..Segment::default() }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// A receiver that has used up its quick acknowledgements.
    fn receiver() -> Receiver {
        let mut receiver = Receiver::default();
        for number in 0..16 {
            assert!(receiver.on_segment(at(0), segment(number)).is_some());
        }
        receiver
    }

    #[test]
    fn ranges_grow_merge_and_are_taken_in() {
        let mut receiver = Receiver::default();
        let mut on_segment = |number| {
            let ack = receiver.on_segment(at(0), segment(number)).unwrap();
            let ranges: Vec<_> = ack.ranges.into_iter().flatten().collect();
            (ack.next, ranges, ack.dsack)
        };
        assert_eq!(on_segment(0), (1, vec![], None));
        assert_eq!(on_segment(3), (1, vec![(3, 4)], None));
        assert_eq!(on_segment(5), (1, vec![(5, 6), (3, 4)], None));
        assert_eq!(on_segment(4), (1, vec![(3, 6)], None));
        assert_eq!(on_segment(4), (1, vec![(3, 6)], Some(4)));
        assert_eq!(on_segment(1), (2, vec![(3, 6)], None));
        assert_eq!(on_segment(2), (6, vec![], None));
        assert_eq!(on_segment(2), (6, vec![], Some(2)));
    }

    #[test]
    fn every_second_segment_is_acknowledged_after_quick_acks() {
        let mut receiver = receiver();
        for number in (16..116).step_by(2) {
            assert_eq!(receiver.on_segment(at(1), segment(number)), None);
            let ack = receiver.on_segment(at(1), segment(number + 1)).unwrap();
            assert_eq!(ack.next, number + 2);
        }
        assert_eq!(receiver.acks_sent(), 16 + 50);
    }

    #[test]
    fn a_single_segment_is_acknowledged_after_40_ms() {
        let mut receiver = receiver();
        assert_eq!(receiver.on_segment(at(10), segment(16)), None);
        assert_eq!(receiver.next_timer(), Some(at(50)));
        assert_eq!(receiver.poll(at(49)), None);
        assert_eq!(receiver.poll(at(50)).map(|ack| ack.next), Some(17));
        assert_eq!(receiver.next_timer(), None);
    }

    #[test]
    fn every_segment_is_acknowledged_while_a_gap_exists() {
        let mut receiver = receiver();
        for number in 17..30 {
            assert!(receiver.on_segment(at(1), segment(number)).is_some());
        }
        assert_eq!(receiver.on_segment(at(1), segment(16)).map(|ack| ack.next), Some(30));
        assert_eq!(receiver.on_segment(at(1), segment(30)), None);
    }

    #[test]
    fn ce_is_echoed_until_cwr_arrives() {
        let mut receiver = receiver();
        let marked = Segment { ecn: 3, ..segment(16) };
        assert!(receiver.on_segment(at(1), marked).is_some_and(|ack| ack.ece));
        assert!(receiver.on_segment(at(1), segment(17)).is_some_and(|ack| ack.ece));
        receiver.on_segment(at(1), Segment { cwr: true, ..segment(18) });
        assert!(receiver.on_segment(at(1), segment(19)).is_some_and(|ack| !ack.ece));
    }

    #[test]
    fn the_timestamp_echo_is_of_the_segment_at_the_left_window_edge() {
        let mut receiver = Receiver::default();
        let mut echo = |number, ms| {
            let segment = Segment { sent_at: at(ms), ..segment(number) };
            receiver.on_segment(at(ms), segment).unwrap().echo
        };
        assert_eq!(echo(0, 1), Some(at(1)));
        assert_eq!(echo(2, 2), Some(at(1)));
        assert_eq!(echo(1, 3), Some(at(3)));
    }
}
