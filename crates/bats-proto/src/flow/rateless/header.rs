#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
use crate::flow::FlowError;
use crate::wire::coding::{MAX_CODING_HEADER_LEN, expand};
use crate::wire::varint::{Reader, Writer};

use super::BATCH;

/// Bytes before the data of a packet: this header and the coefficient vector.
pub const RATELESS_HEADER_LEN: usize = FIELDS_LEN + BATCH;
const FIELDS_LEN: usize = 15;

/// Size in bytes of a source packet for symbols of `symbol_size` bytes.
pub fn rateless_packet_size(symbol_size: usize) -> usize {
    symbol_size.saturating_sub(RATELESS_HEADER_LEN - MAX_CODING_HEADER_LEN).max(1)
}

/// Size in bytes of a coded packet of a relayed flow for symbols of this size. Relays put a
/// coefficient vector of their own before the one of RFC 9426.
pub(super) fn relayed_packet_size(symbol_size: usize) -> usize {
    symbol_size.saturating_sub(BATCH).max(1)
}

/// The fields before the coefficient vector of a packet of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatelessHeader {
    /// Sequence number of the packet in the flow, low 32 bits.
    pub sequence: u32,
    /// Number of the block, low 32 bits.
    pub block: u32,
    /// K: source packets of the block.
    pub source_packets: u16,
    /// T: bytes of a source packet.
    pub packet_size: u16,
    /// BID, 24 bits.
    pub batch: u32,
}

impl RatelessHeader {
    /// Writes the fields. Returns `None` if they do not fit.
    pub fn encode(self, writer: &mut Writer<'_>) -> Option<()> {
        writer.u32(self.sequence)?;
        writer.u32(self.block)?;
        writer.bytes(&self.source_packets.to_be_bytes())?;
        writer.bytes(&self.packet_size.to_be_bytes())?;
        writer.bytes(&self.batch.to_be_bytes()[1..])
    }

    /// Reads the fields.
    ///
    /// # Errors
    ///
    /// [`FlowError::Malformed`] if truncated, or K or T is 0.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, FlowError> {
        let header = (|| {
            let (sequence, block, sizes) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let [a, b, c] = reader.array()?;
            Some(Self {
                sequence,
                block,
                source_packets: (sizes >> 16) as u16,
                packet_size: sizes as u16,
                batch: u32::from_be_bytes([0, a, b, c]),
            })
        })();
        header
            .filter(|header| header.source_packets > 0 && header.packet_size > 0)
            .ok_or(FlowError::Malformed)
    }

    /// The full block number nearest to `expected`.
    pub fn block_number(self, expected: u64) -> u64 {
        expand(u64::from(self.block), 32, expected)
    }

    /// The full sequence number nearest to `expected`.
    pub fn sequence_number(self, expected: u64) -> u64 {
        expand(u64::from(self.sequence), 32, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of docs/spec/blocks.md.
    fn bytes(source_packets: [u8; 2], packet_size: [u8; 2]) -> Vec<u8> {
        let mut bytes = vec![0, 1, 2, 3, 4, 5, 6, 7];
        bytes.extend_from_slice(&source_packets);
        bytes.extend_from_slice(&packet_size);
        bytes.extend_from_slice(&[8, 9, 10]);
        bytes
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let header = RatelessHeader {
            sequence: 0x0001_0203,
            block: 0x0405_0607,
            source_packets: 0x0102,
            packet_size: 0x0304,
            batch: 0x0008_090a,
        };
        let expected = bytes([1, 2], [3, 4]);
        assert_eq!(RatelessHeader::decode(&mut Reader::new(&expected)), Ok(header));
        let mut written = [0; RATELESS_HEADER_LEN - BATCH];
        assert_eq!(header.encode(&mut Writer::new(&mut written)), Some(()));
        assert_eq!(written[..], expected[..]);
        assert_eq!(header.encode(&mut Writer::new(&mut written[1..])), None);
        let truncated = RatelessHeader::decode(&mut Reader::new(&expected[1..]));
        assert_eq!(truncated, Err(FlowError::Malformed));
    }

    #[test]
    fn blocks_without_packets_and_packets_without_bytes_are_malformed() {
        let decode = |bytes: &[u8]| RatelessHeader::decode(&mut Reader::new(bytes));
        assert!(decode(&bytes([0, 1], [0, 1])).is_ok());
        assert_eq!(decode(&bytes([0, 0], [0, 1])), Err(FlowError::Malformed));
        assert_eq!(decode(&bytes([0, 1], [0, 0])), Err(FlowError::Malformed));
    }

    #[test]
    fn numbers_are_the_nearest_to_the_expected_ones() {
        let header = RatelessHeader::decode(&mut Reader::new(&bytes([0, 1], [0, 1]))).unwrap();
        assert_eq!(header.block_number(5 << 32), (5 << 32) + 0x0405_0607);
        assert_eq!(header.sequence_number(7 << 32), (7 << 32) + 0x0001_0203);
    }

    /// A packet with all headers is as long as a symbol with the longest coding header.
    #[test]
    fn source_packets_leave_room_for_the_headers() {
        assert_eq!(rateless_packet_size(1_400), 1_400 + MAX_CODING_HEADER_LEN - 31);
        assert_eq!(relayed_packet_size(1_400), 1_384);
        assert_eq!((rateless_packet_size(2), relayed_packet_size(2)), (1, 1));
    }
}
