//! The dense linear system in the inactive packets, in reduced row echelon form. It is built block
//! by block and records its row operations, to repeat them on payloads once the system is solved.

use alloc::vec;
use alloc::vec::Vec;

use super::super::echelon::eliminate;
use super::super::matrix::Matrix;
use crate::kernel::{Kernel, Mode};
use crate::rows::padded_length;

/// Number of equations that are eliminated together.
pub(super) const BLOCK: usize = 32;

/// The row operations of one block of equations. With x the payloads of the used equations and y
/// those of the earlier rows, the new rows are y' = forward (x, y); then y += backward y'.
#[derive(Debug)]
pub(super) struct Record {
    /// Numbers of the equations that raised the rank, ascending.
    pub(super) used: Vec<u32>,
    /// Rank before the block.
    pub(super) first: usize,
    /// `used.len()` lines of `used.len() + first` coefficients.
    pub(super) forward: Vec<u8>,
    /// `first` lines of `used.len()` coefficients.
    pub(super) backward: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Residual {
    kernel: Kernel,
    width: usize,
    rows: Matrix,
    /// Row r has 1 in column `pivots[r]` and 0 in the pivot columns of all other rows.
    pivots: Vec<u32>,
    records: Vec<Record>,
}

impl Residual {
    /// An empty system in `width` unknowns.
    pub(super) fn new(kernel: Kernel, width: usize) -> Self {
        let rows = Matrix::zeroed(width, width);
        Self { kernel, width, rows, pivots: Vec::with_capacity(width), records: Vec::new() }
    }

    /// Memory of a complete system of this width, in bytes, including records.
    pub(super) fn size(width: usize) -> usize {
        Matrix::size(width, width).saturating_mul(2).saturating_add(128 * width)
    }

    pub(super) fn bytes(&self) -> usize {
        let records = self
            .records
            .iter()
            .map(|record| record.forward.len() + record.backward.len() + 4 * record.used.len());
        self.rows.bytes() + 4 * self.width + records.sum::<usize>()
    }

    /// Number of independent equations still needed.
    pub(super) fn missing(&self) -> usize {
        self.width - self.pivots.len()
    }

    pub(super) fn pivots(&self) -> &[u32] {
        &self.pivots
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Adds equations: their numbers, ascending over all calls, and lines of at least `width` bytes
    /// that are zero beyond `width`.
    pub(super) fn insert(&mut self, equations: &[(u32, &[u8])]) {
        for block in equations.chunks(BLOCK) {
            if self.missing() == 0 {
                return;
            }
            self.insert_block(block);
        }
    }

    fn insert_block(&mut self, equations: &[(u32, &[u8])]) {
        let (kernel, rank, n) = (self.kernel, self.pivots.len(), equations.len());
        // After the coefficients: the factors of the equations that a row is the sum of.
        let origin = padded_length(self.width);
        let mut block = Matrix::zeroed(n, origin + n);
        for (index, (_, line)) in equations.iter().enumerate() {
            let row = block.row_mut(index);
            let len = line.len().min(origin);
            row[..len].copy_from_slice(&line[..len]);
            row[origin + index] = 1;
        }
        let mut by_rows = Matrix::zeroed(n, rank);
        if rank > 0 {
            let mut factors = Vec::with_capacity(n * rank);
            for index in 0..n {
                let line = block.row(index);
                factors.extend(self.pivots.iter().map(|&pivot| line[pivot as usize]));
                by_rows.row_mut(index)[..rank].copy_from_slice(&factors[index * rank..]);
            }
            let rows: Vec<&[u8]> = self.rows.iter().take(rank).collect();
            let (_, targets) = block.split_mut(0);
            let mut targets: Vec<&mut [u8]> = targets.collect();
            kernel.product(&factors, &rows, &mut targets, origin, Mode::Accumulate);
        }
        let pivots = eliminate(kernel, &mut block, self.width);
        let used: Vec<usize> = (0..n).filter(|&index| pivots[index].is_some()).collect();
        if used.is_empty() {
            return;
        }
        let new: Vec<u32> = pivots.iter().flatten().copied().collect();
        let mut backward = Vec::with_capacity(rank * new.len());
        for row in self.rows.iter().take(rank) {
            backward.extend(new.iter().map(|&pivot| row[pivot as usize]));
        }
        let record = Record {
            used: used.iter().map(|&index| equations[index].0).collect(),
            first: rank,
            forward: forward(kernel, &block, origin, &used, &by_rows, rank),
            backward,
        };
        let rows: Vec<&[u8]> = used.iter().map(|&index| &block.row(index)[..origin]).collect();
        let (before, after) = self.rows.split_mut(rank);
        if rank > 0 {
            let mut before: Vec<&mut [u8]> = before.collect();
            kernel.product(&record.backward, &rows, &mut before, origin, Mode::Accumulate);
        }
        for (row, line) in after.zip(&rows) {
            row.copy_from_slice(line);
        }
        self.pivots.extend(new);
        self.records.push(record);
    }
}

/// Computes [`Record::forward`]. A new row is a linear combination of used equations, stored after
/// its coefficients. Each of these equations includes the earlier rows that were added to it.
fn forward(
    kernel: Kernel,
    block: &Matrix,
    origin: usize,
    used: &[usize],
    by_rows: &Matrix,
    rank: usize,
) -> Vec<u8> {
    let by_used: Vec<u8> = used
        .iter()
        .flat_map(|&row| used.iter().map(move |&index| block.row(row)[origin + index]))
        .collect();
    let lines: Vec<&[u8]> = used.iter().map(|&index| by_rows.row(index)).collect();
    let mut sums = Matrix::zeroed(used.len(), rank);
    let stride = sums.stride();
    let (_, targets) = sums.split_mut(0);
    let mut targets: Vec<&mut [u8]> = targets.collect();
    kernel.product(&by_used, &lines, &mut targets, stride, Mode::Overwrite);
    let mut forward = vec![0; used.len() * (used.len() + rank)];
    for (index, line) in forward.chunks_exact_mut(used.len() + rank).enumerate() {
        let (by_equations, by_rows) = line.split_at_mut(used.len());
        by_equations.copy_from_slice(&by_used[index * used.len()..][..used.len()]);
        by_rows.copy_from_slice(&sums.row(index)[..rank]);
    }
    forward
}
