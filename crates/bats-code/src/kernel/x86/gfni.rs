//! Products with `gf2p8affineqb`.

use core::arch::x86_64::*;

use super::{ROWS_PER_BLOCK, in_blocks};
use crate::gf256::AFFINE;
use crate::kernel::Mode;

/// # Safety
/// The processor has AVX-512F and GFNI; every row and output has `len` bytes, a multiple of 64.
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
/// As [`product_avx512`]; for each of the `M` targets the multipliers of all rows are initialised.
#[target_feature(enable = "avx512f,gfni")]
unsafe fn pass_avx512<const M: usize>(
    multipliers: *const u64,
    rows: &[&[u8]],
    targets: &[*mut u8; 8],
    len: usize,
    add: bool,
) {
    // SAFETY: every tile ends at or below `len`, a multiple of 64; the caller guarantees the
    // multipliers.
    unsafe {
        let mut offset = 0;
        if M == 1 {
            return single_avx512(multipliers, rows, targets, len, add);
        }
        // With few outputs, process more vectors of each: every broadcast is used for all of them.
        if M <= 4 {
            while offset + 256 <= len {
                tile_avx512::<M, 4>(multipliers, rows, targets, offset, add);
                offset += 256;
            }
        }
        while offset + 128 <= len {
            tile_avx512::<M, 2>(multipliers, rows, targets, offset, add);
            offset += 128;
        }
        if offset < len {
            tile_avx512::<M, 1>(multipliers, rows, targets, offset, add);
        }
    }
}

/// One output: uses as few tiles as possible, of up to 12 vectors, because each tile pays the
/// latency of its sums once.
///
/// # Safety
/// As [`pass_avx512`] with one target.
#[target_feature(enable = "avx512f,gfni")]
unsafe fn single_avx512(
    multipliers: *const u64,
    rows: &[&[u8]],
    targets: &[*mut u8; 8],
    len: usize,
    add: bool,
) {
    let mut offset = 0;
    while offset < len {
        let left = (len - offset) / 64;
        let vectors = left.div_ceil(left.div_ceil(12));
        macro_rules! tiles {
            ($($vectors:literal)*) => {
                match vectors {
                    $($vectors => {
                        // SAFETY: required of the caller; at least `vectors` blocks of 64 bytes
                        // remain.
                        unsafe {
                            tile_avx512::<1, $vectors>(multipliers, rows, targets, offset, add);
                        }
                    })*
                    _ => {}
                }
            };
        }
        tiles!(1 2 3 4 5 6 7 8 9 10 11 12);
        offset += 64 * vectors;
    }
}

/// Computes `V` vectors of each of the `M` outputs, starting at `offset`.
///
/// # Safety
/// As [`pass_avx512`]; rows and targets have at least `offset + 64 * V` bytes.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
unsafe fn tile_avx512<const M: usize, const V: usize>(
    multipliers: *const u64,
    rows: &[&[u8]],
    targets: &[*mut u8; 8],
    offset: usize,
    add: bool,
) {
    // SAFETY: required of the caller.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); V]; M];
        if add {
            for i in 0..M {
                for v in 0..V {
                    sums[i][v] = _mm512_loadu_si512(targets[i].add(offset + 64 * v).cast());
                }
            }
        }
        let mut multiplier = multipliers.cast::<i64>();
        // Two inputs at a time need one three-way XOR instead of two XORs: on many processors
        // multiplications and additions compete for the same ports.
        let mut pairs = rows.chunks_exact(2);
        for pair in &mut pairs {
            let (x, y) = (pair[0].as_ptr().add(offset), pair[1].as_ptr().add(offset));
            // Prefetch the next tile: the rows are more streams than the hardware prefetcher
            // follows. A prefetch beyond a row is harmless. With few outputs the loads are the
            // bottleneck, so that prefetches would cost time.
            if M > 4 {
                for v in V..2 * V {
                    _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(64 * v).cast());
                    _mm_prefetch::<_MM_HINT_T0>(y.wrapping_add(64 * v).cast());
                }
            }
            let x: [__m512i; V] =
                core::array::from_fn(|v| _mm512_loadu_si512(x.add(64 * v).cast()));
            let y: [__m512i; V] =
                core::array::from_fn(|v| _mm512_loadu_si512(y.add(64 * v).cast()));
            for i in 0..M {
                let by_x = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK));
                let by_y = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK + 1));
                for v in 0..V {
                    sums[i][v] = add_two(
                        sums[i][v],
                        _mm512_gf2p8affine_epi64_epi8::<0>(x[v], by_x),
                        _mm512_gf2p8affine_epi64_epi8::<0>(y[v], by_y),
                    );
                }
            }
            multiplier = multiplier.add(2);
        }
        if let [row] = pairs.remainder() {
            for v in 0..V {
                let x = _mm512_loadu_si512(row.as_ptr().add(offset + 64 * v).cast());
                for i in 0..M {
                    let by = _mm512_set1_epi64(*multiplier.add(i * ROWS_PER_BLOCK));
                    let product = _mm512_gf2p8affine_epi64_epi8::<0>(x, by);
                    sums[i][v] = _mm512_xor_si512(sums[i][v], product);
                }
            }
        }
        for i in 0..M {
            for v in 0..V {
                _mm512_storeu_si512(targets[i].add(offset + 64 * v).cast(), sums[i][v]);
            }
        }
    }
}

/// # Safety
/// The processor has AVX2 and GFNI; every row and output has `len` bytes, a multiple of 64.
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
/// As [`product_avx2`]; for each of the `M` targets the multipliers of all rows are initialised.
#[target_feature(enable = "avx2,gfni")]
unsafe fn pass_avx2<const M: usize>(
    multipliers: *const u64,
    rows: &[&[u8]],
    targets: &[*mut u8; 6],
    len: usize,
    add: bool,
) {
    // SAFETY: offsets step by 64 below `len`, a multiple of 64; the caller guarantees the
    // multipliers.
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
