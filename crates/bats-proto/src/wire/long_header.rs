//! The hop header of packets that make a connection.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+
//! |1|G|T T|R R|1 1|
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                            Version                            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | DCID length   |  Destination connection ID (0 to 20 octets) ...
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | SCID length   |  Source connection ID (0 to 20 octets) ...
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Initial only: token length (varint), token ...
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Length of the rest (varint)  |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                   Packet number (protected)                   |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Frames (sealed) ...                    + 16 octets of tag    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! G: random, ignored. T: 0 Initial, 2 Handshake, 3 Retry. R: zero. The low four bits of the first
//! octet and the packet number are masked as in RFC 9001, section 5.4. Packets up to the version
//! and the connection IDs look the same in every version (RFC 8999). Two have another end:
//!
//! ```text
//! Retry:                | ... SCID | token ...            | 16 octets of tag |
//! Version negotiation:  | ... SCID | version (32 bits) ...                   |   version field 0
//! ```
//!
//! In this version an end's own connection ID has four octets, and the destination of a client's
//! packets has eight random ones until it has learnt the server's.

use super::varint::{Reader, Writer};
use super::version;

/// Octets of the destination of a client's first packets.
pub const ORIGINAL_CID_LEN: usize = 8;
/// Octets of the connection ID that an end chooses for itself.
pub const CID_LEN: usize = 4;
/// Longest connection ID of this version.
pub const MAX_CID_LEN: usize = 20;
/// Octets of the packet number, which is never truncated to less.
pub const PACKET_NUMBER_LEN: usize = 4;
/// A client's datagrams with an Initial packet have at least this size (RFC 9000, section 14.1).
pub const MIN_INITIAL_DATAGRAM: usize = 1_200;
/// Octets of the tag of sealed packets and of retries.
pub const TAG_LEN: usize = super::short_header::TAG_LEN;

const LONG: u8 = 0x80;
const GREASE: u8 = 0x40;
const TYPE_SHIFT: u8 = 4;
const RESERVED: u8 = 0x0c;
const NUMBER_LEN_BITS: u8 = 0x03;
const PROTECTED_BITS: u8 = 0x0f;
/// The length field is always written in two octets, so that it can be filled in afterwards.
const LENGTH_LEN: usize = 2;
const MAX_LENGTH: usize = 0x3fff;

/// Types of long packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongType {
    /// ClientHello and ServerHello; the keys follow from the destination.
    Initial,
    /// The rest of the TLS handshake.
    Handshake,
    /// Proof of address asked for.
    Retry,
}

impl LongType {
    fn bits(self) -> u8 {
        match self {
            Self::Initial => 0,
            Self::Handshake => 2,
            Self::Retry => 3,
        }
    }
}

/// What can be read of a long packet of any version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant<'a> {
    /// First octet, protected.
    pub first: u8,
    /// Version; 0 is version negotiation.
    pub version: u32,
    /// Destination connection ID, up to 255 octets.
    pub destination: &'a [u8],
    /// Source connection ID, up to 255 octets.
    pub source: &'a [u8],
    /// Octets up to here.
    pub len: usize,
}

impl<'a> Invariant<'a> {
    /// Reads the front of a datagram; `None` if it is no long packet.
    pub fn decode(datagram: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(datagram);
        let first = reader.u8()?;
        if first & LONG == 0 {
            return None;
        }
        let version = reader.u32()?;
        let len = reader.u8()?.into();
        let destination = reader.take(len)?;
        let len = reader.u8()?.into();
        let source = reader.take(len)?;
        Some(Self { first, version, destination, source, len: datagram.len() - reader.remaining() })
    }
}

/// A packet of this version within a datagram, still sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongHeader<'a> {
    /// Type.
    pub packet_type: LongType,
    /// Destination connection ID.
    pub destination: &'a [u8],
    /// Source connection ID.
    pub source: &'a [u8],
    /// Token of an Initial or a Retry.
    pub token: &'a [u8],
    /// Where the packet number stands; for a Retry the tag.
    pub number_at: usize,
    /// Octets of the whole packet; the next one of the datagram follows.
    pub end: usize,
}

impl<'a> LongHeader<'a> {
    /// Reads the first packet of `datagram` as far as it is readable without keys. `None` for
    /// other versions, unknown types and anything inconsistent.
    pub fn decode(datagram: &'a [u8]) -> Option<Self> {
        let invariant = Invariant::decode(datagram)?;
        let Invariant { first, version, destination, source, len } = invariant;
        if version != version::VERSION
            || destination.len() > MAX_CID_LEN
            || source.len() > MAX_CID_LEN
        {
            return None;
        }
        let mut reader = Reader::new(datagram.get(len..)?);
        let packet_type = match first >> TYPE_SHIFT & 3 {
            0 => LongType::Initial,
            2 => LongType::Handshake,
            3 => {
                let token = reader.take(reader.remaining().checked_sub(TAG_LEN)?)?;
                let number_at = datagram.len() - TAG_LEN;
                return Some(Self {
                    packet_type: LongType::Retry,
                    destination,
                    source,
                    token,
                    number_at,
                    end: datagram.len(),
                });
            }
            _ => return None,
        };
        let mut token: &[u8] = &[];
        if packet_type == LongType::Initial {
            let len = usize::try_from(reader.varint()?).ok()?;
            token = reader.take(len)?;
        }
        let length = usize::try_from(reader.varint()?).ok()?;
        let number_at = datagram.len() - reader.remaining();
        // Room for a sample of the header protection.
        if length < PACKET_NUMBER_LEN + TAG_LEN {
            return None;
        }
        reader.take(length)?;
        Some(Self { packet_type, destination, source, token, number_at, end: number_at + length })
    }
}

/// Writes the header of an Initial or Handshake packet with room for the packet number; the
/// payload comes next. `None` if it does not fit.
pub fn write_header(
    writer: &mut Writer<'_>,
    packet_type: LongType,
    grease: u8,
    destination: &[u8],
    source: &[u8],
    token: &[u8],
) -> Option<OpenPacket> {
    let start = writer.written();
    let mut write = || {
        writer.u8(LONG | grease & GREASE | packet_type.bits() << TYPE_SHIFT | NUMBER_LEN_BITS)?;
        write_ids(writer, version::VERSION, destination, source)?;
        if packet_type == LongType::Initial {
            writer.varint(token.len() as u64)?;
            writer.bytes(token)?;
        }
        writer.bytes(&[0; LENGTH_LEN + PACKET_NUMBER_LEN])
    };
    if write().is_none() {
        writer.rewind(start);
        return None;
    }
    Some(OpenPacket { start, payload: writer.written() })
}

fn write_ids(
    writer: &mut Writer<'_>,
    version: u32,
    destination: &[u8],
    source: &[u8],
) -> Option<()> {
    writer.u32(version)?;
    writer.u8(u8::try_from(destination.len()).ok()?)?;
    writer.bytes(destination)?;
    writer.u8(u8::try_from(source.len()).ok()?)?;
    writer.bytes(source)
}

/// A packet whose header is written and whose length and number are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPacket {
    /// Where the packet begins in the datagram.
    pub start: usize,
    /// Where its payload begins.
    pub payload: usize,
}

impl OpenPacket {
    /// Fills in packet number and length, for a payload that ends at `payload_end` and a tag
    /// behind it. `None` if that is longer than the length field can say.
    pub fn finish(self, datagram: &mut [u8], payload_end: usize, number: u32) -> Option<()> {
        let number_at = self.payload.checked_sub(PACKET_NUMBER_LEN)?;
        let length = (payload_end + TAG_LEN).checked_sub(number_at)?;
        if length > MAX_LENGTH {
            return None;
        }
        let length_at = number_at.checked_sub(LENGTH_LEN)?;
        let length = (length as u16 | 0x4000).to_be_bytes();
        datagram.get_mut(length_at..number_at)?.copy_from_slice(&length);
        datagram.get_mut(number_at..self.payload)?.copy_from_slice(&number.to_be_bytes());
        Some(())
    }
}

/// The 16 octets that the header mask is computed from.
pub fn sample(packet: &[u8], number_at: usize) -> Option<&[u8; 16]> {
    packet.get(number_at.checked_add(PACKET_NUMBER_LEN)?..)?.first_chunk()
}

/// Applies or removes the header protection.
pub fn apply_mask(packet: &mut [u8], number_at: usize, mask: [u8; 5]) -> Option<()> {
    *packet.first_mut()? ^= mask[0] & PROTECTED_BITS;
    let number = packet.get_mut(number_at..)?.get_mut(..PACKET_NUMBER_LEN)?;
    for (octet, mask) in number.iter_mut().zip(&mask[1..]) {
        *octet ^= mask;
    }
    Some(())
}

/// The packet number after the protection is removed; `None` if reserved bits are set.
pub fn packet_number(packet: &[u8], number_at: usize) -> Option<u32> {
    if packet.first()? & (RESERVED | NUMBER_LEN_BITS) != NUMBER_LEN_BITS {
        return None;
    }
    Some(u32::from_be_bytes(*packet.get(number_at..)?.first_chunk()?))
}

/// A Retry packet without its tag.
pub fn write_retry(grease: u8, destination: &[u8], source: &[u8], token: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 7 + destination.len() + source.len() + token.len()];
    let mut writer = Writer::new(&mut buffer);
    writer.u8(LONG | grease & GREASE | LongType::Retry.bits() << TYPE_SHIFT)?;
    write_ids(&mut writer, version::VERSION, destination, source)?;
    writer.bytes(token)?;
    Some(buffer)
}

/// A version negotiation packet: the versions spoken here and a reserved one.
pub fn write_negotiation(random: u32, destination: &[u8], source: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 7 + destination.len() + source.len() + 8];
    let mut writer = Writer::new(&mut buffer);
    writer.u8(LONG | random as u8 & 0x7f)?;
    write_ids(&mut writer, version::NEGOTIATION, destination, source)?;
    writer.u32(version::VERSION)?;
    writer.u32(version::grease(random))?;
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_octets_of_an_initial() {
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        let open = write_header(&mut writer, LongType::Initial, 0, &[1, 2], &[3], &[0xee]).unwrap();
        writer.bytes(&[7, 7]).unwrap();
        let end = writer.written();
        open.finish(&mut buffer, end, 0x0a0b_0c0d).unwrap();
        assert_eq!(
            buffer[..end],
            [
                0x83, 0x0b, 0xa7, 0x50, 0x01, 2, 1, 2, 1, 3, 1, 0xee, 0x40, 22, 0x0a, 0x0b, 0x0c,
                0x0d, 7, 7
            ]
        );
        let header = LongHeader::decode(&buffer[..end + TAG_LEN]).unwrap();
        assert_eq!(header.end, end + TAG_LEN);
        assert_eq!(packet_number(&buffer, header.number_at), Some(0x0a0b_0c0d));
    }

    #[test]
    fn golden_octets_of_negotiation_and_retry() {
        let negotiation = write_negotiation(0x1234_5678, &[1], &[2]).unwrap();
        assert_eq!(
            negotiation,
            [0xf8, 0, 0, 0, 0, 1, 1, 1, 2, 0x0b, 0xa7, 0x50, 1, 0x1a, 0x3a, 0x5a, 0x7a]
        );
        let retry = write_retry(0xff, &[1], &[2], &[9, 9]).unwrap();
        assert_eq!(retry, [0xf0, 0x0b, 0xa7, 0x50, 1, 1, 1, 1, 2, 9, 9]);
    }

    #[test]
    fn other_versions_and_long_ids_are_seen_but_not_read() {
        let mut packet = vec![0xc3, 1, 2, 3, 4, 21];
        packet.extend([5; 21]);
        packet.extend([0; 60]);
        let invariant = Invariant::decode(&packet).unwrap();
        assert_eq!((invariant.version, invariant.destination.len()), (0x0102_0304, 21));
        assert_eq!(LongHeader::decode(&packet), None);
        packet[1..5].copy_from_slice(&version::VERSION.to_be_bytes());
        assert_eq!(LongHeader::decode(&packet), None);
        assert_eq!(Invariant::decode(&[0x40; 60]), None);
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(handshake: bool, grease: u8,
            destination in proptest::collection::vec(any::<u8>(), 0..=20),
            source in proptest::collection::vec(any::<u8>(), 0..=20),
            token in proptest::collection::vec(any::<u8>(), 0..100),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            number: u32, mask: [u8; 5]) {
            let packet_type = if handshake { LongType::Handshake } else { LongType::Initial };
            let token = if handshake { Vec::new() } else { token };
            let mut buffer = [0; 600];
            let mut writer = Writer::new(&mut buffer);
            let open = write_header(&mut writer, packet_type, grease, &destination, &source, &token)
                .unwrap();
            writer.bytes(&payload).unwrap();
            let end = writer.written();
            open.finish(&mut buffer, end, number).unwrap();
            let number_at = LongHeader::decode(&buffer).unwrap().number_at;
            apply_mask(&mut buffer, number_at, mask).unwrap();
            let header = LongHeader::decode(&buffer).unwrap();
            let expected = LongHeader {
                packet_type, destination: &destination, source: &source, token: &token,
                number_at: open.payload - PACKET_NUMBER_LEN, end: end + TAG_LEN,
            };
            prop_assert_eq!(header, expected);
            apply_mask(&mut buffer, number_at, mask).unwrap();
            prop_assert_eq!(packet_number(&buffer, number_at), Some(number));
            for cut in 0..end + TAG_LEN {
                prop_assert_eq!(LongHeader::decode(&buffer[..cut]), None);
            }
        }

        #[test]
        fn garbage_never_panics(mut octets in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Invariant::decode(&octets);
            if octets.len() > 5 {
                octets[0] |= 0x80;
                octets[1..5].copy_from_slice(&version::VERSION.to_be_bytes());
            }
            let _ = LongHeader::decode(&octets);
        }
    }
}
