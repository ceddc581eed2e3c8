#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::SessionError;
use super::delivered::{DUPLICATE_WINDOW, DeliveredSet};
use super::partial::{Insertion, PARTIAL_OVERHEAD, Partial};
use crate::wire::message::{self, MessageFrame};
use crate::wire::varint::Reader;

/// Maximum number of partial messages. The parts of a message are in symbols near one another.
const MAX_PARTIALS: usize = 1_024;

/// Maximum number of parts of incomplete messages in a symbol. A sender needs two: the rest of the
/// message that began in the symbol before, and the beginning of the one that continues in the next.
/// A part costs much more work than its bytes if it begins a message or leaves a gap.
const MAX_PARTS_IN_SYMBOL: usize = 2;

/// Reassembles messages whose parts arrive in any order or not at all (mode BTP).
///
/// A part costs O(log n) steps for n parts held, whatever its position, number and announced
/// length. Memory is taken for bytes that have arrived and is charged with its overhead.
#[derive(Debug)]
pub struct DatagramAssembly {
    max_message: usize,
    budget: usize,
    /// Partial messages by number, and their numbers in the order of arrival.
    partials: BTreeMap<u64, Partial>,
    arrivals: BTreeMap<u64, u64>,
    next_arrival: u64,
    /// Memory that they take.
    bytes: usize,
    complete: VecDeque<Bytes>,
    delivered: DeliveredSet,
}

impl DatagramAssembly {
    /// Accepts messages of up to `max_message` bytes. Holds up to `budget` bytes of partial
    /// messages and discards the oldest ones first.
    pub fn new(max_message: usize, budget: usize) -> Self {
        Self {
            max_message,
            budget,
            partials: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            bytes: 0,
            complete: VecDeque::new(),
            delivered: DeliveredSet::default(),
        }
    }

    /// Begins with this message, before any part has arrived: those before it are neither delivered nor lost.
    pub fn begin_at(&mut self, first: u64) {
        self.delivered.begin_at(first);
    }

    /// Raises the memory for partial messages.
    pub fn raise_budget(&mut self, budget: usize) {
        self.budget = self.budget.max(budget);
    }

    /// Memory held in bytes, overhead included.
    pub fn bytes_held(&self) -> usize {
        self.complete.iter().map(Bytes::len).fold(self.bytes, usize::saturating_add)
    }

    /// Number of messages given up: over 4,096 newer ones exist, or the session has ended. Includes
    /// message numbers that were skipped and are assumed to have been sent.
    pub fn lost(&self) -> u64 {
        self.delivered.lost()
    }

    /// Whether this message is recorded as delivered.
    pub fn has_delivered(&self, id: u64) -> bool {
        self.delivered.contains(id)
    }

    /// Records the delivery of this message by another connection.
    pub fn mark_delivered(&mut self, id: u64) {
        self.extend_to(id.saturating_add(1));
        self.delivered.insert(id);
    }

    /// The next complete message.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.complete.pop_front()
    }

    /// Discards incomplete messages but the newest one, which may continue. Call it when all symbols that were
    /// sent have arrived or are given up.
    pub fn trim(&mut self) {
        let newest = self.delivered.end().checked_sub(1);
        while let Some(&id) = self.partials.keys().next().filter(|&&id| Some(id) != newest) {
            self.remove(id);
        }
        self.complete.shrink_to_fit();
    }

    /// Ends the session after `messages` messages: none will follow.
    pub fn finish(&mut self, messages: u64) {
        self.extend_to(messages.max(self.delivered.end()).saturating_add(DUPLICATE_WINDOW));
    }

    /// Records that messages below `end` exist. Undelivered ones that leave the window are lost.
    fn extend_to(&mut self, end: u64) {
        self.delivered.extend_to(end);
        let keep = self.delivered.window_start();
        while let Some(&id) = self.partials.keys().next().filter(|&&id| id < keep) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Partial> {
        let partial = self.partials.remove(&id)?;
        self.arrivals.remove(&partial.arrival);
        self.bytes = self.bytes.saturating_sub(partial.cost());
        Some(partial)
    }

    /// Parses a symbol and inserts its parts. The caller passes each symbol at most once.
    pub fn feed(&mut self, symbol: &[u8]) -> Result<(), SessionError> {
        let mut reader = Reader::new(symbol);
        let mut parts = 0_usize;
        while let Some(frame) =
            message::decode(&mut reader).map_err(|message::Malformed| SessionError::Malformed)?
        {
            let MessageFrame::Datagram { id, total, offset, data } = frame else {
                return Err(SessionError::Sequence);
            };
            let length = usize::try_from(total)
                .ok()
                .filter(|&length| length <= self.max_message)
                .ok_or(SessionError::TooLong(total))?;
            let offset = usize::try_from(offset)
                .ok()
                .filter(|offset| length.checked_sub(*offset).is_some_and(|left| data.len() <= left))
                .ok_or(SessionError::Sequence)?;
            if data.len() < length {
                parts = parts.saturating_add(1);
                if parts > MAX_PARTS_IN_SYMBOL {
                    return Err(SessionError::TooManyParts);
                }
            }
            self.insert(id, length, offset, data)?;
        }
        Ok(())
    }

    fn insert(
        &mut self,
        id: u64,
        length: usize,
        offset: usize,
        data: &[u8],
    ) -> Result<(), SessionError> {
        if self.delivered.is_before_window(id) || self.delivered.contains(id) {
            return Ok(());
        }
        self.extend_to(id.saturating_add(1));
        if data.len() == length {
            self.remove(id);
            self.deliver(id, Bytes::copy_from_slice(data));
            return Ok(());
        }
        if self.partials.get(&id).is_some_and(|partial| partial.length() != length) {
            return Err(SessionError::Sequence);
        }
        if data.is_empty() || length.saturating_add(PARTIAL_OVERHEAD) > self.budget {
            return Ok(());
        }
        if !self.partials.contains_key(&id) {
            self.arrivals.insert(self.next_arrival, id);
            self.bytes = self.bytes.saturating_add(PARTIAL_OVERHEAD);
        }
        let partial = self.partials.entry(id).or_insert_with(|| {
            let arrival = self.next_arrival;
            self.next_arrival = arrival.saturating_add(1);
            Partial::new(length, arrival)
        });
        let before = partial.cost();
        let insertion = partial.insert(offset, data);
        self.bytes = self.bytes.saturating_add(partial.cost()).saturating_sub(before);
        if insertion == Insertion::Complete
            && let Some(partial) = self.remove(id)
        {
            self.deliver(id, partial.into_message());
        }
        self.make_room();
        Ok(())
    }

    /// Discards the oldest partial messages beyond the limits.
    fn make_room(&mut self) {
        while self.partials.len() > MAX_PARTIALS || self.bytes > self.budget {
            let Some((_, &oldest)) = self.arrivals.first_key_value() else { break };
            self.remove(oldest);
        }
    }

    fn deliver(&mut self, id: u64, message: Bytes) {
        self.delivered.insert(id);
        self.complete.push_back(message);
    }
}

#[cfg(test)]
mod tests {
    use bats_types::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::session::partial::PART_OVERHEAD;
    use crate::session::{DatagramQueue, MESSAGE_OVERHEAD};

    proptest! {
        /// For any losses and any order of the other symbols: a message arrives once and unchanged
        /// if all its symbols arrive, and not at all otherwise.
        #[test]
        fn messages_arrive_complete_or_not_at_all(
            lengths in prop::collection::vec(0usize..5_000, 1..40),
            lost in prop::collection::vec(any::<bool>(), 400),
            swaps in prop::collection::vec((0usize..400, 0usize..400), 0..50),
        ) {
            let messages: Vec<Bytes> = lengths
                .iter()
                .enumerate()
                .map(|(i, &n)| (0..n).map(|x| (x * 7 + i) as u8).collect())
                .collect();
            let mut queue = DatagramQueue::default();
            for message in &messages {
                queue.push(message.clone(), LATER);
            }
            let mut symbols = Vec::new();
            while !queue.is_empty() {
                let mut symbol = vec![0; 500];
                let (len, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
                prop_assert!(len > 0);
                symbol.truncate(len);
                symbols.push(symbol);
            }
            prop_assert_eq!(queue.bytes_held(), 0);

            let mut intact = vec![true; messages.len()];
            let mut arriving: Vec<Vec<u8>> = Vec::new();
            for (symbol, lost) in symbols.into_iter().zip(lost.into_iter().cycle()) {
                if !lost {
                    arriving.push(symbol);
                    continue;
                }
                let mut reader = Reader::new(&symbol);
                while let Ok(Some(MessageFrame::Datagram { id, .. })) = message::decode(&mut reader) {
                    intact[id as usize] = false;
                }
            }
            for (a, b) in swaps {
                if a < arriving.len() && b < arriving.len() {
                    arriving.swap(a, b);
                }
            }
            let mut assembly = DatagramAssembly::new(10_000, 1 << 20);
            let mut got = Vec::new();
            for symbol in &arriving {
                assembly.feed(symbol).unwrap();
                while let Some(message) = assembly.pop() {
                    got.push(message);
                }
            }
            let mut expected: Vec<Bytes> = messages
                .iter()
                .zip(&intact)
                .filter(|(_, intact)| **intact)
                .map(|(message, _)| message.clone())
                .collect();
            got.sort();
            expected.sort();
            assembly.finish(queue.messages());
            prop_assert_eq!(got.len() as u64 + assembly.lost(), messages.len() as u64);
            prop_assert_eq!(assembly.bytes_held(), 0);
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn arbitrary_input_is_an_error_or_bounded(symbols in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..200)) {
            let mut assembly = DatagramAssembly::new(1_000, 4_000);
            for symbol in &symbols {
                let _ = assembly.feed(symbol);
                while assembly.pop().is_some() {}
                prop_assert!(assembly.bytes_held() <= 4_000);
            }
        }
    }

    #[test]
    fn duplicate_symbols_deliver_a_message_once() {
        let mut queue = DatagramQueue::default();
        queue.push(Bytes::from_static(b"once"), LATER);
        let mut symbol = vec![0; 100];
        let (len, expires) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
        assert_eq!(expires, LATER);
        let mut assembly = DatagramAssembly::new(1_000, 4_000);
        for _ in 0..3 {
            assembly.feed(&symbol[..len]).unwrap();
        }
        assert_eq!(assembly.pop().as_deref(), Some(&b"once"[..]));
        assert_eq!(assembly.pop(), None);
    }

    #[test]
    fn messages_delivered_by_another_connection_are_not_repeated() {
        let mut queue = DatagramQueue::default();
        queue.skip(1);
        queue.push(Bytes::from_static(b"second"), LATER);
        queue.push(Bytes::from_static(b"third"), LATER);
        assert_eq!(queue.messages(), 3);
        let mut symbol = vec![0; 100];
        let (len, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
        let mut assembly = DatagramAssembly::new(1_000, 4_000);
        assembly.mark_delivered(0);
        assembly.mark_delivered(1);
        assembly.feed(&symbol[..len]).unwrap();
        assert_eq!(assembly.pop().as_deref(), Some(&b"third"[..]));
        assert_eq!(assembly.pop(), None);
        assert!((0..3).all(|id| assembly.has_delivered(id)) && !assembly.has_delivered(3));
        assembly.finish(3);
        assert_eq!(assembly.lost(), 0);
    }

    #[test]
    fn idle_session_keeps_the_newest_incomplete_message() {
        let mut assembly = DatagramAssembly::new(1_000, 4_000);
        for id in [0, 1, 3] {
            assembly.insert(id, 2, 0, b"a").unwrap();
        }
        assembly.trim();
        assert_eq!(assembly.partials.keys().copied().collect::<Vec<_>>(), [3]);
        assembly.insert(3, 2, 1, b"b").unwrap();
        assert_eq!(assembly.pop().as_deref(), Some(&b"ab"[..]));
        assembly.insert(1, 2, 1, b"b").unwrap();
        assert!(assembly.pop().is_none() && assembly.bytes_held() > 0);
        assembly.trim();
        assert_eq!((assembly.bytes_held(), assembly.arrivals.len()), (0, 0));
        // Complete messages that were not taken stay.
        assembly.insert(4, 1, 0, b"c").unwrap();
        assembly.trim();
        assert_eq!(assembly.pop().as_deref(), Some(&b"c"[..]));
    }

    #[test]
    fn the_oldest_partial_message_is_evicted() {
        let cost = PARTIAL_OVERHEAD + PART_OVERHEAD + 1;
        for (limit, budget) in [(MAX_PARTIALS, 1 << 30), (10, 10 * cost)] {
            for beyond in [0, 1] {
                let mut assembly = DatagramAssembly::new(1_000, budget);
                for id in 0..(limit + beyond) as u64 {
                    assembly.insert(id, 2, 0, b"a").unwrap();
                }
                assert_eq!((assembly.partials.len(), assembly.bytes), (limit, limit * cost));
                assembly.insert(0, 2, 1, b"b").unwrap();
                assert_eq!(assembly.pop().is_some(), beyond == 0, "the first message");
                assembly.insert(1, 2, 1, b"b").unwrap();
                assert_eq!(assembly.pop().is_some(), beyond == 0, "the message that it evicted");
            }
        }
    }

    fn part(id: u64, total: usize, offset: usize, data: &[u8]) -> Vec<u8> {
        let mut symbol = vec![0; data.len() + 40];
        let mut writer = crate::wire::varint::Writer::new(&mut symbol);
        writer.u8(message::DATAGRAM).unwrap();
        for field in [id, total as u64, offset as u64, data.len() as u64] {
            writer.varint(field).unwrap();
        }
        writer.bytes(data).unwrap();
        let len = writer.written();
        symbol.truncate(len);
        symbol
    }

    /// Memory of the held structures, by the capacities of their allocations.
    fn check_memory(assembly: &DatagramAssembly, budget: usize) {
        assert!(assembly.bytes_held() <= budget, "{} of {budget}", assembly.bytes_held());
        let sum: usize = assembly.partials.values().map(Partial::cost).sum();
        assert_eq!(assembly.bytes, sum);
        assert_eq!(assembly.arrivals.len(), assembly.partials.len());
        assert!(assembly.partials.len() <= MAX_PARTIALS);
    }

    /// Parts of one byte in the orders that cost most: each must be charged with its overhead.
    #[test]
    fn tiny_parts_in_any_order_stay_within_the_budget() {
        const TOTAL: usize = 64 << 20;
        const BUDGET: usize = 1 << 20;
        let orders: [&dyn Fn(usize) -> (u64, usize); 5] = [
            &|step| (0, TOTAL - 1 - step),
            &|step| (0, TOTAL - 1 - 2 * step),
            &|step| (step as u64 % 2, step * 2),
            &|step| (step as u64, 5),
            &|step| (step as u64 * 4_095, 5),
        ];
        for (number, order) in orders.into_iter().enumerate() {
            let mut assembly = DatagramAssembly::new(TOTAL, BUDGET);
            for step in 0..100_000 {
                let (id, offset) = order(step);
                assembly.feed(&part(id, TOTAL, offset, b"x")).unwrap();
                if step % 1_000 == 0 {
                    check_memory(&assembly, BUDGET);
                }
            }
            check_memory(&assembly, BUDGET);
            assert_eq!(assembly.pop(), None, "order {number}");
        }
    }

    /// Whether they were delivered is not known any more.
    #[test]
    fn messages_below_the_window_are_not_delivered() {
        for (behind, is_delivered) in [(DUPLICATE_WINDOW - 1, true), (DUPLICATE_WINDOW, false)] {
            let mut assembly = DatagramAssembly::new(1_000, 4_000);
            assembly.feed(&part(10_000, 1, 0, b"a")).unwrap();
            assert!(assembly.pop().is_some() && assembly.pop().is_none());
            assembly.feed(&part(10_000 - behind, 1, 0, b"b")).unwrap();
            assert_eq!(assembly.pop().is_some(), is_delivered, "{behind} behind");
            assert!(!assembly.has_delivered(10_001));
        }
    }

    #[test]
    fn message_whose_parts_arrive_backwards_is_delivered() {
        const TOTAL: usize = 1 << 20;
        let mut assembly = DatagramAssembly::new(TOTAL, 4 << 20);
        let content: Vec<u8> = (0..TOTAL).map(|at| (at * 31 + at / 999) as u8).collect();
        for (index, data) in content.chunks(500).enumerate().rev() {
            assert_eq!(assembly.pop(), None);
            assembly.feed(&part(3, TOTAL, index * 500, data)).unwrap();
        }
        assert!(assembly.pop().is_some_and(|message| message == content));
        check_memory(&assembly, 0);
    }

    #[test]
    fn expired_messages_are_not_sent() {
        let mut queue = DatagramQueue::default();
        queue.push(Bytes::from(vec![0; 1_000]), Timestamp::from_millis(100));
        queue.push(Bytes::from(vec![0; 10]), Timestamp::from_millis(150));
        let mut symbol = vec![0; 500];
        assert!(
            queue.fill_symbol(Timestamp::ZERO, &mut symbol).0 > 400,
            "part of the first message is sent"
        );
        queue.expire(Timestamp::from_millis(101));
        assert_eq!((queue.expired(), queue.bytes_held()), (1, 10 + MESSAGE_OVERHEAD));
        queue.expire(Timestamp::from_millis(150));
        assert_eq!(queue.expired(), 1);
    }

    #[test]
    fn a_message_number_far_ahead_counts_the_skipped_ones_as_lost() {
        let mut assembly = DatagramAssembly::new(1_000, 4_000);
        let mut symbol = vec![0; 100];
        let mut writer = crate::wire::varint::Writer::new(&mut symbol);
        let id = (1_u64 << 62) - 1;
        writer.u8(message::DATAGRAM).unwrap();
        [id, 1, 0, 1].iter().for_each(|&field| writer.varint(field).unwrap());
        writer.u8(7).unwrap();
        assembly.feed(&symbol).unwrap();
        assert_eq!(assembly.pop().as_deref(), Some(&[7][..]));
        assembly.finish(id + 1);
        assert_eq!(assembly.lost(), id);
    }

    #[test]
    fn messages_that_the_budget_cannot_hold_are_not_begun() {
        for (length, is_delivered) in [(1_000, true), (1_001, false)] {
            let mut assembly = DatagramAssembly::new(5_000, PARTIAL_OVERHEAD + 1_000);
            assembly.feed(&part(0, length, 0, &[7; 500])).unwrap();
            assert_eq!(assembly.bytes_held() > 0, is_delivered, "{length} bytes");
            assembly.feed(&part(0, length, 500, &vec![7; length - 500])).unwrap();
            assert_eq!(assembly.pop().is_some(), is_delivered, "{length} bytes");
        }
    }

    const LATER: Timestamp = Timestamp::from_millis(1_000);
}
