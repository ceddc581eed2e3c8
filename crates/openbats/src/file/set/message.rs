//! The messages of a transfer of many files: a type byte, a file number, then big-endian fields.
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

use super::tree::{MAX_PARTS, PartHash, PartSet};
use crate::file::FileError;
use crate::file::message::{text, truncated};

const OFFER: u8 = 16;
const DATA: u8 = 17;
const PART: u8 = 18;
const FINISH: u8 = 19;
const GIVE_UP: u8 = 20;
const HASHES: u8 = 22;
const OFFER_REPLY: u8 = 32;
const VERDICT: u8 = 33;
const CHECKING: u8 = 48;

/// Longest name in bytes.
pub(in crate::file) const MAX_NAME: usize = 1_024;
/// Bytes before the content of `DATA`.
const DATA_HEADER: usize = 1 + 4 + 4 + 1;

const IS_IMMEDIATE: u8 = 1;
const IS_DIRECTORY: u8 = 2;
const HAS_SHA256: u8 = 4;

/// A file that the sender offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::file) struct Offer {
    pub(in crate::file) size: u64,
    pub(in crate::file) name: String,
    pub(in crate::file) is_directory: bool,
    /// The content follows without waiting for a reply.
    pub(in crate::file) is_immediate: bool,
    pub(in crate::file) sha256: Option<[u8; 32]>,
}

/// What the receiver needs of a file. It discloses no hashes: those of content that the sender does
/// not have would let it test guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::file) enum OfferReply {
    /// All parts.
    All,
    /// The hashes of these parts: there is a file of this name and size, which has all of them, or
    /// the data of an interrupted transfer. After the hashes it sends another reply, or the verdict.
    Hashes(PartSet),
    /// All parts but these.
    AllBut(PartSet),
}

/// The outcome of a file at the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::file) enum Verdict {
    Stored,
    Unchanged,
    Renamed(String),
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::file) enum Message {
    Offer(Offer),
    /// The next bytes of a part.
    Data {
        part: u32,
        encoding: u8,
        bytes: Bytes,
    },
    /// The end of a part.
    Part {
        part: u32,
        hash: PartHash,
    },
    /// All parts were sent; `sent` is their number.
    Finish {
        sent: u32,
        hash: [u8; 32],
    },
    /// The sender gives up this file.
    GiveUp(String),
    /// The hashes of the parts that the receiver has asked for, in their order.
    Hashes(Vec<PartHash>),
    OfferReply(OfferReply),
    Verdict(Verdict),
    /// Progress of reading a file, in bytes, sent while there is nothing else to send.
    Checking(u64),
}

/// Creates a `DATA` message with capacity for `bytes`, which the caller appends.
pub(in crate::file) fn begin_data(id: u32, part: u32, encoding: u8, bytes: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(bytes.saturating_add(DATA_HEADER));
    out.put_u8(DATA);
    out.put_u32(id);
    out.put_u32(part);
    out.put_u8(encoding);
    out
}

impl Message {
    pub(in crate::file) fn encode(&self, id: u32) -> Bytes {
        let mut out = BytesMut::new();
        let mut begin = |kind: u8| {
            out.put_u8(kind);
            out.put_u32(id);
        };
        match self {
            Self::Offer(offer) => {
                begin(OFFER);
                let flag = |is: bool, flag: u8| if is { flag } else { 0 };
                out.put_u8(
                    flag(offer.is_immediate, IS_IMMEDIATE)
                        | flag(offer.is_directory, IS_DIRECTORY)
                        | flag(offer.sha256.is_some(), HAS_SHA256),
                );
                out.put_u64(offer.size);
                if let Some(hash) = &offer.sha256 {
                    out.put_slice(hash);
                }
                out.put_slice(offer.name.as_bytes());
            }
            Self::Data { part, encoding, bytes } => {
                out = begin_data(id, *part, *encoding, bytes.len());
                out.put_slice(bytes);
            }
            Self::Part { part, hash } => {
                begin(PART);
                out.put_u32(*part);
                out.put_slice(hash);
            }
            Self::Finish { sent, hash } => {
                begin(FINISH);
                out.put_u32(*sent);
                out.put_slice(hash);
            }
            Self::GiveUp(why) => {
                begin(GIVE_UP);
                out.put_slice(truncated(why).as_bytes());
            }
            Self::Hashes(hashes) => {
                begin(HASHES);
                hashes.iter().for_each(|hash| out.put_slice(hash));
            }
            Self::Checking(bytes) => {
                begin(CHECKING);
                out.put_u64(*bytes);
            }
            Self::OfferReply(reply) => {
                begin(OFFER_REPLY);
                let (kind, parts) = match reply {
                    OfferReply::All => (0, &[][..]),
                    OfferReply::Hashes(parts) => (1, &parts.0[..]),
                    OfferReply::AllBut(parts) => (2, &parts.0[..]),
                };
                out.put_u8(kind);
                out.put_slice(parts);
            }
            Self::Verdict(verdict) => {
                begin(VERDICT);
                let (kind, text) = match verdict {
                    Verdict::Stored => (0, ""),
                    Verdict::Unchanged => (1, ""),
                    Verdict::Renamed(name) => (2, name.as_str()),
                    Verdict::Failed(why) => (3, why.as_str()),
                };
                out.put_u8(kind);
                out.put_slice(truncated(text).as_bytes());
            }
        }
        out.freeze()
    }

    /// Returns the file number and the message.
    pub(in crate::file) fn decode(bytes: Bytes) -> Result<(u32, Self), FileError> {
        let mut fields = Fields(bytes);
        let kind = fields.byte()?;
        let id = fields.number()?;
        let message = match kind {
            OFFER => {
                let flags = fields.byte()?;
                let size = u64::from_be_bytes(fields.array()?);
                let sha256 = match flags & HAS_SHA256 {
                    0 => None,
                    _ => Some(fields.array()?),
                };
                if fields.0.len() > MAX_NAME {
                    return Err(FileError::Protocol("a name is too long"));
                }
                let name = std::str::from_utf8(&fields.0)
                    .map_err(|_| FileError::Protocol("a name is not UTF-8"))?
                    .to_owned();
                Self::Offer(Offer {
                    size,
                    name,
                    is_directory: flags & IS_DIRECTORY != 0,
                    is_immediate: flags & IS_IMMEDIATE != 0,
                    sha256,
                })
            }
            DATA => {
                let (part, encoding) = (fields.number()?, fields.byte()?);
                Self::Data { part, encoding, bytes: fields.0 }
            }
            PART => {
                let part = fields.number()?;
                Self::Part { part, hash: fields.last()? }
            }
            FINISH => {
                let sent = fields.number()?;
                Self::Finish { sent, hash: fields.last()? }
            }
            GIVE_UP => Self::GiveUp(text(&fields.0)),
            HASHES => {
                let (hashes, remainder) = fields.0.as_chunks::<32>();
                if !remainder.is_empty() || hashes.len() as u64 > MAX_PARTS {
                    return Err(FileError::Protocol("a list of hashes has a wrong length"));
                }
                Self::Hashes(hashes.to_vec())
            }
            CHECKING => {
                let bytes = u64::from_be_bytes(fields.array()?);
                if !fields.0.is_empty() {
                    return Err(FileError::Protocol("a message is too long"));
                }
                if bytes == 0 {
                    return Err(FileError::Protocol("a report of progress without any"));
                }
                Self::Checking(bytes)
            }
            OFFER_REPLY => {
                let kind = fields.byte()?;
                if fields.0.len() as u64 > MAX_PARTS / 8 {
                    return Err(FileError::Protocol("a reply to an offer is too long"));
                }
                let parts = PartSet(fields.0.to_vec());
                Self::OfferReply(match kind {
                    0 if parts.0.is_empty() => OfferReply::All,
                    1 => OfferReply::Hashes(parts),
                    2 => OfferReply::AllBut(parts),
                    _ => return Err(FileError::Protocol("an unknown reply to an offer")),
                })
            }
            VERDICT => Self::Verdict(match fields.byte()? {
                0 => Verdict::Stored,
                1 => Verdict::Unchanged,
                2 => Verdict::Renamed(text(&fields.0)),
                3 => Verdict::Failed(text(&fields.0)),
                _ => return Err(FileError::Protocol("an unknown verdict")),
            }),
            _ => return Err(FileError::Protocol("an unknown message")),
        };
        Ok((id, message))
    }
}

/// The fields of a message that are not read yet.
struct Fields(Bytes);

impl Fields {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let mut field = [0; N];
        let read = self.0.try_copy_to_slice(&mut field);
        read.map_err(|_| FileError::Protocol("a message is too short"))?;
        Ok(field)
    }

    fn byte(&mut self) -> Result<u8, FileError> {
        self.array().map(u8::from_be_bytes)
    }

    fn number(&mut self) -> Result<u32, FileError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn last(mut self) -> Result<[u8; 32], FileError> {
        let field = self.array()?;
        match self.0.is_empty() {
            true => Ok(field),
            false => Err(FileError::Protocol("a message is too long")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let offer = Offer {
            size: u64::MAX - 7,
            name: "d/ä.bin".into(),
            is_directory: false,
            is_immediate: true,
            sha256: Some([3; 32]),
        };
        for message in [
            Message::Offer(offer.clone()),
            Message::Offer(Offer {
                sha256: None,
                is_directory: true,
                is_immediate: false,
                ..offer
            }),
            Message::Data { part: 5, encoding: 1, bytes: Bytes::from_static(b"xyz") },
            Message::Part { part: 9, hash: [7; 32] },
            Message::Finish { sent: 2, hash: [8; 32] },
            Message::GiveUp("why".into()),
            Message::Hashes(vec![[1; 32], [2; 32]]),
            Message::Hashes(Vec::new()),
            Message::Checking(1 << 40),
            Message::OfferReply(OfferReply::All),
            Message::OfferReply(OfferReply::Hashes(PartSet(vec![1, 2, 3]))),
            Message::OfferReply(OfferReply::Hashes(PartSet(Vec::new()))),
            Message::OfferReply(OfferReply::AllBut(PartSet(vec![5, 1]))),
            Message::Verdict(Verdict::Stored),
            Message::Verdict(Verdict::Unchanged),
            Message::Verdict(Verdict::Renamed("x.1".into())),
            Message::Verdict(Verdict::Failed("disk full".into())),
        ] {
            let wire = message.encode(0x0102_0304);
            assert_eq!(Message::decode(wire).unwrap(), (0x0102_0304, message));
        }
    }

    #[test]
    fn truncated_and_extended_messages_are_refused() {
        let messages = [
            Message::Part { part: 9, hash: [7; 32] }.encode(1),
            Message::Finish { sent: 2, hash: [8; 32] }.encode(1),
            Message::Hashes(vec![[1; 32]]).encode(1),
            Message::OfferReply(OfferReply::All).encode(1),
        ];
        for message in messages {
            for end in 0..message.len() {
                let is_empty_list = message[0] == HASHES && end == 5;
                assert!(is_empty_list || Message::decode(message.slice(..end)).is_err(), "{end}");
            }
            let longer = [&message[..], &[0]].concat();
            assert!(Message::decode(longer.into()).is_err());
        }
        for wrong in
            [&b""[..], &[0; 5], &[99; 50], &[OFFER_REPLY, 0, 0, 0, 0, 3], &[VERDICT, 0, 0, 0, 0, 9]]
        {
            assert!(Message::decode(Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
        }
        let long = Offer {
            size: 0,
            name: "x".repeat(MAX_NAME + 1),
            is_directory: false,
            is_immediate: false,
            sha256: None,
        };
        let longest = Offer { name: "x".repeat(MAX_NAME), ..long.clone() };
        assert!(Message::decode(Message::Offer(longest).encode(1)).is_ok());
        assert!(Message::decode(Message::Offer(long).encode(1)).is_err());
        let parts =
            |bytes: u64| Message::OfferReply(OfferReply::AllBut(PartSet(vec![1; bytes as usize])));
        assert!(Message::decode(parts(MAX_PARTS / 8).encode(1)).is_ok());
        assert!(Message::decode(parts(MAX_PARTS / 8 + 1).encode(1)).is_err());
        let hashes = |count: u64| Message::Hashes(vec![[1; 32]; count as usize]);
        assert!(Message::decode(hashes(MAX_PARTS).encode(1)).is_ok());
        assert!(Message::decode(hashes(MAX_PARTS + 1).encode(1)).is_err());
    }
}
