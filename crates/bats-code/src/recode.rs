//! The inner code of RFC 9426 with M = 16 and q = 256: random linear combinations of the received
//! packets of one batch. A recoder needs neither the coding window nor the source.

use alloc::vec::Vec;

use crate::BATCH_SIZE;
use crate::gf256;
use crate::kernel::{Kernel, Mode};
use crate::rows::{ALIGNMENT, AlignedRow, RowPool, padded_length};
use crate::stream::{MAX_SYMBOL_SIZE, coefficients};

/// A coefficient vector: the packet is the sum of `vector[i]` times coded packet `i` of the batch.
pub type CoefficientVector = [u8; BATCH_SIZE];

/// The coefficient vector of coded packet `index` as sent by the source; `None` if `index >= M`.
#[must_use]
pub fn unit_vector(index: usize) -> Option<CoefficientVector> {
    let mut vector = [0; BATCH_SIZE];
    *vector.get_mut(index)? = 1;
    Some(vector)
}

/// Why recoding failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecodeError {
    /// The batch has no packet.
    Empty,
    /// Recoding needs one coefficient for each packet held, not all of them zero.
    Coefficients,
    /// The output is shorter than the longest payload of the batch.
    OutputSize,
}

impl core::fmt::Display for RecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Empty => "the batch has no packet",
            Self::Coefficients => "recoding needs one coefficient per packet, not all zero",
            Self::OutputSize => "the output is shorter than the packets of the batch",
        })
    }
}

impl core::error::Error for RecodeError {}

/// Maximum length, vector included, of a packet that is computed in one product and copied: enough
/// for paths with an MTU of 1500 bytes. Longer payloads are computed in the caller's buffer.
const SHORT: usize = 1536;

/// A buffer for a vector and a payload, aligned for the kernels.
#[repr(align(64))]
struct Scratch<const N: usize>([u8; N]);

/// The received packets of one batch: at most M, linearly independent.
#[derive(Debug)]
pub struct Recoder {
    kernel: Kernel,
    max_payload: usize,
    /// One row per packet: the coefficient vector, zero-padded to 64 bytes, then the payload.
    packets: Vec<AlignedRow>,
    /// Lengths of the longest and the shortest payload, in bytes.
    longest: usize,
    shortest: usize,
    basis: Basis,
    pool: RowPool,
}

/// The vector space of the received coefficient vectors of a batch, without payloads.
#[derive(Clone, Debug, Default)]
pub struct Basis {
    /// Row echelon form: for each pivot the vector whose leading 1 is there.
    echelon: [Option<CoefficientVector>; BATCH_SIZE],
    rank: u8,
}

impl Basis {
    /// Adds a vector. Returns whether it raised the rank.
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

    /// Number of linearly independent vectors, 0 to M.
    #[must_use]
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }
}

impl Recoder {
    /// A recoder for one batch with payloads of at most `max_payload` bytes (clamped to 1 ..=
    /// [`MAX_SYMBOL_SIZE`]).
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

    /// Keeps a packet of the batch if it is innovative. Returns whether it was. Packets with an
    /// empty or too long payload are refused.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, vector: &CoefficientVector, payload: &[u8]) -> bool {
        if payload.is_empty() || payload.len() > self.max_payload || !self.basis.insert(*vector) {
            return false;
        }
        let mut row = self.pool.take(payload.len().saturating_add(ALIGNMENT));
        let (head, body) = row.as_mut_slice().split_at_mut(ALIGNMENT);
        head.fill(0);
        head.iter_mut().zip(vector).for_each(|(to, from)| *to = *from);
        body.copy_from_slice(payload);
        self.packets.push(row);
        self.longest = self.longest.max(payload.len());
        self.shortest = self.shortest.min(payload.len());
        true
    }

    /// Number of linearly independent packets held, 0 to M.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.packets.len()
    }

    /// The packets held, as received. Systematic recoding sends these first.
    pub fn received(&self) -> impl Iterator<Item = (&CoefficientVector, &[u8])> {
        self.packets.iter().filter_map(|row| {
            let (head, body) = row.as_slice().split_at_checked(ALIGNMENT)?;
            Some((head.first_chunk()?, body))
        })
    }

    /// Removes all packets, to start the next batch.
    pub fn clear(&mut self) {
        self.basis = Basis::default();
        (self.longest, self.shortest) = (0, usize::MAX);
        for row in self.packets.drain(..) {
            self.pool.give(row);
        }
    }

    /// Computes the sum of `factors[i]` times received packet `i`, for both vector and payload.
    /// Returns the length of the payload.
    ///
    /// # Errors
    /// See [`RecodeError`].
    pub fn recode(
        &self,
        factors: &[u8],
        vector: &mut CoefficientVector,
        payload: &mut [u8],
    ) -> Result<usize, RecodeError> {
        if self.packets.is_empty() {
            return Err(RecodeError::Empty);
        }
        if factors.len() != self.rank() || factors.iter().all(|&x| x == 0) {
            return Err(RecodeError::Coefficients);
        }
        let len = self.longest;
        let payload = payload.get_mut(..len).ok_or(RecodeError::OutputSize)?;
        let mut rows: [&[u8]; BATCH_SIZE] = [&[]; BATCH_SIZE];
        for (row, received) in rows.iter_mut().zip(&self.packets) {
            *row = received.padded();
        }
        let rows = &mut rows[..factors.len()];
        let padded = padded_length(ALIGNMENT + len);
        if padded <= SHORT {
            let mut sum = Scratch([0; SHORT]);
            self.product(factors, rows, &mut sum.0, padded);
            vector.copy_from_slice(&sum.0[..BATCH_SIZE]);
            payload.copy_from_slice(&sum.0[ALIGNMENT..][..len]);
            return Ok(len);
        }
        let mut sum = Scratch([0; ALIGNMENT]);
        self.product(factors, rows, &mut sum.0, ALIGNMENT);
        vector.copy_from_slice(&sum.0[..BATCH_SIZE]);
        // Whole 64-byte blocks are computed in the caller's buffer. It has no padding, so that the
        // remaining bytes go through `sum`.
        let whole = len - len % ALIGNMENT;
        rows.iter_mut().for_each(|row| *row = &row[ALIGNMENT..]);
        self.kernel.product_ragged(factors, rows, &mut [&mut *payload], whole);
        if whole < len {
            rows.iter_mut().for_each(|row| *row = row.get(whole..).unwrap_or(&[]));
            self.kernel.product_ragged(factors, rows, &mut [&mut sum.0], ALIGNMENT);
            payload[whole..].copy_from_slice(&sum.0[..len - whole]);
        }
        Ok(len)
    }

    /// Computes the linear combination of rows that start with the packets' vectors.
    fn product(&self, factors: &[u8], rows: &[&[u8]], output: &mut [u8], len: usize) {
        if padded_length(ALIGNMENT + self.shortest) >= len {
            self.kernel.product(factors, rows, &mut [output], len, Mode::Overwrite);
        } else {
            self.kernel.product_ragged(factors, rows, &mut [output], len);
        }
    }

    /// Random linear recoding: [`Recoder::recode`] with non-zero pseudo-random factors that `seed`
    /// and `draw` determine. A node must use each `draw` only once.
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
        let mut factors = [0; BATCH_SIZE];
        let factors = &mut factors[..self.rank()];
        coefficients(seed, draw, 0, factors);
        self.recode(factors, vector, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_packet(index: usize) -> Vec<u8> {
        (0..100 + index).map(|x| (x * 7 + index * 13) as u8).collect()
    }

    /// The expected payload of a packet with this vector.
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
    fn recoder_chain_preserves_rank_and_content() {
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
            assert!(draws < 30, "random linear combinations are nearly always innovative");
            recoder = next;
        }
        assert_eq!(recoder.received().count(), BATCH_SIZE);
    }

    /// Short packets take one product, long ones three. Both give the same linear combination.
    #[test]
    fn recoded_payloads_of_any_length_are_correct() {
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
                let factors = [3, 0x80, 0xff];
                assert_eq!(recoder.recode(&factors, &mut vector, &mut made), Ok(longest));
                assert_eq!((&vector[..3], &vector[3..]), (&factors[..], &[0; 13][..]));
                for (x, &byte) in made[..longest].iter().enumerate() {
                    let sum = (factors.iter().zip(&payloads)).fold(0, |sum, (&f, payload)| {
                        sum ^ gf256::mul(f, payload.get(x).copied().unwrap_or(0))
                    });
                    assert_eq!(byte, sum, "{} {x} of {longest}", kernel.name());
                }
                assert_eq!(made[longest], 9, "nothing is written after the payload");
            }
        }
    }

    /// Recoding the next batch needs no new memory.
    #[test]
    fn clearing_keeps_the_rows_of_a_batch_for_reuse() {
        let mut recoder = Recoder::new(1408);
        for index in 0..BATCH_SIZE {
            assert!(recoder.push(&unit_vector(index).unwrap(), &[1; 1408]));
        }
        let held: usize = recoder.packets.iter().map(AlignedRow::bytes).sum();
        recoder.clear();
        assert_eq!(recoder.pool.free_bytes(), held);
    }

    #[test]
    fn recoding_does_not_raise_the_rank() {
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

    /// Any configured length is clamped, without overflow.
    #[test]
    fn max_payload_is_clamped_to_the_symbol_size() {
        for max_payload in [MAX_SYMBOL_SIZE, MAX_SYMBOL_SIZE + 1, usize::MAX - 1, usize::MAX] {
            let mut recoder = Recoder::new(max_payload);
            assert!(!recoder.push(&[1; BATCH_SIZE], &[1; MAX_SYMBOL_SIZE + 1]));
            assert!(recoder.push(&[1; BATCH_SIZE], &[1; MAX_SYMBOL_SIZE]));
        }
        let mut recoder = Recoder::new(0);
        assert!(recoder.push(&[1; BATCH_SIZE], &[1]), "0 is clamped to 1");
    }

    #[test]
    fn invalid_arguments_are_errors() {
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
