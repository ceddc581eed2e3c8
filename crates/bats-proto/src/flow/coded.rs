//! A packet that holds a combination, as the decoder takes it.

use bats_code::BATCH_SIZE;
use bats_code::recode::CoefficientVector;
use bats_code::stream::{Columns, Window};

use super::FlowError;
use crate::wire::coding::{CodingHeader, expand};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// A combination of the symbols of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combination {
    pub(super) window: Window,
    /// Batch and column of a column of an R-batch, or of what relays made of such.
    pub(super) repair: Option<(u32, u8)>,
    made: Made,
}

#[derive(Clone, Copy, Debug)]
enum Made {
    Fresh,
    Recoded(CoefficientVector),
    /// Of the symbols of an S-batch; the window begins with the first that takes part.
    Explicit(CoefficientVector),
}

impl Combination {
    /// Reads the header of a packet that is no source packet; `seen_end` is where the next symbol
    /// is expected.
    pub(super) fn decode(
        kind: PacketKind,
        reader: &mut Reader<'_>,
        seen_end: u64,
    ) -> Result<Self, FlowError> {
        let header = CodingHeader::decode(kind, reader).ok_or(FlowError::Malformed)?;
        let (header, made) = match header {
            CodingHeader::Source(_) => return Err(FlowError::Malformed),
            CodingHeader::Repair(header) => (header, Made::Fresh),
            CodingHeader::RecodedRepair { header, vector } => (header, Made::Recoded(vector)),
            CodingHeader::RecodedSource { batch, vector } => {
                return Self::of_symbols(batch, &vector, seen_end).ok_or(FlowError::Malformed);
            }
        };
        let window = Window { first: header.first_symbol(seen_end), count: header.count };
        Ok(Self { window, repair: Some((header.batch, header.column)), made })
    }

    /// `None` if no symbol takes part. Only those that do count as seen: the others of a batch may
    /// not exist yet.
    fn of_symbols(batch: u32, vector: &CoefficientVector, seen_end: u64) -> Option<Self> {
        let from = vector.iter().position(|&x| x != 0)?;
        let to = vector.iter().rposition(|&x| x != 0)?;
        let number = expand(u64::from(batch), 24, seen_end / BATCH_SIZE as u64);
        let first = number.checked_mul(BATCH_SIZE as u64)?.checked_add(from as u64)?;
        let mut shifted = [0; BATCH_SIZE];
        shifted[..=to - from].copy_from_slice(&vector[from..=to]);
        let window = Window { first, count: (to - from + 1) as u16 };
        Some(Self { window, repair: None, made: Made::Explicit(shifted) })
    }

    /// What the decoder is told.
    pub(super) fn columns(&self) -> Columns<'_> {
        let (batch, column) = self.repair.unwrap_or_default();
        match &self.made {
            Made::Fresh => Columns::Fresh { batch, column },
            Made::Recoded(vector) => Columns::Recoded { batch, vector },
            Made::Explicit(vector) => {
                let count = usize::from(self.window.count).min(BATCH_SIZE);
                Columns::Explicit { coefficients: &vector[..count] }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::varint::Writer;

    #[test]
    fn only_symbols_that_take_part_count() {
        let mut vector = [0; BATCH_SIZE];
        vector[3..7].copy_from_slice(&[9, 0, 0, 5]);
        let header = CodingHeader::RecodedSource { batch: 2, vector };
        let mut bytes = [0; 20];
        header.encode(&mut Writer::new(&mut bytes)).unwrap();
        let seen = (1 << 28) + 40;
        let read =
            Combination::decode(PacketKind::Recoded, &mut Reader::new(&bytes), seen).unwrap();
        assert_eq!(read.window, Window { first: (1 << 28) + 35, count: 4 });
        assert_eq!(read.columns(), Columns::Explicit { coefficients: &[9, 0, 0, 5] });
        bytes[4..].fill(0);
        let none = Combination::decode(PacketKind::Recoded, &mut Reader::new(&bytes), seen);
        assert_eq!(none.unwrap_err(), FlowError::Malformed);
    }
}
