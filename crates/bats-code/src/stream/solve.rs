//! Computes the payloads of solved rows, in one matrix product over equations and known symbols.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::known::KnownSet;
use super::linear_system::{Equation, LinearSystem, scale};
use crate::kernel::Kernel;
use crate::rows::{ALIGNMENT, AlignedRow, RowPool, padded_length};

/// What the payloads of solved rows are computed from.
pub(super) struct Solution<'a> {
    system: &'a LinearSystem,
    solved: &'a [usize],
    /// Equations that the rows are sums of, with their numbers.
    equations: Vec<(usize, &'a Equation)>,
    /// First and end of the symbols that they combine.
    symbols: Range<u64>,
}

impl<'a> Solution<'a> {
    /// For the `solved` rows of a system.
    pub(super) fn new(system: &'a LinearSystem, solved: &'a [usize]) -> Self {
        let all = system.equations().iter().enumerate();
        let is_used = |e: usize| solved.iter().any(|&row| system.transformation(row)[e] != 0);
        let equations: Vec<(usize, &Equation)> = all.filter(|&(e, _)| is_used(e)).collect();
        let windows = || equations.iter().map(|(_, equation)| equation.window);
        let first = windows().map(|window| window.first).min().unwrap_or(0);
        let end =
            windows().map(|window| window.first + u64::from(window.count)).max().unwrap_or(first);
        Self { system, solved, equations, symbols: first..end }
    }

    /// Length of the symbols.
    fn len(&self) -> usize {
        self.equations.iter().map(|(_, e)| e.payload.as_slice().len()).max().unwrap_or(0)
    }

    /// Work of this solution, in bytes of rows that are searched, multiplied and added: for each symbol
    /// the factors of all equations of the system, the coefficients of those used, and a row for each
    /// symbol of the windows. There are not more equations than unknown symbols, whose places they take.
    pub(super) fn work(&self) -> u64 {
        let symbols = (self.symbols.end - self.symbols.start) as usize;
        let terms = self.system.equations().len()
            + self.equations.len() * padded_length(symbols)
            + symbols * padded_length(self.len());
        self.solved.len() as u64 * terms as u64
    }

    /// Computes the symbols that the rows determine.
    ///
    /// A row is a linear combination of equations, and so of payloads and known symbols. A product of
    /// small matrices gives the coefficients of the known symbols. `known_row` returns the padded row
    /// of a known symbol.
    pub(super) fn payloads(
        &self,
        kernel: Kernel,
        known: &KnownSet,
        known_row: impl Fn(u64) -> &'a [u8],
        pool: &mut RowPool,
    ) -> Vec<AlignedRow> {
        let Self { system, solved, equations, symbols: Range { start: first, end } } = self;
        let (first, end) = (*first, *end);
        let mut factors = Vec::with_capacity(solved.len() * equations.len());
        for &row in *solved {
            let line = system.transformation(row);
            factors.extend(equations.iter().map(|&(e, _)| line[e]));
        }
        let span = padded_length((end - first) as usize);
        let combined = combine(kernel, &factors, equations, solved.len(), first, span);

        // The rows are in symbol order, so that each line of coefficients is one copy. Unknown symbols
        // between them are the pivots, or cancel; payloads of the equations take their places while
        // there are any left.
        let mut holes = Vec::with_capacity(equations.len());
        known.for_each_unknown(first, end, |number| holes.push((number - first) as usize));
        let filler = equations.first().map_or(&[][..], |(_, e)| e.payload.padded());
        let mut payloads = equations.iter().map(|(_, e)| e.payload.padded());
        let mut rows: Vec<&[u8]> = Vec::with_capacity((end - first) as usize + equations.len());
        for &hole in &holes {
            rows.extend((first + rows.len() as u64..first + hole as u64).map(&known_row));
            rows.push(payloads.next().unwrap_or(filler));
        }
        rows.extend((first + rows.len() as u64..end).map(&known_row));
        rows.extend(payloads);
        let symbols = (end - first) as usize;
        // Puts the factors of the payloads into a line of `matrix` that begins there.
        let place = |matrix: &mut Vec<u8>, begin: usize, factors: &[u8]| {
            for (index, &hole) in holes.iter().enumerate() {
                matrix[begin + hole] = factors.get(index).copied().unwrap_or(0);
            }
            matrix.extend_from_slice(factors.get(holes.len()..).unwrap_or(&[]));
        };
        let mut matrix = combined;
        if solved.len() == 1 {
            matrix.truncate(symbols);
            place(&mut matrix, 0, &factors);
        } else {
            let combined =
                core::mem::replace(&mut matrix, Vec::with_capacity(solved.len() * rows.len()));
            for (line, coefficients) in
                factors.chunks_exact(equations.len().max(1)).zip(combined.chunks_exact(span.max(1)))
            {
                let begin = matrix.len();
                matrix.extend_from_slice(&coefficients[..symbols]);
                place(&mut matrix, begin, line);
            }
        }
        let len = self.len();
        let mut outputs: Vec<AlignedRow> = solved.iter().map(|_| pool.take(len)).collect();
        let mut targets: Vec<&mut [u8]> = outputs.iter_mut().map(AlignedRow::padded_mut).collect();
        kernel.product_ragged(&matrix, &rows, &mut targets, padded_length(len));
        outputs
    }
}

/// Computes the coefficients of `span` symbols from `first` on, for each of `count` solved rows.
fn combine(
    kernel: Kernel,
    factors: &[u8],
    equations: &[(usize, &Equation)],
    count: usize,
    first: u64,
    span: usize,
) -> Vec<u8> {
    if let ([factor], [(_, equation)]) = (factors, equations)
        && span == ALIGNMENT
    {
        // One symbol is missing in one short repair: too little for a kernel call to pay off.
        let mut combined = vec![0; span];
        let coefficients = equation.coefficients.as_slice();
        combined[..coefficients.len()].copy_from_slice(coefficients);
        scale(*factor, &mut combined[..coefficients.len()]);
        return combined;
    }
    let mut shifted = Vec::new();
    if equations.iter().any(|(_, e)| e.window.first != first) {
        shifted = vec![0; equations.len() * span];
        for (line, (_, equation)) in shifted.chunks_exact_mut(span).zip(equations) {
            let start = (equation.window.first - first) as usize;
            let coefficients = equation.coefficients.as_slice();
            line[start..start + coefficients.len()].copy_from_slice(coefficients);
        }
    }
    let lines: Vec<&[u8]> = if shifted.is_empty() {
        equations.iter().map(|(_, equation)| equation.coefficients.padded()).collect()
    } else {
        shifted.chunks_exact(span).collect()
    };
    let mut combined = vec![0; count * span];
    let mut outputs: Vec<&mut [u8]> = combined.chunks_exact_mut(span.max(1)).collect();
    kernel.product_ragged(factors, &lines, &mut outputs, span);
    combined
}
