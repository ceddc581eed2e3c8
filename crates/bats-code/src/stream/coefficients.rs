//! Coefficients of R-batches. They are part of the wire format: the test vectors must never change
//! within a protocol version.

/// The increment of SplitMix64 (2^64 over the golden ratio, odd).
pub(super) const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64: a bijection that spreads every bit.
#[inline]
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Replaces every zero byte of a word by 1.
#[inline]
fn without_zeros(word: u64) -> u64 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // The high bit of each byte of `zeros` is set if and only if that byte of `word` is zero.
    let zeros = !(((word & LOW_BITS) + LOW_BITS) | word | LOW_BITS);
    word + (zeros >> 7)
}

/// Generates the coefficients of a column: `out[i]` belongs to symbol `window.first + i`.
///
/// The state starts at `mix(seed ^ mix(batch * 256 + column + GAMMA))`; each draw adds GAMMA to it
/// and yields `mix(state)`, whose bytes, least significant first, are eight coefficients. A zero
/// byte becomes 1, so that every coefficient is non-zero. The coefficients of a shorter window are
/// a prefix of those of a longer one.
pub fn coefficients(seed: u64, batch: u32, column: u8, out: &mut [u8]) {
    let index = u64::from(batch) * 256 + u64::from(column);
    let mut state = mix(seed ^ mix(index.wrapping_add(GAMMA)));
    let mut draw = || {
        state = state.wrapping_add(GAMMA);
        without_zeros(mix(state)).to_le_bytes()
    };
    let (words, rest) = out.as_chunks_mut::<8>();
    words.iter_mut().for_each(|bytes| *bytes = draw());
    if !rest.is_empty() {
        let word = draw();
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_bytes_become_one() {
        assert_eq!(without_zeros(0), 0x0101_0101_0101_0101);
        assert_eq!(without_zeros(0x8000_7f00_01ff_0080), 0x8001_7f01_01ff_0180);
        for byte in 0..=255u64 {
            let expected = byte.max(1) << 8 | 0xff01_0101_0101_0001;
            assert_eq!(without_zeros(byte << 8 | 0xff00_0000_0000_0001), expected);
        }
    }

    #[test]
    fn coefficients_match_golden_vectors() {
        let mut out = [0; 16];
        coefficients(0, 0, 0, &mut out);
        assert_eq!(out, VECTORS[0]);
        coefficients(0x0123_4567_89ab_cdef, 0x00fe_dcba, 15, &mut out);
        assert_eq!(out, VECTORS[1]);
        coefficients(u64::MAX, u32::MAX, 255, &mut out);
        assert_eq!(out, VECTORS[2]);
    }

    /// Computed by an independent program.
    const VECTORS: [[u8; 16]; 3] = [
        [236, 5, 44, 26, 11, 155, 138, 86, 139, 113, 239, 71, 177, 184, 229, 68],
        [62, 251, 199, 10, 231, 224, 170, 54, 244, 171, 129, 165, 231, 157, 249, 65],
        [175, 6, 8, 139, 138, 16, 223, 161, 33, 182, 250, 63, 217, 177, 242, 247],
    ];

    #[test]
    fn shorter_windows_use_a_prefix_and_no_coefficient_is_zero() {
        let mut long = [0; 512];
        coefficients(7, 8, 9, &mut long);
        assert!(long.iter().all(|&c| c != 0));
        for len in [0, 1, 7, 8, 9, 255, 511] {
            let mut short = vec![0; len];
            coefficients(7, 8, 9, &mut short);
            assert_eq!(short, long[..len]);
        }
        let mut other = [0; 512];
        coefficients(7, 8, 10, &mut other);
        assert!(long.iter().zip(&other).filter(|(a, b)| a == b).count() < 20);
    }
}
