//! The precode: an extension that RFC 9426 mentions but does not specify. Both ends must use it.
//!
//! With sparse batches alone, the last source packets need many more batches. Check packets,
//! computed from the source packets before the outer code, recover them. The counts follow the
//! simulator of the code's author (2014); the exact rules below are specific to OpenBATS.
//!
//! Let K be the number of source packets, P = floor(sqrt(K)) (at most K),
//! L = floor(K * 101 / 10000) + floor(sqrt(3 K)) + 1, H = max(5, floor(ln K)). The intermediate
//! packets are, by number:
//!
//! | numbers | packets |
//! |---|---|
//! | 0 to K - P - 1 | source packets 0 to K - P - 1 |
//! | the next L | low-density checks |
//! | the next P | source packets K - P to K - 1 |
//! | the last H | high-density checks |
//!
//! Source packet i < K - P is in three checks: a = i mod L, and with s = floor(i/L) mod (L - 1) + 1
//! in (a + s) mod L and (a + 2 s) mod L. If two of these are equal, the packet cancels there. Check
//! l also includes source packets K - P + (l mod P) and K - P + ((l + 1) mod P). It is the sum
//! (XOR) of its packets. High-density check h is the sum over all intermediate packets except the
//! high-density checks, in the order of their numbers, with coefficients `Rand() % 256` of the
//! generator with seed 2^32 - 1 - h.
//!
//! A batch draws its degree and indices as in the RFC among the first K - P + L packets. Then it
//! draws floor(sqrt(M)) + 2 more distinct indices (at most P + H) among the last P + H, by the same
//! method and generator. Its generator matrix has a row for each, in this order. A decoder
//! inactivates the last P + H packets from the start.

use alloc::vec::Vec;

use super::batch::Batch;
use super::matrix::Matrix;
use super::tinymt32::TinyMt32;

/// The shape of the precode for K source packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precode {
    source_packets: u32,
    low_density: u32,
    high_density: u32,
    /// Number of source packets among the permanently inactive ones.
    inactive_sources: u32,
    extra_degree: u32,
}

/// floor(ln K) for K up to 65,535.
fn floor_ln(k: u32) -> u32 {
    // ceil(e), ceil(e^2), ...
    const POWERS: [u32; 11] = [3, 8, 21, 55, 149, 404, 1097, 2981, 8104, 22_027, 59_875];
    POWERS.partition_point(|&power| power <= k) as u32
}

impl Precode {
    pub(super) fn new(source_packets: u32, batch_size: usize) -> Self {
        let k = source_packets;
        let high_density = floor_ln(k).max(5);
        let inactive_sources = k.isqrt();
        let extra_degree = ((batch_size as u32).isqrt() + 2).min(inactive_sources + high_density);
        Self {
            source_packets,
            low_density: k * 101 / 10_000 + (3 * k).isqrt() + 1,
            high_density,
            inactive_sources,
            extra_degree,
        }
    }

    /// Number of source and check packets.
    #[must_use]
    pub fn intermediate_packets(&self) -> u32 {
        self.source_packets + self.low_density + self.high_density
    }

    /// Number of check packets.
    #[must_use]
    pub fn check_packets(&self) -> u32 {
        self.low_density + self.high_density
    }

    /// Number of packets that the degree distribution samples from: the first intermediate packets.
    #[must_use]
    pub fn sampled_packets(&self) -> u32 {
        self.source_packets - self.inactive_sources + self.low_density
    }

    /// Number of permanently inactive packets: the last intermediate packets.
    #[must_use]
    pub fn inactive_packets(&self) -> u32 {
        self.inactive_sources + self.high_density
    }

    /// Number of permanently inactive packets in every batch.
    #[must_use]
    pub fn extra_degree(&self) -> u32 {
        self.extra_degree
    }

    /// Number of a source packet among the intermediate packets.
    pub(crate) fn position(&self, source: u32) -> u32 {
        if source < self.source_packets - self.inactive_sources {
            source
        } else {
            source + self.low_density
        }
    }

    /// Upper bound of the sum of the packets in all equations.
    pub(crate) fn members_bound(&self) -> usize {
        // Each source packet is in up to three checks. Each check also has itself and two inactive
        // packets. The high-density checks are one group of all packets.
        let [k, l] = [self.source_packets, self.low_density].map(|count| count as usize);
        (3 * k).saturating_add(3 * l).saturating_add(self.intermediate_packets() as usize)
    }

    /// The equations between intermediate packets, as batches whose coded packets are all zero.
    /// Each column of a batch is one equation. The low-density checks come first, one batch each;
    /// one batch with all high-density checks follows.
    pub(crate) fn constraints(&self) -> Vec<Batch> {
        let outside = self.source_packets - self.inactive_sources;
        let l = self.low_density;
        let mut members: Vec<Vec<u32>> = (0..l).map(|check| [outside + check].into()).collect();
        for i in 0..outside {
            let a = i % l;
            // L is at least 2, also for one source packet.
            let step = i / l % (l - 1) + 1;
            let mut checks = [a, (a + step) % l, (a + 2 * step) % l];
            checks.sort_unstable();
            // Pairs cancel, so that three equal checks count as one.
            let checks = match checks {
                [x, y, z] if x == y => &[z][..],
                [x, y, z] if y == z => &[x],
                _ => &checks[..],
            };
            for &check in checks {
                members[check as usize].push(i);
            }
        }
        let first = outside + l;
        let p = self.inactive_sources;
        for (check, members) in members.iter_mut().enumerate() {
            // With P = 1 the two are equal and cancel.
            if p > 1 {
                members.push(first + check as u32 % p);
                members.push(first + (check as u32 + 1) % p);
            }
        }
        let mut constraints: Vec<Batch> = members
            .into_iter()
            .map(|members| {
                let mut row = Matrix::zeroed(1, members.len());
                row.row_mut(0)[..members.len()].fill(1);
                Batch::from_parts(members, row)
            })
            .collect();
        let below = first + p;
        let mut rows =
            Matrix::zeroed(self.high_density as usize, self.intermediate_packets() as usize);
        for check in 0..self.high_density {
            let mut generator = TinyMt32::new(u32::MAX - check);
            let row = rows.row_mut(check as usize);
            row[..below as usize].fill_with(|| generator.next_u32() as u8);
            row[(below + check) as usize] = 1;
        }
        constraints.push(Batch::from_parts((0..self.intermediate_packets()).collect(), rows));
        constraints
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;
    use crate::rfc::{DegreeDistribution, Field, InnerCode, OuterCode};

    #[test]
    fn floor_of_natural_logarithm_is_exact() {
        for k in 1..=65_535u32 {
            assert_eq!(floor_ln(k), f64::from(k).ln().floor() as u32, "{k}");
        }
    }

    #[test]
    fn constraints_determine_the_check_packets_in_order() {
        for k in (1..60).chain([100, 2001, 8000]) {
            let precode = Precode::new(k, 16);
            let outside = precode.source_packets - precode.inactive_sources;
            let sources: BTreeSet<u32> = (0..k).map(|i| precode.position(i)).collect();
            assert_eq!(sources.len(), k as usize);
            let mut known = sources;
            let constraints = precode.constraints();
            for (check, constraint) in
                constraints[..precode.low_density as usize].iter().enumerate()
            {
                let own = outside + check as u32;
                let distinct: BTreeSet<u32> = constraint.indices().iter().copied().collect();
                assert_eq!(distinct.len(), constraint.degree(), "{k}");
                assert!(distinct.iter().all(|i| known.contains(i) != (*i == own)));
            }
            known.extend(outside..outside + precode.low_density);
            let members: usize = constraints.iter().map(Batch::degree).sum();
            assert!(members <= precode.members_bound(), "{k}: {members}");
            let dense = constraints.last().unwrap();
            for check in 0..precode.high_density as usize {
                let row = dense.generator(check);
                for &index in dense.indices() {
                    let own = index as usize == known.len() + check;
                    assert!(known.contains(&index) || row[index as usize] == u8::from(own));
                }
            }
        }
    }

    #[test]
    fn shape_for_8000_source_packets() {
        let precode = Precode::new(8000, 32);
        assert_eq!(precode.check_packets(), 80 + 154 + 1 + 8);
        assert_eq!((precode.inactive_packets(), precode.extra_degree()), (89 + 8, 7));
        assert_eq!(precode.intermediate_packets(), 8243);
        assert_eq!(precode.sampled_packets(), 8243 - 97);
    }

    /// All versions must compute the same equations. Compares a small precode in full, and larger
    /// ones by a hash (FNV-1a) of indices and coefficients.
    #[test]
    fn constraints_match_golden_values() {
        let small: Vec<Vec<u32>> =
            Precode::new(6, 4).constraints().iter().map(|c| c.indices().to_vec()).collect();
        let expected: [&[u32]; 6] = [
            &[4, 0, 3, 9, 10],
            &[5, 0, 1, 10, 9],
            &[6, 0, 1, 2, 9, 10],
            &[7, 1, 2, 3, 10, 9],
            &[8, 2, 3, 9, 10],
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        ];
        assert_eq!(small, expected);
        let dense = Precode::new(6, 4).constraints();
        assert_eq!(
            dense[dense.len() - 1].generator(0),
            [34, 216, 188, 50, 236, 65, 195, 169, 47, 35, 3, 1, 0, 0, 0, 0]
        );
        // Computed by an independent program from the module documentation.
        let fingerprints = [(1, 4), (128, 16), (2500, 16), (65_535, 32)].map(|(k, m)| {
            let constraints = Precode::new(k, m).constraints();
            let bytes = constraints.iter().flat_map(|constraint| {
                let indices = constraint.indices().iter().flat_map(|index| index.to_be_bytes());
                indices
                    .chain((0..constraint.columns()).flat_map(|c| constraint.generator(c).to_vec()))
            });
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        });
        let golden = [
            0x531f_72e0_0101_0207,
            0xb88a_4de7_5556_2982,
            0xd48a_1b1b_8a25_3701,
            0xfcfd_e79d_9278_09ba,
        ];
        assert_eq!(fingerprints, golden);
    }

    /// The extra indices of a batch with the precode, and their coefficients.
    #[test]
    fn batch_with_precode_matches_golden_values() {
        let inner = InnerCode::new(4, Field::Byte).unwrap();
        let degrees = DegreeDistribution::from_pairs([(2, 1)]).unwrap();
        let code = OuterCode::new(100, inner, degrees).unwrap().with_precode();
        let batch = code.batch(7);
        assert_eq!(batch.indices(), [81, 22, 114, 115, 123, 113]);
        assert_eq!(batch.generator(3), [40, 156, 76, 118, 8, 200]);
    }
}
