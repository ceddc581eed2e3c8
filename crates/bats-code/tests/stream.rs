//! The stream code against a naive Gaussian elimination, under everything that a network does.

use std::collections::BTreeMap;

use bats_code::gf256;
use bats_code::kernel::Kernel;
use bats_code::recode::{Recoder, unit_vector};
use bats_code::stream::{
    Columns, DecoderLimits, Outcome, StreamDecoder, StreamEncoder, Window, coefficients,
    combined_coefficients,
};
use proptest::prelude::*;

const SEED: u64 = 0x1234_5678_9abc_def0;
const SIZE: usize = 40;

fn content(number: u64) -> Vec<u8> {
    let len = 1 + (number * 7 % SIZE as u64) as usize;
    (0..len as u64)
        .map(|i| (number.wrapping_mul(31) ^ i.wrapping_mul(17) ^ number >> 3) as u8 | 1)
        .collect()
}

fn limits() -> DecoderLimits {
    DecoderLimits {
        max_symbol_size: SIZE,
        max_symbols: 4096,
        max_equations: 1024,
        max_linked_unknowns: 1024,
    }
}

/// Everything received so far as a dense system over the symbols; rank by textbook elimination.
#[derive(Default)]
struct Naive {
    rows: Vec<BTreeMap<u64, u8>>,
}

impl Naive {
    /// True if the row is independent of those before.
    fn push(&mut self, mut row: BTreeMap<u64, u8>) -> bool {
        for pivot_row in &self.rows {
            let (&pivot, &lead) = pivot_row.iter().next().unwrap();
            let factor = gf256::mul(row.get(&pivot).copied().unwrap_or(0), gf256::inv(lead));
            if factor != 0 {
                for (&k, &v) in pivot_row {
                    *row.entry(k).or_default() ^= gf256::mul(factor, v);
                }
                row.retain(|_, v| *v != 0);
            }
        }
        if row.is_empty() {
            return false;
        }
        // Keep rows ordered so that every row is reduced by all with smaller pivots first.
        let at = self.rows.partition_point(|r| r.keys().next() < row.keys().next());
        self.rows.insert(at, row);
        true
    }

    fn rank(&self) -> usize {
        self.rows.len()
    }

    /// Symbols that are determined: unit vectors in the row space.
    fn determined(&self, number: u64) -> bool {
        let mut row = BTreeMap::from([(number, 1)]);
        loop {
            let Some((&lead, &value)) = row.iter().next() else { return true };
            let Some(pivot_row) = self.rows.iter().find(|r| r.keys().next() == Some(&lead)) else {
                return false;
            };
            let factor = gf256::mul(value, gf256::inv(pivot_row[&lead]));
            for (&k, &v) in pivot_row {
                *row.entry(k).or_default() ^= gf256::mul(factor, v);
            }
            row.retain(|_, v| *v != 0);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Source(u64),
    Repair { first: u64, count: u16, column: u8 },
    Recoded { first: u64, count: u16, a: u8, b: u8 },
    Release(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..60).prop_map(Step::Source),
        4 => (0_u64..50, 1_u16..20, 0_u8..4)
            .prop_map(|(first, count, column)| Step::Repair { first, count, column }),
        1 => (0_u64..50, 1_u16..20, any::<u8>(), any::<u8>())
            .prop_map(|(first, count, a, b)| Step::Recoded { first, count, a, b }),
        1 => (0_u64..60).prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// After every packet the decoder knows exactly what the linear system determines, calls
    /// exactly those packets innovative that raise the rank, and every symbol is right.
    #[test]
    fn decoder_agrees_with_naive_elimination(steps in steps()) {
        let mut encoder = StreamEncoder::new(SIZE, SEED);
        for number in 0..80 {
            encoder.push(&content(number));
        }
        let mut decoder = StreamDecoder::new(limits(), SEED);
        let mut naive = Naive::default();
        let mut batch = 0;
        for step in steps {
            let (outcome, innovative) = match step {
                Step::Source(number) => {
                    let outcome = decoder.push_source(number, &content(number));
                    (outcome, naive.push(BTreeMap::from([(number, 1)])))
                }
                Step::Repair { first, count, column } => {
                    batch += 1;
                    let window = Window { first, count };
                    let mut payload = [0; SIZE];
                    let len = encoder.encode(window, batch, column, &mut [&mut payload]).unwrap();
                    let mut vector = vec![0; count.into()];
                    coefficients(SEED, batch, column, &mut vector);
                    let row = vector.iter().enumerate().map(|(i, &c)| (first + i as u64, c)).collect();
                    (decoder.push_repair(window, batch, Columns::Single(column), &payload[..len]), naive.push(row))
                }
                Step::Recoded { first, count, a, b } => {
                    batch += 1;
                    let window = Window { first, count };
                    let (mut p, mut q) = ([0; SIZE], [0; SIZE]);
                    let len = encoder.encode(window, batch, 0, &mut [&mut p, &mut q]).unwrap();
                    let mut relay = Recoder::new(SIZE);
                    relay.push(&unit_vector(0).unwrap(), &p[..len]);
                    relay.push(&unit_vector(1).unwrap(), &q[..len]);
                    let mut payload = [0; SIZE];
                    let (vector, len) = relay.recode(&[a, b], &mut payload).unwrap();
                    let mut row = vec![0; count.into()];
                    combined_coefficients(SEED, batch, &vector, &mut row);
                    let row = row.iter().enumerate().map(|(i, &c)| (first + i as u64, c))
                        .filter(|(_, c)| *c != 0).collect::<BTreeMap<_, _>>();
                    let innovative = !row.is_empty() && naive.push(row);
                    (decoder.push_repair(window, batch, Columns::Recoded(&vector), &payload[..len]), innovative)
                }
                Step::Release(number) => {
                    decoder.release_below(number);
                    continue;
                }
            };
            match outcome {
                Outcome::Innovative { .. } => prop_assert!(innovative),
                Outcome::Redundant => prop_assert!(!innovative),
                Outcome::OutOfRange => prop_assert!(false, "nothing here is out of range"),
            }
            for number in 0..80 {
                prop_assert_eq!(decoder.contains(number), naive.determined(number), "symbol {}", number);
                if let Some(got) = decoder.symbol(number) {
                    let want = content(number);
                    prop_assert_eq!(&got[..want.len()], &want[..]);
                    prop_assert!(got[want.len()..].iter().all(|&octet| octet == 0));
                }
            }
            // The missing rank over all groups is what the whole system lacks.
            let end = decoder.end();
            let lacking: usize =
                decoder.missing_clusters(end, 1000).iter().map(|c| usize::from(c.missing_rank)).sum();
            prop_assert_eq!(lacking, end as usize - naive.rank());
        }
    }

    /// Whatever is pushed, nothing panics and memory stays within the limits.
    #[test]
    fn garbage_is_harmless(packets in prop::collection::vec(
        (any::<u64>(), any::<u16>(), any::<u32>(), any::<[u8; 16]>(),
         prop::collection::vec(any::<u8>(), 0..60), 0_u8..3), 1..200)) {
        let limits = DecoderLimits { max_symbols: 200, max_equations: 20, max_linked_unknowns: 64, ..limits() };
        let mut decoder = StreamDecoder::new(limits, SEED);
        for (number, count, batch, vector, payload, kind) in packets {
            // Mostly near the window, sometimes anywhere.
            let number = if number % 4 == 0 { number } else { number % 300 };
            let window = Window { first: number, count: if count % 4 == 0 { count } else { count % 40 } };
            match kind {
                0 => decoder.push_source(number, &payload),
                1 => decoder.push_repair(window, batch, Columns::Single(vector[0]), &payload),
                _ => decoder.push_repair(window, batch, Columns::Recoded(&vector), &payload),
            };
            prop_assert!(decoder.equations_held() <= limits.max_equations);
            prop_assert!(decoder.end() <= 200 + MAX_RELEASED);
            prop_assert!(decoder.bytes_held() <= (200 + 20) * 64);
        }
    }
}

/// Nothing was released in `garbage_is_harmless`, so the window never moves.
const MAX_RELEASED: u64 = 0;

#[test]
fn a_long_stream_with_loss_decodes_and_holds_little() {
    for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
        let mut encoder = StreamEncoder::with_kernel(kernel, SIZE, SEED);
        let mut decoder = StreamDecoder::with_kernel(kernel, limits(), SEED);
        let mut x = 99_u64;
        let mut lost = move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x >> 60 < 3
        };
        let mut delivered = 0;
        for cell in 0..200_u64 {
            let first = cell * 64;
            for number in first..first + 64 {
                encoder.push(&content(number));
                if !lost() {
                    decoder.push_source(number, &content(number));
                }
            }
            let window = Window { first, count: 64 };
            let mut column = 0;
            while decoder.first_missing() < first + 64 {
                let mut payload = [0; SIZE];
                let len = encoder.encode(window, cell as u32, column, &mut [&mut payload]).unwrap();
                if !lost() {
                    decoder.push_repair(
                        window,
                        cell as u32,
                        Columns::Single(column),
                        &payload[..len],
                    );
                }
                column += 1;
                assert!(column < 100, "64 symbols at 19 % loss need no 100 repairs");
            }
            while delivered < decoder.first_missing() {
                let want = content(delivered);
                assert_eq!(
                    &decoder.symbol(delivered).unwrap()[..want.len()],
                    &want[..],
                    "{kernel:?}"
                );
                delivered += 1;
            }
            decoder.release_below(delivered);
            encoder.release_below(delivered);
            assert!(decoder.bytes_held() <= (512 + 64) * 64);
        }
        assert_eq!(delivered, 200 * 64);
        assert_eq!(encoder.bytes_held(), 0);
    }
}
