//! The code of RFC 9426 with M = 16 and q = 256: dense up to K = 512, above that the recommended
//! mixture. Not systematic: the sender codes as many packets as source symbols and repairs
//! together, in whole batches, and the receiver decodes the whole block. Batch structures are
//! cached from block to block, as in a session.

use bats_code::rfc::{BatchCache, Decoder, Encoder, Field, InnerCode, Limits, OuterCode, Progress};

use super::Scheme;
use crate::block::{Block, SYMBOL};

/// Size of the batch cache in bytes: more than the largest block needs.
const CACHE: usize = 1 << 30;
/// Spare batches, for blocks that need more than K packets.
const RESERVE: usize = 16;

pub struct Rfc9426 {
    /// `None` while an encoder uses it.
    encoder_cache: Option<BatchCache>,
    /// `None` while a decoder uses it.
    decoder_cache: Option<BatchCache>,
    batch_size: usize,
    source_packets: usize,
    packet_len: usize,
    packets: Vec<u8>,
    /// Batch ID and index in `packets` of each packet that arrives.
    arriving: Vec<(u32, usize)>,
}

impl Rfc9426 {
    /// The code for `count` symbols. A block always has padding, so that K is one more.
    pub fn new(count: usize) -> Self {
        let inner = InnerCode::new(16, Field::Byte).expect("M and q are in the RFC's table");
        let code = OuterCode::recommended(count as u32 + 1, inner).expect("K has 16 bits");
        let packet_len = inner.vector_len() + SYMBOL;
        Self {
            encoder_cache: Some(BatchCache::new(code.clone(), CACHE)),
            decoder_cache: Some(BatchCache::new(code, CACHE)),
            batch_size: inner.batch_size(),
            source_packets: count + 1,
            packet_len,
            packets: Vec::new(),
            arriving: Vec::new(),
        }
    }

    /// Encodes whole batches with at least `packets` packets in total.
    fn encode_batches(&mut self, block: &Block, packets: usize) {
        let batches = packets.div_ceil(self.batch_size);
        self.packets.resize(batches * self.batch_size * self.packet_len, 0);
        let cache = self.encoder_cache.take().expect("the cache was returned");
        let mut encoder = Encoder::new(cache, &block.data, SYMBOL).expect("K fits");
        let batches = self.packets.chunks_exact_mut(self.batch_size * self.packet_len);
        for (batch_id, batch) in (0..).zip(batches) {
            let mut outputs: Vec<&mut [u8]> = batch.chunks_exact_mut(self.packet_len).collect();
            encoder.encode(batch_id, 0, &mut outputs).expect("valid sizes");
        }
        self.encoder_cache = Some(encoder.into_cache());
    }
}

impl Scheme for Rfc9426 {
    fn name(&self) -> &'static str {
        "openbats-rfc9426"
    }

    fn largest(&self) -> usize {
        65_534
    }

    fn encode(&mut self, block: &Block, repairs: usize) {
        self.encode_batches(block, self.source_packets + repairs);
    }

    fn prepare(&mut self, block: &Block, lost: &[usize], repairs: usize) {
        self.encode_batches(block, self.source_packets + repairs + RESERVE * self.batch_size);
        // The loss pattern repeats for packets beyond the first K.
        let count = block.count();
        let mut is_lost = vec![false; count];
        lost.iter().for_each(|&index| is_lost[index] = true);
        let made = self.packets.len() / self.packet_len;
        self.arriving = (0..made)
            .filter(|packet| !is_lost[packet % count])
            .map(|packet| ((packet / self.batch_size) as u32, packet))
            .collect();
    }

    fn decode(&mut self, _block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize {
        let cache = self.decoder_cache.take().expect("the cache was returned");
        let limits = Limits::for_code(cache.code(), SYMBOL);
        let mut decoder = Decoder::new(cache, SYMBOL, limits).expect("the limits fit the code");
        let mut used = 0;
        for &(batch_id, packet) in &self.arriving {
            let packet = &self.packets[packet * self.packet_len..][..self.packet_len];
            decoder.push(batch_id, packet).expect("within the limits");
            used += 1;
            if decoder.decode().expect("within the limits") == Progress::Complete {
                break;
            }
        }
        for (&index, content) in lost.iter().zip(restored) {
            let packet = decoder.source_packet(index as u32).expect("enough spare batches");
            content.copy_from_slice(packet);
        }
        self.decoder_cache = Some(decoder.into_cache());
        used
    }

    fn min_repairs(&self, _count: usize, _lost: usize) -> usize {
        self.source_packets
    }
}
