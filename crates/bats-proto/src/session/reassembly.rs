#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::channel::{ChannelViolation, Channels, MESSAGE_CHARGE};
use super::error::SessionError;
use crate::wire::message::{self, MessageFrame};
use crate::wire::varint::Reader;

/// Reassembles messages from symbols that come in order.
#[derive(Debug)]
pub struct Reassembly {
    max_message: usize,
    /// The message under assembly and its total length.
    partial: Option<(BytesMut, usize)>,
    complete: VecDeque<Bytes>,
    finished: bool,
    /// Charged bytes of the messages that have begun.
    begun: u64,
}

/// Initial capacity of a message buffer. It grows as data arrives, so a declared length alone does
/// not allocate memory.
const FIRST_CAPACITY: usize = 64 << 10;

impl Reassembly {
    /// Accepts messages of up to `max_message` bytes.
    pub fn new(max_message: usize) -> Self {
        Self { max_message, partial: None, complete: VecDeque::new(), finished: false, begun: 0 }
    }

    /// Bytes held.
    pub fn bytes_held(&self) -> usize {
        let complete = self.complete.iter().map(Bytes::len).sum::<usize>();
        self.partial.as_ref().map_or(0, |(data, _)| data.len()).saturating_add(complete)
    }

    /// Bytes of the message under assembly that are still to come.
    pub fn bytes_missing(&self) -> usize {
        self.partial.as_ref().map_or(0, |(data, length)| length.saturating_sub(data.len()))
    }

    /// Whether the end mark was received and every message before it was taken.
    pub fn is_finished(&self) -> bool {
        self.finished && self.complete.is_empty()
    }

    /// The next complete message.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.complete.pop_front()
    }

    /// Parses the next symbol of a session without channels.
    pub fn feed(&mut self, symbol: &[u8]) -> Result<(), SessionError> {
        self.feed_with(symbol, None, false)
    }

    /// Parses the next symbol. The channels get their frames unless they were handed up before.
    pub fn feed_with(
        &mut self,
        symbol: &[u8],
        mut channels: Option<&mut Channels>,
        is_handed_up: bool,
    ) -> Result<(), SessionError> {
        let mut reader = Reader::new(symbol);
        while let Some(frame) =
            message::decode(&mut reader).map_err(|message::Malformed| SessionError::Malformed)?
        {
            if let MessageFrame::Channel(frame) = frame {
                let channels = channels.as_deref_mut().ok_or(ChannelViolation::Unsupported)?;
                if !is_handed_up {
                    channels.feed(frame)?;
                }
                continue;
            }
            if self.finished {
                return Err(SessionError::AfterEnd);
            }
            match frame {
                MessageFrame::Message { total, data } => {
                    if self.partial.is_some() {
                        return Err(SessionError::Sequence);
                    }
                    let length = usize::try_from(total)
                        .ok()
                        .filter(|&length| length <= self.max_message)
                        .ok_or(SessionError::TooLong(total))?;
                    if channels.as_ref().is_some_and(|c| self.begun >= c.granted_messages()) {
                        return Err(SessionError::BeyondCredit);
                    }
                    self.begun = self.begun.saturating_add(total).saturating_add(MESSAGE_CHARGE);
                    let buffer = BytesMut::with_capacity(length.min(FIRST_CAPACITY));
                    self.partial = Some((buffer, length));
                    self.append(data)?;
                }
                MessageFrame::Continuation(data) => self.append(data)?,
                MessageFrame::Datagram { .. } | MessageFrame::Channel(_) => {
                    return Err(SessionError::Sequence);
                }
                MessageFrame::Fin => {
                    if self.partial.is_some() {
                        return Err(SessionError::Sequence);
                    }
                    self.finished = true;
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<(), SessionError> {
        let Some((buffer, length)) = &mut self.partial else { return Err(SessionError::Sequence) };
        if data.len() > length.saturating_sub(buffer.len()) {
            return Err(SessionError::Sequence);
        }
        buffer.extend_from_slice(data);
        if buffer.len() == *length
            && let Some((buffer, _)) = self.partial.take()
        {
            self.complete.push_back(buffer.freeze());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::SendQueue;

    proptest! {
        /// Messages of any lengths, cut into symbols of any sizes, come out unchanged and then
        /// finish.
        #[test]
        fn messages_survive_cutting_into_symbols(
            lengths in prop::collection::vec(0_usize..3000, 0..30),
            sizes in prop::collection::vec(64_usize..1408, 1..20),
        ) {
            let messages: Vec<Bytes> =
                lengths.iter().enumerate().map(|(i, &n)| vec![i as u8; n].into()).collect();
            let mut queue = SendQueue::new();
            messages.iter().for_each(|message| queue.push(message.clone()));
            queue.finish();
            let mut reassembly = Reassembly::new(3000);
            let mut got = Vec::new();
            for size in sizes.iter().cycle() {
                if queue.is_empty() {
                    break;
                }
                let mut symbol = vec![0; *size];
                let len = queue.fill_symbol(&mut symbol);
                prop_assert!(len > 0);
                reassembly.feed(&symbol).unwrap();
                got.extend(std::iter::from_fn(|| reassembly.pop()));
            }
            prop_assert_eq!(got, messages);
            prop_assert!(reassembly.is_finished());
            prop_assert_eq!(queue.bytes_held(), 0);
        }

        #[test]
        fn arbitrary_input_is_an_error_or_bounded(symbols in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..30)) {
            let mut reassembly = Reassembly::new(500);
            for symbol in symbols {
                if reassembly.feed(&symbol).is_err() {
                    break;
                }
                prop_assert!(reassembly.bytes_held() <= 500 + 30 * 100);
            }
        }
    }

    #[test]
    fn false_message_lengths_fail_without_allocating() {
        let mut reassembly = Reassembly::new(1000);
        assert_eq!(reassembly.feed(&[1, 0x43, 0xe9, 0]), Err(SessionError::TooLong(1001)));
        let mut reassembly = Reassembly::new(64 << 20);
        reassembly.feed(&[1, 0x84, 0, 0, 0, 1, 9]).unwrap();
        assert_eq!(reassembly.bytes_held(), 1);
        assert_eq!(reassembly.feed(&[1, 1, 1, 9]), Err(SessionError::Sequence));
    }
}
