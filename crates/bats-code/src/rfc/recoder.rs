//! The inner code: linear combinations of received packets of one batch, for every M and q of the
//! RFC (RFC 9426, section 2.2.2). A recoder needs only M, q and T.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::apply;
use super::echelon::VectorSpace;
use super::matrix::Matrix;
use super::padding::MAX_PACKET_SIZE;
use super::parameters::{Field, InnerCode, MAX_BATCH_SIZE};
use super::tinymt32::TinyMt32;
use crate::kernel::Kernel;

/// Why a packet was refused, or recoding failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecodeError {
    /// T is 0 or above [`MAX_PACKET_SIZE`].
    PacketSize,
    /// A packet, or the buffer for one, does not have CO + T bytes.
    Length,
    /// The batch has no packet yet.
    Empty,
    /// Recoding needs one coefficient of GF(q) for each packet held, not all of them zero.
    Coefficients,
}

impl fmt::Display for RecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PacketSize => "the size of a source packet is out of range",
            Self::Length => "the length of a coded packet is not CO + T",
            Self::Empty => "the batch has no packet",
            Self::Coefficients => {
                "recoding needs one coefficient of GF(q) per packet, not all zero"
            }
        })
    }
}

impl core::error::Error for RecodeError {}

/// The received packets of one batch: at most M, linearly independent.
#[derive(Debug)]
pub struct Recoder {
    kernel: Kernel,
    inner: InnerCode,
    packet_len: usize,
    space: VectorSpace,
    /// The packets as received, vector and data.
    packets: Matrix,
    random: TinyMt32,
}

impl Recoder {
    /// A recoder for one batch of packets with T = `packet_size` bytes of data. `seed` determines
    /// the coefficients of [`Recoder::recode_random`]. The nodes of a path must use different
    /// seeds, and each node different ones for its batches.
    ///
    /// # Errors
    /// [`RecodeError::PacketSize`].
    pub fn new(inner: InnerCode, packet_size: usize, seed: u32) -> Result<Self, RecodeError> {
        Self::with_kernel(inner, packet_size, seed, Kernel::active())
    }

    /// As [`Recoder::new`], with a kernel of the caller's choice.
    ///
    /// # Errors
    /// [`RecodeError::PacketSize`].
    pub fn with_kernel(
        inner: InnerCode,
        packet_size: usize,
        seed: u32,
        kernel: Kernel,
    ) -> Result<Self, RecodeError> {
        if packet_size == 0 || packet_size > MAX_PACKET_SIZE {
            return Err(RecodeError::PacketSize);
        }
        let packet_len = inner.vector_len() + packet_size;
        Ok(Self {
            kernel,
            inner,
            packet_len,
            space: VectorSpace::new(inner.batch_size()),
            packets: Matrix::zeroed(inner.batch_size(), packet_len),
            random: TinyMt32::new(seed),
        })
    }

    /// M and q.
    #[must_use]
    pub fn inner_code(&self) -> InnerCode {
        self.inner
    }

    /// TO = CO + T: bytes of a packet.
    #[must_use]
    pub fn coded_packet_len(&self) -> usize {
        self.packet_len
    }

    /// Memory of the recoder, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packets.bytes() + VectorSpace::size(self.inner.batch_size())
    }

    /// Keeps a packet of the batch (CO + T bytes) if it is innovative. Returns whether it was. A
    /// packet with a zero vector never is.
    ///
    /// # Errors
    /// [`RecodeError::Length`].
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, packet: &[u8]) -> Result<bool, RecodeError> {
        if packet.len() != self.packet_len {
            return Err(RecodeError::Length);
        }
        let mut buffer = [0; MAX_BATCH_SIZE];
        let (Some(received), Some(vector)) =
            (packet.get(..self.inner.vector_len()), buffer.get_mut(..self.inner.batch_size()))
        else {
            return Err(RecodeError::Length);
        };
        self.inner.expand_vector(received, vector);
        let held = self.rank();
        if held == self.inner.batch_size() || !self.space.insert(self.kernel, vector) {
            return Ok(false);
        }
        // Rows are longer than packets: they are padded.
        self.packets.row_mut(held).iter_mut().zip(packet).for_each(|(to, from)| *to = *from);
        Ok(true)
    }

    /// Number of linearly independent packets held, 0 to M.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.space.rank()
    }

    /// The packets held, as received. Systematic recoding sends these first.
    pub fn received(&self) -> impl Iterator<Item = &[u8]> {
        self.packets.iter().take(self.rank()).map(|packet| &packet[..self.packet_len])
    }

    /// Removes all packets, to start the next batch. Does not restart the pseudo-random
    /// coefficients.
    pub fn clear(&mut self) {
        self.space.clear();
    }

    /// Writes the sum of `coefficients[i]` times received packet `i` to `output` (CO + T bytes),
    /// for both vector and data. For q = 2 a coefficient is 0 or 1.
    ///
    /// # Errors
    /// [`RecodeError::Empty`], [`RecodeError::Coefficients`], [`RecodeError::Length`].
    pub fn recode(&self, coefficients: &[u8], output: &mut [u8]) -> Result<(), RecodeError> {
        if self.rank() == 0 {
            return Err(RecodeError::Empty);
        }
        let largest = self.inner.field().order() - 1;
        if coefficients.len() != self.rank()
            || coefficients.iter().all(|&x| x == 0)
            || coefficients.iter().any(|&x| u16::from(x) > largest)
        {
            return Err(RecodeError::Coefficients);
        }
        if output.len() != self.packet_len {
            return Err(RecodeError::Length);
        }
        let rows: Vec<&[u8]> = self.packets.iter().take(self.rank()).collect();
        apply::product(self.kernel, self.inner.field(), coefficients, &rows, &mut [output]);
        Ok(())
    }

    /// Random linear recoding: [`Recoder::recode`] with pseudo-random coefficients, not all zero.
    ///
    /// # Errors
    /// [`RecodeError::Empty`], [`RecodeError::Length`].
    pub fn recode_random(&mut self, output: &mut [u8]) -> Result<(), RecodeError> {
        let mut coefficients = vec![0; self.rank()];
        let mask = match self.inner.field() {
            Field::Binary => 1,
            Field::Byte => 255,
        };
        // Bounded work. All four draws are zero with probability 1/16 for one packet and q = 2, and
        // much less often otherwise.
        for _ in 0..4 {
            for chunk in coefficients.chunks_mut(4) {
                let bytes = self.random.next_u32().to_le_bytes();
                chunk.iter_mut().zip(bytes).for_each(|(x, byte)| *x = byte & mask);
            }
            if coefficients.iter().any(|&x| x != 0) {
                return self.recode(&coefficients, output);
            }
        }
        if let Some(first) = coefficients.first_mut() {
            *first = 1;
        }
        self.recode(&coefficients, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf256;

    const T: usize = 150;

    /// Coded packet `index` of a batch: unit vector and data.
    fn coded(inner: InnerCode, index: usize) -> Vec<u8> {
        let mut packet: Vec<u8> =
            (0..inner.vector_len() + T).map(|x| (x * 7 + index * 13 + x * index) as u8).collect();
        inner.write_unit_vector(index, &mut packet[..inner.vector_len()]);
        packet
    }

    /// The expected packet for this vector.
    fn expected(inner: InnerCode, packet: &[u8]) -> Vec<u8> {
        let mut coefficients = vec![0; inner.batch_size()];
        inner.expand_vector(&packet[..inner.vector_len()], &mut coefficients);
        let mut sum = vec![0; packet.len()];
        for (index, &factor) in coefficients.iter().enumerate() {
            for (x, y) in sum.iter_mut().zip(coded(inner, index)) {
                *x ^= gf256::mul(factor, y);
            }
        }
        sum
    }

    #[test]
    fn recoder_chains_preserve_rank_and_content_for_every_inner_code() {
        for inner in InnerCode::all() {
            let m = inner.batch_size();
            let mut recoder = Recoder::new(inner, T, 1).unwrap();
            for index in 0..m {
                assert_eq!(recoder.push(&coded(inner, index)), Ok(true));
            }
            assert_eq!(recoder.push(&coded(inner, 3)), Ok(false));
            for hop in 0..4 {
                let mut next = Recoder::new(inner, T, 100 + hop).unwrap();
                let mut packet = vec![0; inner.vector_len() + T];
                let mut draws = 0;
                while next.rank() < recoder.rank() {
                    recoder.recode_random(&mut packet).unwrap();
                    assert_eq!(packet, expected(inner, &packet));
                    draws += 1;
                    // Every fourth packet is lost.
                    if draws % 4 != 0 {
                        next.push(&packet).unwrap();
                    }
                }
                assert!(draws < m * 3 / 2 + 20, "random linear combinations are mostly innovative");
                recoder = next;
            }
            assert_eq!(recoder.received().count(), m);
            assert!(recoder.received().all(|packet| packet == expected(inner, packet)));
        }
    }

    #[test]
    fn recoding_does_not_raise_the_rank() {
        for inner in InnerCode::all() {
            let mut first = Recoder::new(inner, T, 1).unwrap();
            for index in [0, 3] {
                first.push(&coded(inner, index)).unwrap();
            }
            let mut second = Recoder::new(inner, T, 2).unwrap();
            let mut packet = vec![0; first.coded_packet_len()];
            for _ in 0..40 {
                first.recode_random(&mut packet).unwrap();
                second.push(&packet).unwrap();
            }
            assert_eq!(second.rank(), 2);
            second.clear();
            assert_eq!(second.rank(), 0);
            assert_eq!(second.push(&packet), Ok(true));
            second.recode_random(&mut packet).unwrap();
            assert_eq!(second.push(&packet), Ok(false));
        }
    }

    #[test]
    fn recode_uses_the_given_coefficients() {
        let inner = InnerCode::new(16, Field::Binary).unwrap();
        let mut recoder = Recoder::new(inner, T, 1).unwrap();
        let packets = [1, 8, 15].map(|index| coded(inner, index));
        for packet in &packets {
            recoder.push(packet).unwrap();
        }
        let mut output = vec![0; recoder.coded_packet_len()];
        recoder.recode(&[1, 0, 1], &mut output).unwrap();
        assert_eq!(output[..2], [0x40, 0x01]);
        assert!((0..output.len()).all(|x| output[x] == packets[0][x] ^ packets[2][x]));
    }

    #[test]
    fn invalid_arguments_are_errors() {
        let inner = InnerCode::new(16, Field::Binary).unwrap();
        assert_eq!(Recoder::new(inner, 0, 1).err(), Some(RecodeError::PacketSize));
        assert_eq!(Recoder::new(inner, 1 << 16, 1).err(), Some(RecodeError::PacketSize));
        let mut recoder = Recoder::new(inner, 10, 1).unwrap();
        let mut packet = [0xff; 12];
        assert_eq!(recoder.recode_random(&mut packet), Err(RecodeError::Empty));
        assert_eq!(recoder.push(&[0; 12]), Ok(false));
        assert_eq!(recoder.push(&[1; 11]), Err(RecodeError::Length));
        assert_eq!(recoder.push(&packet), Ok(true));
        assert_eq!(recoder.recode(&[0], &mut packet), Err(RecodeError::Coefficients));
        assert_eq!(recoder.recode(&[2], &mut packet), Err(RecodeError::Coefficients));
        assert_eq!(recoder.recode(&[1, 1], &mut packet), Err(RecodeError::Coefficients));
        assert_eq!(recoder.recode(&[1], &mut packet[..9]), Err(RecodeError::Length));
    }

    #[test]
    fn recoder_holds_a_batch_and_a_basis() {
        for inner in InnerCode::all() {
            let m = inner.batch_size();
            let recoder = Recoder::new(inner, T, 1).unwrap();
            let length = (inner.vector_len() + T).next_multiple_of(64);
            assert_eq!(recoder.bytes(), m * length + 63 + VectorSpace::size(m));
            assert_eq!(recoder.inner_code(), inner);
            for (packet_size, is_valid) in [(MAX_PACKET_SIZE, true), (MAX_PACKET_SIZE + 1, false)] {
                assert_eq!(Recoder::new(inner, packet_size, 1).is_ok(), is_valid);
            }
        }
    }

    #[test]
    fn error_messages_name_the_invalid_argument() {
        for (error, words) in [
            (RecodeError::PacketSize, "size of a source packet"),
            (RecodeError::Length, "length of a coded packet"),
            (RecodeError::Empty, "no packet"),
            (RecodeError::Coefficients, "coefficient"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
