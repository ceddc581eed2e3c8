//! Reed-Solomon by fast Fourier transform over GF(2^16), with a fixed number of repairs.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use super::Scheme;
use crate::block::{Block, SYMBOL};

pub struct ReedSolomon {
    repairs: Vec<Vec<u8>>,
}

impl ReedSolomon {
    pub fn new() -> Self {
        Self { repairs: Vec::new() }
    }
}

impl Scheme for ReedSolomon {
    fn name(&self) -> &'static str {
        "reed-solomon-simd"
    }

    fn largest(&self) -> usize {
        32_768
    }

    fn encode(&mut self, block: &Block, repairs: usize) {
        let mut encoder =
            ReedSolomonEncoder::new(block.count(), repairs, SYMBOL).expect("supported counts");
        for symbol in block.symbols() {
            encoder.add_original_shard(symbol).expect("the declared number of symbols");
        }
        let result = encoder.encode().expect("all symbols were added");
        self.repairs.resize_with(repairs, || vec![0; SYMBOL]);
        for (repair, shard) in self.repairs.iter_mut().zip(result.recovery_iter()) {
            repair.copy_from_slice(shard);
        }
    }

    fn prepare(&mut self, block: &Block, _lost: &[usize], repairs: usize) {
        self.encode(block, repairs);
    }

    fn decode(&mut self, block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize {
        let mut decoder = ReedSolomonDecoder::new(block.count(), self.repairs.len(), SYMBOL)
            .expect("supported counts");
        let mut next = lost.iter().copied().peekable();
        for (index, symbol) in block.symbols().enumerate() {
            if next.next_if_eq(&index).is_none() {
                decoder.add_original_shard(index, symbol).expect("an index of the block");
            }
        }
        for (index, repair) in self.repairs.iter().enumerate().take(lost.len()) {
            decoder.add_recovery_shard(index, repair).expect("an index of the repairs");
        }
        let result = decoder.decode().expect("as many repairs as losses");
        for (&index, content) in lost.iter().zip(restored) {
            content.copy_from_slice(result.restored_original(index).expect("restored"));
        }
        lost.len()
    }
}
