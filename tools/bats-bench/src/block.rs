//! Blocks of source data.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

/// Bytes of a symbol: the size that OpenBATS uses on paths with an MTU of 1500 bytes.
pub const SYMBOL: usize = 1408;

/// The source data.
pub struct Block {
    pub data: Vec<u8>,
}

impl Block {
    pub fn new(count: usize) -> Self {
        let mut data = vec![0; count * SYMBOL];
        StdRng::seed_from_u64(count as u64).fill_bytes(&mut data);
        Self { data }
    }

    pub fn count(&self) -> usize {
        self.data.len() / SYMBOL
    }

    pub fn symbols(&self) -> impl Iterator<Item = &[u8]> {
        self.data.chunks_exact(SYMBOL)
    }

    pub fn symbol(&self, index: usize) -> &[u8] {
        &self.data[index * SYMBOL..][..SYMBOL]
    }
}
