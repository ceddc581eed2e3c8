//! A packet with a coded symbol in the form that the decoder takes.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bats_code::BATCH_SIZE;
use bats_code::recode::CoefficientVector;
use bats_code::stream::{Columns, Window};

use super::FlowError;
use crate::wire::coding::{CodingHeader, expand};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// The header of a coded packet: a linear combination of the symbols of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodedPacket {
    pub(super) window: Window,
    /// Batch and column, for packets of R-batches, recoded or not.
    pub(super) repair: Option<(u32, u8)>,
    coefficients: Coefficients,
}

#[derive(Clone, Copy, Debug)]
enum Coefficients {
    Fresh,
    Recoded(CoefficientVector),
    /// Coefficients of S-batch symbols. The window begins with the first non-zero one.
    Explicit(CoefficientVector),
}

impl CodedPacket {
    /// Reads the header of a packet that is not a source packet. `seen_end` is the number of the
    /// next expected symbol.
    pub(super) fn decode(
        kind: PacketKind,
        reader: &mut Reader<'_>,
        seen_end: u64,
    ) -> Result<Self, FlowError> {
        let header = CodingHeader::decode(kind, reader).ok_or(FlowError::Malformed)?;
        let (header, coefficients) = match header {
            CodingHeader::Source(_) => return Err(FlowError::Malformed),
            CodingHeader::Repair(header) => (header, Coefficients::Fresh),
            CodingHeader::RecodedRepair { header, vector } => {
                (header, Coefficients::Recoded(vector))
            }
            CodingHeader::RecodedSource { batch, vector } => {
                return Self::of_symbols(batch, &vector, seen_end).ok_or(FlowError::Malformed);
            }
        };
        let window = Window { first: header.first_symbol(seen_end), count: header.count };
        Ok(Self { window, repair: Some((header.batch, header.column)), coefficients })
    }

    /// Returns `None` if all coefficients are 0. Only symbols with a non-zero coefficient count as
    /// seen, because the others of the batch may not exist yet.
    fn of_symbols(batch: u32, vector: &CoefficientVector, seen_end: u64) -> Option<Self> {
        const COLUMNS: u64 = BATCH_SIZE as u64;
        let from = vector.iter().position(|&x| x != 0)?;
        let to = vector.iter().rposition(|&x| x != 0)?;
        let number = expand(u64::from(batch), 24, seen_end / COLUMNS);
        let first = number.checked_mul(COLUMNS)?.checked_add(from as u64)?;
        let used = vector.get(from..=to)?;
        let mut shifted = [0; BATCH_SIZE];
        shifted.get_mut(..used.len())?.copy_from_slice(used);
        let window = Window { first, count: used.len() as u16 };
        Some(Self { window, repair: None, coefficients: Coefficients::Explicit(shifted) })
    }

    /// The coefficients in the decoder's form.
    pub(super) fn columns(&self) -> Columns<'_> {
        let (batch, column) = self.repair.unwrap_or_default();
        match &self.coefficients {
            Coefficients::Fresh => Columns::Fresh { batch, column },
            Coefficients::Recoded(vector) => Columns::Recoded { batch, vector },
            Coefficients::Explicit(vector) => {
                let used = vector.get(..usize::from(self.window.count));
                Columns::Explicit { coefficients: used.unwrap_or(vector) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::varint::Writer;

    #[test]
    fn only_symbols_with_nonzero_coefficients_count_as_seen() {
        let mut vector = [0; BATCH_SIZE];
        vector[3..7].copy_from_slice(&[9, 0, 0, 5]);
        let header = CodingHeader::RecodedSource { batch: 2, vector };
        let mut bytes = [0; 20];
        header.encode(&mut Writer::new(&mut bytes)).unwrap();
        let seen = (1 << 28) + 40;
        let read =
            CodedPacket::decode(PacketKind::Recoded, &mut Reader::new(&bytes), seen).unwrap();
        assert_eq!(read.window, Window { first: (1 << 28) + 35, count: 4 });
        assert_eq!(read.columns(), Columns::Explicit { coefficients: &[9, 0, 0, 5] });
        bytes[4..].fill(0);
        let none = CodedPacket::decode(PacketKind::Recoded, &mut Reader::new(&bytes), seen);
        assert_eq!(none.unwrap_err(), FlowError::Malformed);
    }
}
