//! Coded packets in a relay: what it reads from their coding headers, and the headers that it writes.

use super::rate_limit::LimitGroup;
use bats_code::BATCH_SIZE;
use bats_code::recode::CoefficientVector;
use bats_wire::batch_rank::Space;
use bats_wire::coding::{CodingHeader, MAX_CODING_HEADER_LEN, RepairHeader, SourceHeader};
use bats_wire::short_header::PacketKind;
use bats_wire::varint::Writer;

/// A coded packet with its decoded header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coded<'a> {
    pub(super) space: Space,
    /// Full batch number.
    pub(super) batch: u64,
    /// First symbol and number of symbols of the window, for R-batches.
    pub(super) window: (u32, u16),
    pub(super) vector: CoefficientVector,
    pub(super) payload: &'a [u8],
    /// Number of links that the packet may still cross.
    pub(super) hop_limit: u8,
    /// The limit of the neighbour that it came from.
    pub(super) limit: Option<LimitGroup>,
}

pub(super) fn recoded_header(
    space: Space,
    id: u64,
    (first, count): (u32, u16),
    vector: CoefficientVector,
) -> CodingHeader {
    let batch = (id & 0x00ff_ffff) as u32;
    match space {
        Space::Source => CodingHeader::RecodedSource { batch, vector },
        Space::Repair => {
            let header = RepairHeader { batch, column: 0, first, count };
            CodingHeader::RecodedRepair { header, vector }
        }
    }
}

/// Appends the header of a packet with this vector, in the short form for packets of the source.
pub(super) fn write_header(
    space: Space,
    id: u64,
    window: (u32, u16),
    vector: &CoefficientVector,
    out: &mut Vec<u8>,
) -> Option<PacketKind> {
    let header = match unit_index(vector) {
        Some(index) => {
            let (batch, column) = ((id & 0x00ff_ffff) as u32, index as u8);
            match space {
                Space::Source => {
                    let symbol = batch * BATCH_SIZE as u32 + u32::from(column);
                    CodingHeader::Source(SourceHeader { symbol })
                }
                Space::Repair => {
                    let (first, count) = window;
                    CodingHeader::Repair(RepairHeader { batch, column, first, count })
                }
            }
        }
        None => recoded_header(space, id, window, *vector),
    };
    let start = out.len();
    out.resize(start + MAX_CODING_HEADER_LEN, 0);
    let mut writer = Writer::new(&mut out[start..]);
    header.encode(&mut writer)?;
    let written = writer.written();
    out.truncate(start + written);
    Some(header.kind())
}

/// The column of a unit vector; `None` for other vectors.
fn unit_index(vector: &CoefficientVector) -> Option<usize> {
    let index = vector.iter().position(|&x| x != 0)?;
    (vector[index] == 1 && vector[index + 1..].iter().all(|&x| x == 0)).then_some(index)
}
