use std::collections::VecDeque;

use bats_code::rfc::{BatchCache, OuterCode};

use super::inner_code;

/// Number of block sizes whose batches are cached.
const MAX_CACHES: usize = 4;
/// Maximum number of bytes cached for each size.
const MAX_CACHE_BYTES: usize = 2 << 20;
/// All caches together take at most this part of the budget.
const BUDGET_DIVISOR: usize = 8;

/// Cached batch structures, which depend only on the number of source packets. A block has a cache only while it is
/// worked on, so that no structure is held twice and none is held when its size is displaced.
#[derive(Debug)]
pub(super) struct Caches {
    /// The size that was opened last is the last one.
    caches: VecDeque<BatchCache>,
    /// Most bytes for each size.
    max_bytes: usize,
}

impl Caches {
    /// Caches for a flow whose budget has so many bytes.
    pub(super) fn new(budget: usize) -> Self {
        let max_bytes = (budget / BUDGET_DIVISOR / MAX_CACHES).min(MAX_CACHE_BYTES);
        Self { caches: VecDeque::new(), max_bytes }
    }

    /// Frees all structures; they are built again when they are needed. Returns whether there were any.
    pub(super) fn clear(&mut self) -> bool {
        !core::mem::take(&mut self.caches).is_empty()
    }

    /// Memory of all structures, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.caches.iter().map(BatchCache::bytes).sum()
    }

    /// The cache with which a new block of `source_packets` source packets, 1 to 65,535, is made. It keeps nothing:
    /// [`Self::swap`] gives the block the one that does.
    pub(super) fn open(&mut self, source_packets: u32) -> Option<BatchCache> {
        let is_known = |cache: &BatchCache| cache.code().source_packets() == source_packets;
        let known = self.caches.iter().position(is_known);
        let cache = match known.and_then(|index| self.caches.remove(index)) {
            Some(cache) => cache,
            None => {
                let code = OuterCode::recommended(source_packets, inner_code()?).ok()?;
                BatchCache::new(code, self.max_bytes)
            }
        };
        let own = cache.unused();
        if self.caches.len() == MAX_CACHES {
            self.caches.pop_front();
        }
        self.caches.push_back(cache);
        Some(own)
    }

    /// Exchanges the cache of a block for that of its size, and later back, unless other sizes have displaced it.
    pub(super) fn swap(
        &mut self,
        source_packets: u32,
        exchange: impl FnOnce(&mut BatchCache) -> bool,
    ) {
        let mut caches = self.caches.iter_mut();
        if let Some(cache) = caches.find(|cache| cache.code().source_packets() == source_packets) {
            exchange(cache);
        }
    }
}
