//! Packet protection of packets with long headers.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use crate::crypto::{DirectionalKeys, TAG_LEN};
use crate::wire::long_header::{self, LongKind};
use crate::wire::short_header::{self, PROTECTED_LONG_BITS};
use crate::wire::varint::Writer;

/// The unencrypted header fields of a packet to write.
pub(crate) struct PacketHeader<'a> {
    pub(crate) kind: LongKind,
    pub(crate) destination: &'a [u8],
    pub(crate) source: &'a [u8],
    pub(crate) token: &'a [u8],
    /// Random value of the ignored bits.
    pub(crate) grease: u8,
}

/// Writes a packet to the start of `out`; returns its length, or `None` if there is no room.
pub(crate) fn seal(
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
    let packet_len = writer.written().checked_add(TAG_LEN)?;
    let packet = out.get_mut(..packet_len)?;
    let (header, sealed) = packet.split_at_mut_checked(number_at.checked_add(4)?)?;
    keys.packet.seal_in_place(pn, header, sealed, payload.len());
    if let Some(sample) = sealed.first_chunk() {
        mask_header(header, keys.header.mask(sample));
    }
    Some(packet_len)
}

/// Applies or removes the protection of a header that ends with the packet number.
fn mask_header(header: &mut [u8], mask: [u8; 5]) {
    if let Some(first) = header.first_mut() {
        *first ^= mask[0] & PROTECTED_LONG_BITS;
    }
    if let Some(number) = header.last_chunk_mut::<4>() {
        short_header::mask_number(number, mask);
    }
}

/// The payload of a packet whose packet number is at offset `number_at`, if it is authentic.
pub(super) fn open(packet: &mut [u8], keys: &DirectionalKeys, number_at: usize) -> Option<Vec<u8>> {
    let (header, sealed) = packet.split_at_mut_checked(number_at.checked_add(4)?)?;
    mask_header(header, keys.header.mask(sealed.first_chunk()?));
    let number: [u8; 4] = *header.last_chunk()?;
    let pn = u64::from(u32::from_be_bytes(number));
    let len = keys.packet.open_in_place(pn, header, sealed)?;
    Some(sealed.get(..len)?.to_vec())
}
