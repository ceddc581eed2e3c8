//! The headers of packets.

use crate::coding::{CodingHeader, MAX_CODING_HEADER_LEN, RepairHeader, SourceHeader};
use crate::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use crate::long_header::{self, LongKind, VERSION};
use crate::short_header::{
    self, PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader, apply_mask,
};
use crate::varint::{Reader, Writer};

const KINDS: [PacketKind; 4] =
    [PacketKind::Control, PacketKind::Source, PacketKind::Repair, PacketKind::Recoded];

/// A long header of this version with connection IDs of the given lengths, and zeros.
fn long_packet(first: u8, version: u32, cids: [u8; 2], length: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = first;
    bytes[1..5].copy_from_slice(&version.to_be_bytes());
    bytes[5] = cids[0];
    let source_at = 6 + usize::from(cids[0] % 8);
    bytes[source_at] = cids[1];
    let length_at = source_at + 1 + usize::from(cids[1] % 8);
    let token = if first >> 4 & 3 == 0 { 2 } else { 0 };
    bytes[length_at + token..][..2].copy_from_slice(&length.to_be_bytes());
    bytes
}

crate::harnesses! {
    short_header_decodes_what_was_encoded unwind 10 (
        kind: u8, relayed: bool, key_phase: bool, destination: [u8; 4], packet_number: u32, grease: u8,
    ) {
        let kind = KINDS[usize::from(kind % 4)];
        let header = ShortHeader { kind, relayed, key_phase, destination, packet_number };
        let mut out = [0; SHORT_HEADER_LEN];
        header.encode(grease, &mut out);
        assert_eq!(ShortHeader::decode(&out), Some(header));
    }

    short_header_of_any_bytes_keeps_its_meaning unwind 10 (bytes: [u8; SHORT_HEADER_LEN], len: u8) {
        let len = usize::from(len) % (SHORT_HEADER_LEN + 1);
        let decoded = ShortHeader::decode(&bytes[..len]);
        let is_valid = len == SHORT_HEADER_LEN && bytes[0] & 0x90 == 0;
        assert_eq!(decoded.is_some(), is_valid);
        if let Some(header) = decoded {
            let mut out = [0; SHORT_HEADER_LEN];
            header.encode(bytes[0], &mut out);
            assert_eq!(out, bytes);
        }
    }

    connection_id_is_readable_without_keys unwind 26 (bytes: [u8; SHORT_OVERHEAD], len: u8) {
        let len = usize::from(len) % (SHORT_OVERHEAD + 1);
        let destination = short_header::destination(&bytes[..len]);
        assert_eq!(destination.is_some(), len == SHORT_OVERHEAD && bytes[0] < 0x80);
        assert!(destination.is_none_or(|id| id == bytes[1..5]));
        assert_eq!(short_header::sample(&bytes[..len]).is_some(), len == SHORT_OVERHEAD);
    }

    header_protection_is_its_own_inverse unwind 10 (bytes: [u8; SHORT_OVERHEAD], mask: [u8; 5]) {
        let mut masked = bytes;
        apply_mask(&mut masked, mask);
        assert_eq!(masked[0] & 0xe0, bytes[0] & 0xe0, "form and greased bits stay");
        assert_eq!(masked[1..5], bytes[1..5], "the connection ID stays");
        assert_eq!(masked[9..], bytes[9..], "the payload stays");
        apply_mask(&mut masked, mask);
        assert_eq!(masked, bytes);
    }

    header_protection_of_any_length_is_safe unwind 10 (bytes: [u8; 10], len: u8, mask: [u8; 5]) {
        let mut masked = bytes;
        let len = usize::from(len) % 11;
        apply_mask(&mut masked[..len], mask);
        assert_eq!(masked[len..], bytes[len..]);
        assert!(len >= SHORT_HEADER_LEN || masked == bytes, "truncated packets stay");
    }

    long_header_of_any_bytes_ends_within_the_datagram unwind 24 (bytes: [u8; 48], len: u8) {
        let len = usize::from(len) % 49;
        if let Some(header) = long_header::decode(&bytes[..len]) {
            assert!(header.number_at <= header.packet_len && header.packet_len <= len);
            assert!(header.destination.len() <= 20 && header.source.len() <= 20);
            assert!(bytes[0] >= 0x80);
        }
    }

    long_header_of_this_version_has_room_for_number_and_tag unwind 24 (
        first: u8, cids: [u8; 2], length: u16, len: u8,
    ) {
        let cids = cids.map(|len| len % 8);
        let bytes = long_packet(first | 0x80, VERSION, cids, length);
        let len = usize::from(len) % 65;
        let Some(header) = long_header::decode(&bytes[..len]) else { return };
        assert_eq!((header.destination.len(), header.source.len()),
            (usize::from(cids[0]), usize::from(cids[1])));
        if header.kind == LongKind::Retry {
            assert_eq!((header.number_at, header.packet_len), (len, len));
        } else {
            assert_eq!(header.packet_len - header.number_at, usize::from(length));
            assert!(length >= 20);
        }
    }

    long_header_of_other_versions_exposes_only_the_ids unwind 24 (
        first: u8, version: u32, cids: [u8; 2],
    ) {
        if version == VERSION {
            return;
        }
        let cids = cids.map(|len| len % 8);
        let bytes = long_packet(first | 0x80, version, cids, 0);
        let header = long_header::decode(&bytes).expect("both IDs fit");
        assert_eq!((header.version, header.kind), (version, LongKind::Initial));
        assert_eq!((header.number_at, header.packet_len), (64, 64));
    }

    long_header_decodes_what_was_encoded unwind 24 (kind: u8, cids: [[u8; 4]; 2], token: [u8; 3], grease: u8) {
        let kind = [LongKind::Initial, LongKind::Handshake, LongKind::Early][usize::from(kind % 3)];
        let mut bytes = [0; 80];
        let mut writer = Writer::new(&mut bytes);
        let [to, from] = &cids;
        assert!(long_header::encode(&mut writer, kind, to, from, &token, 9, grease).is_some());
        let number_at = writer.written();
        let header = long_header::decode(&bytes).expect("it was encoded");
        assert_eq!((header.kind, header.destination, header.source), (kind, &to[..], &from[..]));
        assert_eq!((header.number_at, header.packet_len), (number_at, number_at + 4 + 9 + 16));
        assert_eq!(header.token.is_empty(), kind != LongKind::Initial);
    }

    source_header_decodes_what_was_encoded unwind 5 (number: u64) {
        let header = SourceHeader::new(number);
        let mut bytes = [0; 4];
        assert!(header.encode(&mut Writer::new(&mut bytes)).is_some());
        assert_eq!(SourceHeader::decode(&mut Reader::new(&bytes)), Some(header));
        assert_eq!(header.number(number), number);
    }

    repair_header_decodes_what_was_encoded unwind 11 (batch: u32, column: u8, first: u32, count: u16) {
        let header = RepairHeader { batch: batch >> 8, column, first, count };
        let mut bytes = [0; 10];
        assert!(header.encode(&mut Writer::new(&mut bytes)).is_some());
        let decoded = RepairHeader::decode(&mut Reader::new(&bytes));
        assert_eq!(decoded, (column < 16).then_some(header));
    }

    coding_header_of_any_bytes_encodes_to_the_same unwind 27 (
        kind: u8, bytes: [u8; MAX_CODING_HEADER_LEN], len: u8,
    ) {
        let kind = KINDS[usize::from(kind % 4)];
        let len = usize::from(len) % (MAX_CODING_HEADER_LEN + 1);
        let mut reader = Reader::new(&bytes[..len]);
        let Some(header) = CodingHeader::decode(kind, &mut reader) else { return };
        assert_eq!(header.kind(), kind);
        let read = len - reader.remaining();
        let mut again = [0; MAX_CODING_HEADER_LEN];
        let mut writer = Writer::new(&mut again);
        assert!(header.encode(&mut writer).is_some());
        assert_eq!(writer.written(), read);
        assert_eq!(again[..read], bytes[..read]);
    }

    flow_header_decodes_what_was_encoded unwind 14 (ends: [u32; 2], flow: u32, hop_limit: u8, room: u8) {
        let key = FlowKey { destination: NodeId(ends[0]), source: NodeId(ends[1]), flow };
        let header = FlowHeader { key, hop_limit };
        let mut bytes = [0; FLOW_HEADER_LEN];
        assert!(header.encode(&mut Writer::new(&mut bytes)).is_some());
        let room = usize::from(room) % (FLOW_HEADER_LEN + 1);
        let decoded = FlowHeader::decode(&mut Reader::new(&bytes[..room]));
        assert_eq!(decoded, (room == FLOW_HEADER_LEN).then_some(header));
        assert_eq!(key.reversed().reversed(), key);
    }
}
