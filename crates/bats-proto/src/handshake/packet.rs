//! Packet protection of packets with long headers.

use crate::crypto::{DirectionalKeys, TAG_LEN};
use crate::wire::long_header::{self, LongKind};
use crate::wire::short_header::{self, PROTECTED_LONG_BITS};
use crate::wire::varint::Writer;

/// The unencrypted header fields of a packet to write.
pub(super) struct PacketHeader<'a> {
    pub(super) kind: LongKind,
    pub(super) destination: &'a [u8],
    pub(super) source: &'a [u8],
    pub(super) token: &'a [u8],
    /// Random value of the ignored bits.
    pub(super) grease: u8,
}

/// Writes a packet to the start of `out`; returns its length, or `None` if there is no room.
pub(super) fn seal(
    out: &mut [u8],
    keys: &DirectionalKeys,
    head: &PacketHeader<'_>,
    pn: u64,
    payload: &[u8],
) -> Option<usize> {
    let mut writer = Writer::new(out);
    let PacketHeader { kind, destination, source, token, grease } = *head;
    long_header::encode(&mut writer, kind, destination, source, token, payload.len(), grease)?;
    let number_at = writer.written();
    writer.u32(pn as u32)?;
    writer.bytes(payload)?;
    let packet_len = writer.written() + TAG_LEN;
    let packet = out.get_mut(..packet_len)?;
    let (front, sealed) = packet.split_at_mut(number_at + 4);
    keys.packet.seal_in_place(pn, front, sealed, payload.len());
    if let Some(sample) = packet.get(number_at + 4..).and_then(<[u8]>::first_chunk) {
        let mask = keys.header.mask(sample);
        packet[0] ^= mask[0] & PROTECTED_LONG_BITS;
        short_header::mask_number(&mut packet[number_at..number_at + 4], mask);
    }
    Some(packet_len)
}

/// The payload of a packet whose packet number is at offset `number_at`, if it is authentic.
pub(super) fn open(packet: &mut [u8], keys: &DirectionalKeys, number_at: usize) -> Option<Vec<u8>> {
    let sample = packet.get(number_at + 4..)?.first_chunk()?;
    let mask = keys.header.mask(sample);
    packet[0] ^= mask[0] & PROTECTED_LONG_BITS;
    for (byte, mask) in packet[number_at..number_at + 4].iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
    let (header, sealed) = packet.split_at_mut(number_at + 4);
    let number: [u8; 4] = *header.last_chunk()?;
    let pn = u64::from(u32::from_be_bytes(number));
    let len = keys.packet.open_in_place(pn, header, sealed)?;
    Some(sealed[..len].to_vec())
}
