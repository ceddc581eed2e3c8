//! The kernel without vector instructions: also the reference for the others.

use super::Mode;
use crate::gf256::MUL;

/// See [`super::Kernel::product`], which has checked the lengths.
pub(super) fn product(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    for (i, output) in outputs.iter_mut().enumerate() {
        let output = &mut output[..len];
        if mode == Mode::Overwrite {
            output.fill(0);
        }
        for (&factor, row) in matrix[i * rows.len()..].iter().zip(rows) {
            match factor {
                0 => {}
                // Compiles to whole words.
                1 => output.iter_mut().zip(&row[..len]).for_each(|(out, x)| *out ^= x),
                _ => {
                    let table = &MUL[factor as usize];
                    for (out, x) in output.iter_mut().zip(&row[..len]) {
                        *out ^= table[*x as usize];
                    }
                }
            }
        }
    }
}
