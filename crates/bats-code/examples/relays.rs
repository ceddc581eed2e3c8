//! Sends a file through three recoding relays over four lossy hops, each of which loses 20 % of the
//! packets, and verifies what arrives: `cargo run --release -p bats-code --example relays [FILE]`
//! (without a file: two megabytes of noise).
//!
//! Every packet is a combination of one batch of 16 columns. A relay knows neither file nor window:
//! it collects the packets of a batch, sends those, and then as many random combinations as its
//! plan says for their rank. Nobody reports anything but the receiver, and that only says when a
//! window of the file is complete.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

use std::error::Error;

use bats_code::BATCH_SIZE;
use bats_code::adaptive::{HopLoss, RecodingPlan};
use bats_code::recode::{CoefficientVector, Recoder, unit_vector};
use bats_code::stream::{Columns, DecoderConfig, StreamDecoder, StreamEncoder, Window};

const SYMBOL: usize = 1408;
const WINDOW: usize = 256;
const SEED: u64 = 42;
const LOSS: f64 = 0.2;
const HOPS: usize = 4;
/// Packets that each node sends of a batch on average.
const BUDGET: f64 = 18.0;

/// The source, or a relay.
struct Node {
    recoder: Recoder,
    plan: RecodingPlan,
    seed: u64,
    sent: u32,
}

impl Node {
    /// Sends what the plan says of the batch at hand; `next` gets what is not lost.
    fn send(&mut self, noise: &mut Noise, mut next: impl FnMut(&CoefficientVector, &[u8])) {
        let count = self.plan.packets(self.recoder.rank(), noise.draw());
        let received = self.recoder.received().take(count);
        let first = received.inspect(|_| self.sent += 1);
        first.filter(|_| !noise.loses()).for_each(|(vector, payload)| next(vector, payload));
        let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; SYMBOL]);
        for _ in self.recoder.rank()..count {
            self.sent += 1;
            let made = self.recoder.recode_random(self.seed, self.sent, &mut vector, &mut payload);
            if let Ok(len) = made
                && !noise.loses()
            {
                next(&vector, &payload[..len]);
            }
        }
    }
}

/// A small generator of pseudo-random numbers.
struct Noise(u64);

impl Noise {
    fn draw(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 32) as u32
    }

    fn loses(&mut self) -> bool {
        f64::from(self.draw()) < LOSS * f64::from(u32::MAX)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut noise = Noise(2026);
    let file = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => (0..2_000_000).map(|_| (noise.draw() >> 24) as u8).collect(),
    };

    // Each node plans for the ranks that the plan of the one before leads to.
    let mut ranks = vec![0.0; BATCH_SIZE + 1];
    ranks[BATCH_SIZE] = 1.0;
    let mut nodes = Vec::new();
    for seed in 0..HOPS as u64 {
        let plan = RecodingPlan::adaptive(&ranks, HopLoss::independent(LOSS)?, BUDGET)?;
        ranks = plan.ranks_after().to_vec();
        nodes.push(Node { recoder: Recoder::new(SYMBOL), plan, seed, sent: 0 });
    }
    let planned: f64 = ranks.iter().enumerate().map(|(rank, share)| rank as f64 * share).sum();

    let mut encoder = StreamEncoder::new(SYMBOL, SEED);
    for symbol in file.chunks(SYMBOL) {
        encoder.push(symbol)?;
    }
    let mut decoder = StreamDecoder::new(DecoderConfig::new(SYMBOL, SEED));
    let mut arrived = Vec::with_capacity(file.len());
    let mut buffers = vec![vec![0; SYMBOL]; BATCH_SIZE];
    let mut batch = 0;
    while decoder.first_missing() < encoder.next() {
        let first = decoder.first_missing();
        let count = (encoder.next() - first).min(WINDOW as u64);
        let window = Window { first, count: count as u16 };
        while decoder.first_missing() < first + count {
            let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            let len = encoder.encode(window, batch, 0, &mut outputs)?;
            nodes.iter_mut().for_each(|node| node.recoder.clear());
            for (index, payload) in buffers.iter().enumerate() {
                let vector = unit_vector(index).ok_or("a column beyond the batch")?;
                nodes[0].recoder.push(&vector, &payload[..len]);
            }
            for hop in 0..HOPS {
                let (here, next) = nodes[hop..].split_at_mut(1);
                here[0].send(&mut noise, |vector, payload| match next.first_mut() {
                    Some(relay) => drop(relay.recoder.push(vector, payload)),
                    None => drop(decoder.push_repair(
                        window,
                        Columns::Recoded { batch, vector },
                        payload,
                    )),
                });
            }
            batch += 1;
        }
        for number in first..first + count {
            let symbol = decoder.symbol(number).ok_or("a symbol is missing")?;
            let left = file.len() - arrived.len();
            arrived.extend_from_slice(&symbol[..symbol.len().min(left)]);
        }
        decoder.release_below(first + count);
    }

    if batch == 0 {
        return Err("there is nothing to send".into());
    }
    if arrived != file {
        return Err("what arrived is not the file".into());
    }
    println!("{} octets in {} symbols arrived and are right", file.len(), encoder.next());
    for (hop, node) in nodes.iter().enumerate() {
        println!("hop {}: {} packets sent, {:.0} % lost", hop + 1, node.sent, LOSS * 100.0);
    }
    println!(
        "rank at the receiver: {:.2} of {BATCH_SIZE} a batch (planned {planned:.2}); {:.3} of what {HOPS} \
         hops let through",
        encoder.next() as f64 / f64::from(batch),
        encoder.next() as f64 / (f64::from(nodes[0].sent) * (1.0 - LOSS))
    );
    Ok(())
}
