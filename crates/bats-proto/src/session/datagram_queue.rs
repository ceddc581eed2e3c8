//! Send queue of mode BTP: messages with deadlines, cut into symbols.

use std::collections::VecDeque;

use bats_types::Timestamp;
use bytes::Bytes;

use super::inbox::MESSAGE_OVERHEAD;
use crate::wire::message::DATAGRAM;
use crate::wire::varint::{Writer, varint_len};

/// Minimum number of message bytes to begin a message in the remaining space of a symbol.
const MIN_PART: usize = 16;

/// Messages with a deadline that wait to be cut into symbols, oldest first (mode BTP). Each part
/// carries the number of its message and its offset in it.
#[derive(Clone, Debug, Default)]
pub struct DatagramQueue {
    /// Each message and its expiry time.
    messages: VecDeque<(Bytes, Timestamp)>,
    /// Number of the first message in the queue.
    next_id: u64,
    /// Bytes of the first message that are in symbols already.
    front_offset: usize,
    bytes: usize,
    finished: bool,
    expired: u64,
}

impl DatagramQueue {
    /// Bytes of queued data, plus the overhead of each message.
    pub fn bytes_held(&self) -> usize {
        self.bytes + self.messages.len() * MESSAGE_OVERHEAD
    }

    /// Whether no message is queued.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether [`finish`](Self::finish) was called.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Number of messages dropped because they expired before they were sent completely.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Adds a message that expires at `expires`.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, message: Bytes, expires: Timestamp) {
        self.bytes = self.bytes.saturating_add(message.len());
        self.messages.push_back((message, expires));
    }

    /// Skips the numbers of the next `count` messages, which were sent as early data. The queue
    /// must be empty.
    pub fn skip(&mut self, count: u64) {
        debug_assert!(self.messages.is_empty(), "message numbers follow the queue order");
        self.next_id += count;
    }

    /// Number of messages accepted so far.
    pub fn messages(&self) -> u64 {
        self.next_id + self.messages.len() as u64
    }

    /// Number of the first message of which no part is in a symbol.
    pub fn first_uncut(&self) -> u64 {
        self.next_id + u64::from(self.front_offset > 0)
    }

    /// Marks the end: no messages will follow.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Bytes of the first message that are not in symbols yet.
    pub fn next_bytes(&self) -> Option<usize> {
        self.messages.front().map(|(message, _)| message.len() - self.front_offset)
    }

    /// Drops expired messages from the front of the queue.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((message, expires)) = self.messages.front()
            && *expires < now
        {
            self.bytes -= message.len() - self.front_offset;
            self.expired += 1;
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.messages.pop_front();
        self.next_id += 1;
        self.front_offset = 0;
    }

    /// Fills a symbol with as many message parts as fit, without messages that have expired. Returns its length
    /// and the latest expiry time of its messages.
    pub fn fill_symbol(&mut self, now: Timestamp, symbol: &mut [u8]) -> (usize, Timestamp) {
        let mut writer = Writer::new(symbol);
        let mut latest = Timestamp::ZERO;
        loop {
            // One that follows a message with a later deadline may have expired before.
            self.expire(now);
            let Some((message, expires)) = self.messages.front() else { break };
            let left = message.len() - self.front_offset;
            let header = 1
                + varint_len(self.next_id)
                + varint_len(message.len() as u64)
                + varint_len(self.front_offset as u64);
            // The part's length takes one byte below 64 and two below 16,384 bytes.
            let part = left.min(writer.remaining().saturating_sub(header + 2));
            if part < left.min(MIN_PART) || writer.remaining() < header + 2 {
                break;
            }
            let written = (|| {
                writer.u8(DATAGRAM)?;
                writer.varint(self.next_id)?;
                writer.varint(message.len() as u64)?;
                writer.varint(self.front_offset as u64)?;
                writer.varint(part as u64)?;
                writer.bytes(&message[self.front_offset..self.front_offset + part])
            })();
            if written.is_none() {
                break;
            }
            latest = latest.max(*expires);
            self.bytes -= part;
            if part == left {
                self.advance();
            } else {
                self.front_offset += part;
            }
        }
        (writer.written(), latest)
    }
}
