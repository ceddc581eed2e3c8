//! Random linear network coding over GF(256) of a whole block. Not systematic: the sender codes as
//! many packets as source symbols and repairs together, and the receiver decodes the whole block.
//! Its pieces are one byte longer than the symbols, for an end marker.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rlnc::full::{Decoder, Encoder};

use super::Scheme;
use crate::block::{Block, SYMBOL};

pub struct Rlnc {
    packets: Vec<Vec<u8>>,
    piece: usize,
    random: StdRng,
}

impl Rlnc {
    pub fn new() -> Self {
        Self { packets: Vec::new(), piece: 0, random: StdRng::seed_from_u64(3) }
    }
}

impl Scheme for Rlnc {
    fn name(&self) -> &'static str {
        "rlnc"
    }

    fn largest(&self) -> usize {
        // A larger round takes a minute.
        1024
    }

    fn encode(&mut self, block: &Block, repairs: usize) {
        let count = block.count();
        let encoder = Encoder::new(block.data.clone(), count).expect("a valid block");
        self.piece = encoder.get_piece_byte_len();
        self.packets.resize_with(count + repairs, Vec::new);
        for packet in &mut self.packets {
            packet.resize(encoder.get_full_coded_piece_byte_len(), 0);
            encoder.code_with_buf(&mut self.random, packet).expect("valid buffer length");
        }
    }

    fn prepare(&mut self, block: &Block, _lost: &[usize], repairs: usize) {
        self.encode(block, repairs + 8);
    }

    fn decode(&mut self, block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize {
        let mut decoder = Decoder::new(self.piece, block.count()).expect("a valid block");
        let mut used = 0;
        while !decoder.is_already_decoded() {
            // This decoder returns an error for a non-innovative packet.
            let _ = decoder.decode(&self.packets[used]);
            used += 1;
        }
        let data = decoder.get_decoded_data().expect("decoded");
        for (&index, content) in lost.iter().zip(restored) {
            content.copy_from_slice(&data[index * SYMBOL..][..SYMBOL]);
        }
        used
    }

    fn min_repairs(&self, count: usize, _lost: usize) -> usize {
        count
    }
}
