//! Limits and errors of a decoder.

use core::fmt;

use super::super::degree::ln_256;
use super::super::matrix::{Matrix, RowStore};
use super::super::padding::PaddingError;
use super::super::sampler::OuterCode;
use super::{ReceivedBatch, batch_elimination_bytes, structure_bytes, total};

/// Limits of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of batches that a packet was received of.
    pub max_batches: usize,
    /// Maximum number of innovative packets.
    pub max_packets: usize,
    /// Maximum number of inactive packets. The work of decoding grows with their number cubed.
    /// Planning stops as soon as it exceeds this.
    pub max_inactive: usize,
    /// Maximum memory in bytes, for received packets, plan, elimination and solution, including
    /// temporary buffers. The batch cache is not included; it has its own limit.
    pub max_bytes: usize,
}

impl Limits {
    /// Default limits for blocks of correct senders.
    ///
    /// * Packets: with n batches of mean degree d, a source packet is in none of them with a
    ///   probability of about exp(-n d / K), so that K ln(20 K) / d batches cover nearly all. A
    ///   batch gives at most as many innovative packets as its degree. The limit is 1024 plus twice
    ///   the larger of two numbers: the innovative packets of so many batches, and the rank needed.
    /// * Batches: 64 plus as many as give these packets if each delivers an eighth of its packets.
    /// * Inactive packets: 12,288.
    /// * Memory: the packets, the batches, 16 MiB, and 32 KiB for each packet of the block. That is
    ///   enough for dense codes up to K = 4000 with M >= 16, and for the recommended distributions.
    ///   Distributions that need many small batches get up to 64 KiB more per packet.
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
        let k_times_20 = u32::try_from(needed.saturating_mul(20)).unwrap_or(u32::MAX);
        let log = needed.saturating_mul(ln_256(k_times_20) as usize).div_ceil(256);
        let covering_batches = mean(&|degree| degree).divide(log);
        let max_packets =
            [needed, innovative.times(covering_batches)].into_iter().fold(0, usize::max);
        let max_packets = max_packets.saturating_mul(2).saturating_add(1024);
        let innovative_times_8 = mean(&|degree| degree.saturating_mul(8).min(m));
        let max_batches =
            innovative_times_8.divide(max_packets.saturating_mul(8)).saturating_add(64);
        let planning_bytes = mean(&|degree| {
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
                planning_bytes.times(full_batches).min((64usize << 10).saturating_mul(needed)),
                mean(&|degree| ReceivedBatch::size(m, degree)).times(max_batches),
                RowStore::size(max_packets, packet_size),
                Matrix::size(needed, packet_size).saturating_mul(2),
            ]),
        }
    }
}

/// The mean of a value over the degrees of a code, as a fraction.
struct Mean {
    sum: u128,
    weights: u128,
}

impl Mean {
    /// `count` times the mean, rounded up.
    fn times(&self, count: usize) -> usize {
        let product = self.sum.saturating_mul(count as u128).div_ceil(self.weights.max(1));
        usize::try_from(product).unwrap_or(usize::MAX)
    }

    /// `amount` divided by the mean, rounded up.
    fn divide(&self, amount: usize) -> usize {
        let quotient = self.weights.saturating_mul(amount as u128).div_ceil(self.sum.max(1));
        usize::try_from(quotient).unwrap_or(usize::MAX)
    }
}

/// Why a packet was refused, or a block was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// T is 0 or above [`MAX_PACKET_SIZE`](crate::rfc::MAX_PACKET_SIZE).
    PacketSize,
    /// A packet does not have CO + T bytes.
    Length,
    /// The limit on batches is reached.
    Batches,
    /// The limit on packets is reached.
    Packets,
    /// The elimination needs at least this many inactive packets, which is above the limit. The
    /// next attempt follows when 1/64 more packets have arrived.
    Inactive(usize),
    /// The decoder needs this many bytes of memory, which is above the limit. An existing decoder
    /// tries again when more packets have arrived.
    Memory(usize),
    /// The block is not decoded yet.
    Incomplete,
    /// The block is decoded but does not end in padding: a packet was polluted, or the parameters
    /// differ from the encoder's.
    Padding(PaddingError),
    /// The output is shorter than the block.
    OutputSize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketSize => f.write_str("the size of a source packet is out of range"),
            Self::Length => f.write_str("the length of a coded packet is not CO + T"),
            Self::Batches => f.write_str("the limit on batches is reached"),
            Self::Packets => f.write_str("the limit on packets is reached"),
            Self::Inactive(count) => write!(f, "{count} inactive packets exceed the limit"),
            Self::Memory(bytes) => write!(f, "{bytes} bytes of memory exceed the limit"),
            Self::Incomplete => f.write_str("the block is not decoded yet"),
            Self::Padding(error) => error.fmt(f),
            Self::OutputSize => f.write_str("the output is shorter than the block"),
        }
    }
}

impl core::error::Error for DecodeError {}
