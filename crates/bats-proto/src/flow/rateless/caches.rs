use std::collections::VecDeque;

use bats_code::rfc::{BatchCache, OuterCode};

use super::inner_code;

/// Number of block sizes whose batches are cached.
const MAX_CACHES: usize = 4;
/// Maximum number of bytes cached for each size.
const MAX_CACHE_BYTES: usize = 1 << 20;

/// Cached batch structures, which depend only on the number of source packets.
#[derive(Debug, Default)]
pub(super) struct Caches(VecDeque<BatchCache>);

impl Caches {
    /// Frees all structures; they are built again for the next blocks.
    pub(super) fn clear(&mut self) {
        self.0 = VecDeque::new();
    }

    /// The cache for blocks of `source_packets` source packets, 1 to 65,535.
    pub(super) fn take(&mut self, source_packets: u32) -> Option<BatchCache> {
        let known = self.0.iter().find(|cache| cache.code().source_packets() == source_packets);
        if let Some(cache) = known {
            return Some(cache.clone());
        }
        let code = OuterCode::recommended(source_packets, inner_code()?).ok()?;
        Some(BatchCache::new(code, MAX_CACHE_BYTES))
    }

    /// Returns a cache with the batches added to it.
    pub(super) fn keep(&mut self, cache: BatchCache) {
        let packets = cache.code().source_packets();
        self.0.retain(|other| other.code().source_packets() != packets);
        if self.0.len() == MAX_CACHES {
            self.0.pop_front();
        }
        self.0.push_back(cache);
    }
}
