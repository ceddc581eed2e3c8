//! Degree distributions (RFC 9426, sections 2.1.2 and 4.2).

use alloc::vec::Vec;

use super::parameters::{InnerCode, ParameterError};
use super::tables::Table;
use super::tinymt32::TinyMt32;

/// Largest degree of a distribution: K has 16 bits, and a degree above K counts as K.
pub const MAX_DEGREE: u32 = 65_535;

/// Largest K for which [`DegreeDistribution::recommended`] is dense.
pub const MAX_DENSE: u32 = 512;

/// A degree distribution, DD of the RFC: degree d has probability DD\[d\] / (DD\[1\] + ... +
/// DD\[MAX_DEG\]). Both ends must use the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DegreeDistribution {
    /// Degrees with a weight above 0, ascending, each with CDF\[degree\].
    steps: Vec<(u32, u32)>,
}

impl DegreeDistribution {
    /// A distribution from DD\[0..=MAX_DEG\]. DD\[0\] is ignored.
    ///
    /// # Errors
    /// [`ParameterError::Degrees`]: no weight is above 0, the sum of the weights is 2^32 or more,
    /// or a degree with a weight is above [`MAX_DEGREE`].
    pub fn from_weights(weights: &[u32]) -> Result<Self, ParameterError> {
        let pairs = weights.iter().enumerate().skip(1);
        Self::from_pairs(pairs.map(|(d, &weight)| (u32::try_from(d).unwrap_or(u32::MAX), weight)))
    }

    /// A distribution from pairs of degree and weight, in any order. Weights of equal degrees are
    /// added; degree 0 and weight 0 are ignored.
    ///
    /// # Errors
    /// [`ParameterError::Degrees`], as [`DegreeDistribution::from_weights`].
    pub fn from_pairs(pairs: impl IntoIterator<Item = (u32, u32)>) -> Result<Self, ParameterError> {
        let mut steps: Vec<(u32, u32)> =
            pairs.into_iter().filter(|&(degree, weight)| degree > 0 && weight > 0).collect();
        steps.sort_unstable_by_key(|&(degree, _)| degree);
        if steps.last().is_none_or(|&(degree, _)| degree > MAX_DEGREE) {
            return Err(ParameterError::Degrees);
        }
        let mut sum = 0u32;
        for (_, weight) in &mut steps {
            sum = sum.checked_add(*weight).ok_or(ParameterError::Degrees)?;
            *weight = sum;
        }
        // The last of equal degrees has their cumulative weight.
        steps.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = next.1;
            }
            same
        });
        Ok(Self { steps })
    }

    /// All weight on degree K: every batch combines all source packets. The overhead is only that
    /// of random matrices over GF(256), less than 0.01 packets. The cost is K multiply-adds per
    /// packet.
    #[must_use]
    pub fn dense(source_packets: u32) -> Self {
        Self { steps: [(source_packets.clamp(1, MAX_DEGREE), 1)].into() }
    }

    /// A table that is optimal for belief propagation as K goes to infinity. Alone it has a high
    /// overhead at the K of a transport.
    #[must_use]
    pub fn table(table: Table) -> Self {
        Self::scaled(table, 1, 1, (1, 0), None)
    }

    /// 4/5 weight on a table and 1/5 on degree K/2. Low overhead for K >= 512 without a precode.
    #[must_use]
    pub fn mixture(table: Table, source_packets: u32) -> Self {
        Self::scaled(table, 1, 1, (4, 1), Some(source_packets / 2))
    }

    /// The default distribution. It depends on M, K and the precode; K is clamped to 1 ..=
    /// [`MAX_DEGREE`].
    ///
    /// Without a precode: dense for K up to [`MAX_DENSE`]. Above that, a table and degree K/2, in
    /// the proportion that gives mean degree M ln(20 K). Then 0.05 source packets on average are in
    /// no batch when K packets have arrived. If that needs more than degree K/2, dense again. With
    /// a precode: the table alone.
    ///
    /// The degrees of the tables are scaled up by 5/4, and for M = 32 by 3/2. If fewer packets are
    /// lost than a table assumes, fewer batches suffice, and unscaled degrees would leave source
    /// packets out. M = 4, 64 and 128 have no table of their own. They use that of M = 8 or 32,
    /// scaled in addition by the ratio of the batch sizes, because the optimal degrees are
    /// proportional to M.
    #[must_use]
    pub fn recommended(inner: InnerCode, source_packets: u32, precode: bool) -> Self {
        let batch_size = inner.batch_size();
        let k = source_packets.clamp(1, MAX_DEGREE);
        if k <= MAX_DENSE && !precode {
            return Self::dense(k);
        }
        let (table, times, over) = match batch_size {
            0..=4 => (Table::M8OneHop, 5, 8),
            5..=8 => (Table::M8OneHop, 5, 4),
            9..=16 => (Table::M16OneHop, 5, 4),
            17..=32 => (Table::M32FourHops, 3, 2),
            33..=64 => (Table::M32FourHops, 3, 1),
            _ => (Table::M32FourHops, 6, 1),
        };
        if precode {
            return Self::scaled(table, times, over, (1, 0), None);
        }
        let (sum, weighted) = table
            .weights()
            .iter()
            .fold((0, 0), |(sum, all), &(degree, weight)| (sum + weight, all + degree * weight));
        let mean = weighted / sum * times / over;
        let needed = batch_size as u32 * ln_256(20 * k) / 256;
        let half = k / 2;
        if half <= mean || needed >= half {
            return Self::dense(k);
        }
        let part = needed.saturating_sub(mean);
        Self::scaled(table, times, over, (half - mean - part, part), Some(half))
    }

    /// A table with its degrees times `times / over` (rounded up), and another degree. `parts` are
    /// the relative weights of the two.
    fn scaled(table: Table, times: u32, over: u32, parts: (u32, u32), other: Option<u32>) -> Self {
        let weights = table.weights();
        let sum: u32 = weights.iter().map(|&(_, weight)| weight).sum();
        let pairs = weights
            .iter()
            .map(|&(degree, weight)| ((degree * times).div_ceil(over), weight * parts.0));
        let other = other.map(|degree| (degree.clamp(1, MAX_DEGREE), sum * parts.1));
        // A test proves that the tables are valid; a dense code is the fallback.
        Self::from_pairs(pairs.chain(other)).unwrap_or_else(|_| Self::dense(MAX_DEGREE))
    }

    /// Pairs of degree and weight, in ascending order of degree.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.steps.iter().enumerate().map(|(i, &(degree, sum))| {
            let before = if i == 0 { 0 } else { self.steps[i - 1].1 };
            (degree, sum - before)
        })
    }

    /// Mean degree for K source packets (a larger degree counts as K).
    #[must_use]
    pub fn mean(&self, source_packets: u32) -> f64 {
        let total = self.steps.last().map_or(1, |&(_, sum)| sum);
        let weighted: f64 = self
            .pairs()
            .map(|(degree, weight)| f64::from(degree.min(source_packets)) * f64::from(weight))
            .sum();
        weighted / f64::from(total)
    }

    /// Draws a degree: the smallest d with `Rand() % CDF[MAX_DEG]` below CDF\[d\], and at most K.
    /// (The RFC prints the comparison reversed, D2.)
    pub(super) fn draw(&self, generator: &mut TinyMt32, source_packets: u32) -> u32 {
        let Some(&(largest, total)) = self.steps.last() else { return source_packets };
        let value = generator.below(total);
        let step = self.steps.partition_point(|&(_, sum)| sum <= value);
        self.steps.get(step).map_or(largest, |&(degree, _)| degree).min(source_packets)
    }
}

/// 256 ln x for x >= 1, with an error of at most 18; an integer, so that both ends get the same.
pub(super) fn ln_256(x: u32) -> u32 {
    let exponent = x.ilog2();
    // Linear interpolation between powers of two.
    let fraction = ((u64::from(x) << 8) >> exponent) as u32 - 256;
    (exponent * 256 + fraction) * 693 / 1000
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn drawn_degrees_match_golden_vectors() {
        let degrees = DegreeDistribution::from_weights(&[0, 0, 50, 30, 15, 5]).unwrap();
        let drawn: Vec<u32> =
            (0..16).map(|bid| degrees.draw(&mut TinyMt32::new(bid), 128)).collect();
        assert_eq!(drawn, [2, 4, 2, 2, 2, 2, 4, 5, 3, 3, 2, 2, 2, 2, 3, 3]);
        // Degrees above K count as K; DD[0] is ignored.
        let degrees = DegreeDistribution::from_weights(&[9, 0, 50, 30, 15, 5]).unwrap();
        assert!((0..16).all(|bid| degrees.draw(&mut TinyMt32::new(bid), 2) == 2));
    }

    #[test]
    fn drawn_degrees_follow_their_weights() {
        let degrees = DegreeDistribution::from_weights(&[0, 1, 0, 3]).unwrap();
        let threes = (0..4000).filter(|&bid| degrees.draw(&mut TinyMt32::new(bid), 9) == 3).count();
        assert!((2850..3150).contains(&threes), "{threes}");
    }

    #[test]
    fn integer_logarithms_are_accurate() {
        for x in (1..3000).chain([65_535, 20 * 65_535, u32::MAX]) {
            let error = f64::from(ln_256(x)) - 256.0 * f64::from(x).ln();
            assert!(error.abs() <= 18.0, "{x}: {error}");
        }
    }

    /// An inner code with this M.
    fn inner(m: usize) -> InnerCode {
        InnerCode::all().find(|inner| inner.batch_size() == m).unwrap()
    }

    #[test]
    fn every_recommended_distribution_is_valid() {
        for m in InnerCode::all() {
            for k in (1..3000).chain((3000..=65_535).step_by(997)).chain([65_535]) {
                for precode in [false, true] {
                    let degrees = DegreeDistribution::recommended(m, k, precode);
                    assert_ne!(degrees, DegreeDistribution::dense(MAX_DEGREE), "{m:?} {k}");
                }
            }
        }
    }

    #[test]
    fn pairs_return_the_merged_input() {
        let degrees =
            DegreeDistribution::from_pairs([(7, 2), (3, 1), (0, 5), (7, 4), (9, 0)]).unwrap();
        assert_eq!(degrees.pairs().collect::<Vec<_>>(), [(3, 1), (7, 6)]);
        assert!((degrees.mean(100) - 45.0 / 7.0).abs() < 1e-9);
        assert!((degrees.mean(5) - 33.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn invalid_distributions_are_errors() {
        for pairs in [&[][..], &[(0, 1)], &[(5, 0)], &[(1, u32::MAX), (2, 1)], &[(65_536, 1)]] {
            let result = DegreeDistribution::from_pairs(pairs.iter().copied());
            assert_eq!(result, Err(ParameterError::Degrees));
        }
        assert!(DegreeDistribution::from_pairs([(1, u32::MAX)]).is_ok());
    }

    #[test]
    fn recommended_distributions_have_the_documented_means() {
        let mean = |m, k, precode| DegreeDistribution::recommended(inner(m), k, precode).mean(k);
        for (m, k) in [(16, 1024), (16, 65_535), (32, 1600), (128, 5000), (4, 513), (64, 3000)] {
            let needed = m as f64 * (20.0 * f64::from(k)).ln();
            let mean = mean(m, k, false);
            assert!(
                (mean / needed - 1.0).abs() < 0.06,
                "M = {m}, K = {k}: {mean}, expected {needed}"
            );
        }
        assert!((mean(16, 512, false) - 512.0).abs() < 1e-9);
        assert!((mean(128, 1600, false) - 1600.0).abs() < 1e-9);
        assert!((mean(32, 8000, true) - 1.5 * 93.8).abs() < 1.0);
        assert!((mean(128, 8000, true) - 6.0 * 93.8).abs() < 1.0);
        assert!((mean(4, 8000, true) - 18.7).abs() < 1.0);
        assert!((mean(8, 1, false) - 1.0).abs() < 1e-9);
        // K is clamped.
        for (k, clamped) in [(0, 1), (u32::MAX, MAX_DEGREE)] {
            let recommended = |k| DegreeDistribution::recommended(inner(16), k, false);
            assert_eq!(recommended(k), recommended(clamped));
        }
        let mean = |table, k| DegreeDistribution::mixture(table, k).mean(k);
        assert!((mean(Table::M16OneHop, 1024) - (0.8 * 58.5 + 0.2 * 512.0)).abs() < 0.1);
        assert!((mean(Table::M32FourHops, 2048) - (0.8 * 93.8 + 0.2 * 1024.0)).abs() < 0.1);
    }

    /// FNV-1a hash of the pairs.
    fn fingerprint(degrees: &DegreeDistribution) -> u64 {
        degrees
            .pairs()
            .flat_map(|(degree, weight)| [degree, weight])
            .flat_map(u32::to_be_bytes)
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }

    /// Form 1 of the session parameters only states "recommended". If the distribution changed, a
    /// peer of another version could not decode.
    #[test]
    fn recommended_distributions_match_golden_hashes() {
        let of = |m, k, precode| DegreeDistribution::recommended(inner(m), k, precode);
        let pairs: Vec<(u32, u32)> = of(8, 600, false).pairs().collect();
        let (first, last) = ([(12, 533_586), (13, 95_372)], [(292, 64_636), (300, 380_076)]);
        assert_eq!((pairs.len(), &pairs[..2], &pairs[18..]), (20, &first[..], &last[..]));
        // Computed by an independent program from the documented rule.
        let golden: [(usize, [u64; 4]); 6] = [
            (
                4,
                [
                    0x83b0_f2fb_490f_1598,
                    0x9188_cd4f_3d92_f84f,
                    0xc28a_f39a_786b_986a,
                    0xd164_581e_c2d7_f768,
                ],
            ),
            (
                8,
                [
                    0xcb0a_e418_16a4_7f43,
                    0x9e37_f9ea_ff58_1e12,
                    0x50f6_76be_8e8a_e75c,
                    0xbfd9_67aa_80a4_85c8,
                ],
            ),
            (
                16,
                [
                    0x2269_25eb_2917_776a,
                    0x27aa_ef66_1a08_3164,
                    0x886b_c090_a122_a9fb,
                    0x42ef_fbe7_4d53_150d,
                ],
            ),
            (
                32,
                [
                    0x5545_de6d_86ae_5d87,
                    0x5cb5_cc12_5c16_39a8,
                    0x7aa9_d90e_08c1_628b,
                    0xcfef_b364_04ab_bfa4,
                ],
            ),
            (
                64,
                [
                    0x5545_de6d_86ae_5d87,
                    0x366e_6666_7053_1f2e,
                    0x21eb_a5b2_a0af_f453,
                    0x5bec_320d_4f41_54f2,
                ],
            ),
            (
                128,
                [
                    0x5545_de6d_86ae_5d87,
                    0x366e_6666_7053_1f2e,
                    0x6a70_c100_1d34_461b,
                    0x9ef8_52d1_af49_0b46,
                ],
            ),
        ];
        for (m, fingerprints) in golden {
            let cases = [(513, false), (1024, false), (65_535, false), (65_535, true)];
            for ((k, precode), golden) in cases.into_iter().zip(fingerprints) {
                assert_eq!(fingerprint(&of(m, k, precode)), golden, "M = {m}, K = {k}, {precode}");
            }
        }
    }
}
