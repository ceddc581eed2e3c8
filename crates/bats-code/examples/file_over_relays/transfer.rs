//! Sends a file in windows over four hops with three relays. Also used by `tests/relays.rs`.

use std::error::Error;

use bats_code::BATCH_SIZE;
use bats_code::adaptive::{HopLoss, RecodingPlan};
use bats_code::recode::{CoefficientVector, Recoder, unit_vector};
use bats_code::stream::{Columns, DecoderConfig, StreamDecoder, StreamEncoder, Window};

const SYMBOL: usize = 1408;
const WINDOW: usize = 256;
const SEED: u64 = 42;
/// Loss rate of each hop.
pub(crate) const LOSS: f64 = 0.2;
/// Number of hops; there is one relay fewer.
pub(crate) const HOPS: usize = 4;
/// Mean number of packets that each node sends of a batch.
const BUDGET: f64 = 18.0;

/// The source, or a relay.
struct Node {
    recoder: Recoder,
    plan: RecodingPlan,
    seed: u64,
    sent: u32,
}

impl Node {
    /// Sends the planned packets of the current batch. Calls `next` for each that is not lost.
    fn send(&mut self, random: &mut Random, mut next: impl FnMut(&CoefficientVector, &[u8])) {
        let count = self.plan.packets(self.recoder.rank(), random.draw());
        let received = self.recoder.received().take(count);
        let first = received.inspect(|_| self.sent += 1);
        first.filter(|_| !random.is_lost()).for_each(|(vector, payload)| next(vector, payload));
        let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; SYMBOL]);
        for _ in self.recoder.rank()..count {
            self.sent += 1;
            let made = self.recoder.recode_random(self.seed, self.sent, &mut vector, &mut payload);
            if let Ok(len) = made
                && !random.is_lost()
            {
                next(&vector, &payload[..len]);
            }
        }
    }
}

/// A small pseudo-random number generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn draw(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 32) as u32
    }

    fn is_lost(&mut self) -> bool {
        f64::from(self.draw()) < LOSS * f64::from(u32::MAX)
    }
}

/// Result of a transfer.
pub(crate) struct Transfer {
    /// The received file.
    pub(crate) copy: Vec<u8>,
    /// Number of packets sent by the source and by each relay.
    pub(crate) sent: Vec<u32>,
    pub(crate) symbols: u64,
    /// Mean rank of a batch at the receiver.
    pub(crate) rank: f64,
    /// Expected rank of a batch at the receiver, by the plans.
    pub(crate) planned: f64,
}

/// Sends a non-empty file.
pub(crate) fn transfer(file: &[u8], random: &mut Random) -> Result<Transfer, Box<dyn Error>> {
    // Each node plans for the ranks that the plan of the previous node leads to.
    let mut ranks = vec![0.0; BATCH_SIZE + 1];
    ranks[BATCH_SIZE] = 1.0;
    let mut nodes = Vec::new();
    for seed in 0..HOPS as u64 {
        let plan = RecodingPlan::adaptive(&ranks, HopLoss::independent(LOSS)?, BUDGET)?;
        ranks = plan.ranks_after().to_vec();
        nodes.push(Node { recoder: Recoder::new(SYMBOL), plan, seed, sent: 0 });
    }
    let planned: f64 =
        ranks.iter().enumerate().map(|(rank, fraction)| rank as f64 * fraction).sum();

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
                here[0].send(random, |vector, payload| match next.first_mut() {
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
        return Err("the file is empty".into());
    }
    Ok(Transfer {
        copy: arrived,
        sent: nodes.iter().map(|node| node.sent).collect(),
        symbols: encoder.next(),
        rank: encoder.next() as f64 / f64::from(batch),
        planned,
    })
}
