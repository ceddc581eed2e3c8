//! Structures of batches by batch ID. They depend on the parameters only, not on the data: a cache
//! serves all blocks of equal K, M and DD, and saves most of the encoder's scalar work.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use super::sampler::{Batch, OuterCode};

/// Batches of one [`OuterCode`], up to a limit of memory. A clone shares what is there already.
#[derive(Clone, Debug)]
pub struct BatchCache {
    code: Arc<OuterCode>,
    batches: BTreeMap<u32, Arc<Batch>>,
    bytes: usize,
    max_bytes: usize,
}

impl BatchCache {
    /// A cache that keeps at most `max_bytes` octets of batches; 0 keeps none. What comes first
    /// stays, because encoders begin at batch 0 with every block.
    #[must_use]
    pub fn new(code: OuterCode, max_bytes: usize) -> Self {
        Self { code: Arc::new(code), batches: BTreeMap::new(), bytes: 0, max_bytes }
    }

    /// The code that the batches belong to.
    #[must_use]
    pub fn code(&self) -> &OuterCode {
        &self.code
    }

    /// The structure of a batch, computed unless it is there.
    pub fn batch(&mut self, batch_id: u32) -> Arc<Batch> {
        if let Some(batch) = self.batches.get(&batch_id) {
            return Arc::clone(batch);
        }
        let batch = Arc::new(self.code.batch(batch_id));
        if self.bytes + batch.bytes() <= self.max_bytes {
            self.bytes += batch.bytes();
            self.batches.insert(batch_id, Arc::clone(&batch));
        }
        batch
    }

    /// Memory of the batches kept, in octets.
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
    fn batches_are_kept_up_to_the_limit() {
        let code = OuterCode::recommended(100, InnerCode::new(4, Field::Octet).unwrap()).unwrap();
        let size = code.batch(0).bytes();
        let mut cache = BatchCache::new(code, 2 * size);
        let first = cache.batch(7);
        assert_eq!(first.indices(), cache.code().batch(7).indices());
        assert!(Arc::ptr_eq(&first, &cache.batch(7)));
        for batch_id in 0..5 {
            cache.batch(batch_id);
        }
        assert_eq!(cache.bytes(), 2 * size);
        assert!(Arc::ptr_eq(&first, &cache.batch(7)), "the first stays");
        assert!(!Arc::ptr_eq(&cache.batch(4), &cache.batch(4)), "beyond the limit nothing is kept");
    }
}
