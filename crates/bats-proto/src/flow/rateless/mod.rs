//! Rateless blocks (mode BRCTP). Each block of a flow is coded with the outer code of RFC 9426. Its
//! sender continues with packets of new batches until the receiver reports that it has enough.

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

/// M: number of packets of a batch.
const BATCH: usize = 16;
/// Maximum number of source packets of a block. Up to this size the recommended degrees are dense,
/// and a block takes no more packets than K (docs/rfc9426.md).
pub(super) const MAX_BLOCK: u32 = 512;
/// Maximum number of blocks in flight.
pub(super) const MAX_OPEN: u64 = 64;

/// M = 16, q = 256.
fn inner_code() -> Option<InnerCode> {
    InnerCode::new(BATCH, Field::Byte).ok()
}

/// Credit in source packets for a credit of `symbols` symbols. A packet may be held three times: as
/// received, during elimination and solved.
pub(crate) fn credit_of(symbols: u64) -> u64 {
    (symbols / 4).max(16)
}
