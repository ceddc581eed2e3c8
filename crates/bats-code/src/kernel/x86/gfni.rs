//! Products with `gf2p8affineqb`.

use core::arch::x86_64::*;

use super::{ROWS_PER_BLOCK, in_blocks};
use crate::gf256::AFFINE;
use crate::kernel::Mode;

/// # Safety
/// The processor has AVX-512F and GFNI; every row and output has `len` octets, a multiple of 64.
#[target_feature(enable = "avx512f,gfni")]
pub(in crate::kernel) unsafe fn product_avx512(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_avx512, 8, [1 2 3 4 5 6 7 8], u64,
        |factor: u8| AFFINE[factor as usize]);
}

/// `sum + a + b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_two(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(sum, a, b)
}

/// # Safety
/// As [`product_avx512`], and for each of the `M` targets initialised multipliers of all rows.
#[target_feature(enable = "avx512f,gfni")]
unsafe fn pass_avx512<const M: usize>(
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
                    let by_x = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK));
                    let by_y = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK + 1));
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
                multiplier = multiplier.add(2);
            }
            if let [row] = pairs.remainder() {
                let x = row.as_ptr().add(offset);
                let x_low = _mm512_loadu_si512(x.cast());
                let x_high = _mm512_loadu_si512(x.add(64).cast());
                for i in 0..M {
                    let by = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK));
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
                    let by = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK));
                    sum[i] = _mm512_xor_si512(sum[i], _mm512_gf2p8affine_epi64_epi8::<0>(x, by));
                }
                multiplier = multiplier.add(1);
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
pub(in crate::kernel) unsafe fn product_avx2(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_avx2, 6, [1 2 3 4 5 6], u64,
        |factor: u8| AFFINE[factor as usize]);
}

/// # Safety
/// As [`product_avx2`], and for each of the `M` targets initialised multipliers of all rows.
#[target_feature(enable = "avx2,gfni")]
unsafe fn pass_avx2<const M: usize>(
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
                    let by = _mm256_set1_epi64x(*multiplier.add(i * ROWS_PER_BLOCK));
                    low[i] =
                        _mm256_xor_si256(low[i], _mm256_gf2p8affine_epi64_epi8::<0>(x_low, by));
                    high[i] =
                        _mm256_xor_si256(high[i], _mm256_gf2p8affine_epi64_epi8::<0>(x_high, by));
                }
                multiplier = multiplier.add(1);
            }
            for i in 0..M {
                _mm256_storeu_si256(targets[i].add(offset).cast(), low[i]);
                _mm256_storeu_si256(targets[i].add(offset + 32).cast(), high[i]);
            }
        }
    }
}
