use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::SessionError;
use crate::wire::message::{self, MessageFrame};
use crate::wire::varint::Reader;

/// Maximum number of partial messages. The parts of a message are in symbols near one another.
const MAX_PARTIALS: usize = 1_024;
/// Bytes that a partial message takes in addition to its content.
const PARTIAL_OVERHEAD: usize = 128;
/// Number of the newest message IDs whose delivery is recorded, to detect duplicates.
const DUPLICATE_WINDOW: u64 = 4_096;

/// Reassembles messages whose parts arrive in any order or not at all (mode BTP).
#[derive(Debug)]
pub struct DatagramAssembly {
    max_message: usize,
    budget: usize,
    partials: VecDeque<Partial>,
    bytes: usize,
    complete: VecDeque<Bytes>,
    /// Bit map of the newest [`DUPLICATE_WINDOW`] messages: whether each was delivered, indexed by
    /// number modulo that. Empty before the first delivery.
    delivered: Vec<u64>,
    /// All messages below this number are known to exist.
    end: u64,
    lost: u64,
}

#[derive(Debug)]
struct Partial {
    id: u64,
    data: BytesMut,
    /// Received ranges as (first, end), sorted and neither overlapping nor adjacent.
    ranges: Vec<(usize, usize)>,
}

impl Partial {
    fn cost(&self) -> usize {
        self.data.len() + PARTIAL_OVERHEAD
    }

    /// Inserts a part. Returns whether the message is complete.
    fn insert(&mut self, offset: usize, part: &[u8]) -> bool {
        let end = offset + part.len();
        self.data[offset..end].copy_from_slice(part);
        let at = self.ranges.partition_point(|&(_, e)| e < offset);
        let mut merged = (offset, end);
        let mut until = at;
        while let Some(&(first, last)) = self.ranges.get(until).filter(|r| r.0 <= end) {
            merged = (merged.0.min(first), merged.1.max(last));
            until += 1;
        }
        self.ranges.splice(at..until, [merged]);
        self.ranges == [(0, self.data.len())]
    }
}

impl DatagramAssembly {
    /// Accepts messages of up to `max_message` bytes. Holds up to `budget` bytes of partial
    /// messages and discards the oldest ones first.
    pub fn new(max_message: usize, budget: usize) -> Self {
        Self {
            max_message,
            budget,
            partials: VecDeque::new(),
            bytes: 0,
            complete: VecDeque::new(),
            delivered: Vec::new(),
            end: 0,
            lost: 0,
        }
    }

    /// Bytes held.
    pub fn bytes_held(&self) -> usize {
        self.bytes + self.complete.iter().map(Bytes::len).sum::<usize>()
    }

    /// Number of messages given up: over 4,096 newer ones exist, or the session has ended. Includes
    /// message numbers that were skipped and are assumed to have been sent.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether this message is recorded as delivered.
    pub fn has_delivered(&self, id: u64) -> bool {
        let word = self.delivered.get((id % DUPLICATE_WINDOW / 64) as usize);
        let is_in_window = id < self.end && id.saturating_add(DUPLICATE_WINDOW) >= self.end;
        is_in_window && word.is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Records the delivery of this message by another connection.
    pub fn mark_delivered(&mut self, id: u64) {
        self.extend_to(id.saturating_add(1));
        self.set_delivered(id);
    }

    fn word(&mut self, id: u64) -> &mut u64 {
        &mut self.delivered[(id % DUPLICATE_WINDOW / 64) as usize]
    }

    fn set_delivered(&mut self, id: u64) {
        self.delivered.resize((DUPLICATE_WINDOW / 64) as usize, 0);
        *self.word(id) |= 1 << (id % 64);
    }

    /// The next complete message.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.complete.pop_front()
    }

    /// Ends the session after `messages` messages: none will follow.
    pub fn finish(&mut self, messages: u64) {
        self.extend_to(messages.max(self.end).saturating_add(DUPLICATE_WINDOW));
    }

    /// Records that messages below `end` exist. Undelivered ones that leave the window are lost.
    fn extend_to(&mut self, end: u64) {
        if end <= self.end {
            return;
        }
        let first = self.end.saturating_sub(DUPLICATE_WINDOW);
        let keep = end.saturating_sub(DUPLICATE_WINDOW);
        let is_lost = |id: &u64| !self.has_delivered(*id);
        self.lost += (first..keep.min(self.end)).filter(is_lost).count() as u64;
        // Clear the bits of the new message numbers.
        if end - self.end >= DUPLICATE_WINDOW {
            self.delivered.fill(0);
        } else if !self.delivered.is_empty() {
            (self.end..end).for_each(|id| *self.word(id) &= !(1 << (id % 64)));
        }
        self.lost += keep.saturating_sub(self.end);
        self.end = end;
        let bytes = &mut self.bytes;
        self.partials.retain(|partial| {
            let stays = partial.id >= keep;
            *bytes -= if stays { 0 } else { partial.cost() };
            stays
        });
    }

    /// Parses a symbol and inserts its parts. The caller passes each symbol at most once.
    pub fn feed(&mut self, symbol: &[u8]) -> Result<(), SessionError> {
        let mut reader = Reader::new(symbol);
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
                .filter(|&offset| offset <= length && data.len() <= length - offset)
                .ok_or(SessionError::Sequence)?;
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
        if id.saturating_add(DUPLICATE_WINDOW) < self.end || self.has_delivered(id) {
            return Ok(());
        }
        self.extend_to(id + 1);
        if data.len() == length {
            self.deliver(id, Bytes::copy_from_slice(data));
            return Ok(());
        }
        let found = self.partials.iter().position(|partial| partial.id == id);
        let index = match found {
            Some(index) if self.partials[index].data.len() != length => {
                return Err(SessionError::Sequence);
            }
            Some(index) => index,
            None if length + PARTIAL_OVERHEAD > self.budget => return Ok(()),
            None => {
                self.make_room(length + PARTIAL_OVERHEAD);
                let partial = Partial { id, data: BytesMut::zeroed(length), ranges: Vec::new() };
                self.bytes += partial.cost();
                self.partials.push_back(partial);
                self.partials.len() - 1
            }
        };
        if self.partials[index].insert(offset, data)
            && let Some(partial) = self.partials.remove(index)
        {
            self.bytes -= partial.cost();
            self.deliver(id, partial.data.freeze());
        }
        Ok(())
    }

    fn make_room(&mut self, wanted: usize) {
        while self.partials.len() >= MAX_PARTIALS || self.bytes + wanted > self.budget {
            let Some(oldest) = self.partials.pop_front() else { break };
            self.bytes -= oldest.cost();
        }
    }

    fn deliver(&mut self, id: u64, message: Bytes) {
        self.set_delivered(id);
        self.complete.push_back(message);
    }
}

#[cfg(test)]
mod tests {
    use bats_types::Timestamp;
    use proptest::prelude::*;

    use super::*;
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
                let (len, _) = queue.fill_symbol(&mut symbol);
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
        let (len, expires) = queue.fill_symbol(&mut symbol);
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
        let (len, _) = queue.fill_symbol(&mut symbol);
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
    fn the_oldest_partial_message_is_evicted() {
        let cost = 2 + PARTIAL_OVERHEAD;
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

    #[test]
    fn expired_messages_are_not_sent() {
        let mut queue = DatagramQueue::default();
        queue.push(Bytes::from(vec![0; 1_000]), Timestamp::from_millis(100));
        queue.push(Bytes::from(vec![0; 10]), Timestamp::from_millis(150));
        let mut symbol = vec![0; 500];
        assert!(queue.fill_symbol(&mut symbol).0 > 400, "part of the first message is sent");
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

    const LATER: Timestamp = Timestamp::from_millis(1_000);
}
