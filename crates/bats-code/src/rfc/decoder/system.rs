//! The numerical elimination, on coefficients only. Every packet becomes *inactive* or *solved*. A
//! solved packet is a linear combination of received payloads, of packets solved before, and of
//! inactive packets. The remaining equations form the residual system.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::super::batch::Batch;
use super::super::echelon::eliminate;
use super::super::matrix::Matrix;
use super::residual::Residual;
use crate::gf256;
use crate::kernel::{Kernel, Mode};
use crate::rows::padded_length;

/// Elimination state of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unknown,
    /// Index of its expression, in the order of elimination.
    Solved(u32),
    /// Index of its column in the residual system.
    Inactive(u32),
}

/// The equations of one group, transformed. The first `pivots` rows each determine a packet; the
/// others contain only inactive packets:
///
/// `row = transformation * payloads + by_solved * solved packets + by_inactive * inactive packets`
#[derive(Debug)]
pub(super) struct Step {
    /// Numbers of the received payloads; empty if all are zero (constraints of a precode).
    pub(super) payloads: Vec<u32>,
    /// Expressions of the solved packets in the equations.
    pub(super) solved: Vec<u32>,
    /// Columns of the inactive packets in the equations.
    pub(super) inactive: Vec<u32>,
    /// The packets solved by this step have the expressions `first .. first + pivots`.
    pub(super) first: usize,
    pub(super) pivots: usize,
    pub(super) rows: usize,
    /// The three matrices have one line for each row. `None` is the identity.
    pub(super) transformation: Option<Vec<u8>>,
    pub(super) by_solved: Vec<u8>,
    pub(super) by_inactive: Vec<u8>,
}

impl Step {
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + 4 * (self.payloads.len() + self.solved.len() + self.inactive.len())
            + self.transformation.as_ref().map_or(0, Vec::len)
            + self.by_solved.len()
            + self.by_inactive.len()
    }
}

/// Equations of a batch to eliminate.
pub(super) struct Equations<'a> {
    pub(super) batch: &'a Batch,
    /// For each equation its coefficient vector over the batch's columns; `None`: one equation per
    /// column.
    pub(super) vectors: Option<&'a [u8]>,
    pub(super) payloads: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct System {
    kernel: Kernel,
    states: Vec<State>,
    /// Row e: coefficients of the inactive packets in the packet of expression e.
    expressions: Matrix,
    solved: usize,
    /// Number of inactive packets, which are the columns of the residual system.
    columns: usize,
    max_columns: usize,
    steps: Vec<Step>,
    /// (step, row) of each equation of the residual system.
    leftovers: Vec<(u32, u32)>,
    residual: Option<Residual>,
}

impl System {
    /// A system in which all packets are unknown except the `inactive` ones. At most `max_columns`
    /// may become inactive.
    pub(super) fn new(
        kernel: Kernel,
        packets: usize,
        inactive: &[u32],
        max_columns: usize,
    ) -> Self {
        let mut states = vec![State::Unknown; packets];
        for (column, &packet) in inactive.iter().enumerate() {
            states[packet as usize] = State::Inactive(column as u32);
        }
        Self {
            kernel,
            states,
            expressions: Matrix::zeroed(packets - inactive.len(), max_columns),
            solved: 0,
            columns: inactive.len(),
            max_columns,
            steps: Vec::new(),
            leftovers: Vec::new(),
            residual: None,
        }
    }

    pub(super) fn states(&self) -> &[State] {
        &self.states
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(super) fn leftovers(&self) -> &[(u32, u32)] {
        &self.leftovers
    }

    pub(super) fn residual(&self) -> Option<&Residual> {
        self.residual.as_ref()
    }

    pub(super) fn expression(&self, number: usize) -> &[u8] {
        &self.expressions.row(number)[..self.columns]
    }

    /// Number of solved packets.
    pub(super) fn solved(&self) -> usize {
        self.solved
    }

    /// Number of inactive packets.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Number of independent equations still needed.
    pub(super) fn missing(&self) -> usize {
        self.residual.as_ref().map_or(self.columns, Residual::missing)
    }

    /// Memory of the system, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.expressions.bytes()
            + 8 * (self.states.len() + self.leftovers.len())
            + self.steps.iter().map(Step::bytes).sum::<usize>()
            + self.residual.as_ref().map_or(0, Residual::bytes)
    }

    /// Eliminates the groups in the order of the plan. Packets that remain unknown become inactive.
    ///
    /// # Errors
    /// More than `max_columns` packets would be inactive; the value is a lower bound of their
    /// number. Coefficient vectors chosen by an attacker can have lower rank than the plan assumes.
    pub(super) fn build<'a>(
        &mut self,
        groups: impl Iterator<Item = Equations<'a>>,
    ) -> Result<(), usize> {
        let mut lines = Vec::new();
        for equations in groups {
            lines.push(self.add(&equations)?);
        }
        let unknown = self.states.iter().filter(|&&state| state == State::Unknown).count();
        if self.columns + unknown > self.max_columns {
            return Err(self.columns + unknown);
        }
        for packet in 0..self.states.len() {
            if self.states[packet] == State::Unknown {
                self.add_column(packet);
            }
        }
        self.residual = Some(Residual::new(self.kernel, self.columns));
        self.insert(0, &lines);
        Ok(())
    }

    /// Adds equations that were received after [`System::build`].
    pub(super) fn extend<'a>(&mut self, groups: impl Iterator<Item = Equations<'a>>) {
        let first = self.leftovers.len();
        // No packet is unknown any more, so that none can become inactive and `add` cannot fail.
        let lines: Vec<Matrix> = groups.filter_map(|equations| self.add(&equations).ok()).collect();
        self.insert(first, &lines);
    }

    /// Adds the lines of the leftover equations from `first` on to the residual system.
    fn insert(&mut self, first: usize, lines: &[Matrix]) {
        let equations: Vec<(u32, &[u8])> =
            (first as u32..).zip(lines.iter().flat_map(Matrix::iter)).collect();
        if let Some(residual) = &mut self.residual {
            residual.insert(&equations);
        }
    }

    fn add_column(&mut self, packet: usize) {
        self.states[packet] = State::Inactive(self.columns as u32);
        self.columns += 1;
    }

    /// Transforms the equations of a group into a step. Returns the lines of the leftover ones.
    ///
    /// # Errors
    /// As [`System::build`].
    fn add(&mut self, equations: &Equations<'_>) -> Result<Matrix, usize> {
        let kernel = self.kernel;
        let indices = equations.batch.indices();
        let sorted = self.sort(indices);
        let (s, i) = (sorted.solved.len(), sorted.inactive.len());
        let mut lines = coefficients(kernel, equations, &sorted.order);
        let n = lines.row_count();
        let unknown = &sorted.order[s + i..];
        let mut transformation = None;
        let mut pivots = Vec::new();
        if !unknown.is_empty() {
            let matrix;
            (matrix, pivots) = solve_for(kernel, &lines, s + i..indices.len());
            if matrix != [1] {
                let mut transformed = Matrix::zeroed(n, indices.len());
                multiply(kernel, &matrix, lines.iter(), &mut transformed);
                lines = transformed;
            }
            transformation = Some(matrix);
        }
        let first = self.solved;
        for &pivot in &pivots {
            let packet = indices[unknown[pivot] as usize] as usize;
            self.states[packet] = State::Solved(self.solved as u32);
            self.solved += 1;
        }
        // The rank may be lower than the plan assumes.
        let columns = self.columns + unknown.len() - pivots.len();
        if columns > self.max_columns {
            return Err(columns);
        }
        let mut inactive = sorted.inactive;
        let mut inactive_at: Vec<usize> = (s..s + i).collect();
        for (at, &position) in (s + i..).zip(unknown) {
            let packet = indices[position as usize] as usize;
            if self.states[packet] == State::Unknown {
                inactive.push(self.columns as u32);
                inactive_at.push(at);
                self.add_column(packet);
            }
        }
        let mut by_solved = Vec::with_capacity(n * s);
        let mut by_inactive = Vec::with_capacity(n * inactive.len());
        for line in lines.iter() {
            by_solved.extend_from_slice(&line[..s]);
            by_inactive.extend_from_slice(&line[s..s + i]);
            by_inactive.extend(inactive_at[i..].iter().map(|&at| line[at]));
        }
        // The step stays until the block is decoded: it must take what `Step::bytes` counts.
        let mut solved = sorted.solved;
        solved.shrink_to_fit();
        inactive.shrink_to_fit();
        let step = Step {
            payloads: equations.payloads.clone(),
            solved,
            inactive,
            first,
            pivots: pivots.len(),
            rows: n,
            transformation,
            by_solved,
            by_inactive,
        };
        let left = self.express(&step);
        let number = self.steps.len() as u32;
        self.leftovers.extend((step.pivots..n).map(|row| (number, row as u32)));
        self.steps.push(step);
        Ok(left)
    }

    /// Sorts the packets of a batch by their state.
    fn sort(&self, indices: &[u32]) -> SortedPackets {
        let room = indices.len();
        let mut solved = Vec::with_capacity(room);
        let mut inactive = Vec::with_capacity(room);
        let mut order = Vec::with_capacity(room);
        let (mut inactive_positions, mut unknown_positions) =
            (Vec::with_capacity(room), Vec::with_capacity(room));
        for (position, &packet) in (0..).zip(indices) {
            match self.states[packet as usize] {
                State::Solved(number) => {
                    solved.push(number);
                    order.push(position);
                }
                State::Inactive(column) => {
                    inactive.push(column);
                    inactive_positions.push(position);
                }
                State::Unknown => unknown_positions.push(position),
            }
        }
        order.extend(inactive_positions);
        order.extend(unknown_positions);
        SortedPackets { solved, inactive, order }
    }

    /// Computes the coefficients of the inactive packets in the rows of a step. Stores the
    /// expressions of the solved packets and returns the lines of the leftover equations.
    fn express(&mut self, step: &Step) -> Matrix {
        let mut left = Matrix::zeroed(step.rows - step.pivots, self.expressions.stride());
        let len = padded_length(self.columns);
        let stride = self.expressions.stride();
        let (known, new) = self.expressions.as_bytes_mut().split_at_mut(step.first * stride);
        let (_, targets) = left.split_mut(0);
        let mut targets: Vec<&mut [u8]> =
            new.chunks_exact_mut(stride).take(step.pivots).chain(targets).collect();
        if !step.solved.is_empty() && len > 0 {
            let rows: Vec<&[u8]> =
                step.solved.iter().map(|&e| &known[e as usize * stride..][..stride]).collect();
            self.kernel.product(&step.by_solved, &rows, &mut targets, len, Mode::Overwrite);
        }
        if !step.inactive.is_empty() {
            for (target, line) in
                targets.iter_mut().zip(step.by_inactive.chunks_exact(step.inactive.len()))
            {
                for (&column, &factor) in step.inactive.iter().zip(line) {
                    target[column as usize] ^= factor;
                }
            }
        }
        left
    }
}

/// The packets of a batch: expressions of the solved ones, columns of the inactive ones, and the
/// positions of all, ordered solved, inactive, unknown.
struct SortedPackets {
    solved: Vec<u32>,
    inactive: Vec<u32>,
    order: Vec<u32>,
}

/// The coefficients of the equations: one line each, over the batch's packets in this order.
fn coefficients(kernel: Kernel, equations: &Equations<'_>, order: &[u32]) -> Matrix {
    let generator = equations.batch.generator_rows();
    let m = generator.row_count();
    let columns: Option<Vec<usize>> = match equations.vectors {
        None => Some((0..m).collect()),
        // Packets that were not recoded: lines of the generator matrix.
        Some(vectors) => vectors.chunks_exact(m).map(unit_column).collect(),
    };
    let ordered = |columns: &mut dyn ExactSizeIterator<Item = usize>| {
        let mut lines = Matrix::zeroed(columns.len(), order.len());
        for (row, column) in columns.enumerate() {
            let source = equations.batch.generator(column);
            for (x, &position) in lines.row_mut(row).iter_mut().zip(order) {
                *x = source[position as usize];
            }
        }
        lines
    };
    match (columns, equations.vectors) {
        (Some(columns), _) => ordered(&mut columns.into_iter()),
        (None, vectors) => {
            let vectors = vectors.unwrap_or(&[]);
            let mut lines = Matrix::zeroed(vectors.len() / m, order.len());
            multiply(kernel, vectors, ordered(&mut (0..m)).iter(), &mut lines);
            lines
        }
    }
}

/// The column `c` if the vector is unit vector `c`.
fn unit_column(vector: &[u8]) -> Option<usize> {
    let column = vector.iter().position(|&x| x != 0)?;
    let others = &vector[column + 1..];
    (vector[column] == 1 && others.iter().all(|&x| x == 0)).then_some(column)
}

/// Computes `product = matrix * rows`.
fn multiply<'a>(
    kernel: Kernel,
    matrix: &[u8],
    rows: impl Iterator<Item = &'a [u8]>,
    product: &mut Matrix,
) {
    let rows: Vec<&[u8]> = rows.collect();
    let len = product.stride();
    let (_, targets) = product.split_mut(0);
    let mut targets: Vec<&mut [u8]> = targets.collect();
    kernel.product(matrix, &rows, &mut targets, len, Mode::Overwrite);
}

/// Solves the lines for the packets in the columns `unknown`, as far as their rank allows. Returns
/// the matrix to multiply the lines by, and the column (relative to `unknown`) that each of its
/// first rows solves.
fn solve_for(kernel: Kernel, lines: &Matrix, unknown: Range<usize>) -> (Vec<u8>, Vec<usize>) {
    let (n, width) = (lines.row_count(), unknown.len());
    if n == 1 {
        // Usually a check packet of a precode.
        let line = &lines.row(0)[unknown];
        return match line.iter().position(|&x| x != 0) {
            Some(pivot) => (vec![gf256::inv(line[pivot])], vec![pivot]),
            None => (vec![1], Vec::new()),
        };
    }
    let origin = padded_length(width);
    let mut block = Matrix::zeroed(n, origin + n);
    for (index, line) in lines.iter().enumerate() {
        let row = block.row_mut(index);
        row[..width].copy_from_slice(&line[unknown.clone()]);
        row[origin + index] = 1;
    }
    let pivots = eliminate(kernel, &mut block, width);
    let solving = (0..n).filter(|&row| pivots[row].is_some());
    let others = (0..n).filter(|&row| pivots[row].is_none());
    let mut matrix = Vec::with_capacity(n * n);
    for row in solving.chain(others) {
        matrix.extend_from_slice(&block.row(row)[origin..origin + n]);
    }
    (matrix, pivots.iter().flatten().map(|&pivot| pivot as usize).collect())
}
