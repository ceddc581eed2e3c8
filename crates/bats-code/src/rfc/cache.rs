//! A cache of batch structures by batch ID. They depend only on the parameters, not on the data. So
//! a cache serves all blocks of equal K, M and DD, and saves most of the encoder's scalar work.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::batch::Batch;
use super::precode::Precode;
use super::sampler::OuterCode;

/// Structures of the batches of one [`OuterCode`], up to a memory limit. Clones share the batches
/// that are cached when they are made.
#[derive(Clone, Debug)]
pub struct BatchCache {
    code: Arc<OuterCode>,
    batches: BTreeMap<u32, Arc<Batch>>,
    /// The equations of the precode, once computed.
    constraints: Option<Arc<[Batch]>>,
    bytes: usize,
    max_bytes: usize,
}

impl BatchCache {
    /// A cache of at most `max_bytes` bytes; 0 disables it. Entries are never evicted, because
    /// encoders start at batch 0 with every block.
    #[must_use]
    pub fn new(code: OuterCode, max_bytes: usize) -> Self {
        let code = Arc::new(code);
        Self { code, batches: BTreeMap::new(), constraints: None, bytes: 0, max_bytes }
    }

    /// A cache of the same code that keeps nothing, for a coder that gets a cache only while it works
    /// ([`Decoder::swap_cache`](super::Decoder::swap_cache)).
    #[must_use]
    pub fn unused(&self) -> Self {
        let code = Arc::clone(&self.code);
        Self { code, batches: BTreeMap::new(), constraints: None, bytes: 0, max_bytes: 0 }
    }

    /// Exchanges two caches of the same code. Returns false, and changes nothing, if their codes differ.
    pub(super) fn swap(&mut self, other: &mut Self) -> bool {
        let is_same = Arc::ptr_eq(&self.code, &other.code) || self.code == other.code;
        if is_same {
            core::mem::swap(self, other);
        }
        is_same
    }

    /// The code that the batches belong to.
    #[must_use]
    pub fn code(&self) -> &OuterCode {
        &self.code
    }

    /// The structure of a batch, from the cache or computed.
    pub fn batch(&mut self, batch_id: u32) -> Arc<Batch> {
        if let Some(batch) = self.batches.get(&batch_id) {
            return Arc::clone(batch);
        }
        let batch = self.code.batch(batch_id);
        self.insert(batch_id, batch)
    }

    /// As [`BatchCache::batch`], for callers that need the next batch IDs soon. Also computes these
    /// if they fit the limit, because several batches at once take less time.
    pub fn batch_in_sequence(&mut self, batch_id: u32) -> Arc<Batch> {
        if let Some(batch) = self.batches.get(&batch_id) {
            return Arc::clone(batch);
        }
        let (code, m) = (&self.code, self.code.inner_code().batch_size());
        let batch_ids = [0, 1, 2, 3].map(|ahead: u32| batch_id.saturating_add(ahead));
        let size = |id: u32| Batch::size(m, code.degree(id) as usize);
        let sizes: usize = batch_ids.map(size).into_iter().sum();
        if batch_id.checked_add(3).is_none() || self.bytes.saturating_add(sizes) > self.max_bytes {
            return self.batch(batch_id);
        }
        let batches = self.code.batches(&batch_ids);
        for (batch_id, batch) in batch_ids.into_iter().zip(batches) {
            if !self.batches.contains_key(&batch_id) {
                self.insert(batch_id, batch);
            }
        }
        self.batch(batch_id)
    }

    /// The structures of several batches, in the given order. Faster than single calls.
    pub fn batches(&mut self, batch_ids: &[u32]) -> Vec<Arc<Batch>> {
        let mut missing: Vec<u32> =
            batch_ids.iter().copied().filter(|id| !self.batches.contains_key(id)).collect();
        // Group batches of similar degree.
        missing.sort_by_cached_key(|&id| (self.code.degree(id), id));
        missing.dedup();
        let mut computed = BTreeMap::new();
        for (&id, batch) in missing.iter().zip(self.code.batches(&missing)) {
            computed.insert(id, self.insert(id, batch));
        }
        let found = |&id: &u32| computed.get(&id).or_else(|| self.batches.get(&id)).cloned();
        batch_ids.iter().filter_map(found).collect()
    }

    /// The equations of the precode, from the cache or computed; empty without a precode.
    pub(super) fn constraints(&mut self) -> Arc<[Batch]> {
        if let Some(constraints) = &self.constraints {
            return Arc::clone(constraints);
        }
        let constraints: Arc<[Batch]> =
            self.code.precode().map_or_else(Vec::new, Precode::constraints).into();
        let bytes: usize = constraints.iter().map(Batch::bytes).sum();
        if self.bytes + bytes <= self.max_bytes {
            self.bytes += bytes;
            self.constraints = Some(Arc::clone(&constraints));
        }
        constraints
    }

    /// Caches a batch if it fits the limit.
    fn insert(&mut self, batch_id: u32, batch: Batch) -> Arc<Batch> {
        let batch = Arc::new(batch);
        if self.bytes + batch.bytes() <= self.max_bytes {
            self.bytes += batch.bytes();
            self.batches.insert(batch_id, Arc::clone(&batch));
        }
        batch
    }

    /// Memory of the cached batches and constraints, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rfc::{Field, InnerCode};

    #[test]
    fn several_batches_at_once_match_single_batches() {
        let code = OuterCode::recommended(600, InnerCode::new(4, Field::Byte).unwrap()).unwrap();
        for max_bytes in [0, 5000, 1 << 20] {
            let mut cache = BatchCache::new(code.clone(), max_bytes);
            cache.batch(5);
            let ids = [9, 5, 2, 77, 9, 1, 0, 4, 13, u32::MAX];
            for (id, batch) in ids.into_iter().zip(cache.batches(&ids)) {
                assert_eq!(batch.indices(), code.batch(id).indices());
            }
            for id in [0, 3, 4, 20, u32::MAX - 1, u32::MAX] {
                let (batch, alone) = (cache.batch_in_sequence(id), code.batch(id));
                assert_eq!(batch.indices(), alone.indices());
                assert!((0..4).all(|c| batch.generator(c) == alone.generator(c)));
            }
            assert!(cache.bytes() <= max_bytes);
            let held: usize = cache.batches.values().map(|batch| batch.bytes()).sum();
            assert_eq!(cache.bytes(), held);
        }
    }

    #[test]
    fn constraints_are_cached_up_to_the_limit() {
        let code = OuterCode::recommended(100, InnerCode::new(4, Field::Byte).unwrap()).unwrap();
        assert!(BatchCache::new(code.clone(), 1 << 20).constraints().is_empty());
        let code = code.with_precode();
        let expected = code.precode().unwrap().constraints();
        let size: usize = expected.iter().map(Batch::bytes).sum();
        for (max_bytes, kept) in [(size, true), (size - 1, false)] {
            let mut cache = BatchCache::new(code.clone(), max_bytes);
            let constraints = cache.constraints();
            assert!(constraints.iter().map(Batch::indices).eq(expected.iter().map(Batch::indices)));
            assert_eq!(Arc::ptr_eq(&constraints, &cache.constraints()), kept);
            assert_eq!(cache.bytes(), if kept { size } else { 0 });
        }
    }

    #[test]
    fn caches_of_the_same_code_are_exchanged() {
        let inner = InnerCode::new(4, Field::Byte).unwrap();
        let code = |packets| OuterCode::recommended(packets, inner).unwrap();
        let mut cache = BatchCache::new(code(100), 1 << 20);
        let batch = cache.batch(7);
        let held = cache.bytes();
        let mut own = cache.unused();
        own.batch(8);
        assert_eq!(own.bytes(), 0);
        // The same code, but not the same object.
        for mut other in [own, BatchCache::new(code(100), 0)] {
            assert!(other.swap(&mut cache));
            assert_eq!((other.bytes(), cache.bytes()), (held, 0));
            assert!(Arc::ptr_eq(&other.batch(7), &batch));
            assert!(other.swap(&mut cache));
        }
        let mut other = BatchCache::new(code(101), 1 << 20);
        assert!(!other.swap(&mut cache));
        assert_eq!((other.bytes(), cache.bytes()), (0, held));
    }

    #[test]
    fn batches_are_cached_up_to_the_limit() {
        let code = OuterCode::recommended(100, InnerCode::new(4, Field::Byte).unwrap()).unwrap();
        let size = code.batch(0).bytes();
        let mut cache = BatchCache::new(code, 2 * size);
        let first = cache.batch(7);
        assert_eq!(first.indices(), cache.code().batch(7).indices());
        assert!(Arc::ptr_eq(&first, &cache.batch(7)));
        for batch_id in 0..5 {
            cache.batch(batch_id);
        }
        assert_eq!(cache.bytes(), 2 * size);
        assert!(Arc::ptr_eq(&first, &cache.batch(7)), "the first batch was evicted");
        assert!(
            !Arc::ptr_eq(&cache.batch(4), &cache.batch(4)),
            "a batch beyond the limit was cached"
        );
    }

    /// In a sequence, four batches are computed at once if all of them fit the limit.
    #[test]
    fn next_batches_of_a_sequence_are_cached_if_all_fit() {
        let code = OuterCode::recommended(600, InnerCode::new(4, Field::Byte).unwrap()).unwrap();
        let size = |ids: core::ops::RangeInclusive<u32>| -> usize {
            ids.map(|id| code.batch(id).bytes()).sum()
        };
        for first in [0, 7, u32::MAX - 3] {
            let four = size(first..=first + 3);
            for (max_bytes, held) in [(four, four), (four - 1, size(first..=first)), (0, 0)] {
                let mut cache = BatchCache::new(code.clone(), max_bytes);
                cache.batch_in_sequence(first);
                assert_eq!(cache.bytes(), held, "{first}, at most {max_bytes} bytes");
                let next = cache.batch_in_sequence(first);
                assert_eq!(Arc::ptr_eq(&next, &cache.batch(first)), held > 0);
            }
            // One that is held already takes no more memory.
            let mut cache = BatchCache::new(code.clone(), four + size(first + 2..=first + 2));
            let third = cache.batch(first + 2);
            cache.batch_in_sequence(first);
            assert_eq!(cache.bytes(), four);
            assert!(Arc::ptr_eq(&third, &cache.batch(first + 2)));
        }
        // Not all of the next three exist.
        for first in [u32::MAX - 2, u32::MAX] {
            let mut cache = BatchCache::new(code.clone(), 1 << 20);
            cache.batch_in_sequence(first);
            assert_eq!(cache.bytes(), size(first..=first));
        }
    }

    #[test]
    fn several_batches_are_cached_up_to_the_limit() {
        let code = OuterCode::recommended(100, InnerCode::new(4, Field::Byte).unwrap()).unwrap();
        let size = code.batch(0).bytes();
        for (held, count) in [(3, 5), (4, 4), (5, 5)] {
            let mut cache = BatchCache::new(code.clone(), held * size + size / 2);
            let ids: Vec<u32> = (0..count).collect();
            assert_eq!(cache.batches(&ids).len(), ids.len());
            assert_eq!(cache.bytes(), held.min(ids.len()) * size);
            cache.batches(&ids);
            assert_eq!(cache.bytes(), held.min(ids.len()) * size);
        }
    }
}
