//! Compares the decoder with naive Gaussian elimination, and checks its limits.

use proptest::prelude::*;
use proptest::test_runner::contextualize_config;

use super::*;
use crate::fuzzing;
use crate::kernel::Kernel;

const SEED: u64 = 11;

fn symbol(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|x| (x * 3 + number * 101 + x * number / 7) as u8).collect()
}

fn sender(count: u64, len: usize) -> StreamEncoder {
    let mut encoder = StreamEncoder::new(len, SEED);
    for number in 0..count {
        encoder.push(&symbol(number, len)).unwrap();
    }
    encoder
}

fn repair(encoder: &mut StreamEncoder, window: Window, batch: u32, column: u8) -> Vec<u8> {
    let mut output = vec![0; MAX_SYMBOL_SIZE];
    let len = encoder.encode(window, batch, column, &mut [&mut output]).unwrap();
    output.truncate(len);
    output
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(192)))]
    #[test]
    fn decoder_matches_naive_elimination(
        data in prop::collection::vec(any::<u8>(), 0..1600),
    ) {
        fuzzing::compare_with_reference(Kernel::active(), &data);
    }

    #[test]
    fn arbitrary_packets_stay_within_limits(data in prop::collection::vec(any::<u8>(), 0..4000)) {
        fuzzing::push_arbitrary_packets(&data);
    }
}

#[test]
fn reference_comparison_decodes_symbols() {
    // A fixed generator: enough operations for linear systems to form, merge and be solved.
    let mut state = 1u64;
    let data: Vec<u8> = (0..4 * 600)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    for kernel in Kernel::available() {
        let report = fuzzing::compare_with_reference(kernel, &data);
        assert!(report.innovative > 20 && report.decoded > 10, "{report:?}");
    }
}

#[test]
fn a_window_needs_as_many_repairs_as_losses() {
    let mut encoder = sender(256, 300);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(300, SEED));
    let lost = |n: u64| n % 9 == 4;
    for number in (0..256).filter(|&n| !lost(n)) {
        let result = decoder.push_source(number, encoder.symbol(number).unwrap());
        assert_eq!(result, PushResult { outcome: Outcome::Innovative, decoded: 0 });
    }
    let count = (0..256).filter(|&n| lost(n)).count();
    let window = Window { first: 0, count: 256 };
    assert_eq!(decoder.first_missing(), 4);
    for i in 0..count {
        let (batch, column) = (i as u32 / 16, i as u8 % 16);
        let payload = repair(&mut encoder, window, batch, column);
        let result = decoder.push_repair(window, Columns::Fresh { batch, column }, &payload);
        assert_eq!(result.outcome, Outcome::Innovative);
        let left = count - 1 - i;
        assert_eq!(result.decoded, if left == 0 { count } else { 0 });
        let ranges = decoder.missing_ranges(256, 10);
        assert_eq!(ranges.iter().map(|r| usize::from(r.rank_missing)).sum::<usize>(), left);
        if left > 0 {
            assert_eq!(ranges.len(), 1);
            assert_eq!(ranges[0].first, 4);
        }
    }
    for number in 0..256 {
        assert_eq!(decoder.symbol(number).unwrap(), symbol(number, 300));
    }
    assert_eq!(decoder.equations_held(), 0);
    assert_eq!((decoder.first_missing(), decoder.highest_seen()), (256, Some(255)));
    let payload = repair(&mut encoder, window, 99, 0);
    let result = decoder.push_repair(window, Columns::Fresh { batch: 99, column: 0 }, &payload);
    assert_eq!(result.outcome, Outcome::NonInnovative);
}

#[test]
fn source_symbols_after_repairs_solve_the_rest() {
    let mut encoder = sender(32, 64);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    let window = Window { first: 0, count: 32 };
    // Three repairs before any source symbol, then all source symbols but three, in reverse order.
    for column in 0..3 {
        let payload = repair(&mut encoder, window, 0, column);
        let result = decoder.push_repair(window, Columns::Fresh { batch: 0, column }, &payload);
        assert_eq!(result.outcome, Outcome::Innovative);
    }
    let mut decoded = 0;
    for number in (3..32).rev() {
        decoded += decoder.push_source(number, &symbol(number, 64)).decoded;
    }
    assert_eq!(decoded, 3);
    assert!((0..32).all(|n| decoder.symbol(n).unwrap() == symbol(n, 64)));
}

#[test]
fn released_symbols_can_decode_later_repairs() {
    let mut encoder = sender(64, 64);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    for number in (0..64).filter(|&n| n != 40) {
        decoder.push_source(number, &symbol(number, 64));
        // The application reads in order, immediately.
        decoder.release_below(decoder.first_missing());
    }
    assert_eq!(decoder.released(), 40);
    let window = Window { first: 0, count: 64 };
    let payload = repair(&mut encoder, window, 1, 1);
    let result = decoder.push_repair(window, Columns::Fresh { batch: 1, column: 1 }, &payload);
    assert_eq!(result, PushResult { outcome: Outcome::Innovative, decoded: 1 });
    assert_eq!(decoder.symbol(40).unwrap(), symbol(40, 64));
}

#[test]
fn memory_of_a_long_stream_is_bounded_and_freed() {
    let mut config = DecoderConfig::new(64, SEED);
    config.history = 31;
    let mut decoder = StreamDecoder::new(config);
    let mut most = 0;
    for number in 0..10_000 {
        decoder.push_source(number, &symbol(number, 64));
        decoder.release_below(number + 1);
        most = most.max(decoder.bytes_held());
    }
    assert!(most < 33 * 256, "{most} bytes for 32 symbols");
    // A gap that the application skips keeps no memory either.
    decoder.push_source(20_000, &[1]);
    decoder.release_below(20_001);
    assert!(decoder.bytes_held() < 33 * 256);
    assert_eq!(decoder.first_missing(), 20_001);
}

#[test]
fn releasing_all_unknowns_drops_their_equations() {
    let mut encoder = sender(64, 64);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    let window = Window { first: 0, count: 16 };
    let payload = repair(&mut encoder, window, 0, 0);
    decoder.push_repair(window, Columns::Fresh { batch: 0, column: 0 }, &payload);
    decoder.release_below(15);
    assert_eq!(decoder.equations_held(), 1, "symbol 15 is not released yet");
    decoder.release_below(16);
    assert_eq!(decoder.equations_held(), 0);
    assert_eq!(decoder.stats().equations_dropped, 1);
    let result = decoder.push_repair(window, Columns::Fresh { batch: 0, column: 1 }, &payload);
    assert_eq!(result.outcome, Outcome::NonInnovative);
}

#[test]
fn limits_refuse_and_count() {
    let config = DecoderConfig {
        max_symbols_held: 100,
        max_equations: 2,
        max_span: 50,
        ..DecoderConfig::new(64, SEED)
    };
    let mut decoder = StreamDecoder::new(config);
    let refused = PushResult { outcome: Outcome::OutOfRange, decoded: 0 };
    let fresh = |column| Columns::Fresh { batch: 0, column };
    let mut push = |first, count, column, len| {
        decoder.push_repair(Window { first, count }, fresh(column), &vec![1; len])
    };
    assert_eq!(push(0, 51, 0, 64), refused, "span");
    assert_eq!(push(60, 41, 0, 64), refused, "too far ahead");
    assert_eq!(push(u64::MAX, 2, 0, 64), refused);
    assert_eq!(push(0, 0, 0, 64), refused);
    assert_eq!(push(0, 513, 0, 64), refused);
    assert_eq!(push(0, 2, 0, 0), refused);
    assert_eq!(push(0, 2, 0, 65), refused);
    assert_eq!(push(0, 30, 0, 64).outcome, Outcome::Innovative);
    assert_eq!(push(29, 30, 1, 64), refused, "linked span");
    assert_eq!(push(0, 30, 1, 64).outcome, Outcome::Innovative);
    assert_eq!(push(0, 30, 2, 64), refused, "equations");
    assert_eq!(decoder.push_source(100, &[1]), refused);
    assert_eq!(decoder.push_source(0, &[]), refused);
    assert_eq!(decoder.stats().refused, 11);
    assert_eq!(decoder.push_source(99, &[1]).outcome, Outcome::Innovative);
    assert_eq!(decoder.push_source(99, &[1]).outcome, Outcome::NonInnovative);
}

#[test]
fn missing_ranges_distinguish_isolated_linked_and_unseen_symbols() {
    let mut encoder = sender(40, 64);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    for number in (0..30).filter(|n| ![3, 4, 10, 12, 20].contains(n)) {
        decoder.push_source(number, &symbol(number, 64));
    }
    let window = Window { first: 8, count: 8 };
    let payload = repair(&mut encoder, window, 0, 0);
    decoder.push_repair(window, Columns::Fresh { batch: 0, column: 0 }, &payload);
    let range = |first, span, rank_missing| MissingRange { first, span, rank_missing };
    let all = [range(3, 2, 2), range(10, 3, 1), range(20, 1, 1), range(30, 5, 5)];
    assert_eq!(decoder.missing_ranges(35, 10), all);
    assert_eq!(decoder.missing_ranges(30, 10), all[..3]);
    assert_eq!(decoder.missing_ranges(35, 2), all[..2]);
    assert_eq!(decoder.missing_ranges(4, 2), [range(3, 1, 1)]);
    assert_eq!(decoder.missing_ranges(3, 10), []);
    let far = decoder.missing_ranges(u64::MAX, 10);
    assert_eq!((far[3].span, far[3].rank_missing), (u32::MAX, u16::MAX));
}

#[test]
fn missing_range_of_a_system_begins_at_its_first_unreleased_symbol() {
    let mut encoder = sender(40, 64);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    for number in (0..20).filter(|n| ![3, 7, 10, 12].contains(n)) {
        decoder.push_source(number, &symbol(number, 64));
    }
    let window = Window { first: 0, count: 20 };
    let payload = repair(&mut encoder, window, 0, 0);
    decoder.push_repair(window, Columns::Fresh { batch: 0, column: 0 }, &payload);
    for (released, first) in [(3, 3), (4, 7), (7, 7), (8, 10), (11, 12), (12, 12)] {
        decoder.release_below(released);
        let range = MissingRange { first, span: 13 - first as u32, rank_missing: 3 };
        assert_eq!(decoder.missing_ranges(20, 10), [range], "released below {released}");
    }
    decoder.release_below(13);
    assert_eq!(decoder.missing_ranges(20, 10), []);
}

/// Incomplete generations must not use up all equations: the first one would never be decoded, and
/// delivery would stall forever.
#[test]
fn equations_are_reserved_for_the_first_missing_generation() {
    const GENERATION: u16 = 16;
    let mut encoder = sender(160, 64);
    let config = DecoderConfig { max_equations: 40, ..DecoderConfig::new(64, SEED) };
    let mut decoder = StreamDecoder::new(config);
    let mut push = |decoder: &mut StreamDecoder, generation: u64, batch: u32, column: u8| {
        let window = Window { first: generation * u64::from(GENERATION), count: GENERATION };
        let payload = repair(&mut encoder, window, batch, column);
        decoder.push_repair(window, Columns::Fresh { batch, column }, &payload).outcome
    };
    for generation in 0..10 {
        for column in 1..16 {
            push(&mut decoder, generation, generation as u32, column);
        }
    }
    assert!(decoder.equations_held() <= 40);
    for generation in 0..10 {
        for column in 0..16 {
            push(&mut decoder, generation, 100 + generation as u32, column);
        }
        assert!(
            decoder.first_missing() >= (generation + 1) * u64::from(GENERATION),
            "generation {generation} is solved"
        );
    }
    assert_eq!(decoder.symbol(150), Some(&symbol(150, 64)[..]));
}

/// Two relays recode the packets of S-batches, and the decoder also has some of their symbols.
#[test]
fn recoded_source_symbols_replace_lost_ones() {
    use crate::recode::{Recoder, unit_vector};

    let mut encoder = sender(48, 300);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(300, SEED));
    for batch in 0..3_u64 {
        let mut relay = Recoder::new(300);
        for index in 0..BATCH_SIZE {
            let number = batch * 16 + index as u64;
            assert!(relay.push(&unit_vector(index).unwrap(), encoder.symbol(number).unwrap()));
            if index % 4 != 1 {
                decoder.push_source(number, encoder.symbol(number).unwrap());
            }
        }
        let mut second = Recoder::new(300);
        for draw in 0..16 {
            let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; 300]);
            let len = relay.recode_random(3, draw, &mut vector, &mut payload).unwrap();
            second.push(&vector, &payload[..len]);
        }
        let window = Window { first: batch * 16, count: 16 };
        for draw in 0..4 {
            let (mut vector, mut payload) = ([0; BATCH_SIZE], [0; 300]);
            let len = second.recode_random(4, draw, &mut vector, &mut payload).unwrap();
            let columns = Columns::Explicit { coefficients: &vector };
            let result = decoder.push_repair(window, columns, &payload[..len]);
            let decoded = if draw == 3 { 4 } else { 0 };
            assert_eq!(result, PushResult { outcome: Outcome::Innovative, decoded });
        }
    }
    assert!((0..48).all(|number| decoder.symbol(number) == encoder.symbol(number)));
    // Combined with a column of an R-batch whose window covers two S-batches.
    let mut decoder = StreamDecoder::new(DecoderConfig::new(300, SEED));
    for number in (0..32).filter(|n| ![14, 17].contains(n)) {
        decoder.push_source(number, &symbol(number, 300));
    }
    let window = Window { first: 10, count: 20 };
    let payload = repair(&mut encoder, window, 1, 2);
    decoder.push_repair(window, Columns::Fresh { batch: 1, column: 2 }, &payload);
    let sum: Vec<u8> = symbol(14, 300).iter().zip(symbol(15, 300)).map(|(x, y)| x ^ y).collect();
    let columns = Columns::Explicit { coefficients: &[1, 1] };
    let result = decoder.push_repair(Window { first: 14, count: 2 }, columns, &sum);
    assert_eq!(result, PushResult { outcome: Outcome::Innovative, decoded: 2 });
    assert_eq!(decoder.symbol(17).unwrap(), symbol(17, 300));
}

#[test]
fn explicit_coefficients_must_match_the_window() {
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    let mut push = |count, coefficients: &[u8]| {
        let columns = Columns::Explicit { coefficients };
        decoder.push_repair(Window { first: 0, count }, columns, &[7; 64]).outcome
    };
    assert_eq!(push(4, &[1, 2, 3]), Outcome::OutOfRange);
    assert_eq!(push(3, &[1, 2, 3, 4]), Outcome::OutOfRange);
    assert_eq!(push(17, &[1; 17]), Outcome::OutOfRange);
    assert_eq!(push(4, &[0; 4]), Outcome::OutOfRange);
    assert_eq!(push(16, &[1; 16]), Outcome::Innovative);
    assert_eq!(push(16, &[1; 16]), Outcome::NonInnovative);
}

#[test]
fn a_polluted_symbol_is_forgotten_and_decoded_again() {
    let mut encoder = sender(32, 64);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    for number in (0..32).filter(|&n| n != 20) {
        let mut payload = symbol(number, 64);
        payload[3] ^= u8::from(number == 7);
        decoder.push_source(number, &payload);
    }
    let window = Window { first: 0, count: 32 };
    // Symbol 20 is solved from the polluted symbol 7 and is wrong as well.
    let payload = repair(&mut encoder, window, 0, 0);
    decoder.push_repair(window, Columns::Fresh { batch: 0, column: 0 }, &payload);
    assert_eq!(decoder.first_missing(), 32);
    assert_ne!(decoder.symbol(20).unwrap(), symbol(20, 64));
    decoder.forget(7);
    decoder.forget(7);
    assert_eq!((decoder.first_missing(), decoder.symbol(7)), (7, None));
    decoder.forget(20);
    assert_eq!(decoder.missing_ranges(32, 9).len(), 2);
    for column in 1..3 {
        let payload = repair(&mut encoder, window, 0, column);
        decoder.push_repair(window, Columns::Fresh { batch: 0, column }, &payload);
        if column == 1 {
            // Equations may come from the same polluting relay.
            decoder.forget(3);
            assert_eq!(decoder.equations_held(), 0);
            decoder.push_source(3, &symbol(3, 64));
            decoder.push_repair(window, Columns::Fresh { batch: 0, column }, &payload);
        }
    }
    assert!((0..32).all(|n| decoder.symbol(n).unwrap() == symbol(n, 64)));
    decoder.release_below(32);
    decoder.forget(31);
    assert_eq!(decoder.first_missing(), 32, "released");
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(64)))]
    /// Sources, repairs, releases and pollution in any order.
    #[test]
    fn running_totals_agree_with_the_systems(
        steps in prop::collection::vec((0_u8..10, 0_u64..60, 1_u16..24), 1..150),
    ) {
        let config = DecoderConfig { history: 8, ..DecoderConfig::new(16, SEED) };
        let mut encoder = sender(200, 16);
        let mut decoder = StreamDecoder::new(config);
        for (number, (step, at, count)) in steps.into_iter().enumerate() {
            let first = decoder.released() + at;
            match step {
                0..=2 => {
                    decoder.push_source(first, &symbol(first, 16));
                }
                3..=7 => {
                    let window = Window { first, count };
                    if first + u64::from(count) <= 200 {
                        let batch = number as u32;
                        let payload = repair(&mut encoder, window, batch, 3);
                        decoder.push_repair(window, Columns::Fresh { batch, column: 3 }, &payload);
                    }
                }
                8 => decoder.release_below(decoder.released() + at / 8),
                _ => decoder.forget(first),
            }
            decoder.check_totals();
            if decoder.released() > 100 {
                break;
            }
        }
    }
}

#[test]
fn redundant_repairs_of_solved_windows_are_no_work() {
    let mut encoder = sender(64, 32);
    let window = Window { first: 0, count: 64 };
    let mut decoder = StreamDecoder::new(DecoderConfig::new(32, SEED));
    let repairs: Vec<_> = (0..40_u32).map(|n| (n, repair(&mut encoder, window, n, 5))).collect();
    let push = |decoder: &mut StreamDecoder, (batch, payload): &(u32, Vec<u8>)| {
        decoder.push_repair(window, Columns::Fresh { batch: *batch, column: 5 }, payload).outcome
    };
    for repair in &repairs {
        assert_eq!(push(&mut decoder, repair), Outcome::Innovative);
    }
    let work = decoder.stats().work;
    for repair in &repairs {
        assert_eq!(push(&mut decoder, repair), Outcome::NonInnovative);
    }
    let work = decoder.stats().work - work;
    assert!(work >= 40 * 40 * (64 + 40), "{work} bytes");
    for number in 0..64 {
        decoder.push_source(number, &symbol(number, 32));
        decoder.push_source(number, &symbol(number, 32));
    }
    let work = decoder.stats().work;
    for repair in &repairs {
        assert_eq!(push(&mut decoder, repair), Outcome::NonInnovative);
    }
    assert_eq!(decoder.stats().work, work, "a decoded window needs no work");
}

/// A peer that repeats repairs causes one elimination, not one for each. Between the
/// repetitions the system grows, loses columns and is joined to another one.
#[test]
fn redundant_repairs_are_recognised_without_elimination() {
    const COUNT: u16 = 128;
    let mut encoder = sender(2 * u64::from(COUNT), 512);
    let mut decoder = StreamDecoder::new(DecoderConfig::new(512, SEED));
    let windows = [Window { first: 0, count: COUNT }, Window { first: COUNT.into(), count: COUNT }];
    let mut push = |decoder: &mut StreamDecoder, window, sequence: u32| {
        let (batch, column) = (sequence / 16, (sequence % 16) as u8);
        let payload = repair(&mut encoder, window, batch, column);
        decoder.push_repair(window, Columns::Fresh { batch, column }, &payload).outcome
    };
    for sequence in 0..100 {
        assert_eq!(push(&mut decoder, windows[0], sequence), Outcome::Innovative);
        assert_eq!(push(&mut decoder, windows[1], 200 + sequence), Outcome::Innovative);
    }
    let reduction = 100 * (128 + 128);
    let mut repeat = |decoder: &mut StreamDecoder, from, most: u64| {
        let work = decoder.stats().work;
        for sequence in (0..100).cycle().take(400) {
            for (window, first) in [(windows[0], 0), (windows[1], 200)] {
                assert_eq!(push(decoder, window, first + sequence), Outcome::NonInnovative);
            }
        }
        let work = decoder.stats().work - work;
        assert!(work <= most, "{work} bytes after {from}");
    };
    // Elimination until that has cost as much as the vectors of the null space, and these. Each
    // elimination is followed by a search for solved rows, which ends in the last 64 columns.
    let recognised = 800 * 128 * 64;
    let vectors = 64 * 100 * 28;
    let eliminated = (vectors + reduction) / reduction * (reduction + 100 * 64);
    repeat(&mut decoder, "the equations", recognised + 2 * (vectors + eliminated));
    for number in (0..120).step_by(6) {
        decoder.push_source(number, &symbol(number, 512));
    }
    repeat(&mut decoder, "some symbols", recognised);
    let joint = Window { first: 64, count: COUNT };
    let payload = repair(&mut encoder, joint, 50, 0);
    let columns = Columns::Fresh { batch: 50, column: 0 };
    assert_eq!(decoder.push_repair(joint, columns, &payload).outcome, Outcome::Innovative);
    let repeated = decoder.push_repair(joint, columns, &payload).outcome;
    assert_eq!(repeated, Outcome::NonInnovative);
    for sequence in 400..456 {
        let (window, batch, column) = (windows[sequence % 2], sequence / 16, sequence % 16);
        let (batch, column) = (batch as u32, column as u8);
        let payload = repair(&mut encoder, window, batch, column);
        decoder.push_repair(window, Columns::Fresh { batch, column }, &payload);
    }
    assert_eq!(decoder.first_missing(), 256, "the remaining repairs decode everything");
    assert!((0..256).all(|number| decoder.symbol(number) == Some(&symbol(number, 512)[..])));
}
