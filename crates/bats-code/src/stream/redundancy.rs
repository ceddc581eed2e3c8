//! Recognises redundant repairs without elimination.
//!
//! A repair is redundant if its coefficients are in the row space of its linear system. Reducing it
//! by all rows costs as much as inserting it: a megabyte of matrix for a long system. A peer that
//! repeats repairs would cause that work for each of them. A vector is in the row space if and only
//! if it is orthogonal to the null space; so it is orthogonal to a random vector of the null space,
//! and any other vector is with a probability of 1/256. Four such vectors are kept, which follow the
//! changes of the system. One repair in 2^32 is dropped although it is innovative, as if it were
//! lost.

use alloc::vec::Vec;

use super::coefficients::{GAMMA, mix};
use crate::gf256::POLYNOMIAL;

/// Four random vectors of the null space: their values in each column.
pub(super) type Value = [u8; 4];

/// Work for one value in bytes of matrix rows: a product takes about as many instructions as the
/// kernels for AVX2 need for 64 bytes.
pub(super) const VALUE_WORK: usize = 64;

/// Products of four bytes with 2.
fn double(value: u32) -> u32 {
    let carries = value >> 7 & 0x0101_0101;
    ((value & 0x7f7f_7f7f) << 1) ^ (carries * u32::from(POLYNOMIAL as u8))
}

/// A sum of products of coefficients and values. The values of each coefficient are added up first, so that
/// a product costs one addition.
pub(super) struct ProductSum([u32; 256]);

impl ProductSum {
    /// Zero.
    pub(super) fn new() -> Self {
        Self([0; 256])
    }

    /// Adds `coefficient * value`.
    #[inline]
    pub(super) fn add(&mut self, coefficient: u8, value: Value) {
        self.0[usize::from(coefficient)] ^= u32::from_le_bytes(value);
    }

    /// The sum. A coefficient is a sum of powers of two, the highest of which is that of the upper half.
    pub(super) fn value(mut self) -> Value {
        let (mut sums, mut value) = (&mut self.0[..], 0);
        while sums.len() > 1 {
            let (lower, upper) = sums.split_at_mut(sums.len() / 2);
            value = double(value) ^ upper.iter().fold(0, |sum, x| sum ^ x);
            lower.iter_mut().zip(&*upper).for_each(|(x, y)| *x ^= y);
            sums = lower;
        }
        value.to_le_bytes()
    }
}

/// The products of a value with all coefficients.
pub(super) struct Multiples([u32; 256]);

impl Multiples {
    pub(super) fn new(value: Value) -> Self {
        let (mut products, mut value) = ([0; 256], u32::from_le_bytes(value));
        for bit in 0..8 {
            let (lower, upper) = products.split_at_mut(1 << bit);
            upper.iter_mut().zip(&*lower).for_each(|(x, y)| *x = y ^ value);
            value = double(value);
        }
        Self(products)
    }
}

/// Vectors of the null space of a linear system, once redundant repairs have cost as much as it
/// takes to compute them.
#[derive(Debug, Default)]
pub(super) struct NullVectors {
    values: Vec<Value>,
    is_kept: bool,
    /// Work for redundant repairs so far, in bytes of matrix rows.
    wasted: usize,
    /// State of the generator of random values.
    random: u64,
}

impl NullVectors {
    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<Value>()
    }

    /// Whether the vectors are computed.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// The values in each column; empty unless they are kept.
    pub(super) fn values(&self) -> &[Value] {
        &self.values
    }

    /// Counts the work of a reduction that found a redundant repair in a system of this rank and
    /// this number of columns. Returns whether to compute the vectors now.
    pub(super) fn count_redundant(&mut self, work: usize, rank: usize, columns: usize) -> bool {
        self.wasted = self.wasted.saturating_add(work);
        !self.is_kept && self.wasted >= VALUE_WORK * rank * (columns - rank)
    }

    /// Seeds the random values with a symbol of the system. Systems have no symbol in common, so
    /// that the values of two are independent when one absorbs the other.
    pub(super) fn seed(&mut self, symbol: u64) {
        self.random = mix(symbol);
    }

    /// Begins with these values of the columns.
    pub(super) fn keep(&mut self, values: Vec<Value>) {
        (self.values, self.is_kept) = (values, true);
    }

    /// Adds a column without equations.
    pub(super) fn add_column(&mut self) {
        if self.is_kept {
            let value = self.random();
            self.values.push(value);
        }
    }

    /// Removes a column, in which the values are zero, and moves the last one to its place.
    pub(super) fn swap_remove(&mut self, column: usize) {
        if self.is_kept {
            self.values.swap_remove(column);
        }
    }

    /// Appends the vectors of another system. Both are kept, or none.
    pub(super) fn append(&mut self, other: Self) {
        self.values.extend(other.values);
        self.wasted = self.wasted.saturating_add(other.wasted);
    }

    /// Adds one of these products, that with `coefficient`, to the values of a column.
    pub(super) fn add(&mut self, column: usize, multiples: &Multiples, coefficient: u8) {
        if let Some(value) = self.values.get_mut(column) {
            let product = multiples.0[usize::from(coefficient)];
            *value = (u32::from_le_bytes(*value) ^ product).to_le_bytes();
        }
    }

    /// A random value (SplitMix64; it need not be secret: a peer that predicts it can only have its
    /// own repairs dropped).
    pub(super) fn random(&mut self) -> Value {
        self.random = self.random.wrapping_add(GAMMA);
        let [a, b, c, d, ..] = mix(self.random).to_le_bytes();
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gf256::mul;

    proptest! {
        #[test]
        fn sums_and_multiples_agree_with_the_products_of_bytes(
            terms in prop::collection::vec((any::<u8>(), any::<Value>()), 0..40),
        ) {
            let (mut expected, mut sum) = ([0; 4], ProductSum::new());
            for (coefficient, value) in terms {
                let product = value.map(|byte| mul(coefficient, byte));
                expected = core::array::from_fn(|i| expected[i] ^ product[i]);
                sum.add(coefficient, value);
                let multiple = Multiples::new(value).0[usize::from(coefficient)];
                prop_assert_eq!(multiple.to_le_bytes(), product);
            }
            prop_assert_eq!(sum.value(), expected);
        }
    }
}
