//! What bounds a decoder, and why it refuses something.

use core::fmt;

use super::super::matrix::{Matrix, RowStore};
use super::super::padding::PaddingError;
use super::super::sampler::OuterCode;

/// What a decoder may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Batches of which a packet was received.
    pub max_batches: usize,
    /// Innovative packets.
    pub max_packets: usize,
    /// Inactive packets: the work of decoding grows like their number cubed.
    pub max_inactive: usize,
    /// Memory in octets, for everything but the cached batches, whose cache has its own limit.
    pub max_bytes: usize,
}

impl Limits {
    /// Limits that honest senders keep within: twice the packets that are needed, batches that
    /// deliver an eighth of their packets, 12,288 inactive packets; and besides the packets
    /// themselves memory of 16 MiB and 32 KiB for each packet of the block, which is enough for
    /// dense codes up to K = 4000 with M of at least 16 and for the recommended distributions.
    #[must_use]
    pub fn for_code(code: &OuterCode, packet_size: usize) -> Self {
        let needed = code.intermediate_packets() as usize;
        let max_packets = 2 * needed + 1024;
        Self {
            max_batches: 64 + 8 * max_packets / code.inner_code().batch_size(),
            max_packets,
            max_inactive: 12_288,
            max_bytes: [
                16 << 20,
                (32usize << 10).saturating_mul(needed),
                RowStore::size(max_packets, packet_size),
                Matrix::size(needed, packet_size).saturating_mul(2),
            ]
            .into_iter()
            .fold(0, usize::saturating_add),
        }
    }
}

/// Why a packet was not taken, or a block not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// T is 0 or above [`MAX_PACKET_SIZE`](crate::rfc::MAX_PACKET_SIZE).
    PacketSize,
    /// A packet has not CO + T octets.
    Length,
    /// The limit on batches is reached.
    Batches,
    /// The limit on packets is reached.
    Packets,
    /// The elimination would need more inactive packets than the limit allows: this many. It is
    /// tried again when a 64th more packets have arrived.
    Inactive(usize),
    /// The decoder would need more memory than the limit allows: this many octets. A decoder that
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
            Self::Length => f.write_str("a coded packet has CO + T octets"),
            Self::Batches => f.write_str("more batches than the decoder may hold"),
            Self::Packets => f.write_str("more packets than the decoder may hold"),
            Self::Inactive(count) => write!(f, "{count} inactive packets are above the limit"),
            Self::Memory(bytes) => write!(f, "{bytes} octets of memory are above the limit"),
            Self::Incomplete => f.write_str("the block is not decoded yet"),
            Self::Padding(error) => error.fmt(f),
            Self::OutputSize => f.write_str("the output is shorter than the block"),
        }
    }
}

impl core::error::Error for DecodeError {}
