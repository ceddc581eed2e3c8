//! Frames of control packets: everything that two neighbours exchange except coded data.
//!
//! A frame is a type byte and its fields; integers are variable-length (RFC 9000, section 16).
//!
//! ```text
//! 0x00 PADDING
//! 0x01 PING            PINGs in a row count as one frame
//! 0x02 ACK             largest, delay_us, received_at_us, ce_count, range_count,
//!                      first_length, { gap, length } ...
//! 0x03 RANK            see `rank`
//! 0x04 CREDIT          symbols
//! 0x05 HANDSHAKE_DONE
//! 0x06 CRYPTO          offset, length, TLS data
//! 0x07 CLOSE           application (0, 1), code, length, UTF-8 text
//! 0x08 FRAGMENT        id, index, kind (plus 4 if relayed), last (0, 1), part of the payload of a
//!                      coded or relayed packet (rest of packet)
//! 0x09 END             numbers of symbols and messages of the flow (modes without full delivery)
//! 0x0a PATH_CHALLENGE  8 bytes
//! 0x0b PATH_RESPONSE   the 8 bytes of a challenge
//! 0x10 BATCH_RANK      see `batch_rank`
//! 0x11 SYMBOL_POLLUTED number of a symbol or block that relays on its path polluted
//! ```
//!
//! ACK ranges are as in RFC 9000, section 19.3.1: `first_length` is the number of packets before
//! the largest one in its range, `gap` the number of missing packets less one, `length` again
//! packets less one. `received_at_us` is the arrival time of the largest packet on the receiver's
//! clock. The epoch of that clock is arbitrary, because only differences are used. The time must be
//! below 2^62 ns and a CLOSE text has at most 256 bytes; larger values are malformed.

use core::time::Duration;

use bats_types::Timestamp;

use super::batch_rank::BatchRank;
use super::rank::RankFeedback;
use super::short_header::PacketKind;
use super::varint::{Reader, Writer};

/// Maximum number of ranges in an acknowledgement, because each costs work: 256 ranges of two bytes
/// fit any packet. A peer that sends more is closed.
pub const MAX_ACK_RANGES: u64 = 256;
/// Maximum number of frames in a packet; PADDING does not count, and PINGs in a row count as one. A
/// frame costs as much work as some dozen bytes of data and may have one byte. A sender needs one of
/// each type, and a few reports about relayed flows.
pub const MAX_FRAMES: usize = 64;
/// Limit of those that are no reports about relayed flows. Each of them may cause work of its own, and a packet has
/// hardly ever two of a type.
pub const MAX_OTHER_FRAMES: usize = 16;
/// Longest ACK delay sent or accepted, in microseconds: 12 days.
const MAX_ACK_DELAY_MICROS: u64 = 1 << 40;
/// Largest time on a peer's clock, so that differences fit a signed 64-bit integer. A clock that
/// counts from the Unix epoch exceeds it in the year 2116.
const MAX_PEER_TIME: Timestamp = Timestamp::from_nanos(1 << 62);
/// Maximum length in bytes of the text of a CLOSE frame.
pub const MAX_CLOSE_TEXT: usize = 256;

const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const RANK: u8 = 0x03;
const CREDIT: u8 = 0x04;
const HANDSHAKE_DONE: u8 = 0x05;
const CRYPTO: u8 = 0x06;
const CLOSE: u8 = 0x07;
const FRAGMENT: u8 = 0x08;
const END: u8 = 0x09;
const PATH_CHALLENGE: u8 = 0x0a;
const PATH_RESPONSE: u8 = 0x0b;
const BATCH_RANK: u8 = 0x10;
const SYMBOL_POLLUTED: u8 = 0x11;
/// Added to the kind in a FRAGMENT of a relayed packet.
const RELAYED: u64 = 4;

/// An acknowledgement without its ranges, which are in a buffer of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckHeader {
    /// Largest packet number acknowledged.
    pub largest: u64,
    /// Time between its arrival and the sending of this frame.
    pub delay: Duration,
    /// Arrival time on the receiver's clock, in whole microseconds.
    pub received_at: Timestamp,
    /// Number of packets received with an ECN-CE mark so far.
    pub ce_count: u64,
}

/// One frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<'a> {
    /// Requests an acknowledgement.
    Ping,
    /// Acknowledgement; the ranges are in the buffer passed to [`decode`].
    Ack(AckHeader),
    /// Rank feedback of the flow.
    Rank(RankFeedback),
    /// A neighbour's rank feedback about a flow that the link relays.
    BatchRank(BatchRank),
    /// Total number of symbols that the peer may send.
    Credit(u64),
    /// The server has received the client's Finished message.
    HandshakeDone,
    /// TLS data after the handshake.
    Crypto {
        /// Offset in the TLS stream.
        offset: u64,
        /// The data.
        data: &'a [u8],
    },
    /// Closes the link.
    Close {
        /// Whether the application (1) or the protocol (0) closed it.
        application: bool,
        /// Error code of the application or the protocol.
        code: u64,
        /// Reason phrase.
        reason: &'a str,
    },
    /// The receiver returns the number from the address where it received the frame.
    PathChallenge(u64),
    /// Answer to a [`Frame::PathChallenge`].
    PathResponse(u64),
    /// End of a flow whose data need not all arrive.
    End {
        /// Number of symbols sent.
        symbols: u64,
        /// Number of messages that the application sent.
        messages: u64,
    },
    /// A symbol or block was polluted on its path.
    SymbolPolluted(u64),
    /// Part of a coded packet that no longer fits the path MTU.
    Fragment {
        /// ID of the whole packet.
        id: u64,
        /// Index of the part.
        index: u64,
        /// Kind of the whole packet.
        kind: PacketKind,
        /// Whether the whole packet is a relayed one.
        relayed: bool,
        /// Whether this is the last part.
        last: bool,
        /// Content of the part.
        data: &'a [u8],
    },
}

/// A malformed frame; the text names the violated rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub struct MalformedFrame(pub &'static str);

/// Counts the frames of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCount {
    frames: usize,
    /// Those that are no BATCH_RANK.
    others: usize,
    has_ack: bool,
    has_rank: bool,
}

/// A packet has too many frames; the text names the violated rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many frames in a packet: {0}")]
pub struct TooManyFrames(pub &'static str);

impl FrameCount {
    /// Counts a frame.
    ///
    /// # Errors
    ///
    /// It is one too many.
    #[inline]
    pub fn add(&mut self, frame: &Frame<'_>) -> Result<(), TooManyFrames> {
        self.frames = self.frames.saturating_add(1);
        if self.frames > MAX_FRAMES {
            return Err(TooManyFrames("at most 64"));
        }
        self.others =
            self.others.saturating_add(usize::from(!matches!(frame, Frame::BatchRank(_))));
        if self.others > MAX_OTHER_FRAMES {
            return Err(TooManyFrames("at most 16 that are no BATCH_RANK"));
        }
        let again = match frame {
            Frame::Ack(_) => core::mem::replace(&mut self.has_ack, true),
            Frame::Rank(_) => core::mem::replace(&mut self.has_rank, true),
            _ => false,
        };
        if again { Err(TooManyFrames("at most one ACK and one RANK")) } else { Ok(()) }
    }
}

/// The parts of an ACK and a RANK that are read. Each repeats much of the one before. The rest is
/// skipped, which costs less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Number of the newest ranges that are read. The others must be consistent.
    pub ack_ranges: usize,
    /// Whether the entries of rank feedback are read.
    pub rank_entries: bool,
}

impl ReadLimits {
    /// Everything is read.
    pub const NONE: Self = Self { ack_ranges: usize::MAX, rank_entries: true };
}

/// As [`decode_within`], without limits.
pub fn decode<'a>(
    reader: &mut Reader<'a>,
    ranges: &mut Vec<(u64, u64)>,
) -> Result<Option<Frame<'a>>, MalformedFrame> {
    decode_within(reader, ranges, ReadLimits::NONE)
}

/// Reads the next frame; `None` at the end. Puts the ranges of an ACK into `ranges` as (first,
/// last) inclusive, newest first.
pub fn decode_within<'a>(
    reader: &mut Reader<'a>,
    ranges: &mut Vec<(u64, u64)>,
    limits: ReadLimits,
) -> Result<Option<Frame<'a>>, MalformedFrame> {
    const TRUNCATED: MalformedFrame = MalformedFrame("truncated");
    let frame_type = loop {
        match reader.u8() {
            None => return Ok(None),
            Some(PADDING) => {}
            Some(other) => break other,
        }
    };
    let int = |reader: &mut Reader<'a>| reader.varint().ok_or(TRUNCATED);
    let long = |reader: &mut Reader<'a>| reader.array().map(u64::from_be_bytes).ok_or(TRUNCATED);
    let frame = match frame_type {
        PING => {
            // One acknowledgement answers all of them.
            reader.skip_run(PING);
            Frame::Ping
        }
        ACK => Frame::Ack(decode_ack(reader, ranges, limits.ack_ranges)?),
        RANK => {
            let feedback = if limits.rank_entries {
                RankFeedback::decode(reader)
            } else {
                RankFeedback::decode_without_entries(reader)
            };
            Frame::Rank(feedback.ok_or(MalformedFrame("rank feedback"))?)
        }
        BATCH_RANK => {
            Frame::BatchRank(BatchRank::decode(reader).ok_or(MalformedFrame("batch ranks"))?)
        }
        CREDIT => Frame::Credit(int(reader)?),
        SYMBOL_POLLUTED => Frame::SymbolPolluted(int(reader)?),
        END => Frame::End { symbols: int(reader)?, messages: int(reader)? },
        PATH_CHALLENGE => Frame::PathChallenge(long(reader)?),
        PATH_RESPONSE => Frame::PathResponse(long(reader)?),
        HANDSHAKE_DONE => Frame::HandshakeDone,
        CRYPTO => {
            let offset = int(reader)?;
            let len = usize::try_from(int(reader)?).map_err(|_| TRUNCATED)?;
            Frame::Crypto { offset, data: reader.take(len).ok_or(TRUNCATED)? }
        }
        CLOSE => {
            let application = int(reader)? == 1;
            let code = int(reader)?;
            let len = usize::try_from(int(reader)?).map_err(|_| TRUNCATED)?;
            if len > MAX_CLOSE_TEXT {
                return Err(MalformedFrame("close text too long"));
            }
            let text = reader.take(len).ok_or(TRUNCATED)?;
            let reason =
                core::str::from_utf8(text).map_err(|_| MalformedFrame("close text not UTF-8"))?;
            Frame::Close { application, code, reason }
        }
        FRAGMENT => {
            let id = int(reader)?;
            let index = int(reader)?;
            let whole = int(reader)?;
            let relayed = whole & RELAYED != 0;
            let kind = match whole & !RELAYED {
                0 if relayed => PacketKind::Control,
                1 => PacketKind::Source,
                2 => PacketKind::Repair,
                3 => PacketKind::Recoded,
                _ => return Err(MalformedFrame("fragment of a packet that is not coded")),
            };
            let last = int(reader)? == 1;
            Frame::Fragment { id, index, kind, relayed, last, data: reader.rest() }
        }
        _ => return Err(MalformedFrame("unknown frame type")),
    };
    Ok(Some(frame))
}

fn decode_ack(
    reader: &mut Reader<'_>,
    ranges: &mut Vec<(u64, u64)>,
    limit: usize,
) -> Result<AckHeader, MalformedFrame> {
    const BAD: MalformedFrame = MalformedFrame("acknowledgement ranges");
    ranges.clear();
    let largest = reader.varint().ok_or(BAD)?;
    let delay = Duration::from_micros(reader.varint().ok_or(BAD)?.min(MAX_ACK_DELAY_MICROS));
    let received_at = Timestamp::from_micros(reader.varint().ok_or(BAD)?);
    if received_at > MAX_PEER_TIME {
        return Err(MalformedFrame("acknowledgement arrival time"));
    }
    let ce_count = reader.varint().ok_or(BAD)?;
    let count = reader.varint().ok_or(BAD)?;
    if count >= MAX_ACK_RANGES {
        return Err(MalformedFrame("too many acknowledgement ranges"));
    }
    let mut first = largest.checked_sub(reader.varint().ok_or(BAD)?).ok_or(BAD)?;
    ranges.push((first, largest));
    let read = count.min(limit.saturating_sub(1) as u64);
    for _ in 0..read {
        let gap = reader.varint().ok_or(BAD)?;
        let last = first.checked_sub(gap).and_then(|n| n.checked_sub(2)).ok_or(BAD)?;
        first = last.checked_sub(reader.varint().ok_or(BAD)?).ok_or(BAD)?;
        ranges.push((first, last));
    }
    // All others end above 0 if the last one does.
    let skipped = count.saturating_sub(read);
    let sum = reader.sum_varints(skipped.saturating_mul(2) as usize).ok_or(BAD)?;
    if sum.saturating_add(skipped.saturating_mul(2)) > first {
        return Err(BAD);
    }
    Ok(AckHeader { largest, delay, received_at, ce_count })
}

/// Writes an acknowledgement and omits older ranges that do not fit. Returns `None` if not even the
/// newest range fits, or if there is no range.
pub fn encode_ack(writer: &mut Writer<'_>, ack: &AckHeader, ranges: &[(u64, u64)]) -> Option<()> {
    /// Two integers of up to 8 bytes: upper bound of the size of one more range.
    const RANGE_BOUND: usize = 16;
    /// Frame type and six integers.
    const HEADER_BOUND: usize = 1 + 6 * 8;
    let mut room = writer.remaining().checked_sub(HEADER_BOUND)?;
    let (&(first, largest), older) = ranges.split_first()?;
    let mut fitting = 0_usize;
    let mut previous_first = first;
    for &(first, last) in older {
        let small = previous_first.saturating_sub(last) < 60 && last.saturating_sub(first) < 60;
        let bound = if small { 2 } else { RANGE_BOUND };
        let Some(left) = room.checked_sub(bound) else { break };
        room = left;
        fitting = fitting.saturating_add(1);
        previous_first = first;
    }
    writer.u8(ACK)?;
    writer.varint(largest)?;
    writer.varint(ack.delay.as_micros().min(u128::from(MAX_ACK_DELAY_MICROS)) as u64)?;
    writer.varint(ack.received_at.as_micros())?;
    writer.varint(ack.ce_count)?;
    writer.varint(fitting as u64)?;
    writer.varint(largest.checked_sub(first)?)?;
    let mut previous_first = first;
    for &(first, last) in older.iter().take(fitting) {
        writer.varint(previous_first.checked_sub(last)?.checked_sub(2)?)?;
        writer.varint(last.checked_sub(first)?)?;
        previous_first = first;
    }
    Some(())
}

/// Writes any other frame. If it does not fit, returns `None` and leaves a partial frame; the
/// caller must rewind the writer.
pub fn encode(writer: &mut Writer<'_>, frame: &Frame<'_>) -> Option<()> {
    match frame {
        Frame::Ping => writer.u8(PING),
        Frame::Ack(_) => None,
        Frame::Rank(feedback) => {
            writer.u8(RANK)?;
            feedback.encode(writer)
        }
        Frame::BatchRank(report) => {
            writer.u8(BATCH_RANK)?;
            report.encode(writer)
        }
        Frame::Credit(symbols) => {
            writer.u8(CREDIT)?;
            writer.varint(*symbols)
        }
        Frame::HandshakeDone => writer.u8(HANDSHAKE_DONE),
        Frame::PathChallenge(challenge) => {
            writer.u8(PATH_CHALLENGE)?;
            writer.bytes(&challenge.to_be_bytes())
        }
        Frame::PathResponse(challenge) => {
            writer.u8(PATH_RESPONSE)?;
            writer.bytes(&challenge.to_be_bytes())
        }
        Frame::Crypto { offset, data } => {
            writer.u8(CRYPTO)?;
            writer.varint(*offset)?;
            writer.varint(data.len() as u64)?;
            writer.bytes(data)
        }
        Frame::Close { application, code, reason } => {
            let mut end = reason.len().min(MAX_CLOSE_TEXT);
            while !reason.is_char_boundary(end) {
                end = end.saturating_sub(1);
            }
            writer.u8(CLOSE)?;
            writer.varint(u64::from(*application))?;
            writer.varint(*code)?;
            writer.varint(end as u64)?;
            writer.bytes(reason.as_bytes().get(..end)?)
        }
        Frame::SymbolPolluted(number) => {
            writer.u8(SYMBOL_POLLUTED)?;
            writer.varint(*number)
        }
        Frame::End { symbols, messages } => {
            writer.u8(END)?;
            writer.varint(*symbols)?;
            writer.varint(*messages)
        }
        Frame::Fragment { id, index, kind, relayed, last, data } => {
            writer.u8(FRAGMENT)?;
            writer.varint(*id)?;
            writer.varint(*index)?;
            writer.varint(*kind as u64 | if *relayed { RELAYED } else { 0 })?;
            writer.varint(u64::from(*last))?;
            writer.bytes(data)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(delay: u64, received_at: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let mut writer = Writer::new(&mut bytes);
        for (i, value) in [u64::from(ACK), 9, delay, received_at, 0, 0, 0].into_iter().enumerate() {
            if i == 0 { writer.u8(ACK) } else { writer.varint(value) }.unwrap();
        }
        bytes
    }

    /// Differences of arrival times are computed with signed 64-bit integers.
    #[test]
    fn arrival_times_above_the_limit_are_rejected() {
        let decode = |bytes: &[u8]| decode(&mut Reader::new(bytes), &mut Vec::new()).is_ok();
        let limit = MAX_PEER_TIME.as_micros();
        assert!(decode(&ack(1, limit)));
        assert!(!decode(&ack(1, limit + 1)));
        assert!(!decode(&ack(1, crate::varint::MAX_VARINT)));
    }

    #[test]
    fn ack_delays_above_the_limit_are_clamped() {
        let bytes = ack(crate::varint::MAX_VARINT, 5);
        let frame = decode(&mut Reader::new(&bytes), &mut Vec::new()).unwrap();
        let Some(Frame::Ack(header)) = frame else { panic!("{frame:?}") };
        assert_eq!(header.delay, Duration::from_micros(MAX_ACK_DELAY_MICROS));
    }

    #[test]
    fn close_texts_above_the_limit_are_rejected() {
        for (len, fits) in [(MAX_CLOSE_TEXT, true), (MAX_CLOSE_TEXT + 1, false)] {
            let mut bytes = vec![CLOSE, 0, 0, 0x40 | (len >> 8) as u8, len as u8];
            bytes.resize(bytes.len() + len, b'x');
            assert_eq!(decode(&mut Reader::new(&bytes), &mut Vec::new()).is_ok(), fits);
        }
    }

    fn written(frame: &Frame<'_>, room: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; room];
        let mut writer = Writer::new(&mut bytes);
        encode(&mut writer, frame)?;
        let len = writer.written();
        bytes.truncate(len);
        Some(bytes)
    }

    /// RANK and BATCH_RANK have golden bytes in their own files.
    #[test]
    fn golden_bytes() {
        let part = |kind, relayed, last| Frame::Fragment {
            id: 7,
            index: 8,
            kind,
            relayed,
            last,
            data: &[9, 9],
        };
        let frames: [(Frame<'_>, &[u8]); 14] = [
            (Frame::Ping, &[0x01]),
            (Frame::Credit(0x1234), &[0x04, 0x52, 0x34]),
            (Frame::HandshakeDone, &[0x05]),
            (Frame::Crypto { offset: 5, data: b"tls" }, &[0x06, 5, 3, b't', b'l', b's']),
            (Frame::Close { application: true, code: 7, reason: "b" }, &[0x07, 1, 7, 1, b'b']),
            (Frame::Close { application: false, code: 7, reason: "" }, &[0x07, 0, 7, 0]),
            (part(PacketKind::Source, false, true), &[0x08, 7, 8, 1, 1, 9, 9]),
            (part(PacketKind::Repair, false, false), &[0x08, 7, 8, 2, 0, 9, 9]),
            (part(PacketKind::Recoded, true, false), &[0x08, 7, 8, 7, 0, 9, 9]),
            (part(PacketKind::Control, true, true), &[0x08, 7, 8, 4, 1, 9, 9]),
            (Frame::End { symbols: 1, messages: 2 }, &[0x09, 1, 2]),
            (Frame::PathChallenge(0x0102_0304_0506_0708), &[0x0a, 1, 2, 3, 4, 5, 6, 7, 8]),
            (Frame::PathResponse(0x0102_0304_0506_0708), &[0x0b, 1, 2, 3, 4, 5, 6, 7, 8]),
            (Frame::SymbolPolluted(3), &[0x11, 3]),
        ];
        for (frame, bytes) in frames {
            assert_eq!(written(&frame, 20).as_deref(), Some(bytes));
            assert_eq!(written(&frame, bytes.len() - 1), None, "{frame:?}");
            // Padding may precede a frame.
            let padded = [&[0, 0][..], bytes].concat();
            let mut reader = Reader::new(&padded);
            assert_eq!(decode(&mut reader, &mut Vec::new()), Ok(Some(frame)));
            assert_eq!(decode(&mut reader, &mut Vec::new()), Ok(None));
        }
        // A link's own control packets are not fragmented, and kind 8 does not exist.
        for kind in [0, 8] {
            assert!(decode(&mut Reader::new(&[0x08, 7, 8, kind, 0]), &mut Vec::new()).is_err());
        }
        assert!(decode(&mut Reader::new(&[0x0c]), &mut Vec::new()).is_err());
    }

    #[test]
    fn long_close_texts_are_truncated_between_characters() {
        let reason = format!("x{}", "\u{e4}".repeat(MAX_CLOSE_TEXT));
        for (reason, len) in [(&reason[..], MAX_CLOSE_TEXT - 1), (&reason[1..], MAX_CLOSE_TEXT)] {
            let bytes =
                written(&Frame::Close { application: false, code: 0, reason }, 400).unwrap();
            let frame = decode(&mut Reader::new(&bytes), &mut Vec::new());
            let reason = &reason[..len];
            assert_eq!(frame, Ok(Some(Frame::Close { application: false, code: 0, reason })));
        }
    }

    /// Writes an acknowledgement into `room` bytes and returns the ranges that a reader finds.
    fn acknowledged(ranges: &[(u64, u64)], room: usize) -> Option<Vec<(u64, u64)>> {
        let header = AckHeader {
            largest: ranges.first()?.1,
            delay: Duration::from_micros(70),
            received_at: Timestamp::from_micros(80),
            ce_count: 3,
        };
        let mut bytes = vec![0; room];
        encode_ack(&mut Writer::new(&mut bytes), &header, ranges)?;
        let mut read = vec![(1, 1)];
        let frame = decode(&mut Reader::new(&bytes), &mut read);
        assert_eq!(frame, Ok(Some(Frame::Ack(header))));
        Some(read)
    }

    #[test]
    fn newest_ack_ranges_that_fit_are_encoded() {
        assert_eq!(acknowledged(&[], 100), None);
        // Gap and length of a range: the largest values that fit one byte each, and larger ones.
        for (missing, len, bound) in [(58, 59, 2), (59, 59, 16), (58, 60, 16)] {
            let mut ranges = vec![(100_000, 100_007)];
            for _ in 0..5 {
                let last = ranges[ranges.len() - 1].0 - 1 - missing;
                ranges.push((last - len, last));
            }
            assert_eq!(acknowledged(&ranges, 48), None);
            for more in 0..=5 {
                for room in [49 + bound * more, 49 + bound * (more + 1) - 1] {
                    let read = acknowledged(&ranges, room).unwrap();
                    assert_eq!(read, ranges[..(more + 1).min(6)], "{missing} {len} {room}");
                }
            }
        }
    }

    #[test]
    fn ack_ranges_are_limited_and_not_negative() {
        let read = |largest: u64, first: u64, ranges: &[(u64, u64)]| {
            let mut bytes = vec![0; 4_000];
            let mut writer = Writer::new(&mut bytes);
            writer.u8(ACK).unwrap();
            for field in [largest, 0, 0, 0, ranges.len() as u64, first] {
                writer.varint(field).unwrap();
            }
            for &(gap, len) in ranges {
                writer.varint(gap).and_then(|()| writer.varint(len)).unwrap();
            }
            let mut found = Vec::new();
            decode(&mut Reader::new(&bytes), &mut found).map(|_| found)
        };
        assert_eq!(read(9, 9, &[]), Ok(vec![(0, 9)]));
        assert!(read(9, 10, &[]).is_err());
        assert_eq!(read(9, 2, &[(1, 4)]), Ok(vec![(7, 9), (0, 4)]));
        assert!(read(9, 2, &[(1, 5)]).is_err());
        assert!(read(9, 2, &[(6, 0)]).is_err());
        // Ranges beyond the limit must be consistent, too.
        let read_newest = |gap: u8| {
            let mut bytes = vec![ACK, 0x41, 0, 0, 0, 0, 20, 0];
            bytes.extend([gap, 3].repeat(20));
            bytes.push(PING);
            let (mut reader, mut found) = (Reader::new(&bytes), Vec::new());
            let limits = ReadLimits { ack_ranges: 3, rank_entries: true };
            let is_read = decode_within(&mut reader, &mut found, limits).is_ok();
            (is_read, found, reader.remaining())
        };
        assert_eq!(read_newest(7), (true, vec![(256, 256), (244, 247), (232, 235)], 1));
        // 20 * (gap + 2 + 3) numbers below 256.
        assert!(!read_newest(8).0);
        let most = MAX_ACK_RANGES as usize - 1;
        assert!(read(1 << 20, 0, &vec![(0, 0); most]).is_ok());
        assert!(read(1 << 20, 0, &vec![(0, 0); most + 1]).is_err());
    }
}
