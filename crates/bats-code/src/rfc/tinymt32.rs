//! TinyMT32, the pseudo-random number generator of RFC 9426 (section 4.1), with the parameters of
//! RFC 8682.

const MAT1: u32 = 0x8f70_11ee;
const MAT2: u32 = 0xfc78_ff1f;
const TMAT: u32 = 0x3793_fdff;

/// The generator: `Rand_Init` is [`TinyMt32::new`], `Rand` is [`TinyMt32::next_u32`].
#[derive(Clone, Debug)]
pub struct TinyMt32 {
    state: [u32; 4],
}

impl TinyMt32 {
    /// `Rand_Init(seed)`.
    #[must_use]
    pub fn new(seed: u32) -> Self {
        let mut state = [seed, MAT1, MAT2, TMAT];
        for i in 1..8u32 {
            let previous = state[(i as usize - 1) & 3];
            let mixed = 1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30));
            state[i as usize & 3] ^= i.wrapping_add(mixed);
        }
        let mut generator = Self { state };
        (0..8).for_each(|_| generator.step());
        generator
    }

    #[inline]
    fn step(&mut self) {
        let [s0, s1, s2, s3] = self.state;
        let mut y = s3;
        let mut x = (s0 & 0x7fff_ffff) ^ s1 ^ s2;
        x ^= x << 1;
        y ^= (y >> 1) ^ x;
        // All bits are set if y is odd.
        let odd = (y & 1).wrapping_neg();
        self.state = [s1, s2 ^ (odd & MAT1), x ^ (y << 10) ^ (odd & MAT2), y];
    }

    /// `Rand()`: 32 pseudo-random bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        self.step();
        let [s0, _, s2, s3] = self.state;
        let t1 = s0.wrapping_add(s2 >> 8);
        s3 ^ t1 ^ ((t1 & 1).wrapping_neg() & TMAT)
    }

    /// `Rand() % bound`; the slight bias is part of the RFC's definition.
    ///
    /// # Panics
    /// `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        self.next_u32() % bound
    }
}

/// `N` generators in lockstep. Compilers vectorise this; a single generator is bound by the latency of
/// its own steps.
#[derive(Clone, Debug)]
pub(super) struct TinyMt32Lanes<const N: usize> {
    state: [[u32; N]; 4],
}

impl<const N: usize> TinyMt32Lanes<N> {
    /// Continues the generators from their current states.
    #[inline(always)]
    pub(super) fn new(generators: &[TinyMt32; N]) -> Self {
        let word = |i: usize| generators.each_ref().map(|generator| generator.state[i]);
        Self { state: [word(0), word(1), word(2), word(3)] }
    }

    /// The next `Rand()` of each generator.
    #[inline(always)]
    pub(super) fn next(&mut self) -> [u32; N] {
        let mut output = [0; N];
        let [s0, s1, s2, s3] = &mut self.state;
        for lane in 0..N {
            let mut x = (s0[lane] & 0x7fff_ffff) ^ s1[lane] ^ s2[lane];
            x ^= x << 1;
            let y = s3[lane] ^ (s3[lane] >> 1) ^ x;
            let odd = (y & 1).wrapping_neg();
            s0[lane] = s1[lane];
            s1[lane] = s2[lane] ^ (odd & MAT1);
            s2[lane] = x ^ (y << 10) ^ (odd & MAT2);
            s3[lane] = y;
            let t1 = s0[lane].wrapping_add(s2[lane] >> 8);
            output[lane] = y ^ t1 ^ ((t1 & 1).wrapping_neg() & TMAT);
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_match_single_generators() {
        check_lanes([3, 0, 8191, u32::MAX]);
        check_lanes([3, 0, 8191, u32::MAX, 1, 77, 2, 65_537]);
    }

    fn check_lanes<const N: usize>(seeds: [u32; N]) {
        let mut single = seeds.map(TinyMt32::new);
        single[1].next_u32();
        let mut lanes = TinyMt32Lanes::new(&single);
        for _ in 0..1000 {
            assert_eq!(lanes.next(), single.each_mut().map(TinyMt32::next_u32));
        }
    }

    #[test]
    fn output_matches_golden_vectors() {
        for (seed, expected) in [
            (0, [2_081_790_247, 3_105_921_834, 760_524_185, 303_856_848, 2_371_835_568]),
            (1, [2_545_341_989, 981_918_433, 3_715_302_833, 2_387_538_352, 3_591_001_365]),
            (2, [1_183_928_825, 3_509_070_988, 3_809_646_946, 3_344_626_264, 1_252_160_891]),
            (8191, [3_456_015_421u32, 2_485_216_969, 4_253_460_143, 1_405_021_932, 4_232_996_576]),
        ] {
            let mut generator = TinyMt32::new(seed);
            assert_eq!(expected.map(|_| generator.next_u32()), expected, "seed {seed}");
        }
    }
}
