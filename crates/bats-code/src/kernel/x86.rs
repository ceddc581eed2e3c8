//! Kernels of x86-64. Each computes a block of outputs per pass over the inputs, with the sums in
//! registers: an input is loaded once per block of outputs, an output is stored once per
//! `ROWS_PER_BLOCK` inputs.
//!
//! GFNI multiplies by an 8 x 8 bit matrix (`gf2p8affineqb` works for any polynomial, `gf2p8mulb`
//! only for that of AES); without it two 16-entry tables give the products of the two nibbles.
#![allow(unsafe_code, reason = "vector instructions on raw pointers; each block says why")]
#![allow(clippy::needless_range_loop, reason = "one index into three arrays of registers")]

use core::arch::x86_64::*;
use core::mem::MaybeUninit;

use super::Mode;
use crate::gf256::{AFFINE, NIBBLES};

/// Inputs whose multipliers are laid out for one pass: 4 KiB of them for 8 outputs.
const ROWS_PER_BLOCK: usize = 64;

/// Calls `$pass::<outputs in the block>` for blocks of at most `$most` outputs and of at most
/// `ROWS_PER_BLOCK` rows. `$pack` turns a factor into a multiplier.
macro_rules! in_blocks {
    ($matrix:ident, $rows:ident, $outputs:ident, $len:ident, $mode:ident,
     $pass:ident, $most:literal, [$($size:literal)*], $type:ty, $pack:expr) => {{
        let n = $rows.len();
        if n == 0 && $mode == Mode::Overwrite {
            for output in $outputs.iter_mut() {
                output[..$len].fill(0);
            }
        }
        // Zeroing it would cost more than a small product.
        let mut multipliers = [const { MaybeUninit::<$type>::uninit() }; ROWS_PER_BLOCK * $most];
        let mut done = 0;
        let mut rest = &mut $outputs[..];
        while !rest.is_empty() {
            // Blocks of about equal size: the smaller a block, the less an input's load is worth.
            let size = rest.len().div_ceil(rest.len().div_ceil($most));
            let (block, others) = rest.split_at_mut(size);
            rest = others;
            let mut targets = [core::ptr::null_mut::<u8>(); $most];
            for (target, output) in targets.iter_mut().zip(block.iter_mut()) {
                *target = output.as_mut_ptr();
            }
            for (index, inputs) in $rows.chunks(ROWS_PER_BLOCK).enumerate() {
                let first = index * ROWS_PER_BLOCK;
                for i in 0..size {
                    let line = &$matrix[(done + i) * n + first..][..inputs.len()];
                    for (j, &factor) in line.iter().enumerate() {
                        multipliers[j * size + i].write($pack(factor));
                    }
                }
                let add = index > 0 || $mode == Mode::Accumulate;
                // SAFETY: the caller of the whole function vouches for the instructions and for
                // `len` octets behind every input and output; there are `size` targets, and
                // `size` multipliers for each input have just been written.
                unsafe {
                    match size {
                        $($size => $pass::<$size>(multipliers.as_ptr().cast(), inputs, &targets, $len, add),)*
                        _ => {}
                    }
                }
            }
            done += size;
        }
    }};
}

/// # Safety
/// The processor has AVX-512F and GFNI; every row and output has `len` octets, a multiple of 64.
#[target_feature(enable = "avx512f,gfni")]
pub(super) unsafe fn product_gfni_avx512(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_gfni_avx512, 8, [1 2 3 4 5 6 7 8], u64,
        |factor: u8| AFFINE[factor as usize]);
}

/// `sum + a + b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_two(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(sum, a, b)
}

/// # Safety
/// As [`product_gfni_avx512`], and `M` multipliers for each row (initialised), `M` targets.
#[target_feature(enable = "avx512f,gfni")]
unsafe fn pass_gfni_avx512<const M: usize>(
    multipliers: *const u64,
    rows: &[&[u8]],
    targets: &[*mut u8; 8],
    len: usize,
    add: bool,
) {
    // SAFETY: every offset is below `len` rounded to the vectors that it counts; `len` is a
    // multiple of 64; multipliers as required.
    unsafe {
        let mut offset = 0;
        while offset + 128 <= len {
            let mut low = [_mm512_setzero_si512(); M];
            let mut high = [_mm512_setzero_si512(); M];
            if add {
                for i in 0..M {
                    low[i] = _mm512_loadu_si512(targets[i].add(offset).cast());
                    high[i] = _mm512_loadu_si512(targets[i].add(offset + 64).cast());
                }
            }
            let mut multiplier = multipliers.cast::<i64>();
            // Two inputs at a time: one three-way exclusive or instead of two, because on many
            // processors multiplications and additions compete for the same ports.
            let mut pairs = rows.chunks_exact(2);
            for pair in &mut pairs {
                let (x, y) = (pair[0].as_ptr().add(offset), pair[1].as_ptr().add(offset));
                let x_low = _mm512_loadu_si512(x.cast());
                let x_high = _mm512_loadu_si512(x.add(64).cast());
                let y_low = _mm512_loadu_si512(y.cast());
                let y_high = _mm512_loadu_si512(y.add(64).cast());
                for i in 0..M {
                    let by_x = _mm512_set1_epi64(*multiplier.add(i));
                    let by_y = _mm512_set1_epi64(*multiplier.add(M + i));
                    low[i] = add_two(
                        low[i],
                        _mm512_gf2p8affine_epi64_epi8::<0>(x_low, by_x),
                        _mm512_gf2p8affine_epi64_epi8::<0>(y_low, by_y),
                    );
                    high[i] = add_two(
                        high[i],
                        _mm512_gf2p8affine_epi64_epi8::<0>(x_high, by_x),
                        _mm512_gf2p8affine_epi64_epi8::<0>(y_high, by_y),
                    );
                }
                multiplier = multiplier.add(2 * M);
            }
            if let [row] = pairs.remainder() {
                let x = row.as_ptr().add(offset);
                let x_low = _mm512_loadu_si512(x.cast());
                let x_high = _mm512_loadu_si512(x.add(64).cast());
                for i in 0..M {
                    let by = _mm512_set1_epi64(*multiplier.add(i));
                    low[i] =
                        _mm512_xor_si512(low[i], _mm512_gf2p8affine_epi64_epi8::<0>(x_low, by));
                    high[i] =
                        _mm512_xor_si512(high[i], _mm512_gf2p8affine_epi64_epi8::<0>(x_high, by));
                }
            }
            for i in 0..M {
                _mm512_storeu_si512(targets[i].add(offset).cast(), low[i]);
                _mm512_storeu_si512(targets[i].add(offset + 64).cast(), high[i]);
            }
            offset += 128;
        }
        if offset < len {
            let mut sum = [_mm512_setzero_si512(); M];
            if add {
                for i in 0..M {
                    sum[i] = _mm512_loadu_si512(targets[i].add(offset).cast());
                }
            }
            let mut multiplier = multipliers.cast::<i64>();
            for row in rows {
                let x = _mm512_loadu_si512(row.as_ptr().add(offset).cast());
                for i in 0..M {
                    let by = _mm512_set1_epi64(*multiplier.add(i));
                    sum[i] = _mm512_xor_si512(sum[i], _mm512_gf2p8affine_epi64_epi8::<0>(x, by));
                }
                multiplier = multiplier.add(M);
            }
            for i in 0..M {
                _mm512_storeu_si512(targets[i].add(offset).cast(), sum[i]);
            }
        }
    }
}

/// # Safety
/// The processor has AVX2 and GFNI; every row and output has `len` octets, a multiple of 64.
#[target_feature(enable = "avx2,gfni")]
pub(super) unsafe fn product_gfni_avx2(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_gfni_avx2, 6, [1 2 3 4 5 6], u64,
        |factor: u8| AFFINE[factor as usize]);
}

/// # Safety
/// As [`product_gfni_avx2`], and `M` multipliers for each row (initialised), `M` targets.
#[target_feature(enable = "avx2,gfni")]
unsafe fn pass_gfni_avx2<const M: usize>(
    multipliers: *const u64,
    rows: &[&[u8]],
    targets: &[*mut u8; 6],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 64 below `len`, a multiple of 64; multipliers as required.
    unsafe {
        for offset in (0..len).step_by(64) {
            let mut low = [_mm256_setzero_si256(); M];
            let mut high = [_mm256_setzero_si256(); M];
            if add {
                for i in 0..M {
                    low[i] = _mm256_loadu_si256(targets[i].add(offset).cast());
                    high[i] = _mm256_loadu_si256(targets[i].add(offset + 32).cast());
                }
            }
            let mut multiplier = multipliers.cast::<i64>();
            for row in rows {
                let x = row.as_ptr().add(offset);
                let x_low = _mm256_loadu_si256(x.cast());
                let x_high = _mm256_loadu_si256(x.add(32).cast());
                for i in 0..M {
                    let by = _mm256_set1_epi64x(*multiplier.add(i));
                    low[i] =
                        _mm256_xor_si256(low[i], _mm256_gf2p8affine_epi64_epi8::<0>(x_low, by));
                    high[i] =
                        _mm256_xor_si256(high[i], _mm256_gf2p8affine_epi64_epi8::<0>(x_high, by));
                }
                multiplier = multiplier.add(M);
            }
            for i in 0..M {
                _mm256_storeu_si256(targets[i].add(offset).cast(), low[i]);
                _mm256_storeu_si256(targets[i].add(offset + 32).cast(), high[i]);
            }
        }
    }
}

/// # Safety
/// The processor has AVX2; every row and output has `len` octets, a multiple of 64.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn product_avx2(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_avx2, 4, [1 2 3 4], *const u8,
        |factor: u8| NIBBLES[factor as usize].as_ptr());
}

/// # Safety
/// As [`product_avx2`], and `M` multipliers for each row (initialised), `M` targets.
#[target_feature(enable = "avx2")]
unsafe fn pass_avx2<const M: usize>(
    multipliers: *const *const u8,
    rows: &[&[u8]],
    targets: &[*mut u8; 4],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 64 below `len`, a multiple of 64; multipliers as required; a table
    // has two halves of 16 octets.
    unsafe {
        let nibble = _mm256_set1_epi8(0x0f);
        for offset in (0..len).step_by(64) {
            let mut low = [_mm256_setzero_si256(); M];
            let mut high = [_mm256_setzero_si256(); M];
            if add {
                for i in 0..M {
                    low[i] = _mm256_loadu_si256(targets[i].add(offset).cast());
                    high[i] = _mm256_loadu_si256(targets[i].add(offset + 32).cast());
                }
            }
            let mut multiplier = multipliers;
            for row in rows {
                let x = row.as_ptr().add(offset);
                let x0 = _mm256_loadu_si256(x.cast());
                let x1 = _mm256_loadu_si256(x.add(32).cast());
                let x0_low = _mm256_and_si256(x0, nibble);
                let x1_low = _mm256_and_si256(x1, nibble);
                let x0_high = _mm256_and_si256(_mm256_srli_epi64::<4>(x0), nibble);
                let x1_high = _mm256_and_si256(_mm256_srli_epi64::<4>(x1), nibble);
                for i in 0..M {
                    let table = (*multiplier.add(i)).cast::<__m128i>();
                    let by = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
                    low[i] = _mm256_xor_si256(low[i], _mm256_shuffle_epi8(by, x0_low));
                    high[i] = _mm256_xor_si256(high[i], _mm256_shuffle_epi8(by, x1_low));
                    let by = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1)));
                    low[i] = _mm256_xor_si256(low[i], _mm256_shuffle_epi8(by, x0_high));
                    high[i] = _mm256_xor_si256(high[i], _mm256_shuffle_epi8(by, x1_high));
                }
                multiplier = multiplier.add(M);
            }
            for i in 0..M {
                _mm256_storeu_si256(targets[i].add(offset).cast(), low[i]);
                _mm256_storeu_si256(targets[i].add(offset + 32).cast(), high[i]);
            }
        }
    }
}

/// # Safety
/// The processor has SSSE3; every row and output has `len` octets, a multiple of 64.
#[target_feature(enable = "ssse3")]
pub(super) unsafe fn product_ssse3(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_ssse3, 4, [1 2 3 4], *const u8,
        |factor: u8| NIBBLES[factor as usize].as_ptr());
}

/// # Safety
/// As [`product_ssse3`], and `M` multipliers for each row (initialised), `M` targets.
#[target_feature(enable = "ssse3")]
unsafe fn pass_ssse3<const M: usize>(
    multipliers: *const *const u8,
    rows: &[&[u8]],
    targets: &[*mut u8; 4],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 32 below `len`, a multiple of 64; multipliers as required; a table
    // has two halves of 16 octets.
    unsafe {
        let nibble = _mm_set1_epi8(0x0f);
        for offset in (0..len).step_by(32) {
            let mut low = [_mm_setzero_si128(); M];
            let mut high = [_mm_setzero_si128(); M];
            if add {
                for i in 0..M {
                    low[i] = _mm_loadu_si128(targets[i].add(offset).cast());
                    high[i] = _mm_loadu_si128(targets[i].add(offset + 16).cast());
                }
            }
            let mut multiplier = multipliers;
            for row in rows {
                let x = row.as_ptr().add(offset);
                let x0 = _mm_loadu_si128(x.cast());
                let x1 = _mm_loadu_si128(x.add(16).cast());
                let x0_low = _mm_and_si128(x0, nibble);
                let x1_low = _mm_and_si128(x1, nibble);
                let x0_high = _mm_and_si128(_mm_srli_epi64::<4>(x0), nibble);
                let x1_high = _mm_and_si128(_mm_srli_epi64::<4>(x1), nibble);
                for i in 0..M {
                    let table = (*multiplier.add(i)).cast::<__m128i>();
                    let by = _mm_loadu_si128(table);
                    low[i] = _mm_xor_si128(low[i], _mm_shuffle_epi8(by, x0_low));
                    high[i] = _mm_xor_si128(high[i], _mm_shuffle_epi8(by, x1_low));
                    let by = _mm_loadu_si128(table.add(1));
                    low[i] = _mm_xor_si128(low[i], _mm_shuffle_epi8(by, x0_high));
                    high[i] = _mm_xor_si128(high[i], _mm_shuffle_epi8(by, x1_high));
                }
                multiplier = multiplier.add(M);
            }
            for i in 0..M {
                _mm_storeu_si128(targets[i].add(offset).cast(), low[i]);
                _mm_storeu_si128(targets[i].add(offset + 16).cast(), high[i]);
            }
        }
    }
}
