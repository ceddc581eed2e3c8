//! The hop header of data packets: connection ID, packet number, key phase.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+
//! |0|G G|R R|K K|P|
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                  Destination connection ID                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |              Packet number, low 32 bits (protected)           |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Payload (sealed) ...                   + 16 bytes of tag    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! G: random, ignored by receivers (greasing). R: 0, or 1 for a relayed packet. K: [`PacketKind`].
//! P: key phase. The low five bits of the first byte and the packet number are masked as in RFC
//! 9001, section 5.4; the sample is the 16 bytes that follow the packet number. The unprotected
//! header is the associated data of the AEAD.

/// Bytes of the header.
pub const SHORT_HEADER_LEN: usize = 9;
/// Bytes of the authentication tag behind the payload.
pub const TAG_LEN: usize = 16;
/// Bytes of a packet in addition to its payload.
pub const SHORT_OVERHEAD: usize = SHORT_HEADER_LEN + TAG_LEN;
const PROTECTED_BITS: u8 = 0x1f;
/// Protected bits of the first byte of a long header.
pub const PROTECTED_LONG_BITS: u8 = 0x0f;
/// The R bits: 0 for the link's own packets, 1 for relayed ones. 2 and 3 are rejected.
const RELAYED_BIT: u8 = 0x08;
const RESERVED_BIT: u8 = 0x10;

/// The kind of payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// Control frames of the link.
    Control = 0,
    /// A source symbol: a column of an S-batch.
    Source = 1,
    /// A column of an R-batch.
    Repair = 2,
    /// A linear combination of columns with its coefficient vector.
    Recoded = 3,
}

/// The fields of a header after header protection was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortHeader {
    /// Kind of the payload.
    pub kind: PacketKind,
    /// The packet belongs to a flow that the link relays: a flow header follows this one. Relayed
    /// packets of kind [`PacketKind::Control`] are end-to-end packets, which relays do not read.
    pub relayed: bool,
    /// Lowest bit of the number of the key update.
    pub key_phase: bool,
    /// Receiver's connection ID.
    pub destination: [u8; 4],
    /// Low 32 bits of the packet number.
    pub packet_number: u32,
}

impl ShortHeader {
    /// Writes the unprotected header. `grease` fills the ignored bits.
    #[inline]
    pub fn encode(&self, grease: u8, out: &mut [u8; SHORT_HEADER_LEN]) {
        let relayed = if self.relayed { RELAYED_BIT } else { 0 };
        out[0] = (grease & 0x60) | relayed | (self.kind as u8) << 1 | u8::from(self.key_phase);
        out[1..5].copy_from_slice(&self.destination);
        out[5..9].copy_from_slice(&self.packet_number.to_be_bytes());
    }

    /// Reads an unprotected header. Returns `None` if it is too short, a long header or has
    /// reserved bits.
    #[inline]
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let header: &[u8; SHORT_HEADER_LEN] = packet.first_chunk()?;
        if header[0] & 0x80 != 0 || header[0] & RESERVED_BIT != 0 {
            return None;
        }
        let kind = match header[0] >> 1 & 3 {
            0 => PacketKind::Control,
            1 => PacketKind::Source,
            2 => PacketKind::Repair,
            _ => PacketKind::Recoded,
        };
        Some(Self {
            kind,
            relayed: header[0] & RELAYED_BIT != 0,
            key_phase: header[0] & 1 == 1,
            destination: [header[1], header[2], header[3], header[4]],
            packet_number: u32::from_be_bytes([header[5], header[6], header[7], header[8]]),
        })
    }
}

/// The connection ID of a short-header packet, which is readable without keys. Returns `None` for
/// long headers and for datagrams that are too short.
#[inline]
pub fn destination(datagram: &[u8]) -> Option<[u8; 4]> {
    let (first, rest) = datagram.split_first()?;
    if datagram.len() < SHORT_OVERHEAD || first & 0x80 != 0 {
        return None;
    }
    rest.first_chunk().copied()
}

/// The 16-byte sample that the header protection mask is computed from.
#[inline]
pub fn sample(packet: &[u8]) -> Option<&[u8; 16]> {
    packet.get(SHORT_HEADER_LEN..)?.first_chunk()
}

/// Applies or removes the header protection. Does nothing to a packet without a whole header.
#[inline]
pub fn apply_mask(packet: &mut [u8], mask: [u8; 5]) {
    let Some(header) = packet.first_chunk_mut::<SHORT_HEADER_LEN>() else { return };
    header[0] ^= mask[0] & PROTECTED_BITS;
    mask_number(&mut header[5..9], mask);
}

/// Masks or unmasks the four bytes of a packet number.
#[inline]
pub fn mask_number(number: &mut [u8], mask: [u8; 5]) {
    for (byte, mask) in number.iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let header = ShortHeader {
            kind: PacketKind::Repair,
            relayed: false,
            key_phase: true,
            destination: [1, 2, 3, 4],
            packet_number: 0x0a0b_0c0d,
        };
        let mut out = [0; SHORT_HEADER_LEN];
        header.encode(0xff, &mut out);
        assert_eq!(out, [0x65, 1, 2, 3, 4, 0x0a, 0x0b, 0x0c, 0x0d]);
        ShortHeader { relayed: true, ..header }.encode(0, &mut out);
        assert_eq!(out[0], 0x0d);
    }

    #[test]
    fn long_headers_and_reserved_bits_are_rejected() {
        assert_eq!(ShortHeader::decode(&[0x80; 40]), None);
        assert_eq!(ShortHeader::decode(&[0x10; 40]), None);
        assert_eq!(ShortHeader::decode(&[0; 8]), None);
        assert_eq!(destination(&[0; SHORT_OVERHEAD - 1]), None);
        assert_eq!(destination(&[0; SHORT_OVERHEAD]), Some([0; 4]));
        assert_eq!(destination(&[0x80; SHORT_OVERHEAD]), None);
    }

    /// The sample follows the header. The mask does not change the greased bits and the connection
    /// ID.
    #[test]
    fn header_protection_covers_low_bits_and_packet_number() {
        let packet: [u8; SHORT_OVERHEAD] = core::array::from_fn(|i| i as u8);
        assert_eq!(sample(&packet), packet.last_chunk());
        assert_eq!(sample(&packet[..SHORT_OVERHEAD - 1]), None);
        let mut masked = packet;
        apply_mask(&mut masked, [0xff, 0x10, 0x20, 0x40, 0x80]);
        assert_eq!(masked[..9], [0x1f, 1, 2, 3, 4, 5 ^ 0x10, 6 ^ 0x20, 7 ^ 0x40, 8 ^ 0x80]);
        assert_eq!(masked[9..], packet[9..]);
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(kind in 0_u8..4, relayed: bool, key_phase: bool, destination: [u8; 4],
                                     packet_number: u32, grease: u8, mask: [u8; 5]) {
            let kind = [PacketKind::Control, PacketKind::Source, PacketKind::Repair,
                        PacketKind::Recoded][kind as usize];
            let header = ShortHeader { kind, relayed, key_phase, destination, packet_number };
            let mut packet = [0; 40];
            header.encode(grease, packet.first_chunk_mut().unwrap());
            apply_mask(&mut packet, mask);
            prop_assert_eq!(super::destination(&packet), Some(destination));
            apply_mask(&mut packet, mask);
            prop_assert_eq!(ShortHeader::decode(&packet), Some(header));
        }
    }
}
