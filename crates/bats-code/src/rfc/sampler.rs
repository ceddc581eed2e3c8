//! The outer code: computes the structure of a batch from its ID, which is degree, source packets
//! and generator matrix (RFC 9426, section 4.2, `BatchSampler`).

mod avx2;

use alloc::vec;
use alloc::vec::Vec;

use super::batch::Batch;
use super::degree::DegreeDistribution;
use super::matrix::Matrix;
use super::padding::MAX_SOURCE_PACKETS;
use super::parameters::{InnerCode, MAX_BATCH_SIZE, ParameterError};
use super::precode::Precode;
use super::tinymt32::{TinyMt32, TinyMt32Lanes};

/// Generators in lockstep: as many as the smallest vectors hold.
const LANES: usize = 4;

/// The parameters that determine the batches of a block: K, M, q, DD, and whether the precode is
/// used. Encoder and decoder must use the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterCode {
    source_packets: u32,
    inner: InnerCode,
    degrees: DegreeDistribution,
    precode: Option<Precode>,
}

impl OuterCode {
    /// A code for K source packets, without precode, as in the RFC.
    ///
    /// # Errors
    /// [`ParameterError::SourcePackets`]: K is not 1 to 65,535.
    pub fn new(
        source_packets: u32,
        inner: InnerCode,
        degrees: DegreeDistribution,
    ) -> Result<Self, ParameterError> {
        if source_packets == 0 || source_packets > MAX_SOURCE_PACKETS {
            return Err(ParameterError::SourcePackets);
        }
        Ok(Self { source_packets, inner, degrees, precode: None })
    }

    /// A code with [`DegreeDistribution::recommended`] and without precode.
    ///
    /// # Errors
    /// As [`OuterCode::new`].
    pub fn recommended(source_packets: u32, inner: InnerCode) -> Result<Self, ParameterError> {
        let degrees = DegreeDistribution::recommended(inner, source_packets, false);
        Self::new(source_packets, inner, degrees)
    }

    /// The same code with the precode of this crate. It is an extension that both ends must agree
    /// on (see [`Precode`]).
    #[must_use]
    pub fn with_precode(mut self) -> Self {
        self.precode = Some(Precode::new(self.source_packets, self.inner.batch_size()));
        self
    }

    /// K.
    #[must_use]
    pub fn source_packets(&self) -> u32 {
        self.source_packets
    }

    /// M and q.
    #[must_use]
    pub fn inner_code(&self) -> InnerCode {
        self.inner
    }

    /// DD.
    #[must_use]
    pub fn degrees(&self) -> &DegreeDistribution {
        &self.degrees
    }

    /// The precode, if it is used.
    #[must_use]
    pub fn precode(&self) -> Option<&Precode> {
        self.precode.as_ref()
    }

    /// Number of packets that batches combine: K, plus the check packets of a precode.
    #[must_use]
    pub fn intermediate_packets(&self) -> u32 {
        self.precode.as_ref().map_or(self.source_packets, Precode::intermediate_packets)
    }

    /// Number of packets that the degree distribution samples from.
    fn population(&self) -> u32 {
        self.precode.as_ref().map_or(self.source_packets, Precode::sampled_packets)
    }

    /// The degrees of batches with their weights; a degree may occur more than once.
    pub(super) fn degree_weights(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (population, extra) =
            (self.population(), self.precode.as_ref().map_or(0, Precode::extra_degree));
        self.degrees.pairs().map(move |(degree, weight)| (degree.min(population) + extra, weight))
    }

    /// The degree d of a batch. Costs about 30 ns.
    #[must_use]
    pub fn degree(&self, batch_id: u32) -> u32 {
        let degree = self.degrees.draw(&mut TinyMt32::new(batch_id), self.population());
        degree + self.precode.as_ref().map_or(0, Precode::extra_degree)
    }

    /// The structure of a batch. Costs at least (M + 1) d draws of the generator.
    #[must_use]
    pub fn batch(&self, batch_id: u32) -> Batch {
        let (indices, mut generator) = self.sample(batch_id);
        let mut columns = Matrix::zeroed(self.inner.batch_size(), indices.len());
        let stride = columns.stride();
        let bytes = columns.as_bytes_mut();
        for row in 0..indices.len() {
            for column in bytes[row..].iter_mut().step_by(stride) {
                *column = generator.next_u32() as u8;
            }
        }
        Batch { indices, generator: columns }
    }

    /// The structures of several batches, in the given order. Faster than single calls if batches of
    /// similar degree are next to each other.
    pub(super) fn batches(&self, batch_ids: &[u32]) -> Vec<Batch> {
        let mut batches = Vec::with_capacity(batch_ids.len());
        let mut rest = batch_ids;
        if avx2::is_supported() {
            while let Some((&group, others)) = rest.split_first_chunk() {
                batches.extend(avx2::batches(self, group));
                rest = others;
            }
        }
        while let Some((&group, others)) = rest.split_first_chunk::<LANES>() {
            batches.extend(self.lanes(group));
            rest = others;
        }
        batches.extend(rest.iter().map(|&batch_id| self.batch(batch_id)));
        batches
    }

    /// The structures of `N` batches, with their generators in lockstep.
    #[inline(always)]
    fn lanes<const N: usize>(&self, batch_ids: [u32; N]) -> [Batch; N] {
        let mut sampled = batch_ids.map(|batch_id| self.sample(batch_id));
        let generators = sampled.each_ref().map(|(_, generator)| generator.clone());
        let mut lanes = TinyMt32Lanes::new(&generators);
        let m = self.inner.batch_size();
        let mut batches = sampled.each_mut().map(|(indices, _)| {
            let generator = Matrix::zeroed(m, indices.len());
            Batch { indices: core::mem::take(indices), generator }
        });
        let mut draws = [[0u8; N]; MAX_BATCH_SIZE];
        let longest = batches.iter().map(Batch::degree).max().unwrap_or(0);
        for row in 0..longest {
            for bytes in &mut draws[..m] {
                *bytes = lanes.next().map(|draw| draw as u8);
            }
            for (lane, batch) in batches.iter_mut().enumerate() {
                if row < batch.indices.len() {
                    let stride = batch.generator.stride();
                    let columns = batch.generator.as_bytes_mut()[row..].iter_mut().step_by(stride);
                    columns.zip(&draws).for_each(|(column, bytes)| *column = bytes[lane]);
                }
            }
        }
        batches
    }

    /// The indices of a batch, and the generator positioned at the first coefficient.
    fn sample(&self, batch_id: u32) -> (Vec<u32>, TinyMt32) {
        let degree = self.degrees.draw(&mut TinyMt32::new(batch_id), self.population());
        // The RFC restarts the generator, so that degree and first index share a draw (D3).
        let mut generator = TinyMt32::new(batch_id);
        let mut indices = Vec::with_capacity(degree as usize);
        draw_distinct(&mut generator, degree, self.population(), 0, &mut indices);
        if let Some(precode) = &self.precode {
            let (first, count) = (precode.sampled_packets(), precode.inactive_packets());
            draw_distinct(&mut generator, precode.extra_degree(), count, first, &mut indices);
        }
        (indices, generator)
    }
}

/// Draws `count` distinct numbers below `bound` (at least `count`) and appends each plus `first`.
fn draw_distinct(
    generator: &mut TinyMt32,
    count: u32,
    bound: u32,
    first: u32,
    indices: &mut Vec<u32>,
) {
    let mut taken = vec![0u64; bound.div_ceil(64) as usize];
    for _ in 0..count {
        loop {
            let number = generator.below(bound);
            let (word, bit) = ((number / 64) as usize, 1u64 << (number % 64));
            if taken[word] & bit == 0 {
                taken[word] |= bit;
                indices.push(first + number);
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rfc::Field;

    fn code(k: u32, m: usize, degree: u32) -> OuterCode {
        let degrees = DegreeDistribution::from_pairs([(degree, 1)]).unwrap();
        let mut code =
            OuterCode::new(k, InnerCode::new(m.max(4), Field::Byte).unwrap(), degrees).unwrap();
        code.source_packets = k;
        code
    }

    #[test]
    fn batches_match_golden_vectors() {
        type Vector = (u32, u32, u32, usize, &'static [u32], &'static [&'static [u8]]);
        let vectors: [Vector; 4] = [
            (
                0,
                3,
                10,
                4,
                &[7, 4, 5],
                &[&[208, 176, 219, 77], &[72, 133, 163, 38], &[172, 186, 127, 138]],
            ),
            (
                1,
                4,
                16,
                4,
                &[5, 1, 0, 6],
                &[
                    &[54, 139, 168, 237],
                    &[211, 187, 62, 190],
                    &[104, 135, 210, 99],
                    &[176, 11, 207, 35],
                ],
            ),
            (
                7,
                2,
                128,
                8,
                &[28, 101],
                &[&[252, 179, 99, 36, 4, 247, 98, 40], &[2, 46, 27, 156, 102, 137, 172, 76]],
            ),
            (5, 8, 8, 4, &[2, 4, 0, 7, 5, 1, 3, 6], &[]),
        ];
        for (bid, d, k, m, indices, rows) in vectors {
            let code = code(k, m, d);
            let batch = code.batch(bid);
            assert_eq!(code.degree(bid), d);
            assert_eq!(batch.indices(), indices);
            for (r, row) in rows.iter().enumerate() {
                let drawn: Vec<u8> = (0..m).map(|c| batch.generator(c)[r]).collect();
                assert_eq!(&drawn, row, "batch {bid}, row {r}");
            }
        }
    }

    #[test]
    fn several_batches_at_once_match_single_batches() {
        let inner = InnerCode::new(32, Field::Byte).unwrap();
        for precode in [false, true] {
            let degrees = DegreeDistribution::recommended(inner, 700, precode);
            let code = OuterCode::new(700, inner, degrees).unwrap();
            let code = if precode { code.with_precode() } else { code };
            // 8, 4 and 1 at once, if the processor has AVX2; and any number of them.
            let ids = [0, 1, 77, u32::MAX, 5, 6, 2, 900, 65_536, 3, 8, 1_000_000, 4];
            for count in 0..=ids.len() {
                let batches = code.batches(&ids[..count]);
                assert_eq!(batches.len(), count);
                let wide = code.lanes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| ids[at]));
                for (together, &id) in
                    batches.iter().chain(&wide).zip(ids[..count].iter().chain(&ids))
                {
                    let alone = code.batch(id);
                    assert_eq!(together.indices, alone.indices);
                    assert!((0..32).all(|c| together.generator(c) == alone.generator(c)));
                }
            }
        }
    }

    #[test]
    fn degrees_above_k_count_as_k() {
        let batch = code(5, 4, 65_535).batch(3);
        let mut indices = batch.indices().to_vec();
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn source_packets_must_be_1_to_65535() {
        let inner = InnerCode::new(16, Field::Byte).unwrap();
        for k in [0, 65_536, u32::MAX] {
            assert_eq!(OuterCode::recommended(k, inner), Err(ParameterError::SourcePackets));
        }
        assert!(OuterCode::recommended(65_535, inner).is_ok());
    }
}
