//! RaptorQ (RFC 6330).

use raptorq::{
    EncodingPacket, ObjectTransmissionInformation, PayloadId, SourceBlockDecoder,
    SourceBlockEncoder,
};

use super::Scheme;
use crate::block::{Block, SYMBOL};

pub struct RaptorQ {
    config: ObjectTransmissionInformation,
    repairs: Vec<EncodingPacket>,
}

impl RaptorQ {
    pub fn new(count: usize) -> Self {
        let length = (count * SYMBOL) as u64;
        let config = ObjectTransmissionInformation::new(length, SYMBOL as u16, 1, 1, 8);
        Self { config, repairs: Vec::new() }
    }
}

impl Scheme for RaptorQ {
    fn name(&self) -> &'static str {
        "raptorq"
    }

    fn largest(&self) -> usize {
        56_403
    }

    fn encode(&mut self, block: &Block, repairs: usize) {
        let encoder = SourceBlockEncoder::new(0, &self.config, &block.data);
        self.repairs = encoder.repair_packets(0, repairs as u32);
    }

    fn prepare(&mut self, block: &Block, lost: &[usize], _repairs: usize) {
        self.encode(block, lost.len() + 8);
    }

    fn decode(&mut self, block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize {
        let length = block.data.len() as u64;
        let mut decoder = SourceBlockDecoder::new(0, &self.config, length);
        let mut next = lost.iter().copied().peekable();
        let sources = (0..block.count()).filter(|index| next.next_if_eq(index).is_none());
        let sources = sources.map(|index| {
            EncodingPacket::new(PayloadId::new(0, index as u32), block.symbol(index).to_vec())
        });
        let first = self.repairs[..lost.len()].iter().cloned();
        let mut result = decoder.decode(sources.chain(first));
        let mut used = lost.len();
        while result.is_none() {
            result = decoder.decode([self.repairs[used].clone()]);
            used += 1;
        }
        let data = result.expect("decoded");
        for (&index, content) in lost.iter().zip(restored) {
            content.copy_from_slice(&data[index * SYMBOL..][..SYMBOL]);
        }
        used
    }
}
