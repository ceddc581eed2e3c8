//! Matrices with the layout that the kernels need: each row is aligned to 64 bytes, and zero-padded
//! to a multiple of 64 bytes.

use alloc::vec;
use alloc::vec::Vec;

use crate::rows::{ALIGNMENT, padded_length};

#[derive(Debug, Default)]
pub(super) struct Matrix {
    /// Never reallocated, so that `start` stays valid.
    buffer: Vec<u8>,
    start: usize,
    stride: usize,
    rows: usize,
}

impl Matrix {
    /// A zero matrix of `rows` rows with `width` bytes each.
    pub(super) fn zeroed(rows: usize, width: usize) -> Self {
        let stride = padded_length(width.max(1));
        let buffer = vec![0u8; rows * stride + ALIGNMENT - 1];
        // `align_offset` may fail. The rows are unaligned then, which only costs speed.
        let start = match buffer.as_ptr().align_offset(ALIGNMENT) {
            offset if offset < ALIGNMENT => offset,
            _ => 0,
        };
        Self { buffer, start, stride, rows }
    }

    /// Memory of a matrix of this shape, in bytes.
    pub(super) fn size(rows: usize, width: usize) -> usize {
        rows.saturating_mul(padded_length(width.max(1))).saturating_add(ALIGNMENT - 1)
    }

    pub(super) fn row_count(&self) -> usize {
        self.rows
    }

    /// Length of a row with its padding, in bytes.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.buffer[self.start..][..self.rows * self.stride]
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..][..self.rows * self.stride]
    }

    pub(super) fn row(&self, index: usize) -> &[u8] {
        &self.as_bytes()[index * self.stride..][..self.stride]
    }

    pub(super) fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let stride = self.stride;
        &mut self.as_bytes_mut()[index * stride..][..stride]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.as_bytes().chunks_exact(self.stride.max(1))
    }

    /// The rows before `at`, and those from `at` on, mutable.
    pub(super) fn split_mut(
        &mut self,
        at: usize,
    ) -> (impl Iterator<Item = &mut [u8]>, impl Iterator<Item = &mut [u8]>) {
        let stride = self.stride.max(1);
        let (before, after) = self.as_bytes_mut().split_at_mut(at * stride);
        (before.chunks_exact_mut(stride), after.chunks_exact_mut(stride))
    }
}

/// Number of rows per slab of a [`RowStore`].
const ROWS_PER_SLAB: usize = 64;

/// A growing list of rows that never move. Memory is not zeroed before it is written.
#[derive(Debug)]
pub(super) struct RowStore {
    /// Buffers of up to 64 rows, each with the offset of its first row, which is aligned.
    slabs: Vec<(Vec<u8>, usize)>,
    stride: usize,
    count: usize,
}

impl RowStore {
    pub(super) fn new(width: usize) -> Self {
        Self { slabs: Vec::new(), stride: padded_length(width.max(1)), count: 0 }
    }

    fn slab_size(stride: usize) -> usize {
        ROWS_PER_SLAB * stride + ALIGNMENT - 1
    }

    /// Stores a row of at most `width` bytes. Returns its index.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn push(&mut self, content: &[u8]) -> u32 {
        if self.count == self.slabs.len().saturating_mul(ROWS_PER_SLAB) {
            let mut slab: Vec<u8> = Vec::with_capacity(Self::slab_size(self.stride));
            let start = match slab.as_ptr().align_offset(ALIGNMENT) {
                offset if offset < ALIGNMENT => offset,
                _ => 0,
            };
            slab.resize(start, 0);
            self.slabs.push((slab, start));
        }
        if let Some((slab, _)) = self.slabs.last_mut() {
            // Within the capacity, so that existing rows do not move.
            let end = slab.len().saturating_add(self.stride);
            slab.extend_from_slice(content.get(..self.stride).unwrap_or(content));
            slab.resize(end, 0);
        }
        let index = self.count as u32;
        self.count = self.count.saturating_add(1);
        index
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The row with its padding.
    pub(super) fn row(&self, index: u32) -> &[u8] {
        let index = index as usize;
        let (slab, start) = &self.slabs[index / ROWS_PER_SLAB];
        &slab[start + index % ROWS_PER_SLAB * self.stride..][..self.stride]
    }

    pub(super) fn bytes(&self) -> usize {
        self.slabs.len() * Self::slab_size(self.stride)
    }

    /// Memory of a store with `rows` rows, in bytes.
    pub(super) fn size(rows: usize, width: usize) -> usize {
        let slab = Self::slab_size(padded_length(width.max(1)));
        rows.div_ceil(ROWS_PER_SLAB).saturating_mul(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_aligned_and_padded() {
        let mut matrix = Matrix::zeroed(5, 70);
        assert_eq!((matrix.stride(), matrix.row_count()), (128, 5));
        for index in 0..5 {
            matrix.row_mut(index).fill(index as u8 + 1);
            assert_eq!(matrix.row(index).as_ptr().align_offset(ALIGNMENT), 0);
        }
        assert!(matrix.iter().zip(1..).all(|(row, value)| row.iter().all(|&x| x == value)));
        let (before, after) = matrix.split_mut(2);
        assert_eq!((before.count(), after.count()), (2, 3));
    }

    #[test]
    fn a_row_store_has_the_predicted_size() {
        let mut store = RowStore::new(10);
        for index in 0..130u32 {
            assert_eq!(store.push(&[index as u8; 10]), index);
        }
        assert_eq!(store.row(77)[..11], [77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 0]);
        assert_eq!(store.bytes(), RowStore::size(130, 10));
        assert!((0..130).all(|row| store.row(row).as_ptr().align_offset(ALIGNMENT) == 0));
        assert_eq!(store.len(), 130);
        // Slabs never reallocate, so that their rows do not move.
        let slab = RowStore::slab_size(store.stride);
        assert!(store.slabs.iter().all(|(bytes, _)| bytes.capacity() <= slab));
    }

    #[test]
    fn sizes_are_those_of_padded_rows_and_room_for_alignment() {
        for (rows, width, size) in [(0, 0, 63), (1, 0, 127), (5, 64, 383), (5, 65, 703)] {
            assert_eq!(Matrix::size(rows, width), size);
            assert_eq!(Matrix::zeroed(rows, width).bytes(), size);
        }
        for (rows, width, size) in [
            (0, 10, 0),
            (1, 0, 64 * 64 + 63),
            (64, 64, 64 * 64 + 63),
            (65, 64, 2 * (64 * 64 + 63)),
            (65, 65, 2 * (64 * 128 + 63)),
        ] {
            assert_eq!(RowStore::size(rows, width), size);
        }
    }

    /// Wherever the allocator places a buffer.
    #[test]
    fn all_rows_are_aligned() {
        let mut held = Vec::new();
        for rows in 1..40 {
            let matrix = Matrix::zeroed(rows, 1);
            let mut store = RowStore::new(rows);
            store.push(&[1]);
            assert_eq!(matrix.row(rows - 1).as_ptr().align_offset(ALIGNMENT), 0);
            assert_eq!(store.row(0).as_ptr().align_offset(ALIGNMENT), 0);
            held.push((matrix, store, vec![0_u8; 16 * rows]));
        }
    }
}
