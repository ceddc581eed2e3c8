//! Channel frames: what symbols hold besides messages, if both ends have channels.
//!
//! ```text
//! 0x05 CHANNEL         channel, offset, length, data
//! 0x06 CHANNEL_END     the same; the channel ends with this part
//! 0x07 CHANNEL_RESET   channel, code, final size      the sender gives up
//! 0x08 CHANNEL_STOP    channel, code                  the receiver gives up
//! 0x09 CHANNEL_CREDIT  channel, bytes                 channel 0: the messages
//! 0x0a SESSION_CREDIT  bytes of all channels
//! 0x0b CHANNELS        number of channels that the peer may open in total
//! ```
//!
//! Numbers are variable-length integers. Each frame can be read without any other symbol, and their
//! order does not matter, so that a lost symbol holds up its own channels only.

use super::varint::{Reader, Writer, varint_len};

pub(crate) const FIRST_TYPE: u8 = CHANNEL;
pub(crate) const LAST_TYPE: u8 = CHANNELS;

const CHANNEL: u8 = 0x05;
const CHANNEL_END: u8 = 0x06;
const CHANNEL_RESET: u8 = 0x07;
const CHANNEL_STOP: u8 = 0x08;
const CHANNEL_CREDIT: u8 = 0x09;
const SESSION_CREDIT: u8 = 0x0a;
const CHANNELS: u8 = 0x0b;

/// A channel frame; `id` is the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelFrame<'a> {
    /// A part of the channel's bytes.
    Data {
        /// The channel.
        id: u64,
        /// Offset of the part.
        offset: u64,
        /// The part.
        data: &'a [u8],
        /// Whether the channel ends with this part.
        end: bool,
    },
    /// The sender sends no more.
    Reset {
        /// The channel.
        id: u64,
        /// The application's code.
        code: u64,
        /// Bytes sent.
        size: u64,
    },
    /// The receiver reads no more.
    Stop {
        /// The channel.
        id: u64,
        /// The application's code.
        code: u64,
    },
    /// Total number of bytes that may be sent on a channel. Channel 0: a message may begin while the
    /// messages before it have taken fewer bytes.
    Credit {
        /// The channel.
        id: u64,
        /// The bytes.
        bytes: u64,
    },
    /// Total number of bytes that may be sent on all channels together.
    SessionCredit(u64),
    /// Total number of channels that the peer may open.
    Channels(u64),
}

/// Reads the fields of the frame whose type has been read; `None` if they are malformed.
pub(crate) fn decode<'a>(kind: u8, reader: &mut Reader<'a>) -> Option<ChannelFrame<'a>> {
    Some(match kind {
        CHANNEL | CHANNEL_END => {
            let (id, offset) = (reader.varint()?, reader.varint()?);
            let len = usize::try_from(reader.varint()?).ok()?;
            let data = reader.take(len)?;
            ChannelFrame::Data { id, offset, data, end: kind == CHANNEL_END }
        }
        CHANNEL_RESET => ChannelFrame::Reset {
            id: reader.varint()?,
            code: reader.varint()?,
            size: reader.varint()?,
        },
        CHANNEL_STOP => ChannelFrame::Stop { id: reader.varint()?, code: reader.varint()? },
        CHANNEL_CREDIT => ChannelFrame::Credit { id: reader.varint()?, bytes: reader.varint()? },
        SESSION_CREDIT => ChannelFrame::SessionCredit(reader.varint()?),
        CHANNELS => ChannelFrame::Channels(reader.varint()?),
        _ => return None,
    })
}

/// Writes a frame; `None` if it does not fit, and then nothing is written.
pub fn encode(writer: &mut Writer<'_>, frame: &ChannelFrame<'_>) -> Option<()> {
    let start = writer.written();
    let result = encode_fields(writer, frame);
    if result.is_none() {
        writer.rewind(start);
    }
    result
}

fn put(writer: &mut Writer<'_>, kind: u8, fields: &[u64]) -> Option<()> {
    writer.u8(kind)?;
    fields.iter().try_for_each(|&field| writer.varint(field))
}

fn encode_fields(writer: &mut Writer<'_>, frame: &ChannelFrame<'_>) -> Option<()> {
    match *frame {
        ChannelFrame::Data { id, offset, data, end } => {
            encode_data(writer, id, offset, [data, &[]], end)
        }
        ChannelFrame::Reset { id, code, size } => put(writer, CHANNEL_RESET, &[id, code, size]),
        ChannelFrame::Stop { id, code } => put(writer, CHANNEL_STOP, &[id, code]),
        ChannelFrame::Credit { id, bytes } => put(writer, CHANNEL_CREDIT, &[id, bytes]),
        ChannelFrame::SessionCredit(bytes) => put(writer, SESSION_CREDIT, &[bytes]),
        ChannelFrame::Channels(channels) => put(writer, CHANNELS, &[channels]),
    }
}

/// Writes a CHANNEL frame with a part that consists of two slices. If it does not fit, returns `None`
/// and leaves a partial frame.
#[inline]
pub fn encode_data(
    writer: &mut Writer<'_>,
    id: u64,
    offset: u64,
    parts: [&[u8]; 2],
    end: bool,
) -> Option<()> {
    let [first, second] = parts;
    writer.u8(if end { CHANNEL_END } else { CHANNEL })?;
    writer.varint(id)?;
    writer.varint(offset)?;
    writer.varint(first.len().checked_add(second.len())? as u64)?;
    writer.bytes(first)?;
    writer.bytes(second)
}

/// Bytes of a CHANNEL frame besides its part of at most `room` bytes.
#[inline]
pub fn data_overhead(id: u64, offset: u64, room: usize) -> usize {
    [varint_len(id), varint_len(offset), varint_len(room as u64)]
        .iter()
        .fold(1, |sum: usize, len| sum.saturating_add(*len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::{self, Malformed, MessageFrame};

    fn all() -> [(ChannelFrame<'static>, &'static [u8]); 7] {
        let data = |end| ChannelFrame::Data { id: 2, offset: 300, data: &[7, 8], end };
        [
            (data(false), &[5, 2, 0x41, 0x2c, 2, 7, 8]),
            (data(true), &[6, 2, 0x41, 0x2c, 2, 7, 8]),
            (ChannelFrame::Reset { id: 1, code: 9, size: 5 }, &[7, 1, 9, 5]),
            (ChannelFrame::Stop { id: 1, code: 9 }, &[8, 1, 9]),
            (ChannelFrame::Credit { id: 0, bytes: 63 }, &[9, 0, 63]),
            (ChannelFrame::SessionCredit(64), &[10, 0x40, 64]),
            (ChannelFrame::Channels(3), &[11, 3]),
        ]
    }

    #[test]
    fn channel_frames_have_golden_bytes() {
        for (frame, bytes) in all() {
            let mut buffer = [0; 32];
            let mut writer = Writer::new(&mut buffer);
            encode(&mut writer, &frame).unwrap();
            let written = writer.written();
            assert_eq!(&buffer[..written], bytes);
            let read = message::decode(&mut Reader::new(bytes));
            assert_eq!(read, Ok(Some(MessageFrame::Channel(frame))));
            for cut in 1..bytes.len() {
                assert_eq!(message::decode(&mut Reader::new(&bytes[..cut])), Err(Malformed));
                let mut short = [0; 32];
                let mut writer = Writer::new(&mut short[..cut]);
                assert_eq!((encode(&mut writer, &frame), writer.written()), (None, 0));
            }
        }
        assert_eq!(message::decode(&mut Reader::new(&[12, 0, 0])), Err(Malformed));
    }

    proptest! {
        #[test]
        fn parts_fill_the_room(id in 0_u64..1 << 62, offset in 0_u64..1 << 62, room in 40_usize..1500) {
            let overhead = data_overhead(id, offset, room);
            let data = vec![1; room - overhead];
            let frame = ChannelFrame::Data { id, offset, data: &data, end: true };
            let mut buffer = vec![0; room];
            let mut writer = Writer::new(&mut buffer);
            prop_assert!(encode(&mut writer, &frame).is_some());
            prop_assert!(writer.remaining() <= 1);
        }
    }
}
