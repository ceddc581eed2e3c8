//! Messages of a throughput test: a header with number and times, and filler.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use anyhow::{Result, bail};
use bytes::{BufMut, Bytes, BytesMut};

const MAGIC: &[u8; 4] = b"BIPF";
const ECHO_MAGIC: &[u8; 4] = b"BIPE";
/// Length of a header: magic, flags, number, due time and send time.
const HEADER_LENGTH: usize = 4 + 1 + 8 + 8 + 8;
const FILLER: u8 = 0x77;
/// Minimum length of a message in bytes.
pub(crate) const MIN_LENGTH: u32 = 64;
/// Maximum length of a message in bytes.
pub(crate) const MAX_LENGTH: u32 = 16 << 20;

const WANTS_ECHO: u8 = 1;
const OMITTED: u8 = 2;

/// The header of a message. Times are in nanoseconds on the sender's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Header {
    pub(crate) number: u64,
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
    /// The receiver must echo the header.
    pub(crate) wants_echo: bool,
    /// The message belongs to the omitted part of the test.
    pub(crate) is_omitted: bool,
}

impl Header {
    fn write(self, magic: &[u8; 4], out: &mut BytesMut) {
        out.put_slice(magic);
        let echo = if self.wants_echo { WANTS_ECHO } else { 0 };
        out.put_u8(echo | if self.is_omitted { OMITTED } else { 0 });
        out.put_u64(self.number);
        out.put_u64(self.due_ns);
        out.put_u64(self.sent_ns);
    }

    fn parse(magic: &[u8; 4], bytes: &[u8]) -> Option<Self> {
        let (flags, fields) = bytes.strip_prefix(magic)?.split_first()?;
        let (fields, _) = fields.as_chunks::<8>();
        let field = |index: usize| fields.get(index).map(|bytes| u64::from_be_bytes(*bytes));
        Some(Self {
            number: field(0)?,
            due_ns: field(1)?,
            sent_ns: field(2)?,
            wants_echo: flags & WANTS_ECHO != 0,
            is_omitted: flags & OMITTED != 0,
        })
    }

    /// Encodes a message of `length` bytes.
    pub(crate) fn message(self, length: usize) -> Bytes {
        let mut message = BytesMut::with_capacity(length.max(HEADER_LENGTH));
        self.write(MAGIC, &mut message);
        message.put_bytes(FILLER, length.saturating_sub(HEADER_LENGTH));
        message.freeze()
    }

    /// Encodes the echo of this header.
    pub(crate) fn echo(self) -> Bytes {
        let mut message = BytesMut::with_capacity(HEADER_LENGTH);
        self.write(ECHO_MAGIC, &mut message);
        message.freeze()
    }

    /// Decodes the header of a message and checks both ends of its filler.
    pub(crate) fn from_message(bytes: &[u8]) -> Result<Self> {
        let filler = bytes.get(HEADER_LENGTH..).unwrap_or_default();
        match Self::parse(MAGIC, bytes) {
            Some(header) if filler.first() == Some(&FILLER) && filler.last() == Some(&FILLER) => {
                Ok(header)
            }
            _ => bail!("received a corrupt message"),
        }
    }

    /// Decodes the header in an echo.
    pub(crate) fn from_echo(bytes: &[u8]) -> Result<Self> {
        match Self::parse(ECHO_MAGIC, bytes) {
            Some(header) if bytes.len() == HEADER_LENGTH => Ok(header),
            _ => bail!("received a corrupt echo"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_echoes_round_trip() {
        let header = Header {
            number: 7,
            due_ns: 1_234_567,
            sent_ns: 2_345_678,
            wants_echo: true,
            is_omitted: false,
        };
        let message_bytes = header.message(MIN_LENGTH as usize);
        assert_eq!(message_bytes.len(), MIN_LENGTH as usize);
        assert_eq!(Header::from_message(&message_bytes).unwrap(), header);
        assert_eq!(Header::from_echo(&header.echo()).unwrap(), header);
        let omitted = Header { is_omitted: true, wants_echo: false, ..header };
        assert_eq!(Header::from_message(&omitted.message(100)).unwrap(), omitted);
        for position in [0, 3, HEADER_LENGTH, message_bytes.len() - 1] {
            let mut corrupted = message_bytes.to_vec();
            corrupted[position] ^= 1;
            assert!(Header::from_message(&corrupted).is_err(), "{position}");
        }
        assert!(Header::from_message(&message_bytes[..HEADER_LENGTH]).is_err());
        assert!(Header::from_message(b"").is_err());
        assert!(Header::from_echo(&message_bytes).is_err());
        assert!(Header::from_echo(&header.echo()[..HEADER_LENGTH - 1]).is_err());
    }
}
