//! The linear system of a cluster: unknown symbols linked by equations, in reduced echelon form.
//!
//! Only coefficients are eliminated. Beside each row stands the transformation: how it is made of
//! the equations as they came. When a row has one unknown left, its transformation says how to
//! compute the payload ([`super::solve`]).
//!
//! Invariants: as many rows as equations; the transformation is invertible; the entry of a row in
//! its pivot column is 1 and that of all others is 0; every row has at least one unknown.

use alloc::vec;
use alloc::vec::Vec;

use super::Window;
use crate::gf256;
use crate::kernel::{Kernel, Mode};
use crate::rows::{ALIGNMENT, AlignedRow, padded_length};

/// A repair packet as it came.
#[derive(Debug)]
pub(super) struct Equation {
    pub(super) window: Window,
    /// One coefficient for each symbol of the window.
    pub(super) coefficients: AlignedRow,
    pub(super) payload: AlignedRow,
}

impl Equation {
    pub(super) fn bytes(&self) -> usize {
        self.coefficients.bytes() + self.payload.bytes()
    }
}

/// What the removal of a column did besides.
#[derive(Debug)]
pub(super) struct Removal {
    /// This symbol's column has now the number that was removed.
    pub(super) moved: Option<u64>,
    /// This equation has no unknown any more.
    pub(super) equation: Option<Equation>,
}

#[derive(Debug, Default)]
pub(super) struct LinearSystem {
    columns: Vec<u64>,
    /// First and last symbol among the columns.
    extent: Option<(u64, u64)>,
    equations: Vec<Equation>,
    /// Pivot column of each row.
    pivots: Vec<usize>,
    /// Rows of `stride` octets: first `width` for the columns, then those for the equations. What
    /// no column or equation uses is zero.
    data: Vec<u8>,
    width: usize,
    stride: usize,
}

impl LinearSystem {
    pub(super) fn columns(&self) -> &[u64] {
        &self.columns
    }

    pub(super) fn equations(&self) -> &[Equation] {
        &self.equations
    }

    pub(super) fn into_equations(self) -> Vec<Equation> {
        self.equations
    }

    pub(super) fn rank(&self) -> usize {
        self.pivots.len()
    }

    /// Memory of the matrix, in octets.
    pub(super) fn bytes(&self) -> usize {
        self.data.capacity()
    }

    /// First and last symbol among the unknowns.
    pub(super) fn extent(&self) -> Option<(u64, u64)> {
        self.extent
    }

    /// First symbol of the windows of all equations.
    pub(super) fn first_window(&self) -> Option<u64> {
        self.equations.iter().map(|equation| equation.window.first).min()
    }

    /// The unknown that a row with one unknown determines.
    pub(super) fn pivot_symbol(&self, row: usize) -> u64 {
        self.columns[self.pivots[row]]
    }

    /// The factors of the equations that make a row.
    pub(super) fn transformation(&self, row: usize) -> &[u8] {
        &self.row(row)[self.width..][..self.equations.len()]
    }

    /// Rows with one unknown.
    pub(super) fn solved_rows(&self) -> Vec<usize> {
        let count = self.columns.len();
        if self.rank() == count {
            return (0..count).collect();
        }
        let is_solved = |&row: &usize| {
            let unknowns = &self.row(row)[..count];
            // Most rows of an unsolved system are full beyond the pivots: look there first.
            let others = unknowns.iter().rev().filter(|&&x| x != 0);
            others.take(2).count() == 1
        };
        (0..self.rank()).filter(is_solved).collect()
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.stride..][..self.stride]
    }

    /// Makes room for so many columns and equations in a row.
    fn reserve(&mut self, columns: usize, equations: usize) {
        let room = self.stride - self.width;
        if columns <= self.width && equations <= room {
            return;
        }
        let grown = |needed: usize, present: usize| {
            if needed <= present { present } else { padded_length(needed.max(present * 2)) }
        };
        let width = grown(columns, self.width).max(ALIGNMENT);
        let stride = width + grown(equations, room).max(ALIGNMENT);
        let mut data = vec![0; stride * self.rank()];
        for row in 0..self.rank() {
            let old = self.row(row);
            let new = &mut data[row * stride..][..stride];
            new[..self.width].copy_from_slice(&old[..self.width]);
            new[width..width + room].copy_from_slice(&old[self.width..]);
        }
        (self.data, self.width, self.stride) = (data, width, stride);
    }

    /// Adds an unknown and returns its column.
    pub(super) fn add_column(&mut self, symbol: u64) -> usize {
        self.reserve(self.columns.len() + 1, self.equations.len());
        self.columns.push(symbol);
        self.extend(symbol, symbol);
        self.columns.len() - 1
    }

    fn extend(&mut self, first: u64, last: u64) {
        let (low, high) = self.extent.unwrap_or((first, last));
        self.extent = Some((low.min(first), high.max(last)));
    }

    /// Takes over another system, whose columns and equations follow the present ones.
    pub(super) fn absorb(&mut self, other: Self) {
        let (columns, rows) = (self.columns.len(), self.rank());
        self.reserve(columns + other.columns.len(), rows + other.equations.len());
        self.data.resize((rows + other.rank()) * self.stride, 0);
        for row in 0..other.rank() {
            let old = other.row(row);
            let new = &mut self.data[(rows + row) * self.stride..][..self.stride];
            new[columns..][..other.columns.len()].copy_from_slice(&old[..other.columns.len()]);
            new[self.width + rows..][..other.equations.len()]
                .copy_from_slice(other.transformation(row));
        }
        self.pivots.extend(other.pivots.iter().map(|pivot| pivot + columns));
        self.columns.extend(other.columns);
        if let Some((first, last)) = other.extent {
            self.extend(first, last);
        }
        self.equations.extend(other.equations);
    }

    /// Adds an equation whose coefficients of the unknowns are `unknowns` (column, coefficient).
    ///
    /// # Errors
    /// The equation follows from the others; it is given back.
    pub(super) fn insert(
        &mut self,
        kernel: Kernel,
        unknowns: &[(usize, u8)],
        equation: Equation,
    ) -> Result<(), Equation> {
        let number = self.equations.len();
        self.reserve(self.columns.len(), number + 1);
        let mut line = vec![0; self.stride];
        for &(column, coefficient) in unknowns {
            line[column] = coefficient;
        }
        line[self.width + number] = 1;
        // The pivot columns are those of a unit matrix: all factors are known at once.
        let factors: Vec<u8> = self.pivots.iter().map(|&pivot| line[pivot]).collect();
        if factors.iter().any(|&factor| factor != 0) {
            let rows: Vec<&[u8]> = self.data.chunks_exact(self.stride).collect();
            kernel.product(&factors, &rows, &mut [&mut line], self.stride, Mode::Accumulate);
        }
        let Some(pivot) = line[..self.columns.len()].iter().position(|&x| x != 0) else {
            return Err(equation);
        };
        scale(kernel, gf256::inv(line[pivot]), &mut line);
        self.eliminate(kernel, pivot, &line, None);
        self.data.extend_from_slice(&line);
        self.pivots.push(pivot);
        self.equations.push(equation);
        Ok(())
    }

    /// Adds multiples of `line`, whose entry in `position` is 1, to all rows but `except`, so that
    /// their entries in `position` become 0.
    fn eliminate(&mut self, kernel: Kernel, position: usize, line: &[u8], except: Option<usize>) {
        let mut factors = Vec::with_capacity(self.pivots.len());
        let mut rows = Vec::with_capacity(self.pivots.len());
        for (index, row) in self.data.chunks_exact_mut(self.stride).enumerate() {
            if row[position] != 0 && Some(index) != except {
                factors.push(row[position]);
                rows.push(row);
            }
        }
        if !rows.is_empty() {
            kernel.product(&factors, &[line], &mut rows, self.stride, Mode::Accumulate);
        }
    }

    /// Removes the column of a symbol that has become known.
    pub(super) fn remove_column(&mut self, kernel: Kernel, column: usize) -> Removal {
        let mut equation = None;
        if let Some(row) = self.pivots.iter().position(|&pivot| pivot == column) {
            self.data[row * self.stride + column] = 0;
            let next = self.row(row)[..self.columns.len()].iter().position(|&x| x != 0);
            match next {
                Some(pivot) => {
                    let mut line = self.row(row).to_vec();
                    scale(kernel, gf256::inv(line[pivot]), &mut line);
                    self.data[row * self.stride..][..self.stride].copy_from_slice(&line);
                    self.eliminate(kernel, pivot, &line, Some(row));
                    self.pivots[row] = pivot;
                }
                None => equation = self.drop_row(kernel, row),
            }
        }
        let last = self.columns.len() - 1;
        for row in self.data.chunks_exact_mut(self.stride) {
            row[column] = row[last];
            row[last] = 0;
        }
        for pivot in &mut self.pivots {
            if *pivot == last {
                *pivot = column;
            }
        }
        self.columns.swap_remove(column);
        self.extent = self.columns.iter().min().copied().zip(self.columns.iter().max().copied());
        Removal { moved: self.columns.get(column).copied(), equation }
    }

    /// Drops a row without unknowns: some equation follows from the others and goes with it.
    fn drop_row(&mut self, kernel: Kernel, row: usize) -> Option<Equation> {
        let number = self.transformation(row).iter().position(|&x| x != 0)?;
        let position = self.width + number;
        let mut line = self.row(row).to_vec();
        scale(kernel, gf256::inv(line[position]), &mut line);
        self.eliminate(kernel, position, &line, Some(row));
        let last_row = self.rank() - 1;
        self.data.copy_within(last_row * self.stride.., row * self.stride);
        self.data.truncate(last_row * self.stride);
        self.pivots.swap_remove(row);
        let last = self.width + self.equations.len() - 1;
        for row in self.data.chunks_exact_mut(self.stride) {
            row[position] = row[last];
            row[last] = 0;
        }
        Some(self.equations.swap_remove(number))
    }
}

/// Multiplies a line, a multiple of 64 octets long.
fn scale(kernel: Kernel, factor: u8, line: &mut [u8]) {
    // (factor - 1) * line + line, without a second buffer's worth of special cases: in
    // characteristic 2 the difference is an exclusive or.
    if factor != 1 {
        let copy = line.to_vec();
        kernel.multiply_add(factor ^ 1, &copy, line);
    }
}
