//! Frames on the byte stream: a kind, a length and the payload.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |     Kind      |            Length of the payload              |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Payload ...
//! ```
//!
//! Integers are big endian. A receiver skips unknown frames of a kind above 0x3f, so that later
//! versions can add frames. Unknown frames of a lower kind end the connection. A sender has on average at most 500
//! frames per second that end no message and are shorter than 1,024 bytes, besides those for receipts and messages:
//! [`frame_budget`](super::frame_budget).
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

/// Bytes before the payload.
pub(super) const HEADER_LEN: usize = 4;
/// Maximum number of message bytes in a frame. Longer frames would delay receipts, which are sent
/// between frames.
pub(super) const MAX_PART: usize = 64 << 10;
/// Maximum payload length of any other frame.
pub(super) const MAX_CONTROL: usize = 1_024 + 8;
/// Unknown frames of this kind and above are skipped.
const FIRST_OPTIONAL: u8 = 0x40;

const HELLO: u8 = 0;
const PART: u8 = 1;
const LAST: u8 = 2;
const RECEIPT: u8 = 3;
const FINISH: u8 = 4;
const CLOSE: u8 = 5;
const PING: u8 = 6;
const PONG: u8 = 7;
const REPORT: u8 = 8;

/// The version of this framing.
const VERSION: u8 = 1;
const HELLO_LEN: usize = 1 + 8 + 8 + 8;
const RECEIPT_LEN: usize = 3 * 8;

/// A violation of the framing by the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame of an unknown kind that a receiver must understand.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// A payload length that is invalid for this kind.
    #[error("frame of kind {kind} with {len} bytes")]
    Length {
        /// Kind of the frame.
        kind: u8,
        /// Bytes of its payload.
        len: usize,
    },
    /// A version of the framing that this end does not support.
    #[error("unsupported framing version {0}")]
    Version(u8),
}

/// The first frame of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Longest message accepted, in bytes.
    pub(super) max_message: u64,
    /// Initial credit.
    pub(super) credit: u64,
    /// Idle time-out of this end in milliseconds.
    pub(super) idle_ms: u64,
    /// Bits for the layer above. If they are 0 they are not sent, because older versions do not
    /// know them.
    pub(super) application: u8,
}

/// Cumulative acknowledgement and flow control credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Receipt {
    /// Number of messages received completely; the end mark counts as one.
    pub(super) units: u64,
    /// Number of message bytes received.
    pub(super) bytes: u64,
    /// Credit granted so far: see [`cost`].
    pub(super) credit: u64,
}

/// The frame that a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of a message that continues in the next frame.
    Part,
    /// The last bytes of a message.
    Last,
    /// A short frame for [`Control::decode`].
    Control(u8),
    /// A frame of a later version.
    Unknown,
}

/// Credit that a message frame consumes. The last frame of a message also pays for the memory that
/// even an empty message takes.
pub(super) fn cost(bytes: usize, is_last: bool) -> u64 {
    (bytes as u64).saturating_add(if is_last { MESSAGE_COST } else { 0 })
}

/// Bytes that a message takes in addition to its content.
pub(super) const MESSAGE_COST: u64 = 64;

/// Reads a header. Returns the kind and the length of the payload.
pub(super) fn decode_header(header: [u8; HEADER_LEN]) -> Result<(Kind, usize), FrameError> {
    let kind = header[0];
    let len = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
    let wrong = Err(FrameError::Length { kind, len });
    match kind {
        PART if (1..=MAX_PART).contains(&len) => Ok((Kind::Part, len)),
        LAST if len <= MAX_PART => Ok((Kind::Last, len)),
        PART | LAST => wrong,
        HELLO..=REPORT if len <= MAX_CONTROL => Ok((Kind::Control(kind), len)),
        HELLO..=REPORT => wrong,
        FIRST_OPTIONAL.. => Ok((Kind::Unknown, len)),
        _ => Err(FrameError::Kind(kind)),
    }
}

fn put_header(out: &mut Vec<u8>, kind: u8, len: usize) {
    // Lengths are at most `MAX_PART`, which fits three bytes.
    let [_, length @ ..] = (len as u32).to_be_bytes();
    out.push(kind);
    out.extend_from_slice(&length);
}

/// Appends a message frame with at most [`MAX_PART`] bytes.
pub(super) fn put_part(out: &mut Vec<u8>, bytes: &[u8], is_last: bool) {
    put_header(out, if is_last { LAST } else { PART }, bytes.len());
    out.extend_from_slice(bytes);
}

/// Every frame except message frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Hello(Hello),
    Receipt(Receipt),
    Finish,
    Close {
        code: u64,
        reason: String,
    },
    /// The peer violated the protocol.
    Report {
        reason: String,
    },
    Ping,
    Pong,
}

/// At most `most` bytes of a text.
fn truncated(text: &str, most: usize) -> &[u8] {
    text.as_bytes().get(..most).unwrap_or(text.as_bytes())
}

impl Control {
    /// Appends the frame. Truncates long reasons.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                let has_application = hello.application != 0;
                let len = if has_application { HELLO_LEN + 1 } else { HELLO_LEN };
                put_header(out, HELLO, len);
                out.push(VERSION);
                for number in [hello.max_message, hello.credit, hello.idle_ms] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
                if has_application {
                    out.push(hello.application);
                }
            }
            Self::Receipt(receipt) => {
                put_header(out, RECEIPT, RECEIPT_LEN);
                for number in [receipt.units, receipt.bytes, receipt.credit] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
            Self::Finish => put_header(out, FINISH, 0),
            Self::Close { code, reason } => {
                let text = truncated(reason, MAX_CONTROL - 8);
                put_header(out, CLOSE, text.len().saturating_add(8));
                out.extend_from_slice(&code.to_be_bytes());
                out.extend_from_slice(text);
            }
            Self::Report { reason } => {
                let text = truncated(reason, MAX_CONTROL);
                put_header(out, REPORT, text.len());
                out.extend_from_slice(text);
            }
            Self::Ping => put_header(out, PING, 0),
            Self::Pong => put_header(out, PONG, 0),
        }
    }

    /// Reads the payload of a frame of this kind.
    pub(super) fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let wrong = || FrameError::Length { kind, len: payload.len() };
        let numbers = |bytes: &[u8]| -> Result<[u64; 3], FrameError> {
            let mut numbers = [0; 3];
            let mut rest = bytes;
            for number in &mut numbers {
                let (first, after) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
                (*number, rest) = (u64::from_be_bytes(*first), after);
            }
            Ok(numbers)
        };
        match (kind, payload.len()) {
            // A later version may append fields to its Hello.
            (HELLO, HELLO_LEN..) => {
                let (&version, fields) = payload.split_first().ok_or_else(wrong)?;
                if version != VERSION {
                    return Err(FrameError::Version(version));
                }
                let [max_message, credit, idle_ms] = numbers(fields)?;
                let application = payload.get(HELLO_LEN).copied().unwrap_or_default();
                Ok(Self::Hello(Hello { max_message, credit, idle_ms, application }))
            }
            (RECEIPT, RECEIPT_LEN) => {
                let [units, bytes, credit] = numbers(payload)?;
                Ok(Self::Receipt(Receipt { units, bytes, credit }))
            }
            (FINISH, 0) => Ok(Self::Finish),
            (PING, 0) => Ok(Self::Ping),
            (PONG, 0) => Ok(Self::Pong),
            (REPORT, _) => {
                Ok(Self::Report { reason: String::from_utf8_lossy(payload).into_owned() })
            }
            (CLOSE, 8..) => {
                let (code, text) = payload.split_first_chunk::<8>().ok_or_else(wrong)?;
                Ok(Self::Close {
                    code: u64::from_be_bytes(*code),
                    reason: String::from_utf8_lossy(text).into_owned(),
                })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(frame: &[u8]) -> Result<Control, FrameError> {
        let header: [u8; HEADER_LEN] = frame[..HEADER_LEN].try_into().unwrap();
        let (Kind::Control(kind), len) = decode_header(header)? else { panic!("{frame:?}") };
        assert_eq!(len, frame.len() - HEADER_LEN);
        Control::decode(kind, &frame[HEADER_LEN..])
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(a: u64, b: u64, c: u64, application: u8, reason in "\\PC{0,300}") {
            for control in [
                Control::Hello(Hello { max_message: a, credit: b, idle_ms: c, application }),
                Control::Receipt(Receipt { units: a, bytes: b, credit: c }),
                Control::Finish,
                Control::Ping,
                Control::Pong,
                Control::Close { code: a, reason: reason.clone() },
                Control::Report { reason: reason.clone() },
            ] {
                let mut frame = Vec::new();
                control.encode(&mut frame);
                prop_assert_eq!(decode(&frame), Ok(control));
            }
        }

        #[test]
        fn arbitrary_frames_decode_or_fail(header: [u8; 4], payload: Vec<u8>) {
            if let Ok((Kind::Control(kind), len)) = decode_header(header) {
                prop_assert!(len <= MAX_CONTROL);
                let _ = Control::decode(kind, &payload[..len.min(payload.len())]);
            }
        }
    }

    #[test]
    fn frame_lengths_and_kinds_are_limited() {
        let header = |kind, len: usize| {
            let mut out = Vec::new();
            put_header(&mut out, kind, len);
            decode_header(out.try_into().unwrap())
        };
        assert_eq!(header(PART, MAX_PART), Ok((Kind::Part, MAX_PART)));
        assert_eq!(header(LAST, 0), Ok((Kind::Last, 0)));
        for (kind, len) in [(PART, MAX_PART + 1), (PART, 0), (LAST, MAX_PART + 1)] {
            assert_eq!(header(kind, len), Err(FrameError::Length { kind, len }));
        }
        assert!(header(CLOSE, MAX_CONTROL).is_ok() && header(CLOSE, MAX_CONTROL + 1).is_err());
        assert_eq!(header(REPORT + 1, 0), Err(FrameError::Kind(REPORT + 1)));
        assert_eq!(header(FIRST_OPTIONAL, 1 << 20), Ok((Kind::Unknown, 1 << 20)));
    }

    #[test]
    fn long_reasons_are_truncated_and_unknown_versions_rejected() {
        let mut frame = Vec::new();
        Control::Close { code: 7, reason: "x".repeat(5_000) }.encode(&mut frame);
        let Ok(Control::Close { code: 7, reason }) = decode(&frame) else { panic!() };
        assert_eq!(reason.len(), MAX_CONTROL - 8);
        assert_eq!(Control::decode(HELLO, &[9; 25]), Err(FrameError::Version(9)));
        assert!(Control::decode(HELLO, &[VERSION; 24]).is_err());
        assert!(Control::decode(RECEIPT, &[0; 25]).is_err());
    }
}
