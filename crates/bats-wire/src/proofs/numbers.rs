//! Variable-length integers, truncated numbers, and the reader and writer of bytes.

use crate::coding::{self, SourceHeader};
use crate::parameters::symbol_size_for;
use crate::short_header::SHORT_OVERHEAD;
use crate::varint::{MAX_VARINT, Reader, Writer, varint_len};

/// Distance of two numbers.
fn distance(a: u64, b: u64) -> u64 {
    a.max(b) - a.min(b)
}

/// `number`, shifted right so that small values are as frequent as large ones.
fn scaled(number: u64, shift: u8) -> u64 {
    number >> (shift % 64)
}

/// The expanded number has the truncated bits and is the nearest one, except at the ends of the
/// number range.
fn check_expansion(number: u64, bits: u32, expected: u64) {
    let window = 1_u64 << bits;
    let truncated = number % window;
    let expanded = coding::expand(truncated, bits, expected);
    assert_eq!(expanded % window, truncated);
    let is_near = distance(expanded, expected) <= window / 2;
    let at_start = expanded < window && expected < expanded;
    let at_end = expanded > u64::MAX - window && expected > expanded;
    assert!(is_near || at_start || at_end);
}

crate::harnesses! {
    varint_encodes_and_decodes unwind 9 (number: u64, shift: u8) {
        let value = scaled(number, shift);
        let mut buffer = [0; 8];
        let mut writer = Writer::new(&mut buffer);
        let is_written = writer.varint(value).is_some();
        let written = writer.written();
        assert_eq!(is_written, value <= MAX_VARINT);
        if is_written {
            assert_eq!(written, varint_len(value));
            let mut reader = Reader::new(&buffer[..written]);
            assert_eq!(reader.varint(), Some(value));
            assert!(reader.is_empty());
        } else {
            assert_eq!(written, 0);
        }
    }

    varint_decodes_any_bytes unwind 9 (bytes: [u8; 8], len: u8) {
        let len = usize::from(len) % 9;
        let mut reader = Reader::new(&bytes[..len]);
        let expected = if len == 0 { 9 } else { 1_usize << (bytes[0] >> 6) };
        match reader.varint() {
            Some(value) => {
                assert!(value <= MAX_VARINT && varint_len(value) <= expected);
                assert_eq!(reader.remaining(), len - expected);
            }
            None => {
                assert!(expected > len);
                assert_eq!(reader.remaining(), len, "nothing was read");
            }
        }
    }

    varint_length_is_monotonic unwind 1 (a: u64, b: u64, shift: u8) {
        let (a, b) = (scaled(a, shift), scaled(b, shift));
        assert!(a > b || varint_len(a) <= varint_len(b));
        assert!(matches!(varint_len(a), 1 | 2 | 4 | 8));
    }

    reader_never_reads_beyond_the_end unwind 9 (bytes: [u8; 8], len: u8, take: u16, kind: u8) {
        let len = usize::from(len) % 9;
        let mut reader = Reader::new(&bytes[..len]);
        let (is_read, size) = match kind % 5 {
            0 => (reader.u8().is_some(), 1),
            1 => (reader.u16().is_some(), 2),
            2 => (reader.u32().is_some(), 4),
            3 => (reader.array::<8>().is_some(), 8),
            _ => (reader.take(usize::from(take)).is_some(), usize::from(take)),
        };
        assert_eq!(is_read, size <= len);
        assert_eq!(reader.remaining(), if is_read { len - size } else { len });
    }

    reader_takes_bytes_in_order unwind 9 (bytes: [u8; 8], at: u8) {
        let at = usize::from(at) % 9;
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.take(at), Some(&bytes[..at]));
        assert_eq!(reader.rest(), &bytes[at..]);
        assert!(reader.is_empty() && reader.u8().is_none());
    }

    writer_writes_whole_values_or_nothing unwind 9 (room: u8, first: u16, second: u64, rewind: u8) {
        let mut buffer = [0xaa; 8];
        let room = usize::from(room) % 9;
        let mut writer = Writer::new(&mut buffer[..room]);
        let two = writer.u16(first).is_some();
        assert_eq!((two, writer.written()), (room >= 2, if room >= 2 { 2 } else { 0 }));
        let before = writer.written();
        let is_written = writer.varint(second).is_some();
        let expected = if is_written { varint_len(second) } else { 0 };
        assert_eq!(writer.written(), before + expected);
        assert_eq!(writer.remaining(), room - before - expected);
        let end = writer.written();
        writer.rewind(usize::from(rewind));
        assert_eq!(writer.written(), end.min(usize::from(rewind)));
        assert!(buffer[end..].iter().all(|&byte| byte == 0xaa));
    }

    symbol_numbers_expand_to_the_nearest unwind 1 (number: u64, expected: u64, shift: u8) {
        check_expansion(number, 28, scaled(expected, shift));
    }

    batch_numbers_expand_to_the_nearest unwind 1 (number: u64, expected: u64, shift: u8) {
        check_expansion(number, 24, scaled(expected, shift));
    }

    window_starts_expand_to_the_nearest unwind 1 (number: u64, expected: u64, shift: u8) {
        check_expansion(number, 32, scaled(expected, shift));
    }

    expansion_inverts_truncation unwind 1 (number: u64, ahead: u32, forwards: bool) {
        let number = number >> 2;
        let ahead = u64::from(ahead) >> 5;
        let expected = if forwards { number.saturating_sub(ahead) } else { number + ahead };
        assert_eq!(SourceHeader::new(number).number(expected), number);
    }

    symbols_fit_the_udp_payload unwind 1 (payload: u16) {
        let size = symbol_size_for(payload);
        assert!((64..=8_896).contains(&size));
        let packet = size + SHORT_OVERHEAD + coding::MAX_CODING_HEADER_LEN;
        assert!(packet <= usize::from(payload).max(64 + SHORT_OVERHEAD + coding::MAX_CODING_HEADER_LEN));
    }
}
