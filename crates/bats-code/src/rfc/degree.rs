//! Degree distributions: weights of the degrees (RFC 9426, sections 2.1.2 and 4.2).

use alloc::vec::Vec;

use super::parameters::ParameterError;
use super::tables::Table;
use super::tinymt32::TinyMt32;

/// Largest degree that a distribution may name: K has 16 bits, and a larger degree counts as K.
pub const MAX_DEGREE: u32 = 65_535;

/// Largest K for which [`DegreeDistribution::recommended`] is dense.
pub const MAX_DENSE: u32 = 512;

/// The integers DD of the RFC: degree d has probability DD\[d\] / (DD\[1\] + ... + DD\[MAX_DEG\]).
/// Both ends of a session must use the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DegreeDistribution {
    /// Degrees in rising order with CDF\[degree\], for degrees of a weight above 0.
    steps: Vec<(u32, u32)>,
}

impl DegreeDistribution {
    /// From DD\[0..=MAX_DEG\]. DD\[0\] does not count.
    ///
    /// # Errors
    /// [`ParameterError::Degrees`]: no weight, weights that add up to 2^32 or more, or more than
    /// [`MAX_DEGREE`] + 1 entries.
    pub fn from_weights(weights: &[u32]) -> Result<Self, ParameterError> {
        let pairs = weights.iter().enumerate().skip(1);
        Self::from_pairs(pairs.map(|(d, &weight)| (u32::try_from(d).unwrap_or(u32::MAX), weight)))
    }

    /// From pairs of degree and weight in any order; weights of equal degrees add up, degree 0 and
    /// weight 0 do not count.
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
        // Of equal degrees the last has their whole weight.
        steps.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = next.1;
            }
            same
        });
        Ok(Self { steps })
    }

    /// All weight on degree K: every batch is made from all source packets. No overhead but that of
    /// random matrices over GF(256) (less than 0.01 packets); cost K multiply-adds per packet.
    #[must_use]
    pub fn dense(source_packets: u32) -> Self {
        Self { steps: [(source_packets.clamp(1, MAX_DEGREE), 1)].into() }
    }

    /// A table that is optimal for belief propagation and K to infinity; alone it is bad at the K
    /// of a transport.
    #[must_use]
    pub fn table(table: Table) -> Self {
        Self::scaled(table, 1, 1, None)
    }

    /// 4/5 a table and 1/5 degree K/2: few packets of overhead from K = 512 on without a precode.
    #[must_use]
    pub fn mixture(table: Table, source_packets: u32) -> Self {
        Self::scaled(table, 1, 1, Some(source_packets))
    }

    /// What to use when nothing better is known: dense for K up to [`MAX_DENSE`], else 4/5 the
    /// table for M and 1/5 degree K/2; with a precode the table alone.
    ///
    /// The degrees of the tables are scaled up, by 5/4 and for M = 32 by 3/2: fewer batches are
    /// enough when fewer packets are lost than a table was made for, and then its degrees leave
    /// source packets out. M = 4, 64 and 128 have no table of their own and take that of M = 8 or
    /// 32 with its degrees scaled by the ratio of the batch sizes as well, because the optimal
    /// degrees grow like M.
    #[must_use]
    pub fn recommended(batch_size: usize, source_packets: u32, precode: bool) -> Self {
        if source_packets <= MAX_DENSE && !precode {
            return Self::dense(source_packets);
        }
        let (table, times, over) = match batch_size {
            0..=4 => (Table::M8OneHop, 5, 8),
            5..=8 => (Table::M8OneHop, 5, 4),
            9..=16 => (Table::M16OneHop, 5, 4),
            17..=32 => (Table::M32FourHops, 3, 2),
            33..=64 => (Table::M32FourHops, 3, 1),
            _ => (Table::M32FourHops, 6, 1),
        };
        Self::scaled(table, times, over, (!precode).then_some(source_packets))
    }

    /// A table with its degrees times `times / over` (rounded up), and a fifth of the weight on
    /// half of `half_of`.
    fn scaled(table: Table, times: u32, over: u32, half_of: Option<u32>) -> Self {
        let weights = table.weights();
        let sum: u32 = weights.iter().map(|&(_, weight)| weight).sum();
        let pairs =
            weights.iter().map(|&(degree, weight)| ((degree * times).div_ceil(over), 4 * weight));
        let half = half_of.map(|k| ((k / 2).clamp(1, MAX_DEGREE), sum));
        // The tables are valid, which a test proves; a dense code is the harmless way out.
        Self::from_pairs(pairs.chain(half)).unwrap_or_else(|_| Self::dense(MAX_DEGREE))
    }

    /// Pairs of degree and weight, degrees rising.
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

    /// The degree for the next draw of a generator: the smallest d with `Rand() % CDF[MAX_DEG]`
    /// below CDF\[d\], and at most K. (The RFC prints the comparison reversed, D2.)
    pub(super) fn draw(&self, generator: &mut TinyMt32, source_packets: u32) -> u32 {
        let Some(&(largest, total)) = self.steps.last() else { return source_packets };
        let value = generator.below(total);
        let step = self.steps.partition_point(|&(_, sum)| sum <= value);
        self.steps.get(step).map_or(largest, |&(degree, _)| degree).min(source_packets)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn vector_of_degrees() {
        let degrees = DegreeDistribution::from_weights(&[0, 0, 50, 30, 15, 5]).unwrap();
        let drawn: Vec<u32> =
            (0..16).map(|bid| degrees.draw(&mut TinyMt32::new(bid), 128)).collect();
        assert_eq!(drawn, [2, 4, 2, 2, 2, 2, 4, 5, 3, 3, 2, 2, 2, 2, 3, 3]);
        // Mass above K collapses onto K; DD[0] does not count.
        let degrees = DegreeDistribution::from_weights(&[9, 0, 50, 30, 15, 5]).unwrap();
        assert!((0..16).all(|bid| degrees.draw(&mut TinyMt32::new(bid), 2) == 2));
    }

    #[test]
    fn degrees_have_the_probability_of_their_weight() {
        let degrees = DegreeDistribution::from_weights(&[0, 1, 0, 3]).unwrap();
        let threes = (0..4000).filter(|&bid| degrees.draw(&mut TinyMt32::new(bid), 9) == 3).count();
        assert!((2850..3150).contains(&threes), "{threes}");
    }

    #[test]
    fn pairs_are_what_was_given() {
        let degrees =
            DegreeDistribution::from_pairs([(7, 2), (3, 1), (0, 5), (7, 4), (9, 0)]).unwrap();
        assert_eq!(degrees.pairs().collect::<Vec<_>>(), [(3, 1), (7, 6)]);
        assert!((degrees.mean(100) - 45.0 / 7.0).abs() < 1e-9);
        assert!((degrees.mean(5) - 33.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn impossible_distributions_are_refused() {
        for pairs in [&[][..], &[(0, 1)], &[(5, 0)], &[(1, u32::MAX), (2, 1)], &[(65_536, 1)]] {
            let result = DegreeDistribution::from_pairs(pairs.iter().copied());
            assert_eq!(result, Err(ParameterError::Degrees));
        }
        assert!(DegreeDistribution::from_pairs([(1, u32::MAX)]).is_ok());
    }

    #[test]
    fn recommendations_have_the_documented_means() {
        let mean = |m, k, precode| DegreeDistribution::recommended(m, k, precode).mean(k);
        assert!((mean(16, 512, false) - 512.0).abs() < 1e-9);
        assert!((mean(16, 1024, false) - (0.8 * 73.1 + 0.2 * 512.0)).abs() < 1.0);
        assert!((mean(16, 65_535, false) - (0.8 * 73.1 + 0.2 * 32_767.0)).abs() < 1.0);
        assert!((mean(32, 8000, true) - 1.5 * 93.8).abs() < 1.0);
        assert!((mean(128, 8000, true) - 6.0 * 93.8).abs() < 1.0);
        assert!((mean(4, 8000, true) - 18.7).abs() < 1.0);
        assert!((mean(8, 1, false) - 1.0).abs() < 1e-9);
        let mean = |table, k| DegreeDistribution::mixture(table, k).mean(k);
        assert!((mean(Table::M16OneHop, 1024) - (0.8 * 58.5 + 0.2 * 512.0)).abs() < 0.1);
        assert!((mean(Table::M32FourHops, 2048) - (0.8 * 93.8 + 0.2 * 1024.0)).abs() < 0.1);
    }
}
