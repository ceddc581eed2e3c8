//! Matrix products into unpadded slices of any length. Whole 64-byte blocks are written directly,
//! the remaining bytes go through a padded buffer.

use alloc::vec::Vec;

use super::matrix::Matrix;
use super::parameters::Field;
use crate::kernel::{Kernel, Mode};
use crate::rows::ALIGNMENT;

/// Computes `outputs[i] = sum over j of matrix[i * n + j] * rows[j]`. The outputs have equal
/// lengths; the rows are zero-padded beyond that. Over GF(2) the matrix has bytes 0 and 1.
pub(super) fn product(
    kernel: Kernel,
    field: Field,
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
) {
    let len = outputs.first().map_or(0, |output| output.len());
    let whole = len - len % ALIGNMENT;
    if whole > 0 {
        padded_product(kernel, field, matrix, rows, outputs, whole);
    }
    if whole < len {
        let ends: Vec<&[u8]> = rows.iter().map(|row| &row[whole..]).collect();
        let mut scratch = Matrix::zeroed(outputs.len(), ALIGNMENT);
        let (_, targets) = scratch.split_mut(0);
        let mut targets: Vec<&mut [u8]> = targets.collect();
        padded_product(kernel, field, matrix, &ends, &mut targets, ALIGNMENT);
        for (output, row) in outputs.iter_mut().zip(scratch.iter()) {
            output[whole..].copy_from_slice(&row[..len - whole]);
        }
    }
}

fn padded_product(
    kernel: Kernel,
    field: Field,
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
) {
    match field {
        Field::Byte => kernel.product(matrix, rows, outputs, len, Mode::Overwrite),
        Field::Binary => kernel.product_gf2(matrix, rows, outputs, len, Mode::Overwrite),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::gf256;

    #[test]
    fn products_of_any_length_match_naive_sums() {
        for (field, len) in [0, 1, 63, 64, 65, 200]
            .into_iter()
            .flat_map(|len| [(Field::Binary, len), (Field::Byte, len)])
        {
            let mut rows = Matrix::zeroed(7, len);
            for (i, row) in (0..7).map(|i| (i, i * 31 + 5)) {
                rows.row_mut(i)[..len].iter_mut().enumerate().for_each(|(x, byte)| {
                    *byte = (row * (x + 3) + x) as u8;
                });
            }
            let mask = if field == Field::Binary { 1 } else { 255 };
            let matrix: Vec<u8> = (0..21u8).map(|x| x.wrapping_mul(91) >> 2 & mask).collect();
            let mut outputs = vec![vec![9; len]; 3];
            let mut targets: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            let lines: Vec<&[u8]> = rows.iter().collect();
            for kernel in Kernel::available() {
                targets.iter_mut().for_each(|target| target.fill(9));
                product(kernel, field, &matrix, &lines, &mut targets);
                for (output, line) in targets.iter().zip(matrix.chunks(7)) {
                    for (x, &byte) in output.iter().enumerate() {
                        let terms = line.iter().zip(&lines).map(|(&f, row)| gf256::mul(f, row[x]));
                        let sum = terms.fold(0, |sum, term| sum ^ term);
                        assert_eq!(byte, sum, "{field:?} {len} {}", kernel.name());
                    }
                }
            }
        }
    }
}
