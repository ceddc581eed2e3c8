//! The stream code of OpenBATS: consecutive windows of 256 symbols, as in a file transfer, with
//! repairs until a window is decoded, as after feedback.

use bats_code::stream::{Columns, DecoderConfig, StreamDecoder, StreamEncoder, Window};

use super::Scheme;
use crate::block::{Block, SYMBOL};

const WINDOW: usize = 256;
const SEED: u64 = 1;
/// Spare repairs for a window whose first repairs are not all innovative.
const RESERVE: usize = 4;

pub struct Stream {
    /// Buffers of repairs.
    repairs: Vec<Vec<u8>>,
    /// Number of repairs of each window.
    counts: Vec<usize>,
}

impl Stream {
    pub fn new() -> Self {
        Self { repairs: Vec::new(), counts: Vec::new() }
    }

    /// Encodes `counts[i]` repairs of window i.
    fn encode_repairs(&mut self, block: &Block, counts: Vec<usize>) {
        let total = counts.iter().sum();
        if self.repairs.len() < total {
            self.repairs.resize_with(total, || vec![0; SYMBOL]);
        }
        let mut encoder = StreamEncoder::new(SYMBOL, SEED);
        for symbol in block.symbols() {
            encoder.push(symbol).expect("the symbol has the configured size");
        }
        let mut rest = &mut self.repairs[..];
        for (window, &count) in windows(block.count()).zip(&counts) {
            let (own, others) = rest.split_at_mut(count);
            rest = others;
            let columns: Vec<(u32, u8)> = (0..count).map(column).collect();
            let mut outputs: Vec<&mut [u8]> = own.iter_mut().map(Vec::as_mut_slice).collect();
            encoder.encode_columns(window, &columns, &mut outputs).expect("the window is held");
        }
        self.counts = counts;
    }
}

fn column(number: usize) -> (u32, u8) {
    ((number / 16) as u32, (number % 16) as u8)
}

fn windows(count: usize) -> impl Iterator<Item = Window> {
    (0..count)
        .step_by(WINDOW)
        .map(move |first| Window { first: first as u64, count: (count - first).min(WINDOW) as u16 })
}

impl Scheme for Stream {
    fn name(&self) -> &'static str {
        "openbats-stream"
    }

    fn largest(&self) -> usize {
        usize::MAX
    }

    fn encode(&mut self, block: &Block, repairs: usize) {
        let counts = windows(block.count())
            .map(|window| (repairs * usize::from(window.count)).div_ceil(block.count()))
            .collect();
        self.encode_repairs(block, counts);
    }

    fn prepare(&mut self, block: &Block, lost: &[usize], _repairs: usize) {
        let mut counts = vec![RESERVE; block.count().div_ceil(WINDOW)];
        lost.iter().for_each(|index| counts[index / WINDOW] += 1);
        self.encode_repairs(block, counts);
    }

    fn decode(&mut self, block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize {
        let mut decoder = StreamDecoder::new(DecoderConfig::new(SYMBOL, SEED));
        let mut used = 0;
        let mut lost = lost.iter().copied().peekable();
        let mut restored = restored.iter_mut();
        let mut repairs = &self.repairs[..];
        for (window, &count) in windows(block.count()).zip(&self.counts) {
            let (own, others) = repairs.split_at(count);
            repairs = others;
            let end = window.first + u64::from(window.count);
            let mut own_losses = Vec::with_capacity(WINDOW);
            for number in window.first..end {
                if lost.next_if_eq(&(number as usize)).is_some() {
                    own_losses.push(number);
                } else {
                    decoder.push_source(number, block.symbol(number as usize));
                }
            }
            for (number, payload) in own.iter().enumerate() {
                if decoder.first_missing() == end {
                    break;
                }
                let (batch, column) = column(number);
                decoder.push_repair(window, Columns::Fresh { batch, column }, payload);
                used += 1;
            }
            for number in own_losses {
                let symbol = decoder.symbol(number).expect("enough spare repairs");
                restored.next().expect("a buffer for each loss").copy_from_slice(symbol);
            }
            // The application has read the window.
            decoder.release_below(end);
        }
        used
    }
}
