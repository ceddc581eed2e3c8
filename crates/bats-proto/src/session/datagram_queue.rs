use std::collections::VecDeque;

use bats_types::Timestamp;
use bytes::Bytes;

use super::inbox::MESSAGE_OVERHEAD;
use crate::wire::message::DATAGRAM;
use crate::wire::varint::{Writer, varint_len};

/// Bytes of message data below which a message does not begin in a symbol's rest.
const LEAST_PART: usize = 16;

/// Messages with a deadline that wait to be cut into symbols, oldest first (mode BTP). Each part
/// stands for itself: it names its message and its place in it.
#[derive(Clone, Debug, Default)]
pub struct DatagramQueue {
    /// Each message and when it is worth nothing any more.
    messages: VecDeque<(Bytes, Timestamp)>,
    /// Number of the first message in the queue.
    next_id: u64,
    /// Bytes of the first message that are in symbols already.
    begun: usize,
    bytes: usize,
    finished: bool,
    expired: u64,
}

impl DatagramQueue {
    /// Bytes that wait, and what their messages cost beside.
    pub fn bytes_held(&self) -> usize {
        self.bytes + self.messages.len() * MESSAGE_OVERHEAD
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the end was declared.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Messages dropped because they came too late to be sent, whole or in part.
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// Adds a message that is worth something until `expires`.
    pub fn push(&mut self, message: Bytes, expires: Timestamp) {
        self.bytes += message.len();
        self.messages.push_back((message, expires));
    }

    /// The next `count` messages have gone another way; nothing waits yet.
    pub fn skip(&mut self, count: u64) {
        debug_assert!(self.messages.is_empty(), "numbers follow from the order");
        self.next_id += count;
    }

    /// Messages taken so far.
    pub fn messages(&self) -> u64 {
        self.next_id + self.messages.len() as u64
    }

    /// Declares the end.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Bytes of the first message that are not in symbols yet.
    pub fn next_bytes(&self) -> Option<usize> {
        self.messages.front().map(|(message, _)| message.len() - self.begun)
    }

    /// Drops what is too old and would be sent next.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((message, expires)) = self.messages.front()
            && *expires < now
        {
            self.bytes -= message.len() - self.begun;
            self.expired += 1;
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.messages.pop_front();
        self.next_id += 1;
        self.begun = 0;
    }

    /// Fills a symbol as far as there is something to send; returns its length and when the last of
    /// its messages is worth nothing any more.
    pub fn fill_symbol(&mut self, symbol: &mut [u8]) -> (usize, Timestamp) {
        let mut writer = Writer::new(symbol);
        let mut latest = Timestamp::ZERO;
        while let Some((message, expires)) = self.messages.front() {
            let left = message.len() - self.begun;
            let header = 1
                + varint_len(self.next_id)
                + varint_len(message.len() as u64)
                + varint_len(self.begun as u64);
            // The part's length takes one byte below 64 and two below 16,384 bytes.
            let part = left.min(writer.remaining().saturating_sub(header + 2));
            if part < left.min(LEAST_PART) || writer.remaining() < header + 2 {
                break;
            }
            let written = (|| {
                writer.u8(DATAGRAM)?;
                writer.varint(self.next_id)?;
                writer.varint(message.len() as u64)?;
                writer.varint(self.begun as u64)?;
                writer.varint(part as u64)?;
                writer.bytes(&message[self.begun..self.begun + part])
            })();
            if written.is_none() {
                break;
            }
            latest = latest.max(*expires);
            self.bytes -= part;
            if part == left {
                self.advance();
            } else {
                self.begun += part;
            }
        }
        (writer.written(), latest)
    }
}
