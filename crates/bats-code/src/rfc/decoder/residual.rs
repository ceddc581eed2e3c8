//! The dense system in the inactive packets: reduced echelon form, built block by block, with a
//! record of the operations so that they can be done on payloads once the system is solved.

use alloc::vec;
use alloc::vec::Vec;

use super::super::echelon::eliminate;
use super::super::matrix::Matrix;
use crate::kernel::{Kernel, Mode};
use crate::rows::padded_length;

/// Equations that are eliminated together.
pub(super) const BLOCK: usize = 32;

/// How a block of equations was brought in: with x the payloads of the used equations and y those
/// of the rows before, the new rows are y' = forward (x, y), then y gets backward y' added.
#[derive(Debug)]
pub(super) struct Record {
    /// The equations that raised the rank, rising.
    pub(super) used: Vec<u32>,
    /// Rank before.
    pub(super) first: usize,
    /// `used` lines of `used + first` coefficients.
    pub(super) forward: Vec<u8>,
    /// `first` lines of `used` coefficients.
    pub(super) backward: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Residual {
    kernel: Kernel,
    width: usize,
    rows: Matrix,
    /// Row r is 1 in column `pivots[r]` and 0 in the pivots of all other rows.
    pivots: Vec<u32>,
    records: Vec<Record>,
}

impl Residual {
    /// No equation yet in `width` unknowns.
    pub(super) fn new(kernel: Kernel, width: usize) -> Self {
        let rows = Matrix::zeroed(width, width);
        Self { kernel, width, rows, pivots: Vec::with_capacity(width), records: Vec::new() }
    }

    /// Bytes that a system of this width takes in the end, records included.
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

    /// How many more independent equations are needed.
    pub(super) fn missing(&self) -> usize {
        self.width - self.pivots.len()
    }

    pub(super) fn pivots(&self) -> &[u32] {
        &self.pivots
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Adds equations: numbers, rising over all calls, and lines of at least `width` bytes that
    /// are zero from there on.
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
        // Behind the coefficients: which of the equations went into a row.
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
        let record = Record {
            used: used.iter().map(|&index| equations[index].0).collect(),
            first: rank,
            forward: forward(kernel, &block, origin, &used, &by_rows, rank),
            backward: self
                .rows
                .iter()
                .take(rank)
                .flat_map(|row| new.iter().map(|&pivot| row[pivot as usize]))
                .collect(),
        };
        let rows: Vec<&[u8]> = used.iter().map(|&index| &block.row(index)[..origin]).collect();
        let (before, behind) = self.rows.split_mut(rank);
        if rank > 0 {
            let mut before: Vec<&mut [u8]> = before.collect();
            kernel.product(&record.backward, &rows, &mut before, origin, Mode::Accumulate);
        }
        for (row, line) in behind.zip(&rows) {
            row.copy_from_slice(line);
        }
        self.pivots.extend(new);
        self.records.push(record);
    }
}

/// The lines of [`Record::forward`]: a row is the combination of used equations that stands behind
/// it, each with the rows before that were added to it.
fn forward(
    kernel: Kernel,
    block: &Matrix,
    origin: usize,
    used: &[usize],
    by_rows: &Matrix,
    rank: usize,
) -> Vec<u8> {
    let combination: Vec<u8> = used
        .iter()
        .flat_map(|&row| used.iter().map(move |&index| block.row(row)[origin + index]))
        .collect();
    let lines: Vec<&[u8]> = used.iter().map(|&index| by_rows.row(index)).collect();
    let mut sums = Matrix::zeroed(used.len(), rank);
    let stride = sums.stride();
    let (_, targets) = sums.split_mut(0);
    let mut targets: Vec<&mut [u8]> = targets.collect();
    kernel.product(&combination, &lines, &mut targets, stride, Mode::Overwrite);
    let mut forward = vec![0; used.len() * (used.len() + rank)];
    for (index, line) in forward.chunks_exact_mut(used.len() + rank).enumerate() {
        let (by_equations, by_rows) = line.split_at_mut(used.len());
        by_equations.copy_from_slice(&combination[index * used.len()..][..used.len()]);
        by_rows.copy_from_slice(&sums.row(index)[..rank]);
    }
    forward
}
