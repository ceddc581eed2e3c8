//! Batch size M, recoding field q, and the 4-byte form of the parameters (RFC 9426, sections 2.1.2
//! and 2.3.1).
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::fmt;

/// Largest M of the RFC's table.
pub const MAX_BATCH_SIZE: usize = 128;

/// Largest batch ID of the 4-byte form: 13 bits.
pub const MAX_SHORT_BATCH_ID: u32 = (1 << 13) - 1;

/// The field of the recoding coefficients; the outer code is always over GF(256).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// GF(2), q = 2: recoded packets are sums.
    Binary,
    /// GF(256), q = 256, with polynomial 0x11D.
    Byte,
}

impl Field {
    /// The number of elements, q.
    #[must_use]
    pub const fn order(self) -> u16 {
        match self {
            Self::Binary => 2,
            Self::Byte => 256,
        }
    }
}

/// The parameters of recoding: M and q, a pair of the RFC's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InnerCode {
    code: u8,
}

/// (M, q) for each value of the 3-bit field Mq.
const TABLE: [(u16, Field); 8] = [
    (16, Field::Binary),
    (4, Field::Byte),
    (32, Field::Binary),
    (8, Field::Byte),
    (64, Field::Binary),
    (16, Field::Byte),
    (128, Field::Binary),
    (32, Field::Byte),
];

impl InnerCode {
    /// The inner code of a batch size and field.
    ///
    /// # Errors
    /// [`ParameterError::BatchSize`]: M must be 16, 32, 64 or 128 for q = 2, and 4, 8, 16 or 32 for
    /// q = 256.
    pub fn new(batch_size: usize, field: Field) -> Result<Self, ParameterError> {
        let code = TABLE
            .iter()
            .position(|&(size, q)| usize::from(size) == batch_size && q == field)
            .ok_or(ParameterError::BatchSize)?;
        Ok(Self { code: code as u8 })
    }

    /// The inner code of a value of the field Mq, 0 to 7.
    ///
    /// # Errors
    /// [`ParameterError::BatchSize`]: Mq has 3 bits.
    pub fn from_mq(mq: u8) -> Result<Self, ParameterError> {
        if usize::from(mq) < TABLE.len() {
            Ok(Self { code: mq })
        } else {
            Err(ParameterError::BatchSize)
        }
    }

    /// All eight inner codes, in the order of Mq.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..TABLE.len() as u8).map(|code| Self { code })
    }

    /// The 3-bit value Mq.
    #[must_use]
    pub const fn mq(self) -> u8 {
        self.code
    }

    /// M: number of coded packets in a batch.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a code is below 8, as its constructors check")]
    pub const fn batch_size(self) -> usize {
        TABLE[self.code as usize].0 as usize
    }

    /// The field of the recoding coefficients.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a code is below 8, as its constructors check")]
    pub const fn field(self) -> Field {
        TABLE[self.code as usize].1
    }

    /// CO: length of a coefficient vector in bytes, ceil(M log2(q) / 8). It is 16 for M = 128, q =
    /// 2, where the RFC prints 6 (D4).
    #[must_use]
    pub const fn vector_len(self) -> usize {
        match self.field() {
            Field::Binary => self.batch_size().div_ceil(8),
            Field::Byte => self.batch_size(),
        }
    }

    /// Writes the coefficient vector of coded packet `column` as sent by the encoder: column
    /// `column` of the identity matrix. For q = 2 packet c is bit 7 - c mod 8 of byte floor(c/8)
    /// (D9: the RFC does not define the order of bits).
    pub(super) fn write_unit_vector(self, column: usize, vector: &mut [u8]) {
        vector.fill(0);
        let (at, byte) = match self.field() {
            Field::Binary => (column / 8, 0x80 >> (column % 8)),
            Field::Byte => (column, 1),
        };
        if let Some(first) = vector.get_mut(at) {
            *first = byte;
        }
    }

    /// Expands a coefficient vector to one byte for each of the M coefficients.
    pub(super) fn expand_vector(self, vector: &[u8], coefficients: &mut [u8]) {
        match self.field() {
            Field::Binary => {
                for (column, coefficient) in coefficients.iter_mut().enumerate() {
                    let byte = vector.get(column / 8).copied().unwrap_or_default();
                    *coefficient = u8::from(byte & 0x80 >> (column % 8) != 0);
                }
            }
            Field::Byte => coefficients.copy_from_slice(vector),
        }
    }
}

/// Invalid parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterError {
    /// M and q are not a pair of the RFC's table, or Mq has more than 3 bits.
    BatchSize,
    /// K is 0 or above 65,535.
    SourcePackets,
    /// The batch ID has more than 13 bits.
    BatchId,
    /// T is 0 or above [`MAX_PACKET_SIZE`](super::MAX_PACKET_SIZE).
    PacketSize,
    /// The degree distribution has no weight on a degree of at least 1, its weights add up to more
    /// than 32 bits, or a degree is above 65,535.
    Degrees,
    /// The encoded parameters are truncated, have excess bytes, or have an unknown form or flag.
    Encoding,
}

impl fmt::Display for ParameterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BatchSize => "RFC 9426 has no such pair of batch size and field",
            Self::SourcePackets => "the number of source packets is not 1 to 65535",
            Self::BatchId => "the batch ID has more than 13 bits",
            Self::PacketSize => "the size of a source packet is out of range",
            Self::Degrees => "the degree distribution is empty or its weights are too large",
            Self::Encoding => "the parameters are malformed",
        })
    }
}

impl core::error::Error for ParameterError {}

/// The packet header of 4 bytes in the example of RFC 9426, most significant bit first: K (16
/// bits), Mq (3), BID (13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketHeader {
    source_packets: u16,
    inner: InnerCode,
    batch_id: u16,
}

impl PacketHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// A header for K source packets and a batch ID.
    ///
    /// # Errors
    /// [`ParameterError::SourcePackets`], [`ParameterError::BatchId`]. The 13 bits of the batch ID
    /// are too few for K near 65,535 with M = 4 (D7).
    pub fn new(
        source_packets: u32,
        inner: InnerCode,
        batch_id: u32,
    ) -> Result<Self, ParameterError> {
        let source_packets =
            u16::try_from(source_packets).map_err(|_| ParameterError::SourcePackets)?;
        if source_packets == 0 {
            return Err(ParameterError::SourcePackets);
        }
        if batch_id > MAX_SHORT_BATCH_ID {
            return Err(ParameterError::BatchId);
        }
        Ok(Self { source_packets, inner, batch_id: batch_id as u16 })
    }

    /// Parses the header.
    ///
    /// # Errors
    /// [`ParameterError::SourcePackets`]: K is 0. All other values of 4 bytes are valid.
    pub fn parse(bytes: [u8; Self::LEN]) -> Result<Self, ParameterError> {
        let word = u32::from_be_bytes(bytes);
        let inner = InnerCode::from_mq((word >> 13 & 7) as u8)?;
        Self::new(word >> 16, inner, word & MAX_SHORT_BATCH_ID)
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let word = u32::from(self.source_packets) << 16
            | u32::from(self.inner.mq()) << 13
            | u32::from(self.batch_id);
        word.to_be_bytes()
    }

    /// K, 1 to 65,535.
    #[must_use]
    pub fn source_packets(&self) -> u32 {
        self.source_packets.into()
    }

    /// M and q.
    #[must_use]
    pub fn inner_code(&self) -> InnerCode {
        self.inner
    }

    /// The batch ID, 0 to 8191.
    #[must_use]
    pub fn batch_id(&self) -> u32 {
        self.batch_id.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_codes_match_the_table_of_the_rfc() {
        let rows = [
            (0, 16, 2, 2),
            (1, 4, 256, 4),
            (2, 32, 2, 4),
            (3, 8, 256, 8),
            (4, 64, 2, 8),
            (5, 16, 256, 16),
            (6, 128, 2, 16),
            (7, 32, 256, 32),
        ];
        for (inner, (mq, m, q, co)) in InnerCode::all().zip(rows) {
            assert_eq!(inner.mq(), mq);
            assert_eq!(inner.batch_size(), m);
            assert_eq!(inner.field().order(), q);
            assert_eq!(inner.vector_len(), co);
            assert_eq!(InnerCode::new(m, inner.field()), Ok(inner));
        }
        assert_eq!(InnerCode::new(4, Field::Binary), Err(ParameterError::BatchSize));
        assert_eq!(InnerCode::new(64, Field::Byte), Err(ParameterError::BatchSize));
        assert_eq!(InnerCode::from_mq(8), Err(ParameterError::BatchSize));
    }

    #[test]
    fn header_matches_golden_bytes() {
        let inner = InnerCode::new(32, Field::Byte).unwrap();
        let header = PacketHeader::new(0x1234, inner, 0x0abc).unwrap();
        assert_eq!(header.to_bytes(), [0x12, 0x34, 0xea, 0xbc]);
    }

    #[test]
    fn headers_survive_a_round_trip_and_invalid_fields_are_errors() {
        for inner in InnerCode::all() {
            for (k, bid) in [(1, 0), (128, 77), (65_535, 8191)] {
                let header = PacketHeader::new(k, inner, bid).unwrap();
                assert_eq!(PacketHeader::parse(header.to_bytes()), Ok(header));
                assert_eq!((header.source_packets(), header.batch_id()), (k, bid));
            }
        }
        let inner = InnerCode::from_mq(0).unwrap();
        assert_eq!(PacketHeader::parse([0, 0, 1, 1]), Err(ParameterError::SourcePackets));
        assert_eq!(PacketHeader::new(0, inner, 0), Err(ParameterError::SourcePackets));
        assert_eq!(PacketHeader::new(65_536, inner, 0), Err(ParameterError::SourcePackets));
        assert_eq!(PacketHeader::new(1, inner, 8192), Err(ParameterError::BatchId));
    }

    #[test]
    fn binary_vectors_are_most_significant_bit_first() {
        let inner = InnerCode::new(16, Field::Binary).unwrap();
        let mut vector = [0xff; 2];
        inner.write_unit_vector(9, &mut vector);
        assert_eq!(vector, [0, 0x40]);
        let mut coefficients = [7; 16];
        inner.expand_vector(&[0x80, 0x01], &mut coefficients);
        let mut expected = [0; 16];
        expected[0] = 1;
        expected[15] = 1;
        assert_eq!(coefficients, expected);
    }

    #[test]
    fn error_messages_name_the_invalid_argument() {
        for (error, words) in [
            (ParameterError::BatchSize, "batch size and field"),
            (ParameterError::SourcePackets, "number of source packets"),
            (ParameterError::BatchId, "batch ID"),
            (ParameterError::PacketSize, "size of a source packet"),
            (ParameterError::Degrees, "degree distribution"),
            (ParameterError::Encoding, "malformed"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
