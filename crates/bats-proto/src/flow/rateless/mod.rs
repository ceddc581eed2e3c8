//! Blocks without a rate (mode BRCTP): each block of a flow is coded as RFC 9426 has
//! it, and its sender goes on with packets of ever new batches until the receiver says that it has
//! enough.

mod caches;
mod header;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use header::{RATELESS_HEADER_LEN, RatelessHeader, rateless_packet_size};
pub use receiver::{RatelessParameters, RatelessReceiver};
pub use sender::{RatelessSender, RatelessSenderParameters};

use bats_code::rfc::{Field, InnerCode};

/// M: packets of a batch.
const BATCH: usize = 16;
/// Source packets of a block at most. Up to here the recommended degrees are dense, and a block takes
/// no more packets than it has (`rfc9426.md`, section 15).
pub(super) const MAX_BLOCK: u32 = 512;
/// Blocks under way at once.
pub(super) const MAX_OPEN: u64 = 64;

/// M = 16, q = 256.
fn inner_code() -> Option<InnerCode> {
    InnerCode::new(BATCH, Field::Byte).ok()
}

/// Source packets that are promised for a promise of so many symbols: a packet is held received, under
/// elimination and solved.
pub(crate) fn credit_of(symbols: u64) -> u64 {
    (symbols / 4).max(16)
}
