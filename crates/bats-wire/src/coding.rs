//! The coding header: the fields of a coded packet that a relay needs.
//!
//! ```text
//! Source (S-batch):   | BID, 3 bytes | index, 1 | symbol ...
//!
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                      BID                      |    column     |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |        first symbol of the window, low 32 bits                |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |      symbols of the window    |   column of the R-batch ...
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The second diagram is a repair packet (R-batch). A recoded packet has a 16-byte coefficient
//! vector before its payload. For an R-batch the column is 0 and the vector follows the window. For
//! an S-batch the column is 1, there is no window, and the vector follows these four bytes.
//!
//! BID is the batch ID of RFC 9426, here 24 bits. An S-batch consists of 16 consecutive symbols, so
//! the symbol number of a source packet is `BID * 16 + index`. R-batches have their own BID space.
//! A receiver expands truncated numbers to the value nearest to the one it expects. The payload
//! ends with the packet; a sender may omit zeros at the end of a symbol.

use super::short_header::PacketKind;
use super::varint::{Reader, Writer};

/// Packets of a batch (M of RFC 9426, section 2.2), which the headers and the coefficient vectors
/// depend on.
pub const BATCH_SIZE: usize = 16;
/// Bytes before the symbol of a source packet.
pub const SOURCE_HEADER_LEN: usize = 4;
/// Bytes before the payload of a repair packet.
pub const REPAIR_HEADER_LEN: usize = 10;
/// Maximum number of header bytes before the payload of a coded packet: that of a recoded one.
pub const MAX_CODING_HEADER_LEN: usize = REPAIR_HEADER_LEN + BATCH_SIZE;
const BID_BITS: u32 = 24;
/// Symbols of an S-batch, columns of an R-batch.
const COLUMNS: u32 = BATCH_SIZE as u32;

/// Value in place of the column in a recoded packet of an S-batch.
const RECODED_SOURCE: u8 = 1;

/// The coding header of any coded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingHeader {
    /// A source symbol.
    Source(SourceHeader),
    /// A column of an R-batch.
    Repair(RepairHeader),
    /// A linear combination of the symbols of an S-batch.
    RecodedSource {
        /// BID, 24 bits.
        batch: u32,
        /// Coefficients of the symbols.
        vector: [u8; BATCH_SIZE],
    },
    /// A linear combination of the columns of an R-batch.
    RecodedRepair {
        /// Batch and window; the column is 0.
        header: RepairHeader,
        /// Coefficients of the columns.
        vector: [u8; BATCH_SIZE],
    },
}

impl CodingHeader {
    /// Reads the header of a packet of kind `kind`. Returns `None` if it is truncated or invalid.
    #[inline]
    pub fn decode(kind: PacketKind, reader: &mut Reader<'_>) -> Option<Self> {
        match kind {
            PacketKind::Control => None,
            PacketKind::Source => SourceHeader::decode(reader).map(Self::Source),
            PacketKind::Repair => RepairHeader::decode(reader).map(Self::Repair),
            PacketKind::Recoded => {
                let (batch, column) = split(reader.u32()?);
                match column {
                    0 => {
                        let (first, count) = (reader.u32()?, reader.u16()?);
                        let header = RepairHeader { batch, column, first, count };
                        Some(Self::RecodedRepair { header, vector: reader.array()? })
                    }
                    RECODED_SOURCE => Some(Self::RecodedSource { batch, vector: reader.array()? }),
                    _ => None,
                }
            }
        }
    }

    /// Writes the header.
    #[inline]
    pub fn encode(&self, writer: &mut Writer<'_>) -> Option<()> {
        match self {
            Self::Source(header) => header.encode(writer),
            Self::Repair(header) => header.encode(writer),
            Self::RecodedSource { batch, vector } => {
                writer.bytes(&batch.to_be_bytes()[1..])?;
                writer.u8(RECODED_SOURCE)?;
                writer.bytes(vector)
            }
            Self::RecodedRepair { header, vector } => {
                header.encode(writer)?;
                writer.bytes(vector)
            }
        }
    }

    /// The kind of a packet with this header.
    #[inline]
    pub fn kind(&self) -> PacketKind {
        match self {
            Self::Source(_) => PacketKind::Source,
            Self::Repair(_) => PacketKind::Repair,
            Self::RecodedSource { .. } | Self::RecodedRepair { .. } => PacketKind::Recoded,
        }
    }
}

/// Header of a source packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceHeader {
    /// Symbol number, low 28 bits.
    pub symbol: u32,
}

impl SourceHeader {
    /// The header of a symbol.
    #[inline]
    pub fn new(number: u64) -> Self {
        Self { symbol: (number & 0x0fff_ffff) as u32 }
    }

    /// Writes BID and index.
    #[inline]
    pub fn encode(self, writer: &mut Writer<'_>) -> Option<()> {
        let bid = self.symbol / COLUMNS;
        writer.bytes(&bid.to_be_bytes()[1..])?;
        writer.u8((self.symbol % COLUMNS) as u8)
    }

    /// Reads BID and index. Returns `None` if truncated or if the index exceeds the batch.
    #[inline]
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let (bid, index) = split(reader.u32()?);
        (usize::from(index) < BATCH_SIZE)
            .then_some(Self { symbol: bid.wrapping_mul(COLUMNS) | u32::from(index) })
    }

    /// The full symbol number nearest to `expected`.
    #[inline]
    pub fn number(self, expected: u64) -> u64 {
        expand(u64::from(self.symbol), BID_BITS + 4, expected)
    }
}

/// Header of a repair packet, recoded or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairHeader {
    /// Batch ID, 24 bits.
    pub batch: u32,
    /// Column of the batch, 0 to 15; 0 in recoded packets.
    pub column: u8,
    /// First symbol of the window, low 32 bits.
    pub first: u32,
    /// Number of symbols in the window.
    pub count: u16,
}

impl RepairHeader {
    /// Writes the header.
    #[inline]
    pub fn encode(self, writer: &mut Writer<'_>) -> Option<()> {
        writer.bytes(&self.batch.to_be_bytes()[1..])?;
        writer.u8(self.column)?;
        writer.u32(self.first)?;
        writer.u16(self.count)
    }

    /// Reads the header. Returns `None` if truncated or if the column exceeds the batch.
    #[inline]
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let (batch, column) = split(reader.u32()?);
        let header = Self { batch, column, first: reader.u32()?, count: reader.u16()? };
        (usize::from(column) < BATCH_SIZE).then_some(header)
    }

    /// The full number of the first symbol nearest to `expected`.
    #[inline]
    pub fn first_symbol(self, expected: u64) -> u64 {
        expand(u64::from(self.first), 32, expected)
    }
}

#[inline]
fn split(word: u32) -> (u32, u8) {
    (word >> 8, word as u8)
}

/// The non-negative value nearest to `expected` whose low `bits` bits are `truncated`.
#[inline]
pub fn expand(truncated: u64, bits: u32, expected: u64) -> u64 {
    let window = 1_u64 << bits;
    let candidate = (expected & !window.wrapping_sub(1)) | truncated;
    let nearer = if candidate.abs_diff(expected) <= window / 2 {
        None
    } else if candidate > expected {
        candidate.checked_sub(window)
    } else {
        candidate.checked_add(window)
    };
    nearer.unwrap_or(candidate)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let mut buffer = [0; 14];
        let mut writer = Writer::new(&mut buffer);
        SourceHeader::new(0x0a_bc_de_f3).encode(&mut writer).unwrap();
        RepairHeader { batch: 0x01_02_03, column: 9, first: 0x0a0b_0c0d, count: 256 }
            .encode(&mut writer)
            .unwrap();
        assert_eq!(buffer, [0xab, 0xcd, 0xef, 3, 1, 2, 3, 9, 0xa, 0xb, 0xc, 0xd, 1, 0]);
    }

    #[test]
    fn columns_above_the_batch_size_are_rejected() {
        assert_eq!(SourceHeader::decode(&mut Reader::new(&[0, 0, 0, 16])), None);
        assert_eq!(RepairHeader::decode(&mut Reader::new(&[0, 0, 0, 16, 0, 0, 0, 0, 0, 1])), None);
        assert_eq!(SourceHeader::decode(&mut Reader::new(&[0, 0, 0])), None);
    }

    #[test]
    fn recoded_headers_identify_the_batch_space() {
        let header = RepairHeader { batch: 0x01_02_03, column: 0, first: 9, count: 20 };
        let vector = core::array::from_fn(|i| i as u8);
        for (header, len) in [
            (CodingHeader::RecodedSource { batch: 0xff_fe_fd, vector }, 20),
            (CodingHeader::RecodedRepair { header, vector }, MAX_CODING_HEADER_LEN),
            (CodingHeader::Repair(RepairHeader { column: 15, ..header }), REPAIR_HEADER_LEN),
            (CodingHeader::Source(SourceHeader::new(77)), SOURCE_HEADER_LEN),
        ] {
            let mut bytes = [0; MAX_CODING_HEADER_LEN];
            let mut writer = Writer::new(&mut bytes);
            header.encode(&mut writer).unwrap();
            assert_eq!(writer.written(), len);
            let decode =
                |bytes: &[u8]| CodingHeader::decode(header.kind(), &mut Reader::new(bytes));
            assert_eq!(decode(&bytes[..len]), Some(header));
            assert_eq!(decode(&bytes[..len - 1]), None);
        }
        let unknown =
            [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(CodingHeader::decode(PacketKind::Recoded, &mut Reader::new(&unknown)), None);
        assert_eq!(CodingHeader::decode(PacketKind::Control, &mut Reader::new(&unknown)), None);
    }

    proptest! {
        #[test]
        fn truncated_numbers_expand_to_the_original(number in 0_u64..1 << 50, near in -100_000_000_i64..100_000_000) {
            let expected = number.saturating_add_signed(near);
            let mut buffer = [0; REPAIR_HEADER_LEN];
            SourceHeader::new(number).encode(&mut Writer::new(&mut buffer)).unwrap();
            let source = SourceHeader::decode(&mut Reader::new(&buffer)).unwrap();
            prop_assert_eq!(source.number(expected), number);
            let repair = RepairHeader { batch: 1, column: 2, first: number as u32, count: 3 };
            repair.encode(&mut Writer::new(&mut buffer)).unwrap();
            let read = RepairHeader::decode(&mut Reader::new(&buffer)).unwrap();
            prop_assert_eq!(read, repair);
            prop_assert_eq!(read.first_symbol(expected), number);
        }
    }

    /// The expected result is the nearest of three candidates with these low bits. Of two at equal
    /// distance it is the one in the same window.
    #[test]
    fn truncated_numbers_expand_to_the_nearest_candidate() {
        for bits in 1..=4 {
            let window = 1_u64 << bits;
            for (expected, truncated) in (0..=3 * window)
                .chain(u64::MAX - 3 * window..=u64::MAX)
                .flat_map(|expected| (0..window).map(move |truncated| (expected, truncated)))
            {
                let same = expected / window * window + truncated;
                let others = [same.checked_sub(window), same.checked_add(window)];
                let nearest =
                    others.into_iter().flatten().chain([same]).fold(same, |best, other| {
                        if other.abs_diff(expected) < best.abs_diff(expected) {
                            other
                        } else {
                            best
                        }
                    });
                assert_eq!(
                    expand(truncated, bits, expected),
                    nearest,
                    "{truncated}/{bits} {expected}"
                );
            }
        }
    }
}
