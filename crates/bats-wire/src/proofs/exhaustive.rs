//! All inputs, where there are few enough of them.

use crate::long_header::{self, LongKind, VERSION};
use crate::short_header::{self, PacketKind, SHORT_OVERHEAD, ShortHeader};
use crate::varint::{Reader, Writer, varint_len};

/// All inputs of one and two bytes: those that hold a whole integer decode to it, and its shortest
/// form decodes to the same.
#[test]
fn all_varints_of_one_and_two_bytes_decode_and_encode() {
    for word in 0..=u16::MAX {
        let bytes = word.to_be_bytes();
        let len = 1 << (bytes[0] >> 6);
        let expected = match len {
            1 => Some(u64::from(bytes[0])),
            2 => Some(u64::from(word & 0x3fff)),
            _ => None,
        };
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.varint(), expected, "{bytes:02x?}");
        assert_eq!(reader.remaining(), if expected.is_some() { 2 - len } else { 2 });
        let alone = Reader::new(&bytes[..1]).varint();
        assert_eq!(alone, (len == 1).then_some(u64::from(bytes[0])));
        if let Some(value) = expected {
            let mut buffer = [0; 8];
            let mut writer = Writer::new(&mut buffer);
            writer.varint(value).unwrap();
            let written = writer.written();
            assert_eq!(written, varint_len(value));
            assert!(written <= len);
            assert_eq!(Reader::new(&buffer[..written]).varint(), Some(value));
            assert!(written < len || buffer[..len] == bytes[..len], "the shortest form is unique");
        }
    }
}

/// All first bytes of a packet, as a table of the wire format says.
#[test]
fn all_first_bytes_of_headers_are_classified() {
    for first in 0..=u8::MAX {
        let mut short = [7; SHORT_OVERHEAD];
        short[0] = first;
        let kinds =
            [PacketKind::Control, PacketKind::Source, PacketKind::Repair, PacketKind::Recoded];
        let is_long = first >= 0x80;
        let is_reserved = first & 0x10 != 0;
        let expected = (!is_long && !is_reserved).then_some(ShortHeader {
            kind: kinds[usize::from(first >> 1 & 3)],
            relayed: first & 8 != 0,
            key_phase: first & 1 != 0,
            destination: [7; 4],
            packet_number: 0x0707_0707,
        });
        assert_eq!(ShortHeader::decode(&short), expected, "{first:#x}");
        assert_eq!(short_header::destination(&short), (!is_long).then_some([7; 4]), "{first:#x}");

        // Connection IDs of one byte each, no token, a length of 20, and 20 bytes.
        let mut long = vec![first];
        long.extend(VERSION.to_be_bytes());
        long.extend([1, 8, 1, 9]);
        let kind = [LongKind::Initial, LongKind::Handshake, LongKind::Retry, LongKind::Early]
            [usize::from(first >> 4 & 3)];
        if kind == LongKind::Initial {
            long.extend([0, 0]);
        }
        long.extend([0, 20]);
        long.resize(long.len() + 20, 0);
        let header = long_header::decode(&long);
        assert_eq!(header.is_some(), is_long, "{first:#x}");
        if let Some(header) = header {
            assert_eq!((header.kind, header.version), (kind, VERSION));
            assert_eq!((header.destination, header.source), (&[8][..], &[9][..]));
            assert_eq!(header.packet_len, long.len());
        }
    }
}
