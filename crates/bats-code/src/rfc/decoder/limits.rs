//! What bounds a decoder, and why it refuses something.

use core::fmt;

use super::super::degree::ln_256;
use super::super::matrix::{Matrix, RowStore};
use super::super::padding::PaddingError;
use super::super::sampler::OuterCode;
use super::{Received, batch_elimination_bytes, structure_bytes, total};

/// What a decoder may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Batches of which a packet was received.
    pub max_batches: usize,
    /// Innovative packets.
    pub max_packets: usize,
    /// Inactive packets: the work of decoding grows like their number cubed. A plan of elimination
    /// is given up as soon as it has more.
    pub max_inactive: usize,
    /// Memory in bytes: what was received, the plan, the elimination and the solution with what
    /// they take for a while; but not the batches that the cache keeps, which has its own limit.
    pub max_bytes: usize,
}

impl Limits {
    /// Limits that honest senders keep within.
    ///
    /// Packets: with n batches of mean degree d, a source packet is in none of them with a
    /// probability of about exp(-n d / K), so that K ln(20 K) / d batches leave hardly any out; and
    /// a batch gives no more innovative packets than its degree. Twice the larger of what so many
    /// batches give and of what the rank needs. Batches: as many as give these packets when they
    /// deliver an eighth of theirs. 12,288 inactive packets. Memory: the packets, the batches, and
    /// besides 16 MiB and 32 KiB for each packet of the block, which is enough for dense codes up to
    /// K = 4000 with M of at least 16 and for the recommended distributions; up to 64 KiB a packet
    /// more where a distribution needs many small batches.
    #[must_use]
    pub fn for_code(code: &OuterCode, packet_size: usize) -> Self {
        let needed = code.intermediate_packets() as usize;
        let m = code.inner_code().batch_size();
        let mean = |value: &dyn Fn(usize) -> usize| {
            let (sum, weights) = code.degree_weights().fold((0, 0), |(sum, all), (d, weight)| {
                let (value, weight) = (value(d as usize) as u128, u128::from(weight));
                (weight.saturating_mul(value).saturating_add(sum), all + weight)
            });
            Mean { sum, weights }
        };
        let innovative = mean(&|degree| degree.min(m));
        // K ln(20 K) / mean degree batches.
        let twenty = u32::try_from(needed.saturating_mul(20)).unwrap_or(u32::MAX);
        let log = needed.saturating_mul(ln_256(twenty) as usize).div_ceil(256);
        let covering = mean(&|degree| degree).divide(log);
        let max_packets = [needed, innovative.times(covering)].into_iter().fold(0, usize::max);
        let max_packets = max_packets.saturating_mul(2).saturating_add(1024);
        let at_an_eighth = mean(&|degree| degree.saturating_mul(8).min(m));
        let max_batches = at_an_eighth.divide(max_packets.saturating_mul(8)).saturating_add(64);
        let planning = mean(&|degree| {
            structure_bytes(m, degree)
                .saturating_add(batch_elimination_bytes(degree.min(m), degree))
        });
        let full_batches = innovative.divide(max_packets);
        Self {
            max_batches,
            max_packets,
            max_inactive: 12_288,
            max_bytes: total([
                16 << 20,
                (32usize << 10).saturating_mul(needed),
                planning.times(full_batches).min((64usize << 10).saturating_mul(needed)),
                mean(&|degree| Received::size(m, degree)).times(max_batches),
                RowStore::size(max_packets, packet_size),
                Matrix::size(needed, packet_size).saturating_mul(2),
            ]),
        }
    }
}

/// A mean over the degrees of a code, as a fraction.
struct Mean {
    sum: u128,
    weights: u128,
}

impl Mean {
    /// The mean of so many values added up, rounded up.
    fn times(&self, count: usize) -> usize {
        let product = self.sum.saturating_mul(count as u128).div_ceil(self.weights.max(1));
        usize::try_from(product).unwrap_or(usize::MAX)
    }

    /// How many values add up to this, rounded up.
    fn divide(&self, amount: usize) -> usize {
        let quotient = self.weights.saturating_mul(amount as u128).div_ceil(self.sum.max(1));
        usize::try_from(quotient).unwrap_or(usize::MAX)
    }
}

/// Why a packet was not taken, or a block not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// T is 0 or above [`MAX_PACKET_SIZE`](crate::rfc::MAX_PACKET_SIZE).
    PacketSize,
    /// A packet has not CO + T bytes.
    Length,
    /// The limit on batches is reached.
    Batches,
    /// The limit on packets is reached.
    Packets,
    /// The elimination would need more inactive packets than the limit allows: this many at least.
    /// It is tried again when a 64th more packets have arrived.
    Inactive(usize),
    /// The decoder would need more memory than the limit allows: this many bytes. A decoder that
    /// was made tries again when more packets have arrived.
    Memory(usize),
    /// The block is not decoded yet.
    Incomplete,
    /// The block is decoded but does not end in padding: a packet was forged or the parameters are
    /// not those of the encoder.
    Padding(PaddingError),
    /// The output is shorter than the block.
    OutputSize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketSize => f.write_str("the size of a source packet is out of range"),
            Self::Length => f.write_str("a coded packet has CO + T bytes"),
            Self::Batches => f.write_str("more batches than the decoder may hold"),
            Self::Packets => f.write_str("more packets than the decoder may hold"),
            Self::Inactive(count) => write!(f, "{count} inactive packets are above the limit"),
            Self::Memory(bytes) => write!(f, "{bytes} bytes of memory are above the limit"),
            Self::Incomplete => f.write_str("the block is not decoded yet"),
            Self::Padding(error) => error.fmt(f),
            Self::OutputSize => f.write_str("the output is shorter than the block"),
        }
    }
}

impl core::error::Error for DecodeError {}
