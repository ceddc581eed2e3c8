//! Reading and writing of bytes and variable-length integers (RFC 9000, section 16).

/// Largest value of a variable-length integer.
pub const MAX_VARINT: u64 = (1 << 62) - 1;

/// Reads from the front of a slice. Every method returns `None` beyond the end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not yet read.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether all bytes were read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// Two bytes, most significant first.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.array()?))
    }

    /// Four bytes, most significant first.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.array()?))
    }

    /// A fixed number of bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (&bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(bytes)
    }

    /// Skips the bytes with this value at the front.
    pub fn skip_run(&mut self, byte: u8) {
        // Eight at a time: a peer may fill a packet with them.
        while let Some((eight, rest)) = self.rest.split_first_chunk()
            && *eight == [byte; 8]
        {
            self.rest = rest;
        }
        while let Some((&next, rest)) = self.rest.split_first()
            && next == byte
        {
            self.rest = rest;
        }
    }

    /// A variable-length integer.
    #[inline(always)]
    pub fn varint(&mut self) -> Option<u64> {
        let (&first, rest) = self.rest.split_first()?;
        if first < 0x40 {
            // Most are: a peer may fill a packet with them.
            self.rest = rest;
            return Some(u64::from(first));
        }
        self.long_varint(first)
    }

    /// A variable-length integer of two or more bytes, of which `first` is the next.
    fn long_varint(&mut self, first: u8) -> Option<u64> {
        let len = 1 << (first >> 6);
        if let Some((&eight, _)) = self.rest.split_first_chunk() {
            // Not byte by byte: a peer may fill a packet with them.
            let unused: u32 = 64_u32.saturating_sub(8 << (first >> 6));
            self.rest = self.rest.get(len..)?;
            return Some((u64::from_be_bytes(eight) & MAX_VARINT) >> unused);
        }
        let bytes = self.take(len)?;
        let value =
            bytes.iter().skip(1).fold(u64::from(first & 0x3f), |v, &o| v << 8 | u64::from(o));
        Some(value)
    }

    /// Skips variable-length integers.
    pub fn skip_varints(&mut self, mut count: usize) -> Option<()> {
        while count > 0 {
            // Eight at a time: a peer may fill a packet with them.
            if count >= 8
                && let Some((eight, rest)) = self.rest.split_first_chunk()
                && u64::from_ne_bytes(*eight) & 0xc0c0_c0c0_c0c0_c0c0 == 0
            {
                self.rest = rest;
                count = count.saturating_sub(8);
            } else {
                let first = self.rest.first()?;
                self.rest = self.rest.get(1 << (first >> 6)..)?;
                count = count.saturating_sub(1);
            }
        }
        Some(())
    }

    /// Skips variable-length integers and returns their sum, at most `u64::MAX`.
    pub fn sum_varints(&mut self, mut count: usize) -> Option<u64> {
        let mut sum = 0_u64;
        while count > 0 {
            // Eight at a time: a peer may fill a packet with them.
            if count >= 8
                && let Some((eight, rest)) = self.rest.split_first_chunk()
                && u64::from_ne_bytes(*eight) & 0xc0c0_c0c0_c0c0_c0c0 == 0
            {
                sum = sum.saturating_add(sum_of_bytes(u64::from_ne_bytes(*eight)));
                self.rest = rest;
                count = count.saturating_sub(8);
            } else {
                sum = sum.saturating_add(self.varint()?);
                count = count.saturating_sub(1);
            }
        }
        Some(sum)
    }

    /// The next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Takes all remaining bytes.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }
}

/// The sum of the eight bytes.
#[inline]
fn sum_of_bytes(bytes: u64) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    // Four sums of two bytes fit 16 bits each; the multiplication adds them in its highest 16 bits.
    let pairs = (bytes & EVEN).wrapping_add(bytes >> 8 & EVEN);
    pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48
}

/// Writes to a slice of fixed length. If a value does not fit, a method returns `None` and writes
/// nothing.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    written: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the front of `buffer`.
    #[inline]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, written: 0 }
    }

    /// Bytes written so far.
    #[inline]
    pub fn written(&self) -> usize {
        self.written
    }

    /// Bytes that still fit.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.buffer.len().saturating_sub(self.written)
    }

    /// Goes back to an earlier value of `written()`.
    #[inline]
    pub fn rewind(&mut self, written: usize) {
        self.written = self.written.min(written);
    }

    /// Some bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.written.checked_add(bytes.len())?;
        self.buffer.get_mut(self.written..end)?.copy_from_slice(bytes);
        self.written = end;
        Some(())
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, byte: u8) -> Option<()> {
        self.bytes(&[byte])
    }

    /// Two bytes, most significant first.
    #[inline]
    pub fn u16(&mut self, value: u16) -> Option<()> {
        self.bytes(&value.to_be_bytes())
    }

    /// Four bytes, most significant first.
    #[inline]
    pub fn u32(&mut self, value: u32) -> Option<()> {
        self.bytes(&value.to_be_bytes())
    }

    /// A variable-length integer in its shortest form. Returns `None` above [`MAX_VARINT`], too.
    #[inline]
    pub fn varint(&mut self, value: u64) -> Option<()> {
        match value {
            0..=0x3f => self.u8(value as u8),
            0x40..=0x3fff => self.u16(value as u16 | 0x4000),
            0x4000..=0x3fff_ffff => self.u32(value as u32 | 0x8000_0000),
            _ if value <= MAX_VARINT => self.bytes(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
            _ => None,
        }
    }
}

/// Length in bytes of `value` as a variable-length integer.
#[inline]
pub fn varint_len(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Also for bytes with many short integers, which are summed eight at a time.
        #[test]
        fn sums_agree_with_reading_one_by_one(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100), mask in any::<u8>(), count in 0_usize..60,
        ) {
            bytes.iter_mut().for_each(|byte| *byte &= mask);
            let [mut one_by_one, mut at_once, mut skipped] = [&bytes; 3].map(|bytes| Reader::new(bytes));
            let read: Option<Vec<u64>> = (0..count).map(|_| one_by_one.varint()).collect();
            let add = |sum: u64, value: &u64| sum.saturating_add(*value);
            let sum = read.as_ref().map(|read| read.iter().fold(0, add));
            prop_assert_eq!(at_once.sum_varints(count), sum);
            prop_assert_eq!(skipped.skip_varints(count).is_some(), read.is_some());
            if read.is_some() {
                prop_assert_eq!(at_once.remaining(), one_by_one.remaining());
                prop_assert_eq!(skipped.remaining(), one_by_one.remaining());
            }
        }
    }

    #[test]
    fn eight_largest_short_integers_are_summed() {
        assert_eq!(Reader::new(&[0x3f; 9]).sum_varints(9), Some(9 * 0x3f));
        // Sums above 64 bits stop there.
        let largest = [0xff; 8].repeat(5);
        assert_eq!(Reader::new(&largest).sum_varints(4), Some(4 * MAX_VARINT));
        assert_eq!(Reader::new(&largest).sum_varints(5), Some(u64::MAX));
        assert_eq!(Reader::new(&largest).sum_varints(6), None);
        assert_eq!(Reader::new(&largest).skip_varints(5), Some(()));
        assert_eq!(Reader::new(&largest).skip_varints(6), None);
    }

    #[test]
    fn eight_bytes_that_all_start_long_integers_are_not_eight_integers() {
        let bytes = [0xc0; 64];
        let [mut summed, mut skipped] = [&bytes; 2].map(|bytes| Reader::new(bytes));
        assert_eq!(summed.sum_varints(8), Some(8 * 0x00c0_c0c0_c0c0_c0c0));
        assert_eq!(skipped.skip_varints(8), Some(()));
        assert!(summed.is_empty() && skipped.is_empty());
    }

    /// The examples of RFC 9000, appendix A.1.
    #[test]
    fn rfc_9000_examples_decode_and_encode() {
        let cases: [(&[u8], u64); 4] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ];
        for (bytes, value) in cases {
            assert_eq!(Reader::new(bytes).varint(), Some(value));
            let mut buffer = [0; 8];
            let mut writer = Writer::new(&mut buffer);
            writer.varint(value).unwrap();
            assert_eq!(writer.written(), bytes.len());
            assert_eq!(&buffer[..bytes.len()], bytes);
        }
        assert_eq!(Reader::new(&[0x40, 0x25]).varint(), Some(37));
    }

    #[test]
    fn reads_and_writes_beyond_the_end_fail() {
        assert_eq!(Reader::new(&[0xc0, 0, 0]).varint(), None);
        assert_eq!(Reader::new(&[1]).u16(), None);
        let mut buffer = [7; 1];
        let mut writer = Writer::new(&mut buffer);
        assert_eq!(writer.varint(64), None);
        assert_eq!(writer.varint(MAX_VARINT + 1), None);
        assert_eq!((writer.written(), buffer[0]), (0, 7));
    }

    /// RFC 9000, section 16: the shortest form at the limits of each length.
    #[test]
    fn varint_lengths_change_at_rfc_9000_limits() {
        for (value, len) in [
            (0, 1),
            (0x3f, 1),
            (0x40, 2),
            (0x3fff, 2),
            (0x4000, 4),
            (0x3fff_ffff, 4),
            (0x4000_0000, 8),
            (MAX_VARINT, 8),
        ] {
            let mut buffer = [0; 8];
            let mut writer = Writer::new(&mut buffer);
            writer.varint(value).unwrap();
            assert_eq!((writer.written(), varint_len(value)), (len, len));
            assert_eq!(Reader::new(&buffer[..len]).varint(), Some(value));
            assert_eq!(Writer::new(&mut buffer[..len - 1]).varint(value), None);
        }
        assert_eq!(Writer::new(&mut [0; 9]).varint(MAX_VARINT + 1), None);
    }

    #[test]
    fn reader_and_writer_count_remaining_bytes() {
        let mut buffer = [0; 8];
        let mut writer = Writer::new(&mut buffer);
        writer.u16(0x0102).unwrap();
        writer.u32(0x0304_0506).unwrap();
        assert_eq!((writer.written(), writer.remaining()), (6, 2));
        writer.rewind(7);
        assert_eq!(writer.written(), 6, "never forwards");
        writer.rewind(5);
        writer.u8(9).unwrap();
        assert_eq!(buffer, [1, 2, 3, 4, 5, 9, 0, 0]);

        let mut reader = Reader::new(&buffer);
        assert_eq!((reader.u16(), reader.u32()), (Some(0x0102), Some(0x0304_0509)));
        assert_eq!((reader.remaining(), reader.is_empty()), (2, false));
        assert_eq!(reader.take(3), None);
        assert_eq!(reader.rest(), [0, 0]);
        assert_eq!((reader.remaining(), reader.is_empty(), reader.u8()), (0, true, None));
    }

    proptest! {
        #[test]
        fn reading_inverts_writing(value in 0..=MAX_VARINT) {
            let mut buffer = [0; 8];
            let mut writer = Writer::new(&mut buffer);
            writer.varint(value).unwrap();
            let written = writer.written();
            prop_assert_eq!(written, varint_len(value));
            prop_assert_eq!(Reader::new(&buffer[..written]).varint(), Some(value));
        }
    }
}
