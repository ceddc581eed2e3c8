//! Frames of long packets: the acknowledged byte stream that carries TLS.
//!
//! ```text
//! 0x00 PADDING
//! 0x01 PING
//! 0x02 ACK             largest, delay_us, range_count, first_length, { gap, length } ...
//! 0x06 CRYPTO          offset, length, TLS data
//! 0x1c CLOSE           code, length, UTF-8 text
//! ```
//!
//! A subset of RFC 9000, section 19, with its numbers: a frame is a type octet and
//! variable-length integers. ACK ranges are as in section 19.3.1; the delay is in microseconds.

use core::time::Duration;

use smallvec::SmallVec;

use super::varint::{Reader, Writer, varint_len};

/// Ranges of an acknowledgement beyond which a receiver does not read.
pub const MAX_RANGES: usize = 32;
/// Octets of the text of a CLOSE frame that are sent and read.
pub const MAX_TEXT: usize = 256;

const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const CRYPTO: u8 = 0x06;
const CLOSE: u8 = 0x1c;

/// Packet numbers (first, last), inclusive; newest range first.
pub type Ranges = SmallVec<[(u64, u64); 8]>;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeFrame<'a> {
    /// Asks for an acknowledgement.
    Ping,
    /// Packets that arrived.
    Ack {
        /// Time between the arrival of the largest one and this frame.
        delay: Duration,
        /// Which ones; never empty.
        ranges: Ranges,
    },
    /// Part of the TLS stream of the packet's level.
    Crypto {
        /// Offset in the stream.
        offset: u64,
        /// The part.
        data: &'a [u8],
    },
    /// The end of the attempt.
    Close {
        /// Code of RFC 9000, section 20.1.
        code: u64,
        /// Why.
        reason: String,
    },
}

/// Reads the next frame: `None` at the end, an error if it breaks the rules.
pub fn decode<'a>(reader: &mut Reader<'a>) -> Result<Option<HandshakeFrame<'a>>, &'static str> {
    loop {
        match reader.u8() {
            None => return Ok(None),
            Some(PADDING) => {}
            Some(PING) => return Ok(Some(HandshakeFrame::Ping)),
            Some(ACK) => return decode_ack(reader).map(Some),
            Some(CRYPTO) => {
                let offset = reader.varint();
                let data = take(reader);
                let (Some(offset), Some(data)) = (offset, data) else {
                    return Err("truncated CRYPTO frame");
                };
                return Ok(Some(HandshakeFrame::Crypto { offset, data }));
            }
            Some(CLOSE) => {
                let code = reader.varint();
                let text = take(reader);
                let (Some(code), Some(text)) = (code, text) else {
                    return Err("truncated CLOSE frame");
                };
                let text = &text[..text.len().min(MAX_TEXT)];
                let reason = String::from_utf8_lossy(text).into_owned();
                return Ok(Some(HandshakeFrame::Close { code, reason }));
            }
            Some(_) => return Err("frame type that handshake packets do not carry"),
        }
    }
}

fn take<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(reader.varint()?).ok()?;
    reader.take(len)
}

fn decode_ack<'a>(reader: &mut Reader<'a>) -> Result<HandshakeFrame<'a>, &'static str> {
    const TRUNCATED: &str = "truncated ACK frame";
    const BELOW_ZERO: &str = "ACK range below zero";
    let largest = reader.varint().ok_or(TRUNCATED)?;
    let delay = Duration::from_micros(reader.varint().ok_or(TRUNCATED)?);
    let count = reader.varint().ok_or(TRUNCATED)?;
    if count >= MAX_RANGES as u64 {
        return Err("too many ACK ranges");
    }
    let mut ranges = Ranges::new();
    let length = reader.varint().ok_or(TRUNCATED)?;
    let mut first = largest.checked_sub(length).ok_or(BELOW_ZERO)?;
    ranges.push((first, largest));
    for _ in 0..count {
        let gap = reader.varint().ok_or(TRUNCATED)?;
        let length = reader.varint().ok_or(TRUNCATED)?;
        let last = first.checked_sub(gap).and_then(|v| v.checked_sub(2)).ok_or(BELOW_ZERO)?;
        first = last.checked_sub(length).ok_or(BELOW_ZERO)?;
        ranges.push((first, last));
    }
    Ok(HandshakeFrame::Ack { delay, ranges })
}

/// Writes an acknowledgement of `ranges` (newest first); nothing if they are empty or do not fit.
pub fn write_ack(writer: &mut Writer<'_>, delay: Duration, ranges: &[(u64, u64)]) -> Option<()> {
    let start = writer.written();
    let written = try_write_ack(writer, delay, &ranges[..ranges.len().min(MAX_RANGES)]);
    if written.is_none() {
        writer.rewind(start);
    }
    written
}

fn try_write_ack(writer: &mut Writer<'_>, delay: Duration, ranges: &[(u64, u64)]) -> Option<()> {
    let (&(mut first, last), rest) = ranges.split_first()?;
    writer.u8(ACK)?;
    writer.varint(last)?;
    writer.varint(u64::try_from(delay.as_micros()).ok()?)?;
    writer.varint(rest.len() as u64)?;
    writer.varint(last.checked_sub(first)?)?;
    for &(next_first, next_last) in rest {
        writer.varint(first.checked_sub(next_last)?.checked_sub(2)?)?;
        writer.varint(next_last.checked_sub(next_first)?)?;
        first = next_first;
    }
    Some(())
}

/// Writes a PING frame.
pub fn write_ping(writer: &mut Writer<'_>) -> Option<()> {
    writer.u8(PING)
}

/// Octets that a CRYPTO frame of `len` octets has beyond its data.
pub fn crypto_overhead(offset: u64, len: usize) -> usize {
    1 + varint_len(offset) + varint_len(len as u64)
}

/// Writes a CRYPTO frame.
pub fn write_crypto(writer: &mut Writer<'_>, offset: u64, data: &[u8]) -> Option<()> {
    let start = writer.written();
    let mut write = || {
        writer.u8(CRYPTO)?;
        writer.varint(offset)?;
        writer.varint(data.len() as u64)?;
        writer.bytes(data)
    };
    let written = write();
    if written.is_none() {
        writer.rewind(start);
    }
    written
}

/// Writes a CLOSE frame; the text is cut to [`MAX_TEXT`] octets.
pub fn write_close(writer: &mut Writer<'_>, code: u64, reason: &str) -> Option<()> {
    let text = cut(reason, MAX_TEXT);
    writer.u8(CLOSE)?;
    writer.varint(code)?;
    writer.varint(text.len() as u64)?;
    writer.bytes(text)
}

/// The longest front of `text` of at most `most` octets that ends between characters.
fn cut(text: &str, most: usize) -> &[u8] {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut Writer<'_>) -> Option<()>) -> Vec<u8> {
        let mut buffer = [0; 2_048];
        let mut writer = Writer::new(&mut buffer);
        write(&mut writer).unwrap();
        let len = writer.written();
        buffer[..len].to_vec()
    }

    #[test]
    fn golden_octets() {
        let ack = written(|w| write_ack(w, Duration::from_micros(25), &[(8, 9), (2, 4)]));
        assert_eq!(ack, [2, 9, 25, 1, 1, 2, 2]);
        assert_eq!(written(|w| write_crypto(w, 64, b"ab")), [6, 0x40, 64, 2, b'a', b'b']);
        assert_eq!(written(|w| write_close(w, 2, "no")), [0x1c, 2, 2, b'n', b'o']);
        assert_eq!(written(write_ping), [1]);
    }

    #[test]
    fn text_is_cut_between_characters() {
        let close = written(|w| write_close(w, 0, &"ä".repeat(300)));
        let mut reader = Reader::new(&close);
        let Ok(Some(HandshakeFrame::Close { reason, .. })) = decode(&mut reader) else {
            panic!("no CLOSE frame")
        };
        assert_eq!(reason, "ä".repeat(128));
    }

    #[test]
    fn unknown_frames_and_ranges_below_zero_are_refused() {
        assert!(decode(&mut Reader::new(&[0x07])).is_err());
        assert!(decode(&mut Reader::new(&[2, 3, 0, 0, 4])).is_err());
        assert!(decode(&mut Reader::new(&[2, 3, 0, 1, 0, 2, 0])).is_err());
        assert!(decode(&mut Reader::new(&[2, 3, 0, 32, 0])).is_err());
    }

    #[test]
    fn what_does_not_fit_is_not_begun() {
        let mut buffer = [0; 5];
        let mut writer = Writer::new(&mut buffer);
        assert_eq!(write_crypto(&mut writer, 0, b"abc"), None);
        assert_eq!(write_ack(&mut writer, Duration::ZERO, &[(70, 80)]), None);
        assert_eq!(writer.written(), 0);
    }

    proptest! {
        #[test]
        fn ack_round_trip(start in 0_u64..1 << 40, steps in proptest::collection::vec((0_u64..50, 2_u64..50), 1..32),
                          delay in 0_u64..1 << 30) {
            let mut ranges = Ranges::new();
            let mut at = start;
            for (length, gap) in steps {
                ranges.insert(0, (at, at + length));
                at += length + gap;
            }
            let delay = Duration::from_micros(delay);
            let octets = written(|w| write_ack(w, delay, &ranges));
            let mut reader = Reader::new(&octets);
            prop_assert_eq!(decode(&mut reader), Ok(Some(HandshakeFrame::Ack { delay, ranges })));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn garbage_never_panics(octets in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = Reader::new(&octets);
            while let Ok(Some(_)) = decode(&mut reader) {}
        }
    }
}
