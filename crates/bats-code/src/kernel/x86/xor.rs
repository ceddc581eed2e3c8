//! Sums of rows (XOR), with enough vectors of the sum in registers to hide the latency.

use core::arch::x86_64::*;

/// Defines `$name(rows, output, len, add)`: `output = sum of rows`, or adds the sum to it.
macro_rules! sum {
    ($name:ident, $feature:literal, $bytes:literal, $vectors:literal,
     $zero:ident, $load:ident, $xor:ident, $store:ident) => {
        /// # Safety
        /// The processor has the instructions `$feature`; every row and the output have `len`
        /// bytes, a multiple of 64.
        #[target_feature(enable = $feature)]
        pub(in crate::kernel) unsafe fn $name(
            rows: &[&[u8]],
            output: &mut [u8],
            len: usize,
            add: bool,
        ) {
            // SAFETY: no access ends above `len`: the wide loop checks it, and `len` is a multiple
            // of the step of the narrow loop.
            unsafe {
                let target = output.as_mut_ptr();
                let mut offset = 0;
                while offset + $bytes * $vectors <= len {
                    let mut sum = [$zero(); $vectors];
                    if add {
                        for i in 0..$vectors {
                            sum[i] = $load(target.add(offset + $bytes * i).cast());
                        }
                    }
                    for row in rows {
                        let x = row.as_ptr().add(offset);
                        for i in 0..$vectors {
                            sum[i] = $xor(sum[i], $load(x.add($bytes * i).cast()));
                        }
                    }
                    for i in 0..$vectors {
                        $store(target.add(offset + $bytes * i).cast(), sum[i]);
                    }
                    offset += $bytes * $vectors;
                }
                while offset < len {
                    let mut sum = $zero();
                    if add {
                        sum = $load(target.add(offset).cast());
                    }
                    for row in rows {
                        sum = $xor(sum, $load(row.as_ptr().add(offset).cast()));
                    }
                    $store(target.add(offset).cast(), sum);
                    offset += $bytes;
                }
            }
        }
    };
}

sum!(
    sum_avx512,
    "avx512f",
    64,
    8,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_xor_si512,
    _mm512_storeu_si512
);
sum!(
    sum_avx2,
    "avx2",
    32,
    8,
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_xor_si256,
    _mm256_storeu_si256
);
sum!(sum_sse2, "sse2", 16, 8, _mm_setzero_si128, _mm_loadu_si128, _mm_xor_si128, _mm_storeu_si128);
