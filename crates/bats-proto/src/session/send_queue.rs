use std::collections::VecDeque;

use bytes::Bytes;

use super::channel::MESSAGE_CHARGE;
use super::inbox::MESSAGE_OVERHEAD;
use crate::wire::message::{CONTINUATION, FIN, MESSAGE};
use crate::wire::varint::{Writer, varint_len};

/// Minimum number of message bytes to begin a message in the remaining space of a symbol.
const MIN_PART: usize = 16;

/// Messages that wait to be cut into symbols, in order.
#[derive(Debug, Default)]
pub struct SendQueue {
    messages: VecDeque<Bytes>,
    /// Bytes of the first message that are in symbols already; `None` before its first part.
    front_offset: Option<usize>,
    bytes: usize,
    fin: Fin,
    /// Charged bytes of the messages that have begun, and the credit below which one may begin; without
    /// channels there is no such limit.
    begun: u64,
    credit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fin {
    #[default]
    Open,
    Pending,
    Written,
}

impl SendQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of queued data, plus the overhead of each message.
    pub fn bytes_held(&self) -> usize {
        self.bytes + self.messages.len() * MESSAGE_OVERHEAD
    }

    /// Whether neither a message nor the end mark is queued.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.fin != Fin::Pending
    }

    /// Sets the credit: a message may begin while those before it have taken fewer bytes.
    pub fn set_credit(&mut self, credit: u64) {
        self.credit = Some(credit);
    }

    fn has_credit(&self) -> bool {
        self.front_offset.is_some() || self.credit.is_none_or(|credit| self.begun < credit)
    }

    /// Whether [`fill_symbol`](Self::fill_symbol) has something to write.
    pub fn is_sendable(&self) -> bool {
        match self.messages.is_empty() {
            true => self.fin == Fin::Pending,
            false => self.has_credit(),
        }
    }

    /// Whether [`finish`](Self::finish) was called.
    pub fn is_finished(&self) -> bool {
        self.fin != Fin::Open
    }

    /// Adds a message.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, message: Bytes) {
        self.bytes = self.bytes.saturating_add(message.len());
        self.messages.push_back(message);
    }

    /// Marks the end: no messages will follow.
    pub fn finish(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Pending;
        }
    }

    /// Fills a symbol with as many message parts as fit. Returns its length.
    pub fn fill_symbol(&mut self, symbol: &mut [u8]) -> usize {
        let mut writer = Writer::new(symbol);
        while let Some(message) = self.messages.front()
            && self.has_credit()
        {
            let offset = self.front_offset.unwrap_or(0);
            let left = message.len() - offset;
            let header =
                1 + if self.front_offset.is_none() { varint_len(message.len() as u64) } else { 0 };
            let length = varint_len(left.min(writer.remaining()) as u64).max(2);
            let room = writer.remaining().saturating_sub(header + length);
            let part = left.min(room);
            if part < left.min(MIN_PART) || writer.remaining() < header + length {
                break;
            }
            let written = (|| {
                match self.front_offset {
                    None => {
                        writer.u8(MESSAGE)?;
                        writer.varint(message.len() as u64)?;
                    }
                    Some(_) => writer.u8(CONTINUATION)?,
                }
                writer.varint(part as u64)?;
                writer.bytes(&message[offset..offset + part])
            })();
            if written.is_none() {
                break;
            }
            if self.front_offset.is_none() {
                self.begun += message.len() as u64 + MESSAGE_CHARGE;
            }
            self.bytes -= part;
            if part == left {
                self.messages.pop_front();
                self.front_offset = None;
            } else {
                self.front_offset = Some(offset + part);
            }
        }
        if self.messages.is_empty() && self.fin == Fin::Pending && writer.u8(FIN).is_some() {
            self.fin = Fin::Written;
        }
        writer.written()
    }
}
