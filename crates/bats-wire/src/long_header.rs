//! Headers of handshake packets and early data.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+
//! |1|1|T T|  G    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                            Version                            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | DCID length, 1 | DCID ...      | SCID length, 1 | SCID ...      |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Initial: token length, 2 | token ...                           |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Length of the rest, 2         |  Packet number, 4 (protected) |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Payload (sealed) ...                   + 16 bytes of tag      |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! T: 0 Initial, 1 Handshake, 2 Retry (the token follows SCID and ends the packet), 3 Early. G:
//! random. A version of 0 is version negotiation; the offered versions follow SCID. The header up
//! to and including the packet number is the associated data. Client Initial datagrams have at
//! least 1,200 bytes (RFC 9000, section 14.1).

use super::varint::{Reader, Writer};

/// Version of the protocol that this crate implements.
pub const VERSION: u32 = 0xba75_0005;
/// Bytes of the connection ID that a client chooses for the server's first packets.
pub const ORIGINAL_CID_LEN: usize = 8;
/// Bytes of the connection IDs that endpoints choose for themselves.
pub const CID_LEN: usize = 4;
/// Minimum size in bytes of a client's Initial datagram.
pub const MIN_INITIAL_DATAGRAM: usize = 1_200;

/// Kinds of long-header packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongKind {
    /// First encryption level.
    Initial,
    /// Second encryption level.
    Handshake,
    /// Asks the client to prove its address (RFC 9000, section 8.1.2).
    Retry,
    /// Messages of a client that resumes a session, sent before the handshake completes (0-RTT).
    Early,
}

/// The fields of a long header that are not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongHeader<'a> {
    /// Kind; meaningless if the version is unknown.
    pub kind: LongKind,
    /// Version; 0 is version negotiation.
    pub version: u32,
    /// Destination connection ID.
    pub destination: &'a [u8],
    /// Source connection ID.
    pub source: &'a [u8],
    /// Token of an Initial or a Retry.
    pub token: &'a [u8],
    /// Offset of the packet number.
    pub number_at: usize,
    /// Length of the whole packet in bytes.
    pub packet_len: usize,
}

/// Reads the header of the first packet of `datagram`. Of packets of unknown versions it reads only
/// the version and the connection IDs (RFC 8999).
pub fn decode(datagram: &[u8]) -> Option<LongHeader<'_>> {
    let mut reader = Reader::new(datagram);
    let first = reader.u8()?;
    if first & 0x80 == 0 {
        return None;
    }
    let version = reader.u32()?;
    let mut cid = || {
        let len = usize::from(reader.u8()?);
        (len <= 20).then(|| reader.take(len))?
    };
    let destination = cid()?;
    let source = cid()?;
    let kind = match first >> 4 & 3 {
        // These bits have other meanings in other versions.
        _ if version != VERSION => LongKind::Initial,
        0 => LongKind::Initial,
        1 => LongKind::Handshake,
        2 => LongKind::Retry,
        _ => LongKind::Early,
    };
    let whole = |kind, token| LongHeader {
        kind,
        version,
        destination,
        source,
        token,
        number_at: datagram.len(),
        packet_len: datagram.len(),
    };
    if version != VERSION {
        return Some(whole(kind, reader.rest()));
    }
    if kind == LongKind::Retry {
        return Some(whole(kind, reader.rest()));
    }
    let token = if kind == LongKind::Initial {
        let len = usize::from(reader.u16()?);
        reader.take(len)?
    } else {
        &[]
    };
    let length = usize::from(reader.u16()?);
    let number_at = datagram.len().checked_sub(reader.remaining())?;
    // The packet number, a header protection sample and a tag must be present.
    if length < 4 + 16 || length > reader.remaining() {
        return None;
    }
    let packet_len = number_at.checked_add(length)?;
    Some(LongHeader { kind, version, destination, source, token, number_at, packet_len })
}

/// Writes everything before the packet number for a payload of `payload_len` bytes.
pub fn encode(
    writer: &mut Writer<'_>,
    kind: LongKind,
    destination: &[u8],
    source: &[u8],
    token: &[u8],
    payload_len: usize,
    grease: u8,
) -> Option<()> {
    encode_start(writer, kind, VERSION, destination, source, grease)?;
    if kind == LongKind::Initial {
        writer.u16(u16::try_from(token.len()).ok()?)?;
        writer.bytes(token)?;
    }
    writer.u16(u16::try_from(payload_len.checked_add(4 + 16)?).ok()?)
}

fn encode_start(
    writer: &mut Writer<'_>,
    kind: LongKind,
    version: u32,
    destination: &[u8],
    source: &[u8],
    grease: u8,
) -> Option<()> {
    writer.u8(0xc0 | (kind as u8) << 4 | grease & 0x0f)?;
    writer.u32(version)?;
    writer.u8(u8::try_from(destination.len()).ok()?)?;
    writer.bytes(destination)?;
    writer.u8(u8::try_from(source.len()).ok()?)?;
    writer.bytes(source)
}

/// Encodes a Retry packet.
pub fn retry(destination: &[u8], source: &[u8], token: &[u8], grease: u8) -> Vec<u8> {
    let mut packet = vec![0; token.len().saturating_add(64)];
    let mut writer = Writer::new(&mut packet);
    let _fits = encode_start(&mut writer, LongKind::Retry, VERSION, destination, source, grease)
        .and_then(|()| writer.bytes(token));
    let written = writer.written();
    packet.truncate(written);
    packet
}

/// Encodes a version negotiation packet, with an unknown version among the offered ones (greasing).
pub fn version_negotiation(destination: &[u8], source: &[u8], grease: u32) -> Vec<u8> {
    let mut packet = vec![0; 64];
    let mut writer = Writer::new(&mut packet);
    let _fits = encode_start(&mut writer, LongKind::Initial, 0, destination, source, grease as u8)
        .and_then(|()| writer.u32(VERSION))
        .and_then(|()| writer.u32(grease & 0xf0f0_f0f0 | 0x0a0a_0a0a));
    let written = writer.written();
    packet.truncate(written);
    packet
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_initial() {
        let mut buffer = [0; 64];
        let mut writer = Writer::new(&mut buffer);
        encode(&mut writer, LongKind::Initial, &[1, 2], &[3], &[9, 9], 10, 0xf5).unwrap();
        let written = writer.written();
        assert_eq!(buffer[..written], [0xc5, 0xba, 0x75, 0, 5, 2, 1, 2, 1, 3, 0, 2, 9, 9, 0, 30]);
    }

    /// RFC 8999: only the highest bit of the first byte has the same meaning in all versions.
    #[test]
    fn unknown_versions_are_detected_for_all_type_bits() {
        for first in 0x80..=0xff {
            let datagram = [first, 1, 2, 3, 4, 1, 8, 1, 9, 0];
            let header = decode(&datagram).unwrap();
            assert_eq!((header.version, header.destination), (0x0102_0304, &[8][..]));
            assert_eq!((header.kind, header.packet_len), (LongKind::Initial, datagram.len()));
        }
    }

    #[test]
    fn retry_and_version_negotiation_golden_bytes() {
        let token = [7; 100];
        let packet = retry(&[1, 2], &[3], &token, 0xf5);
        let head = [0xe5, 0xba, 0x75, 0, 5, 2, 1, 2, 1, 3];
        assert_eq!(packet, [&head[..], &token].concat());
        let header = decode(&packet).unwrap();
        assert_eq!((header.kind, header.token), (LongKind::Retry, &token[..]));
        assert_eq!((header.number_at, header.packet_len), (packet.len(), packet.len()));
        // Connection IDs of the maximum length fit.
        assert_eq!(retry(&[1; 20], &[2; 20], &[], 0).len(), 1 + 4 + 2 * 21);

        let packet = version_negotiation(&[1], &[2, 3], 0x1234_5678);
        let head = [0xc8, 0, 0, 0, 0, 1, 1, 2, 2, 3, 0xba, 0x75, 0, 5];
        assert_eq!(packet, [&head[..], &[0x1a, 0x3a, 0x5a, 0x7a]].concat());
        assert_eq!(
            decode(&packet).map(|header| (header.version, header.token)),
            Some((0, &packet[10..]))
        );
    }

    #[test]
    fn lengths_are_decoded_up_to_their_limits() {
        let packet = |cid: usize, length: u16, rest: usize| {
            let mut bytes = vec![0xd0, 0xba, 0x75, 0, 5, cid as u8];
            bytes.resize(6 + cid, 9);
            bytes.push(0);
            bytes.extend(length.to_be_bytes());
            bytes.resize(bytes.len() + rest, 0);
            bytes
        };
        for (cid, length, rest, is_read) in [
            (20, 20, 20, true),
            (21, 20, 20, false),
            (0, 19, 20, false),
            (0, 21, 20, false),
            (0, 20, 40, true),
        ] {
            let bytes = packet(cid, length, rest);
            assert_eq!(decode(&bytes).is_some(), is_read, "{cid} {length} {rest}");
        }
        // Another packet follows in the datagram.
        let bytes = packet(3, 20, 40);
        let header = decode(&bytes).unwrap();
        assert_eq!(
            (header.kind, header.number_at, header.packet_len),
            (LongKind::Handshake, 12, 32)
        );
        // A short header is not a long header.
        assert_eq!(decode(&[&[0x50][..], &bytes[1..]].concat()), None);
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(
            which: u8, dcid in prop::collection::vec(any::<u8>(), 0..=20),
            scid in prop::collection::vec(any::<u8>(), 0..=20),
            token in prop::collection::vec(any::<u8>(), 0..100), payload in 0_usize..1000, grease: u8,
        ) {
            let kinds = [LongKind::Initial, LongKind::Handshake, LongKind::Early];
            let kind = kinds[usize::from(which % 3)];
            let mut buffer = vec![0; 1400];
            let mut writer = Writer::new(&mut buffer);
            encode(&mut writer, kind, &dcid, &scid, &token, payload, grease).unwrap();
            let number_at = writer.written();
            let header = decode(&buffer).unwrap();
            prop_assert_eq!(header.kind, kind);
            prop_assert_eq!(header.destination, &dcid[..]);
            prop_assert_eq!(header.source, &scid[..]);
            let has_token = kind == LongKind::Initial;
            prop_assert_eq!(header.token, if has_token { &token[..] } else { &[][..] });
            prop_assert_eq!(header.number_at, number_at);
            prop_assert_eq!(header.packet_len, number_at + 4 + payload + 16);
        }

        #[test]
        fn arbitrary_headers_end_within_the_datagram(mut bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            bytes[0] |= 0x80;
            if let Some(header) = decode(&bytes) {
                prop_assert!(header.packet_len <= bytes.len());
            }
        }
    }
}
