use std::collections::{BTreeSet, VecDeque};

use bats_proto::congestion::SendState;
use bats_types::Timestamp;

/// The last transmission of a segment and its fate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Number of the transmission.
    pub(super) order: u64,
    pub(super) at: Timestamp,
    pub(super) state: SendState,
    pub(super) fate: Fate,
    pub(super) is_retransmitted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    InFlight,
    Delivered,
    Lost,
}

/// The segments sent and not acknowledged in order.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    base: u64,
    segments: VecDeque<Sent>,
    lost: BTreeSet<u64>,
    /// Transmissions in the order of sending, as (order, number). Those with a known fate are
    /// removed from the front.
    by_time: VecDeque<(u64, u64)>,
    in_flight: u64,
    sacked: u64,
    retransmitted_in_flight: u64,
    orders: u64,
}

impl Scoreboard {
    /// All segments before this one are acknowledged.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Number of the next new segment.
    pub(super) fn next(&self) -> u64 {
        self.base + self.segments.len() as u64
    }

    /// Segments sent, neither delivered nor declared lost.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Segments beyond the base that were delivered.
    pub(super) fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Transmissions so far.
    pub(super) fn orders(&self) -> u64 {
        self.orders
    }

    /// Segments in flight whose last transmission was a retransmission.
    pub(super) fn retransmitted_in_flight(&self) -> u64 {
        self.retransmitted_in_flight
    }

    /// The first segment that waits for retransmission.
    pub(super) fn first_lost(&self) -> Option<u64> {
        self.lost.first().copied()
    }

    pub(super) fn get(&self, number: u64) -> Option<&Sent> {
        self.segments.get(number.checked_sub(self.base)? as usize)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Sent> {
        self.segments.get_mut(number.checked_sub(self.base)? as usize)
    }

    /// Starts the next transmission and returns its segment number. It counts as in flight from now
    /// on.
    pub(super) fn begin_transmission(&mut self) -> u64 {
        self.in_flight += 1;
        self.orders += 1;
        self.orders
    }

    /// Records the transmission started last: of a new segment, or of one that is lost or in
    /// flight.
    pub(super) fn transmit(&mut self, number: u64, at: Timestamp, state: SendState) {
        let order = self.orders;
        let is_retransmitted = number < self.next();
        let sent = Sent { order, at, state, fate: Fate::InFlight, is_retransmitted };
        self.by_time.push_back((order, number));
        if !is_retransmitted {
            self.segments.push_back(sent);
            return;
        }
        self.lost.remove(&number);
        self.retransmitted_in_flight += 1;
        let mut doubled = (0, 0);
        if let Some(segment) = self.get_mut(number) {
            // A probe with a segment in flight replaces its earlier transmission.
            if segment.fate == Fate::InFlight {
                doubled = (1, u64::from(segment.is_retransmitted));
            }
            *segment = sent;
        }
        self.in_flight -= doubled.0;
        self.retransmitted_in_flight -= doubled.1;
    }

    /// Marks a segment as delivered. Returns its former state, unless it was delivered already.
    pub(super) fn deliver(&mut self, number: u64) -> Option<Sent> {
        let segment = self.get_mut(number)?;
        let before = *segment;
        segment.fate = Fate::Delivered;
        match before.fate {
            Fate::Delivered => return None,
            Fate::InFlight => {
                self.in_flight -= 1;
                self.retransmitted_in_flight -= u64::from(before.is_retransmitted);
            }
            Fate::Lost => {
                self.lost.remove(&number);
            }
        }
        self.sacked += 1;
        Some(before)
    }

    /// Removes segments that are delivered in order. Returns whether there were any.
    pub(super) fn advance(&mut self) -> bool {
        let before = self.base;
        while self.segments.front().is_some_and(|segment| segment.fate == Fate::Delivered) {
            self.segments.pop_front();
            self.base += 1;
            self.sacked -= 1;
        }
        if self.segments.is_empty() {
            self.by_time.clear();
        }
        self.base > before
    }

    /// Marks a segment in flight as lost.
    pub(super) fn lose(&mut self, number: u64) -> Option<Sent> {
        let segment = self.get_mut(number).filter(|segment| segment.fate == Fate::InFlight)?;
        segment.fate = Fate::Lost;
        let segment = *segment;
        self.in_flight -= 1;
        self.retransmitted_in_flight -= u64::from(segment.is_retransmitted);
        self.lost.insert(number);
        Some(segment)
    }

    /// The oldest transmission in flight: segment number and state.
    pub(super) fn oldest(&mut self) -> Option<(u64, Sent)> {
        while let Some(&(order, number)) = self.by_time.front() {
            if let Some(segment) = self.get(number)
                && segment.order == order
                && segment.fate == Fate::InFlight
            {
                return Some((number, *segment));
            }
            self.by_time.pop_front();
        }
        None
    }

    /// Numbers of all segments in flight.
    pub(super) fn all_in_flight(&self) -> Vec<u64> {
        let of = |(sent, number): (&Sent, u64)| (sent.fate == Fate::InFlight).then_some(number);
        self.segments.iter().zip(self.base..).filter_map(of).collect()
    }

    /// Whether a retransmission is under way, or the first segment was retransmitted (Linux
    /// `tcp_any_retrans_done`).
    pub(super) fn has_retransmitted(&self) -> bool {
        self.retransmitted_in_flight > 0
            || self.segments.front().is_some_and(|s| s.is_retransmitted)
    }

    /// Marks all segments that wait for retransmission as in flight. Returns their number.
    pub(super) fn unmark_lost(&mut self) -> u64 {
        let lost = core::mem::take(&mut self.lost);
        for &number in &lost {
            if let Some(segment) = self.get_mut(number) {
                segment.fate = Fate::InFlight;
                let is_retransmitted = segment.is_retransmitted;
                self.in_flight += 1;
                self.retransmitted_in_flight += u64::from(is_retransmitted);
            }
        }
        if !lost.is_empty() {
            let of = |(sent, number): (&Sent, u64)| {
                (sent.fate == Fate::InFlight).then_some((sent.order, number))
            };
            let mut all: Vec<_> = self.segments.iter().zip(self.base..).filter_map(of).collect();
            all.sort_unstable();
            self.by_time = all.into();
        }
        lost.len() as u64
    }
}
