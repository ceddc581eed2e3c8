use std::collections::VecDeque;

use bats_code::rfc::{BatchCache, OuterCode};

use super::inner_code;

/// Numbers of source packets for which batches are remembered.
const REMEMBERED: usize = 4;
/// Bytes of batches remembered for each.
const BYTES: usize = 1 << 20;

/// The structures of batches, which depend on the number of source packets alone.
#[derive(Debug, Default)]
pub(super) struct Caches(VecDeque<BatchCache>);

impl Caches {
    /// The cache for blocks of so many source packets, 1 to 65,535.
    pub(super) fn take(&mut self, source_packets: u32) -> Option<BatchCache> {
        let known = self.0.iter().find(|cache| cache.code().source_packets() == source_packets);
        if let Some(cache) = known {
            return Some(cache.clone());
        }
        let code = OuterCode::recommended(source_packets, inner_code()?).ok()?;
        Some(BatchCache::new(code, BYTES))
    }

    /// Gives a cache back, with what it learned.
    pub(super) fn keep(&mut self, cache: BatchCache) {
        let packets = cache.code().source_packets();
        self.0.retain(|other| other.code().source_packets() != packets);
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(cache);
    }
}
