//! The inner code of RFC 9426 with M = 16 and q = 256: random linear combinations
//! of the received packets of one batch. A recoder knows neither windows nor sources.

use alloc::vec::Vec;

use crate::BATCH_SIZE;
use crate::gf256;
use crate::kernel::{Kernel, Mode};
use crate::rows::{ALIGNMENT, AlignedRow, RowPool, padded_length};
use crate::stream::{MAX_SYMBOL_SIZE, coefficients};

/// A coefficient vector: the packet is `sum of vector[i] * coded packet i` of the batch.
pub type CoefficientVector = [u8; BATCH_SIZE];

/// The coefficient vector of coded packet `index` as the source sends it; `None` from M on.
#[must_use]
pub fn unit_vector(index: usize) -> Option<CoefficientVector> {
    let mut vector = [0; BATCH_SIZE];
    *vector.get_mut(index)? = 1;
    Some(vector)
}

/// Why a packet could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecodeError {
    /// The batch has no packet.
    Empty,
    /// There must be one coefficient for each packet held, not all of them zero.
    Coefficients,
    /// The output is shorter than the longest packet of the batch.
    OutputSize,
}

impl core::fmt::Display for RecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Empty => "the batch has no packet",
            Self::Coefficients => "one coefficient per packet is needed, not all zero",
            Self::OutputSize => "the output is shorter than the packets of the batch",
        })
    }
}

impl core::error::Error for RecodeError {}

/// Bytes of a packet that is made in one product and copied out, vector included: what fits a path
/// of 1500 bytes. Longer ones go straight to the caller's buffer, in a product of their own.
const SHORT: usize = 1536;

/// Room for bytes of a vector and of a payload, aligned as the kernels like it.
#[repr(align(64))]
struct Scratch<const N: usize>([u8; N]);

/// The received packets of one batch: at most M, linearly independent.
#[derive(Debug)]
pub struct Recoder {
    kernel: Kernel,
    max_payload: usize,
    /// Coefficient vectors, zero-padded to what the kernels work on, and payloads behind them.
    packets: Vec<AlignedRow>,
    /// Lengths of the longest and the shortest payload.
    longest: usize,
    shortest: usize,
    basis: Basis,
    pool: RowPool,
}

/// Which combinations of a batch are there: vectors alone, without the packets.
#[derive(Clone, Debug, Default)]
pub struct Basis {
    /// For each pivot the vector of the echelon form that begins there with 1.
    echelon: [Option<CoefficientVector>; BATCH_SIZE],
    rank: u8,
}

impl Basis {
    /// Takes a vector; tells whether it raised the rank.
    pub fn insert(&mut self, mut vector: CoefficientVector) -> bool {
        for pivot in 0..BATCH_SIZE {
            let factor = vector[pivot];
            if factor == 0 {
                continue;
            }
            match &self.echelon[pivot] {
                Some(row) => {
                    for (x, &y) in vector.iter_mut().zip(row) {
                        *x ^= gf256::mul(factor, y);
                    }
                }
                None => {
                    let inverse = gf256::inv(factor);
                    self.echelon[pivot] = Some(vector.map(|x| gf256::mul(inverse, x)));
                    self.rank += 1;
                    return true;
                }
            }
        }
        false
    }

    /// Independent vectors taken, 0 to M.
    #[must_use]
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }
}

impl Recoder {
    /// A recoder for one batch whose payloads have at most `max_payload` bytes, 1 to
    /// [`MAX_SYMBOL_SIZE`] (cut to that).
    #[must_use]
    pub fn new(max_payload: usize) -> Self {
        Self::with_kernel(max_payload, Kernel::active())
    }

    /// As [`Recoder::new`], with a kernel of the caller's choice.
    #[must_use]
    pub fn with_kernel(max_payload: usize, kernel: Kernel) -> Self {
        let max_payload = max_payload.clamp(1, MAX_SYMBOL_SIZE);
        let longest_row = ALIGNMENT + max_payload;
        Self {
            kernel,
            max_payload,
            packets: Vec::with_capacity(BATCH_SIZE),
            longest: 0,
            shortest: usize::MAX,
            basis: Basis::default(),
            pool: RowPool::new(longest_row, BATCH_SIZE * (longest_row + 128)),
        }
    }

    /// Takes a packet of the batch if it is innovative (raises the rank); tells whether it was. An
    /// empty or too long payload is none of the batch.
    pub fn push(&mut self, vector: &CoefficientVector, payload: &[u8]) -> bool {
        if payload.is_empty() || payload.len() > self.max_payload || !self.basis.insert(*vector) {
            return false;
        }
        let mut row = self.pool.take(ALIGNMENT + payload.len());
        let (head, body) = row.as_mut_slice().split_at_mut(ALIGNMENT);
        head.fill(0);
        head[..BATCH_SIZE].copy_from_slice(vector);
        body.copy_from_slice(payload);
        self.packets.push(row);
        self.longest = self.longest.max(payload.len());
        self.shortest = self.shortest.min(payload.len());
        true
    }

    /// Independent packets held, 0 to M.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.packets.len()
    }

    /// The packets held, as received: systematic recoding sends these first.
    pub fn received(&self) -> impl Iterator<Item = (&CoefficientVector, &[u8])> {
        self.packets.iter().filter_map(|row| {
            let (head, body) = row.as_slice().split_at_checked(ALIGNMENT)?;
            Some((head.first_chunk()?, body))
        })
    }

    /// Forgets all packets, for the next batch.
    pub fn clear(&mut self) {
        self.basis = Basis::default();
        (self.longest, self.shortest) = (0, usize::MAX);
        for row in self.packets.drain(..) {
            self.pool.give(row);
        }
    }

    /// Makes `sum of combination[i] * received packet i`, vector and payload alike, and returns the
    /// length of the payload.
    ///
    /// # Errors
    /// See [`RecodeError`].
    pub fn recode(
        &self,
        combination: &[u8],
        vector: &mut CoefficientVector,
        payload: &mut [u8],
    ) -> Result<usize, RecodeError> {
        if self.packets.is_empty() {
            return Err(RecodeError::Empty);
        }
        if combination.len() != self.rank() || combination.iter().all(|&x| x == 0) {
            return Err(RecodeError::Coefficients);
        }
        let len = self.longest;
        let payload = payload.get_mut(..len).ok_or(RecodeError::OutputSize)?;
        let mut rows: [&[u8]; BATCH_SIZE] = [&[]; BATCH_SIZE];
        for (row, received) in rows.iter_mut().zip(&self.packets) {
            *row = received.padded();
        }
        let rows = &mut rows[..combination.len()];
        let padded = padded_length(ALIGNMENT + len);
        if padded <= SHORT {
            let mut sum = Scratch([0; SHORT]);
            self.product(combination, rows, &mut sum.0, padded);
            vector.copy_from_slice(&sum.0[..BATCH_SIZE]);
            payload.copy_from_slice(&sum.0[ALIGNMENT..][..len]);
            return Ok(len);
        }
        let mut sum = Scratch([0; ALIGNMENT]);
        self.product(combination, rows, &mut sum.0, ALIGNMENT);
        vector.copy_from_slice(&sum.0[..BATCH_SIZE]);
        // Whole vectors go straight to the caller's buffer, which has no padding for the rest.
        let whole = len - len % ALIGNMENT;
        rows.iter_mut().for_each(|row| *row = &row[ALIGNMENT..]);
        self.kernel.product_ragged(combination, rows, &mut [&mut *payload], whole);
        if whole < len {
            rows.iter_mut().for_each(|row| *row = row.get(whole..).unwrap_or(&[]));
            self.kernel.product_ragged(combination, rows, &mut [&mut sum.0], ALIGNMENT);
            payload[whole..].copy_from_slice(&sum.0[..len - whole]);
        }
        Ok(len)
    }

    /// The combination of rows that begin with the packets' vectors.
    fn product(&self, combination: &[u8], rows: &[&[u8]], output: &mut [u8], len: usize) {
        if padded_length(ALIGNMENT + self.shortest) >= len {
            self.kernel.product(combination, rows, &mut [output], len, Mode::Overwrite);
        } else {
            self.kernel.product_ragged(combination, rows, &mut [output], len);
        }
    }

    /// As [`Recoder::recode`] with the non-zero pseudo-random coefficients number `draw` of a
    /// generator with this seed: random linear recoding. No two draws of a node may be equal.
    ///
    /// # Errors
    /// See [`RecodeError`].
    pub fn recode_random(
        &self,
        seed: u64,
        draw: u32,
        vector: &mut CoefficientVector,
        payload: &mut [u8],
    ) -> Result<usize, RecodeError> {
        let mut combination = [0; BATCH_SIZE];
        let combination = &mut combination[..self.rank()];
        coefficients(seed, draw, 0, combination);
        self.recode(combination, vector, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_packet(index: usize) -> Vec<u8> {
        (0..100 + index).map(|x| (x * 7 + index * 13) as u8).collect()
    }

    /// What a packet with this vector must be.
    fn expected(vector: &CoefficientVector, len: usize) -> Vec<u8> {
        let mut sum = vec![0; len];
        for (index, &factor) in vector.iter().enumerate() {
            for (x, y) in sum.iter_mut().zip(source_packet(index)) {
                *x ^= gf256::mul(factor, y);
            }
        }
        sum
    }

    #[test]
    fn a_chain_of_recoders_keeps_rank_and_content() {
        let mut recoder = Recoder::new(200);
        for index in 0..BATCH_SIZE {
            assert!(recoder.push(&unit_vector(index).unwrap(), &source_packet(index)));
        }
        assert!(!recoder.push(&unit_vector(3).unwrap(), &source_packet(3)));
        for hop in 0..6 {
            let mut next = Recoder::new(200);
            let mut draws = 0;
            while next.rank() < recoder.rank() {
                let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; 200]);
                let len = recoder.recode_random(hop, draws, &mut vector, &mut payload).unwrap();
                assert_eq!(payload[..len], expected(&vector, len));
                draws += 1;
                // Every fourth packet is lost.
                if draws % 4 != 0 {
                    next.push(&vector, &payload[..len]);
                }
            }
            assert!(draws < 30, "random combinations are nearly always innovative");
            recoder = next;
        }
        assert_eq!(recoder.received().count(), BATCH_SIZE);
    }

    /// Short packets take one product, long ones three: what fits both ways must be the same.
    #[test]
    fn payloads_of_any_length_are_their_combinations() {
        for lens in [
            [1, 1, 1],
            [64, 64, 64],
            [1400, 700, 30],
            [1472, 1471, 9],
            [1473, 1473, 1473],
            [3000, 100, 1500],
        ] {
            let longest = lens[0];
            let payloads: Vec<Vec<u8>> =
                (lens.iter().zip(1usize..)).map(|(&len, i)| vec![i as u8 * 37; len]).collect();
            for kernel in Kernel::available() {
                let mut recoder = Recoder::with_kernel(longest, kernel);
                for (index, payload) in payloads.iter().enumerate() {
                    assert!(recoder.push(&unit_vector(index).unwrap(), payload));
                }
                let kept = recoder.received().map(|(_, payload)| payload);
                assert!(kept.eq(payloads.iter().map(Vec::as_slice)));
                let (mut vector, mut made) = ([9; BATCH_SIZE], vec![9; longest + 1]);
                let combination = [3, 0x80, 0xff];
                assert_eq!(recoder.recode(&combination, &mut vector, &mut made), Ok(longest));
                assert_eq!((&vector[..3], &vector[3..]), (&combination[..], &[0; 13][..]));
                for (x, &byte) in made[..longest].iter().enumerate() {
                    let sum = (combination.iter().zip(&payloads)).fold(0, |sum, (&f, payload)| {
                        sum ^ gf256::mul(f, payload.get(x).copied().unwrap_or(0))
                    });
                    assert_eq!(byte, sum, "{} {x} of {longest}", kernel.name());
                }
                assert_eq!(made[longest], 9, "nothing is written behind the payload");
            }
        }
    }

    /// Batch after batch needs no new memory.
    #[test]
    fn rows_of_a_whole_batch_are_kept_for_the_next() {
        let mut recoder = Recoder::new(1408);
        for index in 0..BATCH_SIZE {
            assert!(recoder.push(&unit_vector(index).unwrap(), &[1; 1408]));
        }
        let held: usize = recoder.packets.iter().map(AlignedRow::bytes).sum();
        recoder.clear();
        assert_eq!(recoder.pool.free_bytes(), held);
    }

    #[test]
    fn rank_never_exceeds_what_came_in() {
        let mut first = Recoder::new(200);
        for index in [2, 5, 11] {
            first.push(&unit_vector(index).unwrap(), &source_packet(index));
        }
        let mut second = Recoder::new(200);
        let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; 200]);
        for draw in 0..20 {
            let len = first.recode_random(1, draw, &mut vector, &mut payload).unwrap();
            second.push(&vector, &payload[..len]);
        }
        assert_eq!(second.rank(), 3);
        second.clear();
        assert_eq!(second.rank(), 0);
        assert!(second.push(&vector, &payload));
    }

    /// A length from somebody's configuration: neither an overflow nor more room than a symbol has.
    #[test]
    fn payloads_are_no_longer_than_a_symbol() {
        for max_payload in [MAX_SYMBOL_SIZE, MAX_SYMBOL_SIZE + 1, usize::MAX - 1, usize::MAX] {
            let mut recoder = Recoder::new(max_payload);
            assert!(!recoder.push(&[1; BATCH_SIZE], &[1; MAX_SYMBOL_SIZE + 1]));
            assert!(recoder.push(&[1; BATCH_SIZE], &[1; MAX_SYMBOL_SIZE]));
        }
        let mut recoder = Recoder::new(0);
        assert!(recoder.push(&[1; BATCH_SIZE], &[1]), "0 is cut to 1");
    }

    #[test]
    fn mistakes_are_errors() {
        let mut recoder = Recoder::new(10);
        let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; 10]);
        assert_eq!(recoder.recode(&[], &mut vector, &mut payload), Err(RecodeError::Empty));
        assert!(!recoder.push(&[0; BATCH_SIZE], &[1]));
        assert!(!recoder.push(&[1; BATCH_SIZE], &[]));
        assert!(!recoder.push(&[1; BATCH_SIZE], &[0; 11]));
        assert!(recoder.push(&[1; BATCH_SIZE], &[1; 10]));
        assert_eq!(recoder.recode(&[0], &mut vector, &mut payload), Err(RecodeError::Coefficients));
        assert_eq!(
            recoder.recode(&[1, 1], &mut vector, &mut payload),
            Err(RecodeError::Coefficients)
        );
        assert_eq!(
            recoder.recode(&[1], &mut vector, &mut payload[..9]),
            Err(RecodeError::OutputSize)
        );
        assert_eq!(unit_vector(16), None);
        for (error, words) in [
            (RecodeError::Empty, "no packet"),
            (RecodeError::Coefficients, "coefficient"),
            (RecodeError::OutputSize, "shorter"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
