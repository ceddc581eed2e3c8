//! What the streams of a throughput test carry: messages with number, times and filler.

use anyhow::{Result, bail};
use bytes::{BufMut, Bytes, BytesMut};

const MAGIC: &[u8; 4] = b"BIPF";
const ECHO_MAGIC: &[u8; 4] = b"BIPE";
/// Magic, flags, number, the time at which it was to be sent and that at which it was.
const HEADER: usize = 4 + 1 + 8 + 8 + 8;
const FILLER: u8 = 0x77;
/// Least bytes of a message.
pub(crate) const MIN_LENGTH: u32 = 64;
/// Most bytes of a message.
pub(crate) const MAX_LENGTH: u32 = 16 << 20;

const WANTS_ECHO: u8 = 1;
const OMITTED: u8 = 2;

/// The head of a message. Times are nanoseconds on the sender's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
    /// The receiver shall send the head back.
    pub(crate) wants_echo: bool,
    /// It belongs to the part of the test that does not count.
    pub(crate) is_omitted: bool,
}

impl Head {
    fn put(self, magic: &[u8; 4], out: &mut BytesMut) {
        out.put_slice(magic);
        let echo = if self.wants_echo { WANTS_ECHO } else { 0 };
        out.put_u8(echo | if self.is_omitted { OMITTED } else { 0 });
        out.put_u64(self.number);
        out.put_u64(self.due_ns);
        out.put_u64(self.sent_ns);
    }

    fn take(magic: &[u8; 4], bytes: &[u8]) -> Option<Self> {
        let (flags, rest) = bytes.strip_prefix(magic)?.split_first()?;
        let field = |index: usize| {
            let bytes = rest.get(8 * index..8 * index + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        Some(Self {
            number: field(0)?,
            due_ns: field(1)?,
            sent_ns: field(2)?,
            wants_echo: flags & WANTS_ECHO != 0,
            is_omitted: flags & OMITTED != 0,
        })
    }

    /// A message of `length` bytes.
    pub(crate) fn message(self, length: usize) -> Bytes {
        let mut message = BytesMut::with_capacity(length.max(HEADER));
        self.put(MAGIC, &mut message);
        message.put_bytes(FILLER, length.saturating_sub(HEADER));
        message.freeze()
    }

    /// What goes back.
    pub(crate) fn echo(self) -> Bytes {
        let mut message = BytesMut::with_capacity(HEADER);
        self.put(ECHO_MAGIC, &mut message);
        message.freeze()
    }

    /// The head of a message whose filler is right at both ends.
    pub(crate) fn of_message(bytes: &[u8]) -> Result<Self> {
        let filler = bytes.get(HEADER..).unwrap_or_default();
        match Self::take(MAGIC, bytes) {
            Some(head) if filler.first() == Some(&FILLER) && filler.last() == Some(&FILLER) => {
                Ok(head)
            }
            _ => bail!("a message arrived corrupt"),
        }
    }

    /// The head that came back.
    pub(crate) fn of_echo(bytes: &[u8]) -> Result<Self> {
        match Self::take(ECHO_MAGIC, bytes) {
            Some(head) if bytes.len() == HEADER => Ok(head),
            _ => bail!("an echo arrived corrupt"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let head = Head {
            number: 7,
            due_ns: 1_234_567,
            sent_ns: 2_345_678,
            wants_echo: true,
            is_omitted: false,
        };
        let whole = head.message(MIN_LENGTH as usize);
        assert_eq!(whole.len(), MIN_LENGTH as usize);
        assert_eq!(Head::of_message(&whole).unwrap(), head);
        assert_eq!(Head::of_echo(&head.echo()).unwrap(), head);
        let omitted = Head { is_omitted: true, wants_echo: false, ..head };
        assert_eq!(Head::of_message(&omitted.message(100)).unwrap(), omitted);
        for place in [0, 3, HEADER, whole.len() - 1] {
            let mut broken = whole.to_vec();
            broken[place] ^= 1;
            assert!(Head::of_message(&broken).is_err(), "{place}");
        }
        assert!(Head::of_message(&whole[..HEADER]).is_err());
        assert!(Head::of_message(b"").is_err());
        assert!(Head::of_echo(&whole).is_err());
        assert!(Head::of_echo(&head.echo()[..HEADER - 1]).is_err());
    }
}
