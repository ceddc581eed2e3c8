//! Gauss-Jordan elimination on coefficients over GF(256), with row operations as kernel products.
//! Payloads are not processed here.

use alloc::vec;
use alloc::vec::Vec;

use super::matrix::Matrix;
use super::parameters::MAX_BATCH_SIZE;
use crate::gf256;
use crate::kernel::{Kernel, Mode};

/// Brings the first `width` bytes of the rows of `block` to reduced row echelon form. The
/// operations also apply to the bytes after `width`. Rows keep their positions.
///
/// Returns the pivot column of each row. The row has 1 there; all other rows with a pivot have 0. A
/// row without a pivot depends linearly on earlier rows; its first `width` bytes are zero.
pub(super) fn eliminate(kernel: Kernel, block: &mut Matrix, width: usize) -> Vec<Option<u32>> {
    let (count, stride) = (block.row_count(), block.stride());
    let mut pivots: Vec<Option<u32>> = vec![None; count];
    let mut scratch = Matrix::zeroed(1, stride);
    let mut factors = Vec::with_capacity(count * GROUP);
    for first in (0..count).step_by(GROUP) {
        let group = first..count.min(first + GROUP);
        for index in group.clone() {
            let rows = &mut block.as_bytes_mut()[group.start * stride..group.end * stride];
            pivots[index] =
                eliminate_row(kernel, rows, stride, index - first, width, scratch.row_mut(0));
        }
        // Rows of the group have 0 in each other's pivots, so all factors are known in advance.
        let (before, rest) = block.as_bytes_mut().split_at_mut(first * stride);
        let (own, after) = rest.split_at_mut(group.len() * stride);
        let found = || pivots[group.clone()].iter();
        let mut rows: [&[u8]; GROUP] = Default::default();
        let own = own.chunks_exact(stride).zip(found()).filter(|(_, pivot)| pivot.is_some());
        let used = rows.iter_mut().zip(own).map(|(slot, (row, _))| *slot = row).count();
        let rows = &rows[..used];
        let mut targets: Vec<&mut [u8]> =
            before.chunks_exact_mut(stride).chain(after.chunks_exact_mut(stride)).collect();
        if !rows.is_empty() && !targets.is_empty() {
            factors.clear();
            for line in &targets {
                factors.extend(found().flatten().map(|&pivot| line[pivot as usize]));
            }
            kernel.product(&factors, rows, &mut targets, stride, Mode::Accumulate);
        }
    }
    pivots
}

/// Number of rows whose multiples are added to all others in one product.
const GROUP: usize = 8;

/// Finds the pivot of row `index` of a group, normalises the row, and eliminates the pivot from the
/// other rows of the group.
fn eliminate_row(
    kernel: Kernel,
    group: &mut [u8],
    stride: usize,
    index: usize,
    width: usize,
    scratch: &mut [u8],
) -> Option<u32> {
    let (before, rest) = group.split_at_mut(index * stride);
    let (row, after) = rest.split_at_mut(stride);
    let pivot = row[..width].iter().position(|&x| x != 0)?;
    if row[pivot] != 1 {
        let inverse = gf256::inv(row[pivot]);
        kernel.product(&[inverse], &[row], &mut [&mut *scratch], stride, Mode::Overwrite);
        row.copy_from_slice(scratch);
    }
    let mut factors = [0; GROUP];
    let mut targets: [&mut [u8]; GROUP] = Default::default();
    let mut count = 0;
    // Rows without a pivot are zero in the first `width` bytes, so that they are skipped.
    for line in before.chunks_exact_mut(stride).chain(after.chunks_exact_mut(stride)) {
        if line[pivot] != 0 {
            factors[count] = line[pivot];
            targets[count] = line;
            count += 1;
        }
    }
    if count > 0 {
        let targets = &mut targets[..count];
        kernel.product(&factors[..count], &[row], targets, stride, Mode::Accumulate);
    }
    Some(pivot as u32)
}

/// A vector space, stored as a basis in reduced row echelon form.
#[derive(Debug)]
pub(super) struct VectorSpace {
    width: usize,
    rows: Matrix,
    pivots: Vec<u32>,
    /// Whether all basis vectors are unit vectors.
    units: bool,
}

impl VectorSpace {
    /// The zero subspace of a space of `width` dimensions, at most [`MAX_BATCH_SIZE`].
    pub(super) fn new(width: usize) -> Self {
        // One row more, for the vector being reduced.
        let rows = Matrix::zeroed(width + 1, width);
        Self { width, rows, pivots: Vec::with_capacity(width), units: true }
    }

    pub(super) fn size(width: usize) -> usize {
        Matrix::size(width + 1, width) + 4 * width
    }

    pub(super) fn rank(&self) -> usize {
        self.pivots.len()
    }

    /// Whether the rank is equal to the dimension.
    pub(super) fn is_full(&self) -> bool {
        self.rank() == self.width
    }

    pub(super) fn clear(&mut self) {
        self.pivots.clear();
        self.units = true;
    }

    /// Adds a vector of `width` coefficients. Returns whether it raised the rank.
    pub(super) fn insert(&mut self, kernel: Kernel, vector: &[u8]) -> bool {
        let rank = self.rank();
        let stride = self.rows.stride();
        let (before, rest) = self.rows.as_bytes_mut().split_at_mut(rank * stride);
        let row = &mut rest[..stride];
        row[..self.width].copy_from_slice(vector);
        let mut factors = [0; MAX_BATCH_SIZE];
        let factors = &mut factors[..rank];
        for (factor, &pivot) in factors.iter_mut().zip(&self.pivots) {
            *factor = vector[pivot as usize];
        }
        // Fast path without allocations: unit vectors of packets that were not recoded.
        if factors.iter().any(|&factor| factor != 0) {
            let lines: Vec<&[u8]> = before.chunks_exact(stride).collect();
            kernel.product(factors, &lines, &mut [&mut *row], stride, Mode::Accumulate);
        }
        let Some(pivot) = row[..self.width].iter().position(|&x| x != 0) else { return false };
        if row[pivot] != 1 {
            let inverse = gf256::inv(row[pivot]);
            row.iter_mut().for_each(|x| *x = gf256::mul(inverse, *x));
        }
        if self.units {
            self.units = row[pivot + 1..self.width].iter().fold(0, |any, &x| any | x) == 0;
            if self.units {
                // All are unit vectors, so that no other row has a coefficient at this pivot.
                self.pivots.push(pivot as u32);
                return true;
            }
        }
        for (factor, line) in factors.iter_mut().zip(before.chunks_exact(stride)) {
            *factor = line[pivot];
        }
        if factors.iter().any(|&factor| factor != 0) {
            let mut lines: Vec<&mut [u8]> = before.chunks_exact_mut(stride).collect();
            kernel.product(factors, &[row], &mut lines, stride, Mode::Accumulate);
        }
        self.pivots.push(pivot as u32);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzzing::NaiveDecoder;

    fn matrix_of(lines: &[Vec<u8>], width: usize) -> Matrix {
        let mut matrix = Matrix::zeroed(lines.len(), width);
        for (index, line) in lines.iter().enumerate() {
            matrix.row_mut(index)[..width].copy_from_slice(line);
        }
        matrix
    }

    /// Sparse lines with few distinct values, so that many are linearly dependent.
    fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = prop_oneof![3 => Just(0u8), 1 => Just(1u8), 1 => any::<u8>()];
        prop::collection::vec(prop::collection::vec(byte, 9), 1..14)
    }

    proptest! {
        #[test]
        fn rank_matches_naive_elimination(lines in lines()) {
            let kernel = Kernel::active();
            let mut space = VectorSpace::new(9);
            let mut naive = NaiveDecoder::default();
            for line in &lines {
                prop_assert_eq!(space.insert(kernel, line), naive.push(line.clone()));
            }
        }

        #[test]
        fn elimination_gives_echelon_form_by_invertible_row_operations(lines in lines()) {
            let kernel = Kernel::active();
            // An identity matrix after the coefficients records the operations.
            let n = lines.len();
            let with_identity: Vec<Vec<u8>> = lines.iter().enumerate().map(|(index, line)| {
                let mut line = line.clone();
                line.resize(9 + n, 0);
                line[9 + index] = 1;
                line
            }).collect();
            let mut block = matrix_of(&with_identity, 9 + n);
            let pivots = eliminate(kernel, &mut block, 9);
            let mut operations = NaiveDecoder::default();
            for row in block.iter() {
                prop_assert!(operations.push(row[9..9 + n].to_vec()), "not invertible");
            }
            for (index, row) in block.iter().enumerate() {
                let mut sum = [0u8; 9];
                for (line, &factor) in lines.iter().zip(&row[9..9 + n]) {
                    sum.iter_mut().zip(line).for_each(|(x, &y)| *x ^= gf256::mul(factor, y));
                }
                prop_assert_eq!(&sum[..], &row[..9]);
                match pivots[index] {
                    None => prop_assert_eq!(sum, [0; 9]),
                    Some(pivot) => for (other, line) in block.iter().enumerate() {
                        let expected = u8::from(other == index);
                        prop_assert!(line[pivot as usize] == expected || pivots[other].is_none());
                    },
                }
            }
        }
    }

    #[test]
    fn basis_has_the_predicted_size() {
        for width in [1, 2, 64, 128] {
            let space = VectorSpace::new(width);
            let held = space.rows.bytes() + space.pivots.capacity() * size_of::<u32>();
            assert_eq!(VectorSpace::size(width), held);
        }
    }

    #[test]
    fn cleared_basis_accepts_the_same_vectors_again() {
        let kernel = Kernel::active();
        let mut space = VectorSpace::new(3);
        // Unit vectors take another path than sums.
        for vectors in [[[0, 1, 0], [1, 0, 0], [0, 0, 1]], [[1, 1, 0], [0, 1, 7], [9, 0, 1]]] {
            for (rank, vector) in vectors.iter().enumerate() {
                assert_eq!((space.rank(), space.is_full()), (rank, false));
                assert!(space.insert(kernel, vector));
                assert!(!space.insert(kernel, vector));
            }
            assert!(space.is_full());
            space.clear();
        }
    }
}
