//! Message frames: how symbols hold messages.
//!
//! ```text
//! 0x00 padding        up to the end of the symbol or the next frame
//! 0x01 MESSAGE        total length, length, data      the first part of a message
//! 0x02 CONTINUATION   length, data                    a further part of the message
//! 0x03 FIN            no more messages
//! 0x04 DATAGRAM       number of the message, its total length, offset of the part, length, data
//! 0x05 to 0x0b         see `channel`
//! ```
//!
//! Lengths are variable-length integers. Messages are not interleaved: between MESSAGE and the part
//! that completes it there are only its continuations. Modes BTP and TRANSPARENT use DATAGRAM frames,
//! which can be read without any other symbol. Modes BRTP and BRCTP use the other frames.

use super::channel::{self, ChannelFrame};
use super::varint::Reader;

/// Type of the first part of a message.
pub const MESSAGE: u8 = 0x01;
/// Type of a further part.
pub const CONTINUATION: u8 = 0x02;
/// Type of the end of all messages.
pub const FIN: u8 = 0x03;
/// Type of a part that can be read without any other symbol.
pub const DATAGRAM: u8 = 0x04;

/// A frame inside a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFrame<'a> {
    /// First part of a message of `total` bytes.
    Message {
        /// Bytes of the whole message.
        total: u64,
        /// Its first bytes.
        data: &'a [u8],
    },
    /// Further part of the current message.
    Continuation(&'a [u8]),
    /// End of all messages.
    Fin,
    /// Part of a message that can be read without any other symbol.
    Datagram {
        /// Number of the message.
        id: u64,
        /// Bytes of the whole message.
        total: u64,
        /// Offset of the part in the message.
        offset: u64,
        /// Content of the part.
        data: &'a [u8],
    },
    /// A frame of the channels.
    Channel(ChannelFrame<'a>),
}

/// The input is not a valid message frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads the next frame; `Ok(None)` at the end of the symbol.
///
/// # Errors
///
/// [`Malformed`] if the input is not a valid frame.
#[inline]
pub fn decode<'a>(reader: &mut Reader<'a>) -> Result<Option<MessageFrame<'a>>, Malformed> {
    let kind = loop {
        match reader.u8() {
            None => return Ok(None),
            Some(0) => {}
            Some(kind) => break kind,
        }
    };
    let part = |reader: &mut Reader<'a>| {
        let len = usize::try_from(reader.varint()?).ok()?;
        reader.take(len)
    };
    let frame = match kind {
        MESSAGE => {
            let total = reader.varint().ok_or(Malformed)?;
            MessageFrame::Message { total, data: part(reader).ok_or(Malformed)? }
        }
        CONTINUATION => MessageFrame::Continuation(part(reader).ok_or(Malformed)?),
        FIN => MessageFrame::Fin,
        DATAGRAM => {
            let mut head = || Some((reader.varint()?, reader.varint()?, reader.varint()?));
            let (id, total, offset) = head().ok_or(Malformed)?;
            let data = part(reader).ok_or(Malformed)?;
            MessageFrame::Datagram { id, total, offset, data }
        }
        channel::FIRST_TYPE..=channel::LAST_TYPE => {
            MessageFrame::Channel(channel::decode(kind, reader).ok_or(Malformed)?)
        }
        _ => return Err(Malformed),
    };
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<MessageFrame<'_>>, Malformed> {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = decode(&mut reader)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn golden_bytes() {
        let bytes = [0, 1, 9, 2, 7, 8, 0, 0, 2, 1, 5, 4, 6, 9, 3, 1, 4, 3, 0];
        let frames = vec![
            MessageFrame::Message { total: 9, data: &[7, 8] },
            MessageFrame::Continuation(&[5]),
            MessageFrame::Datagram { id: 6, total: 9, offset: 3, data: &[4] },
            MessageFrame::Fin,
        ];
        assert_eq!(all(&bytes), Ok(frames));
        assert_eq!(all(&[]), Ok(vec![]));
    }

    #[test]
    fn truncated_or_unknown_frames_are_malformed() {
        for bytes in [&[1, 9, 2, 7][..], &[1], &[2, 1], &[4, 6, 9], &[4, 6, 9, 3, 1], &[5], &[0xff]]
        {
            assert_eq!(all(bytes), Err(Malformed), "{bytes:?}");
        }
    }
}
