//! Products into slices of the caller, of any length: whole vectors go straight to the slice, the
//! rest by way of a short row of ours.

use alloc::vec::Vec;

use super::matrix::Matrix;
use super::parameters::Field;
use crate::kernel::{Kernel, Mode};
use crate::rows::ALIGNMENT;

/// `outputs[i] = sum over j of matrix[i * n + j] * rows[j]`, where rows are zero-padded beyond the
/// outputs' common length. Over GF(2) the matrix has octets 0 and 1.
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
        Field::Octet => kernel.product(matrix, rows, outputs, len, Mode::Overwrite),
        Field::Binary => {
            let mut chosen: Vec<&[u8]> = Vec::with_capacity(rows.len());
            for (i, output) in outputs.iter_mut().enumerate() {
                let line = &matrix[i * rows.len()..][..rows.len()];
                chosen.clear();
                chosen.extend(line.iter().zip(rows).filter(|(x, _)| **x != 0).map(|(_, r)| *r));
                sum(&chosen, &mut output[..len]);
            }
        }
    }
}

/// The exclusive or of rows, in 64-bit words; `output` is a multiple of 8 octets long.
fn sum(rows: &[&[u8]], output: &mut [u8]) {
    fn word(octets: &[u8]) -> u64 {
        octets.try_into().map_or(0, u64::from_ne_bytes)
    }
    output.fill(0);
    let len = output.len();
    // Four rows at a time: the output is loaded and stored once for them.
    let mut groups = rows.chunks_exact(4);
    for group in &mut groups {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| group[i][..len].chunks_exact(8));
        for ((((out, a), b), c), d) in output.chunks_exact_mut(8).zip(a).zip(b).zip(c).zip(d) {
            let sum = word(out) ^ word(a) ^ word(b) ^ word(c) ^ word(d);
            out.copy_from_slice(&sum.to_ne_bytes());
        }
    }
    for row in groups.remainder() {
        for (out, a) in output.chunks_exact_mut(8).zip(row[..len].chunks_exact(8)) {
            out.copy_from_slice(&(word(out) ^ word(a)).to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::gf256;

    #[test]
    fn any_length_gives_the_naive_sums() {
        for (field, len) in [0, 1, 63, 64, 65, 200]
            .into_iter()
            .flat_map(|len| [(Field::Binary, len), (Field::Octet, len)])
        {
            let mut rows = Matrix::zeroed(7, len);
            for (i, row) in (0..7).map(|i| (i, i * 31 + 5)) {
                rows.row_mut(i)[..len].iter_mut().enumerate().for_each(|(x, octet)| {
                    *octet = (row * (x + 3) + x) as u8;
                });
            }
            let mask = if field == Field::Binary { 1 } else { 255 };
            let matrix: Vec<u8> = (0..21u8).map(|x| x.wrapping_mul(91) >> 2 & mask).collect();
            let mut outputs = vec![vec![9; len]; 3];
            let mut targets: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            let lines: Vec<&[u8]> = rows.iter().collect();
            product(Kernel::active(), field, &matrix, &lines, &mut targets);
            for (output, line) in outputs.iter().zip(matrix.chunks(7)) {
                for (x, &octet) in output.iter().enumerate() {
                    let terms = line.iter().zip(&lines).map(|(&f, row)| gf256::mul(f, row[x]));
                    assert_eq!(octet, terms.fold(0, |sum, term| sum ^ term), "{field:?} {len}");
                }
            }
        }
    }
}
