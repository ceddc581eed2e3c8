//! Products by table lookup: `pshufb` looks up 16 bytes at once in a 16-entry table.

use core::arch::x86_64::*;

use super::{ROWS_PER_BLOCK, in_blocks};
use crate::gf256::NIBBLES;
use crate::kernel::Mode;

/// # Safety
/// The processor has AVX-512F and AVX-512BW; every row and output has `len` bytes, a multiple of
/// 64.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::kernel) unsafe fn product_avx512(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_avx512, 8, [1 2 3 4 5 6 7 8], *const u8,
        |factor: u8| NIBBLES[factor as usize].as_ptr());
}

/// # Safety
/// As [`product_avx512`]; for each of the `M` targets the multipliers of all rows are initialised.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pass_avx512<const M: usize>(
    multipliers: *const *const u8,
    rows: &[&[u8]],
    targets: &[*mut u8; 8],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 128, then 64, and every access ends at or below `len`, a multiple of
    // 64; the caller guarantees the multipliers; a table has two halves of 16 bytes.
    unsafe {
        let nibble = _mm512_set1_epi8(0x0f);
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
            let mut multiplier = multipliers;
            for row in rows {
                let x = row.as_ptr().add(offset);
                let x0 = _mm512_loadu_si512(x.cast());
                let x1 = _mm512_loadu_si512(x.add(64).cast());
                let x0_low = _mm512_and_si512(x0, nibble);
                let x1_low = _mm512_and_si512(x1, nibble);
                let x0_high = _mm512_and_si512(_mm512_srli_epi64::<4>(x0), nibble);
                let x1_high = _mm512_and_si512(_mm512_srli_epi64::<4>(x1), nibble);
                for i in 0..M {
                    let table = (*multiplier.add(i * ROWS_PER_BLOCK)).cast::<__m128i>();
                    let by_low = _mm512_broadcast_i32x4(_mm_loadu_si128(table));
                    let by_high = _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(1)));
                    low[i] = _mm512_ternarylogic_epi64::<0x96>(
                        low[i],
                        _mm512_shuffle_epi8(by_low, x0_low),
                        _mm512_shuffle_epi8(by_high, x0_high),
                    );
                    high[i] = _mm512_ternarylogic_epi64::<0x96>(
                        high[i],
                        _mm512_shuffle_epi8(by_low, x1_low),
                        _mm512_shuffle_epi8(by_high, x1_high),
                    );
                }
                multiplier = multiplier.add(1);
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
            let mut multiplier = multipliers;
            for row in rows {
                let x = _mm512_loadu_si512(row.as_ptr().add(offset).cast());
                let x_low = _mm512_and_si512(x, nibble);
                let x_high = _mm512_and_si512(_mm512_srli_epi64::<4>(x), nibble);
                for i in 0..M {
                    let table = (*multiplier.add(i * ROWS_PER_BLOCK)).cast::<__m128i>();
                    let by_low = _mm512_broadcast_i32x4(_mm_loadu_si128(table));
                    let by_high = _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(1)));
                    sum[i] = _mm512_ternarylogic_epi64::<0x96>(
                        sum[i],
                        _mm512_shuffle_epi8(by_low, x_low),
                        _mm512_shuffle_epi8(by_high, x_high),
                    );
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
/// The processor has AVX2; every row and output has `len` bytes, a multiple of 64.
#[target_feature(enable = "avx2")]
pub(in crate::kernel) unsafe fn product_avx2(
    matrix: &[u8],
    rows: &[&[u8]],
    outputs: &mut [&mut [u8]],
    len: usize,
    mode: Mode,
) {
    in_blocks!(matrix, rows, outputs, len, mode, pass_avx2, 4, [1 2 3 4], [u8; 32],
        |factor: u8| NIBBLES[factor as usize]);
}

/// # Safety
/// As [`product_avx2`]; for each of the `M` targets the multipliers of all rows are initialised.
#[target_feature(enable = "avx2")]
unsafe fn pass_avx2<const M: usize>(
    multipliers: *const [u8; 32],
    rows: &[&[u8]],
    targets: &[*mut u8; 4],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 64 below `len`, a multiple of 64; the caller guarantees the
    // multipliers; a table has two halves of 16 bytes.
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
                    let table = multiplier.add(i * ROWS_PER_BLOCK).cast::<__m128i>();
                    let by = _mm256_broadcastsi128_si256(_mm_loadu_si128(table));
                    low[i] = _mm256_xor_si256(low[i], _mm256_shuffle_epi8(by, x0_low));
                    high[i] = _mm256_xor_si256(high[i], _mm256_shuffle_epi8(by, x1_low));
                    let by = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(1)));
                    low[i] = _mm256_xor_si256(low[i], _mm256_shuffle_epi8(by, x0_high));
                    high[i] = _mm256_xor_si256(high[i], _mm256_shuffle_epi8(by, x1_high));
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

/// # Safety
/// The processor has SSSE3; every row and output has `len` bytes, a multiple of 64.
#[target_feature(enable = "ssse3")]
pub(in crate::kernel) unsafe fn product_ssse3(
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
/// As [`product_ssse3`]; for each of the `M` targets the multipliers of all rows are initialised.
#[target_feature(enable = "ssse3")]
unsafe fn pass_ssse3<const M: usize>(
    multipliers: *const *const u8,
    rows: &[&[u8]],
    targets: &[*mut u8; 4],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 32 below `len`, a multiple of 64; the caller guarantees the
    // multipliers; a table has two halves of 16 bytes.
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
                    let table = (*multiplier.add(i * ROWS_PER_BLOCK)).cast::<__m128i>();
                    let by = _mm_loadu_si128(table);
                    low[i] = _mm_xor_si128(low[i], _mm_shuffle_epi8(by, x0_low));
                    high[i] = _mm_xor_si128(high[i], _mm_shuffle_epi8(by, x1_low));
                    let by = _mm_loadu_si128(table.add(1));
                    low[i] = _mm_xor_si128(low[i], _mm_shuffle_epi8(by, x0_high));
                    high[i] = _mm_xor_si128(high[i], _mm_shuffle_epi8(by, x1_high));
                }
                multiplier = multiplier.add(1);
            }
            for i in 0..M {
                _mm_storeu_si128(targets[i].add(offset).cast(), low[i]);
                _mm_storeu_si128(targets[i].add(offset + 16).cast(), high[i]);
            }
        }
    }
}
