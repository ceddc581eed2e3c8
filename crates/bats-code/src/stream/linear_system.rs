//! A linear system: unknown symbols that share equations, in reduced row echelon form.
//!
//! Elimination works on coefficients only. Each row also stores its transformation: the factors of
//! the received equations that it is the sum of. When a row has one unknown left, [`super::solve`]
//! computes the payload from the transformation.
//!
//! Invariants: there are as many rows as equations; the transformation is invertible; a row has 1
//! in its pivot column and all other rows have 0 there; every row has at least one unknown.

use alloc::vec;
use alloc::vec::Vec;

use super::Window;
use super::redundancy::{Multiples, NullVectors, ProductSum, VALUE_WORK, Value};
use crate::gf256;
use crate::kernel::{Kernel, Mode};
use crate::rows::{ALIGNMENT, AlignedRow, padded_length};

/// A repair packet as received.
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

/// Side effects of removing a column.
#[derive(Debug)]
pub(super) struct Removal {
    /// The symbol whose column moved to the removed index.
    pub(super) moved: Option<u64>,
    /// The equation that was dropped because its row has no unknown left.
    pub(super) equation: Option<Equation>,
}

#[derive(Debug, Default)]
pub(super) struct LinearSystem {
    columns: Vec<u64>,
    /// First and last symbol of the columns.
    extent: Option<(u64, u64)>,
    equations: Vec<Equation>,
    /// Pivot column of each row.
    pivots: Vec<usize>,
    /// Rows of `stride` bytes: `width` bytes for the columns, then the transformation. Unused bytes
    /// are zero.
    data: Vec<u8>,
    width: usize,
    stride: usize,
    /// Scratch: the row under construction.
    scratch: Vec<u8>,
    /// Invariant: orthogonal to all rows.
    null: NullVectors,
    /// Work since [`LinearSystem::take_work`], in bytes of rows that were multiplied and added.
    work: u64,
    /// The last search that found this system.
    search: u64,
}

/// Number of rows in one matrix product.
const ROWS_AT_ONCE: usize = 16;

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

    /// Memory of the system in bytes, without the coefficients and payloads of its equations. A small
    /// system takes much more than its matrix.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.data.capacity()
            + self.scratch.capacity()
            + self.null.bytes()
            + self.columns.capacity() * size_of::<u64>()
            + self.equations.capacity() * size_of::<Equation>()
            + self.pivots.capacity() * size_of::<usize>()
    }

    /// First and last unknown symbol.
    pub(super) fn extent(&self) -> Option<(u64, u64)> {
        self.extent
    }

    /// Whether a search, whose number is one more than that of the search before it, finds this system
    /// for the first time.
    pub(super) fn is_found_first(&mut self, search: u64) -> bool {
        core::mem::replace(&mut self.search, search) != search
    }

    /// Work since the last call, in bytes of rows that were multiplied, added, copied or searched.
    pub(super) fn take_work(&mut self) -> u64 {
        core::mem::take(&mut self.work)
    }

    fn count_work(&mut self, bytes: usize) {
        self.work = self.work.saturating_add(bytes as u64);
    }

    /// The values by which redundant equations are recognised, for each column: the coefficients of
    /// an equation that depends linearly on the others are orthogonal to them. `None`: not computed.
    pub(super) fn null_values(&self) -> Option<&[Value]> {
        self.null.is_kept().then(|| self.null.values())
    }

    /// The symbol of a row's pivot.
    pub(super) fn pivot_symbol(&self, row: usize) -> u64 {
        self.columns[self.pivots[row]]
    }

    /// The factors of the equations that a row is the sum of.
    pub(super) fn transformation(&self, row: usize) -> &[u8] {
        &self.row(row)[self.width..][..self.equations.len()]
    }

    /// Rows with exactly one unknown.
    pub(super) fn solved_rows(&mut self) -> Vec<usize> {
        let count = self.columns.len();
        if self.rank() == count {
            return (0..count).collect();
        }
        let mut searched = 0;
        let mut is_solved = |&row: &usize| {
            let unknowns = &self.row(row)[..count];
            let mut others = 0;
            // Most rows of an unsolved system are dense in the last columns: search from there.
            for chunk in unknowns.rchunks(ALIGNMENT) {
                searched += chunk.len();
                others += chunk.iter().map(|&x| u8::from(x != 0)).sum::<u8>();
                if others > 1 {
                    return false;
                }
            }
            others == 1
        };
        let solved = (0..self.rank()).filter(&mut is_solved).collect();
        self.count_work(searched);
        solved
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.stride..][..self.stride]
    }

    /// Reserves space for this many columns and equations in each row.
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
        self.count_work(data.len());
        (self.data, self.width, self.stride) = (data, width, stride);
    }

    /// Adds an unknown symbol and returns its column.
    pub(super) fn add_column(&mut self, symbol: u64) -> usize {
        self.reserve(self.columns.len() + 1, self.equations.len());
        self.columns.push(symbol);
        self.null.add_column();
        self.extend(symbol, symbol);
        self.columns.len() - 1
    }

    fn extend(&mut self, first: u64, last: u64) {
        let (low, high) = self.extent.unwrap_or((first, last));
        self.extent = Some((low.min(first), high.max(last)));
    }

    /// Appends the columns and equations of another system.
    pub(super) fn absorb(&mut self, mut other: Self) {
        if self.null.is_kept() || other.null.is_kept() {
            self.keep_null_vectors();
            other.keep_null_vectors();
        }
        self.null.append(core::mem::take(&mut other.null));
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
        self.count_work(other.data.len() + other.work as usize);
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
    /// The equation is linearly dependent on the others; it is returned.
    pub(super) fn insert(
        &mut self,
        kernel: Kernel,
        unknowns: &[(usize, u8)],
        equation: Equation,
    ) -> Result<(), Equation> {
        let number = self.equations.len();
        self.reserve(self.columns.len(), number + 1);
        let mut line = core::mem::take(&mut self.scratch);
        line.clear();
        line.resize(self.stride, 0);
        let inserted = self.insert_line(kernel, unknowns, &mut line);
        self.scratch = line;
        if !inserted {
            let rank = self.rank();
            if self.null.count_redundant(self.data.len(), rank, self.columns.len()) {
                self.keep_null_vectors();
            }
            return Err(equation);
        }
        self.equations.push(equation);
        Ok(())
    }

    /// Reduces the next equation and appends it as a row; `line` is zero. Returns false if the
    /// equation is linearly dependent.
    fn insert_line(&mut self, kernel: Kernel, unknowns: &[(usize, u8)], line: &mut [u8]) -> bool {
        let (columns, number) = (self.columns.len(), self.equations.len());
        self.count_work(self.data.len());
        for &(column, coefficient) in unknowns {
            line[column] = coefficient;
        }
        line[self.width + number] = 1;
        // The pivot columns form a unit matrix, so all factors are known in advance.
        let mut lines = self.data.chunks_exact(self.stride);
        for pivots in self.pivots.chunks(ROWS_AT_ONCE) {
            let (mut factors, mut rows) = ([0; ROWS_AT_ONCE], [&[][..]; ROWS_AT_ONCE]);
            let slots = factors.iter_mut().zip(&mut rows);
            for ((factor, row), (&pivot, line_of_row)) in slots.zip(pivots.iter().zip(&mut lines)) {
                *factor = line[pivot];
                *row = line_of_row;
            }
            let count = pivots.len();
            let output = &mut [&mut *line];
            kernel.product(
                &factors[..count],
                &rows[..count],
                output,
                self.stride,
                Mode::Accumulate,
            );
        }
        let Some(pivot) = line[..columns].iter().position(|&x| x != 0) else { return false };
        let inverse = gf256::inv(line[pivot]);
        let (left, right) = line.split_at_mut(self.width);
        scale(inverse, &mut left[..columns]);
        scale(inverse, &mut right[..=number]);
        self.restrict_null_vectors(pivot, &line[..columns]);
        self.eliminate(kernel, pivot, line, None);
        self.data.extend_from_slice(line);
        self.pivots.push(pivot);
        true
    }

    /// Eliminates `position` from all rows except `except`, by adding multiples of `line`, which
    /// has 1 there.
    fn eliminate(&mut self, kernel: Kernel, position: usize, line: &[u8], except: Option<usize>) {
        let stride = self.stride;
        self.count_work(self.data.len());
        let mut lines = self.data.chunks_exact_mut(stride).enumerate();
        let mut left = self.pivots.len();
        while left > 0 {
            let count = left.min(ROWS_AT_ONCE);
            let mut factors = [0; ROWS_AT_ONCE];
            let mut rows: [&mut [u8]; ROWS_AT_ONCE] = core::array::from_fn(|_| &mut [][..]);
            for (factor, (row, (index, line))) in
                factors.iter_mut().zip(rows.iter_mut().zip(lines.by_ref().take(count)))
            {
                // Adding zero times a row is as cheap as skipping it.
                *factor = if Some(index) == except { 0 } else { line[position] };
                *row = line;
            }
            let outputs = &mut rows[..count];
            kernel.product(&factors[..count], &[line], outputs, stride, Mode::Accumulate);
            left -= count;
        }
    }

    /// Computes the vectors of the null space, unless they are kept already: random values for the
    /// columns that are no pivot, from which follow those of the pivots.
    fn keep_null_vectors(&mut self) {
        if self.null.is_kept() {
            return;
        }
        let mut is_free = vec![true; self.columns.len()];
        self.pivots.iter().for_each(|&pivot| is_free[pivot] = false);
        if let Some(&symbol) = self.columns.first() {
            self.null.seed(symbol);
        }
        self.null.keep(vec![[0; 4]; is_free.len()]);
        for (column, _) in is_free.iter().enumerate().filter(|&(_, &is_free)| is_free) {
            let value = self.null.random();
            self.add_null_vector(column, value);
        }
    }

    /// Makes the vectors of the null space orthogonal to `line`, the next row with this pivot, before
    /// it is eliminated from the others.
    fn restrict_null_vectors(&mut self, pivot: usize, line: &[u8]) {
        let Some(values) = self.null_values() else { return };
        let mut product = ProductSum::new();
        for (&coefficient, &value) in line.iter().zip(values) {
            product.add(coefficient, value);
        }
        self.count_work(VALUE_WORK * line.len());
        self.add_null_vector(pivot, product.value());
    }

    /// Adds `value` times the vector of the null space that is 1 in `column` and 0 in the other
    /// columns that are no pivot.
    fn add_null_vector(&mut self, column: usize, value: Value) {
        if !self.null.is_kept() {
            return;
        }
        self.count_work(VALUE_WORK * self.rank());
        let multiples = Multiples::new(value);
        self.null.add(column, &multiples, 1);
        let lines = self.data.chunks_exact(self.stride);
        for (&pivot, line) in self.pivots.iter().zip(lines) {
            self.null.add(pivot, &multiples, line[column]);
        }
    }

    /// Makes the values of a column zero, as if its symbol were in no equation. `free` is a column
    /// that is no pivot, with the coefficient that it has in the row of `column`, which may be
    /// `column` itself.
    fn clear_null_value(&mut self, column: usize, free: usize, coefficient: u8) {
        let Some(values) = self.null_values() else { return };
        let factor = gf256::inv(coefficient);
        let value = values[column].map(|byte| gf256::mul(factor, byte));
        self.add_null_vector(free, value);
    }

    /// Removes the column of a symbol that is now known.
    pub(super) fn remove_column(&mut self, kernel: Kernel, column: usize) -> Removal {
        let mut equation = None;
        if let Some(row) = self.pivots.iter().position(|&pivot| pivot == column) {
            let mut unknowns = self.row(row)[..self.columns.len()].iter().enumerate();
            let next = unknowns.find(|&(other, &x)| x != 0 && other != column);
            let next = next.map(|(other, &x)| (other, x));
            if let Some((pivot, coefficient)) = next {
                self.clear_null_value(column, pivot, coefficient);
            }
            self.data[row * self.stride + column] = 0;
            match next {
                Some((pivot, coefficient)) if self.rank() == 1 => {
                    // There is no other row to eliminate the pivot from.
                    let factor = gf256::inv(coefficient);
                    let (unknowns, transformation) = self.data.split_at_mut(self.width);
                    scale(factor, &mut unknowns[..self.columns.len()]);
                    scale(factor, &mut transformation[..self.equations.len()]);
                    self.pivots[row] = pivot;
                }
                Some((pivot, _)) => {
                    let mut line = self.row(row).to_vec();
                    scale(gf256::inv(line[pivot]), &mut line);
                    self.data[row * self.stride..][..self.stride].copy_from_slice(&line);
                    self.eliminate(kernel, pivot, &line, Some(row));
                    self.pivots[row] = pivot;
                }
                None => equation = self.drop_row(kernel, row),
            }
        } else {
            self.clear_null_value(column, column, 1);
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
        self.null.swap_remove(column);
        self.extent = self.columns.iter().min().copied().zip(self.columns.iter().max().copied());
        Removal { moved: self.columns.get(column).copied(), equation }
    }

    /// Drops a row without unknowns, and an equation that depends linearly on the others.
    fn drop_row(&mut self, kernel: Kernel, row: usize) -> Option<Equation> {
        let number = self.transformation(row).iter().position(|&x| x != 0)?;
        let position = self.width + number;
        let mut line = self.row(row).to_vec();
        scale(gf256::inv(line[position]), &mut line);
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

/// Multiplies bytes by a factor. They are too few for a kernel call to pay off.
pub(super) fn scale(factor: u8, bytes: &mut [u8]) {
    if factor != 1 {
        bytes.iter_mut().for_each(|x| *x = gf256::mul(factor, *x));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::contextualize_config;

    use super::*;
    use crate::rows::RowPool;

    /// An equation, whose contents elimination does not read.
    fn equation(pool: &mut RowPool) -> Equation {
        let window = Window { first: 0, count: 1 };
        Equation { window, coefficients: pool.take(1), payload: pool.take(1) }
    }

    fn product(system: &LinearSystem, line: &[u8]) -> Value {
        let mut sum = ProductSum::new();
        for (&coefficient, &value) in line.iter().zip(system.null_values().unwrap()) {
            sum.add(coefficient, value);
        }
        sum.value()
    }

    /// A repair over symbols of both would be taken for redundant with a probability of 1/256 instead
    /// of 1/2^32.
    #[test]
    fn systems_that_are_absorbed_have_other_random_values() {
        let mut systems = [0, 100].map(|first| {
            let mut system = LinearSystem::default();
            for symbol in first..first + 50 {
                system.add_column(symbol);
            }
            system
        });
        systems[0].keep_null_vectors();
        let [mut system, other] = systems;
        system.absorb(other);
        let values = system.null_values().unwrap();
        let distinct: std::collections::BTreeSet<_> = values.iter().collect();
        assert_eq!((values.len(), distinct.len()), (100, 100));
    }

    proptest! {
        #![proptest_config(contextualize_config(ProptestConfig::with_cases(64)))]
        /// Whatever is inserted, absorbed and removed: an equation is orthogonal to the vectors of
        /// the null space if and only if elimination finds that it is redundant.
        #[test]
        fn null_vectors_agree_with_elimination(
            steps in prop::collection::vec((0u8..8, any::<u64>()), 1..120),
            keep_at in 0usize..60,
        ) {
            let kernel = Kernel::active();
            let mut pool = RowPool::new(64, 0);
            let mut symbols = 0;
            let mut system = LinearSystem::default();
            for (step, (kind, seed)) in steps.into_iter().enumerate() {
                let mut bytes = core::iter::successors(Some(seed | 1), |state| {
                    Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1))
                })
                .map(|state| (state >> 56) as u8);
                if step == keep_at {
                    system.keep_null_vectors();
                }
                let columns = system.columns.len();
                match kind {
                    0 | 1 => {
                        system.add_column(symbols);
                        symbols += 1;
                    }
                    2 if columns > 0 => {
                        system.remove_column(kernel, seed as usize % columns);
                    }
                    3 => {
                        let mut other = LinearSystem::default();
                        other.add_column(symbols);
                        other.add_column(symbols + 1);
                        symbols += 2;
                        let unknowns = [(0, 3), (1, seed as u8 | 1)];
                        other.insert(kernel, &unknowns, equation(&mut pool)).unwrap();
                        system.absorb(other);
                    }
                    _ if columns > 0 => {
                        // Sparse equations, and sums of rows, which are redundant.
                        let mut line = vec![0; columns];
                        if kind < 6 {
                            line.iter_mut().for_each(|x| {
                                *x = bytes.next().filter(|byte| byte % 3 == 0).unwrap_or(0);
                            });
                        } else {
                            for row in 0..system.rank() {
                                let factor = bytes.next().unwrap();
                                let row = &system.row(row)[..columns];
                                line.iter_mut().zip(row).for_each(|(x, &y)| {
                                    *x ^= gf256::mul(factor, y);
                                });
                            }
                        }
                        let is_orthogonal = system
                            .null_values()
                            .is_some()
                            .then(|| product(&system, &line) == [0; 4]);
                        let unknowns: Vec<_> = line.into_iter().enumerate().collect();
                        let inserted = system.insert(kernel, &unknowns, equation(&mut pool));
                        if let Some(is_orthogonal) = is_orthogonal {
                            prop_assert_eq!(is_orthogonal, inserted.is_err());
                        }
                    }
                    _ => {}
                }
                if let Some(values) = system.null_values() {
                    prop_assert_eq!(values.len(), system.columns.len());
                    for row in 0..system.rank() {
                        let line = &system.row(row)[..values.len()];
                        prop_assert_eq!(product(&system, line), [0; 4]);
                    }
                }
            }
        }
    }
}
