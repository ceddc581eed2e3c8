use std::collections::VecDeque;

use bytes::Bytes;

use super::inbox::MESSAGE_OVERHEAD;
use crate::wire::message::{CONTINUATION, FIN, MESSAGE};
use crate::wire::varint::{Writer, varint_len};

/// Bytes of message data below which a new message does not begin in a symbol's rest.
const LEAST_PART: usize = 16;

/// Messages that wait to be cut into symbols, in order.
#[derive(Debug, Default)]
pub struct SendQueue {
    messages: VecDeque<Bytes>,
    /// Bytes of the first message that are in symbols already; `None` before its first part.
    begun: Option<usize>,
    bytes: usize,
    fin: Fin,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fin {
    #[default]
    Open,
    Wanted,
    Written,
}

impl SendQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that wait, and what their messages cost beside.
    pub fn bytes_held(&self) -> usize {
        self.bytes + self.messages.len() * MESSAGE_OVERHEAD
    }

    /// Whether nothing waits, the end mark included.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.fin != Fin::Wanted
    }

    /// Whether the end was declared.
    pub fn is_finished(&self) -> bool {
        self.fin != Fin::Open
    }

    /// Adds a message.
    pub fn push(&mut self, message: Bytes) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }

    /// Declares the end.
    pub fn finish(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Wanted;
        }
    }

    /// Fills a symbol as far as there is something to send; returns its length.
    pub fn fill_symbol(&mut self, symbol: &mut [u8]) -> usize {
        let mut writer = Writer::new(symbol);
        while let Some(message) = self.messages.front() {
            let offset = self.begun.unwrap_or(0);
            let left = message.len() - offset;
            let header =
                1 + if self.begun.is_none() { varint_len(message.len() as u64) } else { 0 };
            let length = varint_len(left.min(writer.remaining()) as u64).max(2);
            let room = writer.remaining().saturating_sub(header + length);
            let part = left.min(room);
            if part < left.min(LEAST_PART) || writer.remaining() < header + length {
                break;
            }
            let written = (|| {
                match self.begun {
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
            self.bytes -= part;
            if part == left {
                self.messages.pop_front();
                self.begun = None;
            } else {
                self.begun = Some(offset + part);
            }
        }
        if self.messages.is_empty() && self.fin == Fin::Wanted && writer.u8(FIN).is_some() {
            self.fin = Fin::Written;
        }
        writer.written()
    }
}
