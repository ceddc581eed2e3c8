//! Computes the payloads of a solved system in two passes of matrix products. The first takes the
//! inactive packets as zero and gives the right-hand side of the residual system; the second uses
//! their values.

use alloc::vec;
use alloc::vec::Vec;

use super::super::matrix::{Matrix, RowStore};
use super::residual::Residual;
use super::system::{State, Step, System};
use crate::kernel::{Kernel, Mode};

/// The intermediate packets of a decoded block.
#[derive(Debug)]
pub(super) struct Solution {
    states: Vec<State>,
    solved: Matrix,
    inactive: Matrix,
    /// For each column of the residual system its row in `inactive`.
    row_of_column: Vec<u32>,
}

impl Solution {
    /// Packet `number` with its padding.
    pub(super) fn packet(&self, number: usize) -> Option<&[u8]> {
        match self.states.get(number)? {
            State::Solved(row) => Some(self.solved.row(*row as usize)),
            State::Inactive(column) => {
                Some(self.inactive.row(self.row_of_column[*column as usize] as usize))
            }
            State::Unknown => None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.solved.bytes() + self.inactive.bytes() + 12 * self.states.len()
    }
}

/// Computes all packets. The residual system has full rank.
pub(super) fn solve(
    kernel: Kernel,
    system: &System,
    residual: &Residual,
    store: &RowStore,
    packet_size: usize,
) -> Solution {
    let mut solved = Matrix::zeroed(system.solved(), packet_size);
    let right = first_pass(kernel, system, residual, store, &mut solved);
    let inactive = replay(kernel, residual, &right);
    let mut row_of_column = vec![0; system.columns()];
    for (row, &column) in (0..).zip(residual.pivots()) {
        row_of_column[column as usize] = row;
    }
    drop(right.rows);
    if system.columns() > 0 {
        for step in system.steps().iter().filter(|step| step.pivots > 0) {
            second_pass(kernel, system, step, store, &mut solved, &inactive, &row_of_column);
        }
    }
    Solution { states: system.states().to_vec(), solved, inactive, row_of_column }
}

/// Payloads of the equations that the residual system uses, in ascending order of their numbers.
struct RightHandSide {
    numbers: Vec<u32>,
    rows: Matrix,
}

fn first_pass(
    kernel: Kernel,
    system: &System,
    residual: &Residual,
    store: &RowStore,
    solved: &mut Matrix,
) -> RightHandSide {
    let mut numbers: Vec<u32> =
        residual.records().iter().flat_map(|record| &record.used).copied().collect();
    numbers.sort_unstable();
    let mut rows = Matrix::zeroed(numbers.len(), solved.stride());
    let stride = solved.stride();
    let mut next = 0;
    for (number, step) in (0u32..).zip(system.steps()) {
        // Leftovers are numbered step by step.
        let of_step = |&&leftover: &&u32| system.leftovers()[leftover as usize].0 == number;
        let count = numbers[next..].iter().take_while(of_step).count();
        let lines: Vec<usize> = (0..step.pivots)
            .chain(numbers[next..next + count].iter().map(|&n| {
                let (_, row) = system.leftovers()[n as usize];
                row as usize
            }))
            .collect();
        let (known, new) = solved.as_bytes_mut().split_at_mut(step.first * stride);
        let (_, targets) = rows.split_mut(next);
        let mut targets: Vec<&mut [u8]> =
            new.chunks_exact_mut(stride).take(step.pivots).chain(targets.take(count)).collect();
        next += count;
        if targets.is_empty() {
            continue;
        }
        let known = step.solved.iter().map(|&e| &known[e as usize * stride..][..stride]);
        match &step.transformation {
            Some(transformation) if !step.payloads.is_empty() => {
                let inputs: Vec<&[u8]> =
                    step.payloads.iter().map(|&p| store.row(p)).chain(known).collect();
                let parts = [(&transformation[..], step.rows), step.solved_part()];
                let matrix = select(&lines, &parts);
                kernel.product(&matrix, &inputs, &mut targets, stride, Mode::Overwrite);
            }
            _ => {
                if !step.payloads.is_empty() {
                    for (target, &line) in targets.iter_mut().zip(&lines) {
                        target.copy_from_slice(store.row(step.payloads[line]));
                    }
                }
                let inputs: Vec<&[u8]> = known.collect();
                let matrix = select(&lines, &[step.solved_part()]);
                kernel.product(&matrix, &inputs, &mut targets, stride, Mode::Accumulate);
            }
        }
    }
    RightHandSide { numbers, rows }
}

impl Step {
    fn solved_part(&self) -> (&[u8], usize) {
        (&self.by_solved, self.solved.len())
    }
}

/// Selects lines of several matrices and concatenates them. Each part is a matrix and its width.
fn select(lines: &[usize], parts: &[(&[u8], usize)]) -> Vec<u8> {
    let width: usize = parts.iter().map(|&(_, width)| width).sum();
    let mut selected = Vec::with_capacity(lines.len() * width);
    for &line in lines {
        for &(matrix, width) in parts {
            selected.extend_from_slice(&matrix[line * width..][..width]);
        }
    }
    selected
}

/// Repeats the row operations of the residual system on payloads. Row r of the result is the
/// inactive packet of pivot r.
fn replay(kernel: Kernel, residual: &Residual, right: &RightHandSide) -> Matrix {
    let stride = right.rows.stride();
    let mut inactive = Matrix::zeroed(residual.pivots().len(), stride);
    for record in residual.records() {
        let (before, after) = inactive.as_bytes_mut().split_at_mut(record.first * stride);
        let used = record.used.iter().map(|number| {
            let row = right.numbers.partition_point(|n| n < number);
            right.rows.row(row)
        });
        let inputs: Vec<&[u8]> = used.chain(before.chunks_exact(stride)).collect();
        let new = &mut after[..record.used.len() * stride];
        let mut targets: Vec<&mut [u8]> = new.chunks_exact_mut(stride).collect();
        kernel.product(&record.forward, &inputs, &mut targets, stride, Mode::Overwrite);
        if record.first > 0 {
            let inputs: Vec<&[u8]> = new.chunks_exact(stride).collect();
            let mut targets: Vec<&mut [u8]> = before.chunks_exact_mut(stride).collect();
            kernel.product(&record.backward, &inputs, &mut targets, stride, Mode::Accumulate);
        }
    }
    inactive
}

/// Computes the packets of a step: from its equations again, or by adding the contribution of the
/// inactive packets to the first pass, whichever has fewer terms.
fn second_pass(
    kernel: Kernel,
    system: &System,
    step: &Step,
    store: &RowStore,
    solved: &mut Matrix,
    inactive: &Matrix,
    row_of_column: &[u32],
) {
    let stride = solved.stride();
    let (known, new) = solved.as_bytes_mut().split_at_mut(step.first * stride);
    let mut targets: Vec<&mut [u8]> = new.chunks_exact_mut(stride).take(step.pivots).collect();
    let value = |&column: &u32| inactive.row(row_of_column[column as usize] as usize);
    let expressions = || (0..step.pivots).map(|p| system.expression(step.first + p));
    let mut used = vec![0; system.columns()];
    for expression in expressions() {
        used.iter_mut().zip(expression).for_each(|(all, &x)| *all |= x);
    }
    let columns: Vec<u32> =
        (0u32..).zip(&used).filter(|(_, all)| **all != 0).map(|(column, _)| column).collect();
    if columns.len() < step.payloads.len() + step.solved.len() + step.inactive.len() {
        let mut matrix = Vec::with_capacity(step.pivots * columns.len());
        for expression in expressions() {
            matrix.extend(columns.iter().map(|&column| expression[column as usize]));
        }
        let inputs: Vec<&[u8]> = columns.iter().map(value).collect();
        kernel.product(&matrix, &inputs, &mut targets, stride, Mode::Accumulate);
        return;
    }
    let known = step.solved.iter().map(|&e| &known[e as usize * stride..][..stride]);
    let inputs: Vec<&[u8]> = step
        .payloads
        .iter()
        .map(|&p| store.row(p))
        .chain(known)
        .chain(step.inactive.iter().map(value))
        .collect();
    let lines: Vec<usize> = (0..step.pivots).collect();
    let inactive_part = (&step.by_inactive[..], step.inactive.len());
    let matrix = match &step.transformation {
        Some(transformation) if !step.payloads.is_empty() => {
            select(&lines, &[(transformation, step.rows), step.solved_part(), inactive_part])
        }
        // Constraints: all payloads are zero. (A step with payloads and pivots has a
        // transformation.)
        _ => select(&lines, &[step.solved_part(), inactive_part]),
    };
    kernel.product(&matrix, &inputs, &mut targets, stride, Mode::Overwrite);
}
