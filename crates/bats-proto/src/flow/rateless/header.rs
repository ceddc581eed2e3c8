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
