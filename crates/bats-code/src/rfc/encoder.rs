//! The outer encoder: computes the coded packets of any batch from the source packets of a block
//! (RFC 9426, section 2.2.1).

use alloc::vec::Vec;
use core::fmt;

use super::apply;
use super::batch::Batch;
use super::cache::BatchCache;
use super::matrix::Matrix;
use super::padding::{PaddingError, pad, source_packets};
use super::parameters::{Field, InnerCode};
use super::sampler::OuterCode;
use crate::kernel::{Kernel, Mode};

/// Invalid arguments of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeError {
    /// The block cannot be partitioned.
    Block(PaddingError),
    /// The block's number of source packets is not the K of the code.
    SourcePackets,
    /// A column index is M or more.
    Column,
    /// An output does not have CO + T bytes.
    OutputSize,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(error) => error.fmt(f),
            Self::SourcePackets => {
                f.write_str("the number of source packets is not the K of the code")
            }
            Self::Column => f.write_str("a column index is M or more"),
            Self::OutputSize => f.write_str("the length of an output is not CO + T"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// The encoder of one block. It holds a copy of the data, K rows of T bytes rounded up to a
/// multiple of 64, and the check packets of a precode.
#[derive(Debug)]
pub struct Encoder {
    kernel: Kernel,
    cache: BatchCache,
    packet_size: usize,
    /// The intermediate packets. Without a precode these are the source packets.
    packets: Matrix,
}

impl Encoder {
    /// An encoder for `data` in source packets of `packet_size` (T) bytes, with the code of the
    /// cache. Its K must be [`source_packets`]`(data.len(), packet_size)`.
    ///
    /// # Errors
    /// [`EncodeError::Block`], [`EncodeError::SourcePackets`].
    pub fn new(cache: BatchCache, data: &[u8], packet_size: usize) -> Result<Self, EncodeError> {
        Self::with_kernel(cache, data, packet_size, Kernel::active())
    }

    /// As [`Encoder::new`], with a kernel of the caller's choice.
    ///
    /// # Errors
    /// As [`Encoder::new`].
    pub fn with_kernel(
        mut cache: BatchCache,
        data: &[u8],
        packet_size: usize,
        kernel: Kernel,
    ) -> Result<Self, EncodeError> {
        let count = source_packets(data.len() as u64, packet_size).map_err(EncodeError::Block)?;
        let code = cache.code();
        if count != code.source_packets() {
            return Err(EncodeError::SourcePackets);
        }
        let mut packets = Matrix::zeroed(code.intermediate_packets() as usize, packet_size);
        for source in 0..count as usize {
            let position = code.precode().map_or(source, |p| p.position(source as u32) as usize);
            let row = &mut packets.row_mut(position)[..packet_size];
            let content = &data[(source * packet_size).min(data.len())..];
            let content = &content[..content.len().min(packet_size)];
            row[..content.len()].copy_from_slice(content);
            // Only the last packet has padding, and it always has some (D1, N1).
            pad(&mut row[content.len()..]);
        }
        let constraints = cache.constraints();
        add_checks(kernel, cache.code(), &constraints, &mut packets);
        Ok(Self { kernel, cache, packet_size, packets })
    }

    /// The code of the block.
    #[must_use]
    pub fn code(&self) -> &OuterCode {
        self.cache.code()
    }

    /// T, in bytes.
    #[must_use]
    pub fn packet_size(&self) -> usize {
        self.packet_size
    }

    /// TO = CO + T: bytes of a coded packet.
    #[must_use]
    pub fn coded_packet_len(&self) -> usize {
        self.code().inner_code().vector_len() + self.packet_size
    }

    /// Memory of the block's packets and the cached batches, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packets.bytes() + self.cache.bytes()
    }

    /// Exchanges the cache for another one, so that the encoders of several blocks use one after the other and hold none in
    /// between. Returns false, and changes nothing, if the other one is of another code.
    pub fn swap_cache(&mut self, cache: &mut BatchCache) -> bool {
        self.cache.swap(cache)
    }

    /// Returns the cache, for the next block.
    #[must_use]
    pub fn into_cache(self) -> BatchCache {
        self.cache
    }

    /// Encodes the packets `first`, `first + 1`, ... of a batch, one into each output of exactly
    /// [`Encoder::coded_packet_len`] bytes: the coefficient vector (column `first + i` of the
    /// identity matrix), then T bytes of data. All M packets in one call cost much less than M
    /// calls. Equal calls give equal packets. A block uses each batch ID once, from 0 on.
    ///
    /// # Errors
    /// [`EncodeError::Column`], [`EncodeError::OutputSize`]. On an error nothing is written.
    pub fn encode(
        &mut self,
        batch_id: u32,
        first: usize,
        outputs: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let inner = self.code().inner_code();
        if first.checked_add(outputs.len()).is_none_or(|end| end > inner.batch_size()) {
            return Err(EncodeError::Column);
        }
        let len = self.coded_packet_len();
        if outputs.iter().any(|output| output.len() != len) {
            return Err(EncodeError::OutputSize);
        }
        let batch = self.cache.batch_in_sequence(batch_id);
        let rows: Vec<&[u8]> =
            batch.indices().iter().map(|&index| self.packets.row(index as usize)).collect();
        let mut matrix = Vec::with_capacity(outputs.len() * rows.len());
        let mut targets: Vec<&mut [u8]> = Vec::with_capacity(outputs.len());
        for (column, output) in (first..).zip(outputs.iter_mut()) {
            matrix.extend_from_slice(batch.generator(column));
            let (vector, data) = output.split_at_mut(inner.vector_len());
            inner.write_unit_vector(column, vector);
            targets.push(data);
        }
        apply::product(self.kernel, Field::Byte, &matrix, &rows, &mut targets);
        Ok(())
    }

    /// M and q, for recoders.
    #[must_use]
    pub fn inner_code(&self) -> InnerCode {
        self.code().inner_code()
    }
}

/// Computes the check packets of a precode from the source packets.
fn add_checks(kernel: Kernel, code: &OuterCode, constraints: &[Batch], packets: &mut Matrix) {
    let Some(precode) = code.precode() else { return };
    let source: alloc::collections::BTreeSet<u32> =
        (0..code.source_packets()).map(|source| precode.position(source)).collect();
    let len = packets.stride();
    let mut checks = (0..code.intermediate_packets()).filter(|index| !source.contains(index));
    for constraint in constraints {
        let equations = constraint.generator_rows();
        let own: Vec<u32> = checks.by_ref().take(equations.row_count()).collect();
        let mut sums = Matrix::zeroed(own.len(), len);
        {
            // The check packets themselves are still zero.
            let rows: Vec<&[u8]> =
                constraint.indices().iter().map(|&i| packets.row(i as usize)).collect();
            let matrix: Vec<u8> =
                (0..own.len()).flat_map(|c| constraint.generator(c)).copied().collect();
            let (_, targets) = sums.split_mut(0);
            let mut targets: Vec<&mut [u8]> = targets.collect();
            kernel.product(&matrix, &rows, &mut targets, len, Mode::Overwrite);
        }
        for (&index, sum) in own.iter().zip(sums.iter()) {
            packets.row_mut(index as usize).copy_from_slice(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::gf256;
    use crate::rfc::{DegreeDistribution, Field};

    fn encoder(data: &[u8], t: usize, degree: u32, inner: InnerCode) -> Encoder {
        let k = source_packets(data.len() as u64, t).unwrap();
        let degrees = DegreeDistribution::from_pairs([(degree, 1)]).unwrap();
        let code = OuterCode::new(k, inner, degrees).unwrap();
        Encoder::new(BatchCache::new(code, 1 << 20), data, t).unwrap()
    }

    #[test]
    fn batch_matches_golden_vectors() {
        // b[i] = 16i, 16i+1, 16i+2, 16i+3 for K = 4. The last packet has no padding, so that the
        // rows are set directly.
        let inner = InnerCode::new(4, Field::Byte).unwrap();
        let mut encoder = encoder(&[0; 15], 4, 2, inner);
        for i in 0..4u8 {
            encoder.packets.row_mut(i.into())[..4].copy_from_slice(&[
                16 * i,
                16 * i + 1,
                16 * i + 2,
                16 * i + 3,
            ]);
        }
        let batch = encoder.code().batch(3);
        assert_eq!(batch.indices(), [1, 2]);
        let column = |c| [batch.generator(c)[0], batch.generator(c)[1]];
        assert_eq!([0, 1, 2, 3].map(column), [[188, 138], [3, 228], [89, 236], [45, 206]]);
        let mut packets = [[9; 8]; 4];
        let mut outputs: Vec<&mut [u8]> = packets.iter_mut().map(|p| &mut p[..]).collect();
        encoder.encode(3, 0, &mut outputs).unwrap();
        let data =
            [[159, 169, 243, 197], [225, 6, 50, 213], [53, 128, 66, 247], [18, 241, 201, 42]];
        for (c, (packet, data)) in packets.iter().zip(data).enumerate() {
            let mut vector = [0; 4];
            vector[c] = 1;
            assert_eq!(packet[..4], vector);
            assert_eq!(packet[4..], data);
        }
    }

    #[test]
    fn coded_packets_match_the_definition_for_every_inner_code() {
        let data: Vec<u8> = (0..700u32).map(|x| (x * x / 8) as u8).collect();
        for inner in InnerCode::all() {
            let t = 101;
            let mut encoder = encoder(&data, t, 5, inner);
            let batch = encoder.code().batch(9);
            let (m, co) = (inner.batch_size(), inner.vector_len());
            let mut packets = vec![vec![0; co + t]; m - 1];
            let mut outputs: Vec<&mut [u8]> = packets.iter_mut().map(Vec::as_mut_slice).collect();
            encoder.encode(9, 1, &mut outputs).unwrap();
            for (column, packet) in (1..).zip(&packets) {
                let mut vector = vec![0; co];
                inner.write_unit_vector(column, &mut vector);
                assert_eq!(packet[..co], vector);
                for x in 0..t {
                    let sum = batch.indices().iter().zip(batch.generator(column)).fold(
                        0,
                        |sum, (&i, &factor)| {
                            let byte = encoder.packets.row(i as usize)[x];
                            sum ^ gf256::mul(factor, byte)
                        },
                    );
                    assert_eq!(packet[co + x], sum);
                }
            }
        }
    }

    #[test]
    fn check_packets_satisfy_the_constraints() {
        let inner = InnerCode::new(8, Field::Byte).unwrap();
        let data: Vec<u8> = (0..2999u32).map(|x| (x * 7 + x / 64) as u8).collect();
        let degrees = DegreeDistribution::recommended(inner, 300, true);
        let code = OuterCode::new(300, inner, degrees).unwrap().with_precode();
        let constraints = code.precode().unwrap().constraints();
        let encoder = Encoder::new(BatchCache::new(code, 0), &data, 10).unwrap();
        for constraint in constraints {
            for c in 0..constraint.generator_rows().row_count() {
                for x in 0..10 {
                    let terms = constraint.indices().iter().zip(constraint.generator(c));
                    let sum = terms.fold(0, |sum, (&i, &factor)| {
                        sum ^ gf256::mul(factor, encoder.packets.row(i as usize)[x])
                    });
                    assert_eq!(sum, 0);
                }
            }
        }
        assert!((0..309).any(|i| encoder.packets.row(300 + i)[0] != 0));
    }

    #[test]
    fn invalid_arguments_are_errors() {
        let inner = InnerCode::new(4, Field::Byte).unwrap();
        let mut encoder = encoder(&[1; 15], 4, 2, inner);
        let mut packets = [[0; 8]; 5];
        let mut outputs: Vec<&mut [u8]> = packets.iter_mut().map(|p| &mut p[..]).collect();
        assert_eq!(encoder.encode(0, 0, &mut outputs), Err(EncodeError::Column));
        assert_eq!(encoder.encode(0, 1, &mut outputs[..4]), Err(EncodeError::Column));
        assert_eq!(encoder.encode(0, usize::MAX, &mut outputs[..1]), Err(EncodeError::Column));
        assert_eq!(encoder.encode(0, 3, &mut outputs[..1]), Ok(()));
        assert_eq!(encoder.encode(0, 4, &mut []), Ok(()));
        assert_eq!(encoder.encode(0, 0, &mut [&mut [0; 7]]), Err(EncodeError::OutputSize));
        let cache = encoder.into_cache();
        let other = Encoder::new(cache.clone(), &[1; 16], 4);
        assert_eq!(other.err(), Some(EncodeError::SourcePackets));
        let other = Encoder::new(cache, &[1; 16], 0);
        assert_eq!(other.err(), Some(EncodeError::Block(PaddingError::PacketSize)));
    }

    #[test]
    fn encoder_holds_padded_packets_and_cached_batches() {
        for inner in InnerCode::all() {
            let mut encoder = encoder(&[1; 700], 101, 5, inner);
            assert_eq!(encoder.packet_size(), 101);
            assert_eq!(encoder.coded_packet_len(), inner.vector_len() + 101);
            let packets = 7 * 128 + 63;
            assert_eq!(encoder.bytes(), packets);
            let mut packet = vec![0; encoder.coded_packet_len()];
            encoder.encode(9, 1, &mut [&mut packet]).unwrap();
            // The next three are computed with it.
            let batches = (9..13).map(|id| encoder.code().batch(id).bytes()).sum::<usize>();
            assert_eq!(encoder.bytes(), packets + batches);
            assert_eq!(encoder.into_cache().bytes(), batches);
        }
    }

    #[test]
    fn error_messages_name_the_invalid_argument() {
        for (error, words) in [
            (EncodeError::Block(PaddingError::TooLong), "65535"),
            (EncodeError::SourcePackets, "number of source packets"),
            (EncodeError::Column, "column"),
            (EncodeError::OutputSize, "output"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
