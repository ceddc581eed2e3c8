//! Kernels for AArch64: `tbl` looks up 16 bytes at once in a 16-entry table, like `pshufb` on x86.
#![allow(unsafe_code, reason = "vector instructions on raw pointers; each block says why")]
#![allow(clippy::needless_range_loop, reason = "one index into three arrays of registers")]

use core::arch::aarch64::*;

use super::Mode;
use crate::gf256::NIBBLES;

/// # Safety
/// The processor has NEON; every row and output has `len` bytes, a multiple of 64.
#[target_feature(enable = "neon")]
pub(super) unsafe fn product(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    let n = rows.len();
    for (index, block) in outputs.chunks_mut(4).enumerate() {
        let lines = &matrix[index * 4 * n..][..block.len() * n];
        let mut targets = [core::ptr::null_mut::<u8>(); 4];
        for (target, output) in targets.iter_mut().zip(block.iter_mut()) {
            *target = output.as_mut_ptr();
        }
        let add = mode == Mode::Accumulate;
        // SAFETY: required of the caller; each output of the block has a target and a line of
        // factors.
        unsafe {
            match block.len() {
                1 => pass::<1>(lines, rows, &targets, len, add),
                2 => pass::<2>(lines, rows, &targets, len, add),
                3 => pass::<3>(lines, rows, &targets, len, add),
                _ => pass::<4>(lines, rows, &targets, len, add),
            }
        }
    }
}

/// # Safety
/// As [`product`]; `M` targets are set, `lines` has `M * rows.len()` factors.
#[target_feature(enable = "neon")]
unsafe fn pass<const M: usize>(
    lines: &[u8],
    rows: &[&[u8]],
    targets: &[*mut u8; 4],
    len: usize,
    add: bool,
) {
    let nibble = vdupq_n_u8(0x0f);
    for offset in (0..len).step_by(32) {
        // SAFETY: offsets step by 32 below `len`, a multiple of 64; a table has two halves of 16
        // bytes.
        unsafe {
            let mut low = [vdupq_n_u8(0); M];
            let mut high = [vdupq_n_u8(0); M];
            if add {
                for i in 0..M {
                    low[i] = vld1q_u8(targets[i].add(offset));
                    high[i] = vld1q_u8(targets[i].add(offset + 16));
                }
            }
            for (j, row) in rows.iter().enumerate() {
                let x0 = vld1q_u8(row.as_ptr().add(offset));
                let x1 = vld1q_u8(row.as_ptr().add(offset + 16));
                let (x0_low, x1_low) = (vandq_u8(x0, nibble), vandq_u8(x1, nibble));
                let (x0_high, x1_high) = (vshrq_n_u8::<4>(x0), vshrq_n_u8::<4>(x1));
                for i in 0..M {
                    let table = NIBBLES[lines[i * rows.len() + j] as usize].as_ptr();
                    let by = vld1q_u8(table);
                    low[i] = veorq_u8(low[i], vqtbl1q_u8(by, x0_low));
                    high[i] = veorq_u8(high[i], vqtbl1q_u8(by, x1_low));
                    let by = vld1q_u8(table.add(16));
                    low[i] = veorq_u8(low[i], vqtbl1q_u8(by, x0_high));
                    high[i] = veorq_u8(high[i], vqtbl1q_u8(by, x1_high));
                }
            }
            for i in 0..M {
                vst1q_u8(targets[i].add(offset), low[i]);
                vst1q_u8(targets[i].add(offset + 16), high[i]);
            }
        }
    }
}

/// Computes `output = sum of rows`, or adds the sum to it.
///
/// # Safety
/// The processor has NEON; every row and the output have `len` bytes, a multiple of 64.
#[target_feature(enable = "neon")]
pub(super) unsafe fn sum(rows: &[&[u8]], output: &mut [u8], len: usize, add: bool) {
    let target = output.as_mut_ptr();
    for offset in (0..len).step_by(64) {
        // SAFETY: offsets step by 64 below `len`, a multiple of 64.
        unsafe {
            let mut sum = [vdupq_n_u8(0); 4];
            if add {
                for i in 0..4 {
                    sum[i] = vld1q_u8(target.add(offset + 16 * i));
                }
            }
            for row in rows {
                for i in 0..4 {
                    sum[i] = veorq_u8(sum[i], vld1q_u8(row.as_ptr().add(offset + 16 * i)));
                }
            }
            for i in 0..4 {
                vst1q_u8(target.add(offset + 16 * i), sum[i]);
            }
        }
    }
}
