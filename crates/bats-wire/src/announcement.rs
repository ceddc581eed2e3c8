//! The announcement of a source to the members of a group: what they need to read its flow.
//!
//! ```text
//! 0xc0, version 0xba75ff02 (4 bytes), 0, 0, salt (16), number (8), sealed:
//! instance (8), code seed (8), longest symbol (2), first symbol (8), first message (8), end (1); tag (16)
//! ```
//!
//! It is an end-to-end packet to the group: a long header of a version of its own without connection IDs. Integers
//! are big-endian. What precedes the sealed fields is their associated data.

use super::varint::{Reader, Writer};

/// In the place of a version.
const VERSION: u32 = 0xba75_ff02;
/// Long header, fixed bit.
const FIRST: u8 = 0xc0;
/// Bytes of the salt.
pub const ANNOUNCEMENT_SALT_LEN: usize = 16;
/// Bytes before the sealed fields.
const HEADER_LEN: usize = 1 + 4 + 2 + ANNOUNCEMENT_SALT_LEN + 8;
/// Bytes of the sealed fields, without the tag.
const FIELDS_LEN: usize = 8 + 8 + 2 + 8 + 8 + 1;

/// What precedes the sealed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncementHeader {
    /// Random bytes that the source chooses for each flow; the keys depend on them.
    pub salt: [u8; ANNOUNCEMENT_SALT_LEN],
    /// Number of the announcement, which a source uses once for a salt.
    pub number: u64,
}

impl AnnouncementHeader {
    /// The bytes of the header: the associated data of the sealed fields.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        let mut writer = Writer::new(&mut bytes);
        // The buffer has room for all of them.
        let _ = writer.u8(FIRST);
        let _ = writer.u32(VERSION);
        let _ = writer.bytes(&[0, 0]);
        let _ = writer.bytes(&self.salt);
        let _ = writer.bytes(&self.number.to_be_bytes());
        bytes
    }

    /// Reads an end-to-end packet. Returns the header, its bytes, and the sealed fields; `None` if it is another
    /// packet.
    pub fn decode(packet: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (header, sealed) = packet.split_at_checked(HEADER_LEN)?;
        let mut reader = Reader::new(header);
        let is_announcement =
            reader.u8()? == FIRST && reader.u32()? == VERSION && reader.array()? == [0, 0];
        let (salt, number) = (reader.array()?, u64::from_be_bytes(reader.array()?));
        is_announcement.then_some((Self { salt, number }, header, sealed))
    }
}

/// The sealed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Instance of the source: a later one has a larger number.
    pub instance: u64,
    /// Seed of the coefficients of repairs.
    pub code_seed: u64,
    /// Longest symbol of the flow in bytes.
    pub max_symbol_size: u16,
    /// The first symbol with parts of the first message.
    pub first_symbol: u64,
    /// The first message of which no symbol was made before the announcement.
    pub first_message: u64,
    /// Whether no symbol and no message follow.
    pub is_end: bool,
}

impl Announcement {
    /// The bytes of the fields, to be sealed.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIELDS_LEN];
        let mut writer = Writer::new(&mut bytes);
        // The buffer has room for all of them.
        let _ = writer.bytes(&self.instance.to_be_bytes());
        let _ = writer.bytes(&self.code_seed.to_be_bytes());
        let _ = writer.u16(self.max_symbol_size);
        let _ = writer.bytes(&self.first_symbol.to_be_bytes());
        let _ = writer.bytes(&self.first_message.to_be_bytes());
        let _ = writer.u8(u8::from(self.is_end));
        bytes
    }

    /// Reads opened fields; `None` if they are malformed.
    pub fn decode(fields: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(fields);
        let announcement = Self {
            instance: u64::from_be_bytes(reader.array()?),
            code_seed: u64::from_be_bytes(reader.array()?),
            max_symbol_size: reader.u16()?,
            first_symbol: u64::from_be_bytes(reader.array()?),
            first_message: u64::from_be_bytes(reader.array()?),
            is_end: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
        };
        // The symbol numbers and message numbers of a flow have at most 62 bits.
        let is_in_range = announcement.first_symbol.max(announcement.first_message) >> 62 == 0;
        (reader.rest().is_empty() && is_in_range).then_some(announcement)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIELDS: Announcement = Announcement {
        instance: 0x0102,
        code_seed: 0x0304,
        max_symbol_size: 0x0506,
        first_symbol: 0x0708,
        first_message: 0x090a,
        is_end: true,
    };

    #[test]
    fn golden_bytes() {
        let header = AnnouncementHeader { salt: [7; 16], number: 0x0809 };
        let mut packet = header.encode();
        let expected =
            [&[0xc0, 0xba, 0x75, 0xff, 2, 0, 0][..], &[7; 16], &[0, 0, 0, 0, 0, 0, 8, 9]];
        assert_eq!(packet, expected.concat());
        packet.extend(FIELDS.encode());
        let (read, bytes, fields) = AnnouncementHeader::decode(&packet).unwrap();
        assert_eq!((read, bytes), (header, &expected.concat()[..]));
        let zeros = [0; 6];
        let expected = [&zeros[..], &[1, 2], &zeros, &[3, 4], &[5, 6], &zeros, &[7, 8], &zeros];
        assert_eq!(fields, [&expected.concat()[..], &[9, 10, 1]].concat());
        assert_eq!(Announcement::decode(fields), Some(FIELDS));
        for len in 0..HEADER_LEN {
            assert_eq!(AnnouncementHeader::decode(&packet[..len]), None);
        }
        for at in 0..7 {
            let mut other = packet.clone();
            other[at] ^= 1;
            assert_eq!(AnnouncementHeader::decode(&other), None, "{at}");
        }
    }

    #[test]
    fn malformed_fields_are_refused() {
        let bytes = FIELDS.encode();
        for len in 0..FIELDS_LEN {
            assert_eq!(Announcement::decode(&bytes[..len]), None);
        }
        assert_eq!(Announcement::decode(&[&bytes[..], &[0]].concat()), None);
        for (at, value) in [(FIELDS_LEN - 1, 2), (18, 0x40), (26, 0x40)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert_eq!(Announcement::decode(&other), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = AnnouncementHeader::decode(&bytes);
            let _ = Announcement::decode(&bytes);
        }
    }
}
