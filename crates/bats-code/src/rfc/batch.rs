//! The structure of a batch: the packets that it combines, and its generator matrix (RFC 9426,
//! section 4.2). The sampler draws it; the precode gives its equations the same form.

use alloc::vec::Vec;

use super::matrix::Matrix;

/// The structure of one batch: coded packet c is the sum over r of `generator(c)[r]` times packet
/// `indices()[r]`, over GF(256).
#[derive(Debug)]
pub struct Batch {
    pub(super) indices: Vec<u32>,
    /// Row c is column c of the RFC's matrix G: M rows of d coefficients.
    pub(super) generator: Matrix,
}

impl Batch {
    pub(super) fn from_parts(indices: Vec<u32>, generator: Matrix) -> Self {
        Self { indices, generator }
    }

    /// d, the number of packets that the batch combines.
    #[must_use]
    pub fn degree(&self) -> usize {
        self.indices.len()
    }

    /// The packets of the batch, in the order of the RFC: numbers of source packets (below K), or
    /// of intermediate packets with a precode.
    #[must_use]
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Column `column` (below M) of the generator matrix G: one coefficient for each index.
    ///
    /// # Panics
    /// `column` is M or more.
    #[must_use]
    pub fn generator(&self, column: usize) -> &[u8] {
        &self.generator.row(column)[..self.indices.len()]
    }

    pub(super) fn generator_rows(&self) -> &Matrix {
        &self.generator
    }

    /// Columns of the generator matrix: M, or the number of equations of a constraint.
    pub(crate) fn columns(&self) -> usize {
        self.generator.row_count()
    }

    /// Predicts [`Batch::bytes`] for a degree.
    pub(super) fn size(batch_size: usize, degree: usize) -> usize {
        Matrix::size(batch_size, degree) + 4 * degree
    }

    /// Memory of the batch, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.generator.bytes() + 4 * self.indices.len()
    }
}
