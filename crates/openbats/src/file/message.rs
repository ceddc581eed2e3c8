//! The messages of a file transfer: a type byte, then big-endian fields.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::FileError;

const BEGIN: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const ABORT: u8 = 4;
const VERDICT: u8 = 5;

/// Longest name or text in bytes.
const MAX_TEXT: usize = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Begin {
        size: u64,
        name: String,
    },
    Data(Bytes),
    End {
        hash: [u8; 32],
    },
    /// The sender gives up this file.
    Abort(String),
    /// Whether the receiver has stored the file, or why not.
    Verdict(Result<(), String>),
}

/// Creates an empty `DATA` message with capacity for `bytes`, which the caller appends.
pub(super) fn begin_data(bytes: usize) -> BytesMut {
    let mut message = BytesMut::with_capacity(bytes.saturating_add(1));
    message.put_u8(DATA);
    message
}

impl Message {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Begin { size, name } => {
                out.put_u8(BEGIN);
                out.put_u64(*size);
                out.put_slice(name.as_bytes());
            }
            Self::Data(bytes) => {
                out.put_u8(DATA);
                out.put_slice(bytes);
            }
            Self::End { hash } => {
                out.put_u8(END);
                out.put_slice(hash);
            }
            Self::Abort(text) => {
                out.put_u8(ABORT);
                out.put_slice(truncated(text).as_bytes());
            }
            Self::Verdict(verdict) => {
                out.put_u8(VERDICT);
                out.put_u8(verdict.is_err().into());
                if let Err(text) = verdict {
                    out.put_slice(truncated(text).as_bytes());
                }
            }
        }
        out.freeze()
    }

    pub(super) fn decode(mut bytes: Bytes) -> Result<Self, FileError> {
        let violation = FileError::Protocol;
        let kind = bytes.try_get_u8().map_err(|_| violation("empty message"))?;
        Ok(match kind {
            BEGIN => {
                let wrong_length = || violation("BEGIN has a wrong length");
                let size = bytes.try_get_u64().map_err(|_| wrong_length())?;
                if bytes.len() > MAX_TEXT {
                    return Err(wrong_length());
                }
                let name =
                    std::str::from_utf8(&bytes).map_err(|_| violation("name is not UTF-8"))?;
                Self::Begin { size, name: name.to_owned() }
            }
            DATA => Self::Data(bytes),
            END => Self::End {
                hash: bytes.as_ref().try_into().map_err(|_| violation("END has a wrong length"))?,
            },
            ABORT => Self::Abort(text(&bytes)),
            VERDICT => match bytes.split_first() {
                Some((0, [])) => Self::Verdict(Ok(())),
                Some((1, why)) => Self::Verdict(Err(text(why))),
                _ => return Err(violation("unknown VERDICT")),
            },
            _ => return Err(violation("unknown message")),
        })
    }
}

/// Text from a peer, with control characters replaced so that it can be printed.
pub(super) fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..MAX_TEXT).unwrap_or(bytes)).into_owned();
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

pub(super) fn truncated(text: &str) -> &str {
    let longest = text.len().min(MAX_TEXT);
    (0..=longest).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        for message in [
            Message::Begin { size: u64::MAX - 7, name: "ä.bin".into() },
            Message::Data(Bytes::from_static(b"")),
            Message::Data(Bytes::from_static(b"xyz")),
            Message::End { hash: [7; 32] },
            Message::Abort("why".into()),
            Message::Verdict(Ok(())),
            Message::Verdict(Err("disk full".into())),
        ] {
            assert_eq!(Message::decode(message.encode()).unwrap(), message);
        }
        let mut data = begin_data(3);
        data.put_slice(b"abc");
        assert_eq!(Message::decode(data.freeze()).unwrap(), Message::Data("abc".into()));
    }

    #[test]
    fn malformed_messages_are_refused_and_control_characters_replaced() {
        for malformed in [
            &b""[..],
            b"\x00",
            b"\x06",
            b"\x01123",
            b"\x01\0\0\0\0\0\0\0\0\xff",
            b"\x03x",
            b"\x05",
            b"\x05\x02",
        ] {
            assert!(Message::decode(Bytes::copy_from_slice(malformed)).is_err(), "{malformed:?}");
        }
        let longest = Message::Begin { size: 0, name: "x".repeat(MAX_TEXT) };
        assert_eq!(Message::decode(longest.encode()).unwrap(), longest);
        let long = Message::Begin { size: 0, name: "x".repeat(MAX_TEXT + 1) };
        assert!(Message::decode(long.encode()).is_err());
        let text = Message::decode(Bytes::from_static(b"\x04a\x1b[31m\n")).unwrap();
        assert_eq!(text, Message::Abort("a?[31m?".into()));
        assert_eq!(
            Message::decode(Message::Abort("é".repeat(2_000)).encode()).unwrap(),
            Message::Abort("é".repeat(MAX_TEXT / 2))
        );
    }
}
