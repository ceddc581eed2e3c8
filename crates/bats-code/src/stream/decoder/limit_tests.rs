//! Memory, work and limits of the decoder at their exact values.

use super::super::{StreamEncoder, Window};
use super::*;

const SEED: u64 = 5;
/// A symbol of up to 64 bytes takes a row of 127.
const ROW: usize = 127;
/// Coefficients of up to 64 symbols do, too.
const EQUATION: usize = 2 * ROW;

fn decoder() -> StreamDecoder {
    StreamDecoder::new(DecoderConfig::new(64, SEED))
}

fn push_symbols(decoder: &mut StreamDecoder, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        assert_eq!(decoder.push_source(number, &[1; 60]).outcome, Outcome::Innovative);
    }
}

/// Repairs of symbols that are all ones.
fn push_repair(decoder: &mut StreamDecoder, first: u64, count: u16, batch: u32) -> Outcome {
    let mut encoder = StreamEncoder::new(64, SEED);
    (0..first + u64::from(count)).for_each(|_| _ = encoder.push(&[1; 60]));
    let window = Window { first, count };
    let mut payload = [0; 60];
    encoder.encode(window, batch, 0, &mut [&mut payload]).unwrap();
    decoder.push_repair(window, Columns::Fresh { batch, column: 0 }, &payload).outcome
}

/// A sum of symbols that are all ones.
fn push_sum(decoder: &mut StreamDecoder, first: u64) -> Outcome {
    let columns = Columns::Explicit { coefficients: &[1, 1] };
    decoder.push_repair(Window { first, count: 2 }, columns, &[0; 60]).outcome
}

#[test]
fn memory_held_is_that_of_rows_slots_and_systems() {
    let mut decoder = decoder();
    assert_eq!((decoder.bytes_held(), decoder.equation_overhead()), (0, 0));
    push_symbols(&mut decoder, [0, 1, 4]);
    let slots = |count| count * size_of::<Slot>();
    assert_eq!(decoder.bytes_held(), 3 * ROW + slots(5));
    for (equations, batch) in [(1, 0), (2, 1)] {
        assert_eq!(push_repair(&mut decoder, 2, 8, batch), Outcome::Innovative);
        let matrix = decoder.systems.iter().flatten().map(|system| system.bytes()).sum::<usize>();
        let system = size_of::<Option<Box<LinearSystem>>>() + WINDOW_START_BYTES;
        let rows = 3 * ROW + equations * EQUATION;
        assert_eq!(decoder.bytes_held(), rows + slots(10) + matrix + system);
        assert_eq!(decoder.equation_overhead(), equations * 512 + matrix);
    }
    // With two of the seven unknown symbols missing they are solved.
    push_symbols(&mut decoder, [2, 3, 5, 6, 7]);
    assert_eq!((decoder.equations_held(), decoder.equation_overhead()), (0, 0));
    let entry = size_of::<Option<Box<LinearSystem>>>();
    assert_eq!(decoder.bytes_held(), 10 * ROW + slots(10) + entry);
    assert!(decoder.pool.free_bytes() > 0 && decoder.coefficient_pool.free_bytes() > 0);
    decoder.trim();
    assert_eq!((decoder.pool.free_bytes(), decoder.coefficient_pool.free_bytes()), (0, 0));
    assert_eq!(decoder.bytes_held(), 10 * ROW + slots(10));
    assert_eq!(decoder.symbol(9), Some(&[1; 60][..]));
}

/// Released symbols stay as long as a window may need them.
#[test]
fn history_of_released_symbols_is_kept_below_the_first_missing_one() {
    let mut decoder =
        StreamDecoder::new(DecoderConfig { history: 8, ..DecoderConfig::new(64, SEED) });
    push_symbols(&mut decoder, (0..100).filter(|&number| number != 90));
    for (released, first_missing, oldest) in [
        (0, 90, 0),
        (50, 90, 50),
        (82, 90, 82),
        (83, 90, 82),
        (90, 90, 82),
        (91, 100, 91),
        (92, 100, 92),
        (95, 100, 92),
    ] {
        decoder.release_below(released);
        assert_eq!((decoder.first_missing(), decoder.base), (first_missing, oldest));
        assert!(decoder.symbol(oldest).is_some());
        assert!(oldest == 0 || decoder.symbol(oldest - 1).is_none());
        assert!(decoder.contains(0), "known, but not held");
    }
    decoder.release_below(100);
    assert_eq!((decoder.base, decoder.slots.len()), (92, 8));
    // A repair of symbols that are gone is refused if it is needed, and redundant otherwise.
    assert_eq!(push_repair(&mut decoder, 91, 10, 0), Outcome::OutOfRange);
    assert_eq!(push_repair(&mut decoder, 91, 9, 0), Outcome::NonInnovative);
    assert_eq!(push_repair(&mut decoder, 92, 9, 0), Outcome::Innovative);
}

#[test]
fn equation_keeps_the_symbols_of_its_window() {
    let mut decoder =
        StreamDecoder::new(DecoderConfig { history: 8, ..DecoderConfig::new(64, SEED) });
    push_symbols(&mut decoder, 0..100);
    decoder.release_below(60);
    assert_eq!(push_repair(&mut decoder, 60, 42, 0), Outcome::Innovative);
    decoder.release_below(100);
    assert_eq!((decoder.base, decoder.first_missing()), (60, 100));
    let result = decoder.push_source(100, &[1; 60]);
    assert_eq!(result, PushResult { outcome: Outcome::Innovative, decoded: 1 });
    assert_eq!((decoder.base, decoder.first_missing()), (94, 102));
}

#[test]
fn equations_beyond_the_first_missing_symbol_leave_half_or_512_for_it() {
    for (max_equations, others) in [(10, 5), (11, 6), (1_024, 512), (2_000, 1_488)] {
        let config = DecoderConfig { max_equations, ..DecoderConfig::new(64, SEED) };
        let mut decoder = StreamDecoder::new(config);
        for number in 0..others {
            assert_eq!(push_sum(&mut decoder, 10_000 + 2 * number), Outcome::Innovative);
        }
        assert_eq!(push_sum(&mut decoder, 30_000), Outcome::OutOfRange);
        assert_eq!(decoder.equations_held(), others as usize);
        // Windows that begin at the first missing symbol may use the rest.
        for batch in 0..4 {
            assert_eq!(push_repair(&mut decoder, 0, 8, batch), Outcome::Innovative);
        }
    }
    let config = DecoderConfig { max_equations: 3, ..DecoderConfig::new(64, SEED) };
    let mut decoder = StreamDecoder::new(config);
    for (batch, outcome) in [(0, Outcome::Innovative), (3, Outcome::OutOfRange)] {
        for batch in batch..batch + 3 {
            assert_eq!(push_repair(&mut decoder, 0, 8, batch), outcome);
        }
    }
    decoder.raise_limits(0, 4);
    decoder.raise_limits(200_000, 0);
    assert_eq!(push_repair(&mut decoder, 0, 8, 9), Outcome::Innovative);
    assert_eq!(push_repair(&mut decoder, 0, 8, 10), Outcome::OutOfRange);
    assert_eq!(decoder.push_source(199_999, &[1]).outcome, Outcome::Innovative);
    assert_eq!(decoder.push_source(200_000, &[1]).outcome, Outcome::OutOfRange);
}

#[test]
fn linear_systems_have_at_most_the_longest_span() {
    for (span, outcome) in [(40, Outcome::Innovative), (39, Outcome::OutOfRange)] {
        let config = DecoderConfig { max_span: span, ..DecoderConfig::new(64, SEED) };
        let mut decoder = StreamDecoder::new(config);
        assert_eq!(push_repair(&mut decoder, 10, 20, 0), Outcome::Innovative);
        // From symbol 10 to symbol 49.
        assert_eq!(push_repair(&mut decoder, 29, 21, 1), outcome);
        let mut decoder = StreamDecoder::new(config);
        assert_eq!(push_repair(&mut decoder, 10, 40, 0), outcome);
        // Symbols that are known do not count.
        push_symbols(&mut decoder, 45..50);
        assert_ne!(push_repair(&mut decoder, 10, 40, 1), Outcome::OutOfRange);
    }
}

/// Known symbols and those of other systems do not count.
#[test]
fn linear_systems_have_at_most_so_many_unknowns() {
    let config = DecoderConfig { max_unknowns: 30, ..DecoderConfig::new(64, SEED) };
    let mut decoder = StreamDecoder::new(config);
    assert_eq!(push_repair(&mut decoder, 0, 31, 0), Outcome::OutOfRange);
    assert_eq!(push_repair(&mut decoder, 0, 30, 1), Outcome::Innovative);
    assert_eq!(push_repair(&mut decoder, 29, 2, 2), Outcome::OutOfRange, "it would have 31");
    push_symbols(&mut decoder, [3]);
    assert_eq!(push_repair(&mut decoder, 29, 2, 3), Outcome::Innovative);
    assert_eq!(push_repair(&mut decoder, 100, 20, 4), Outcome::Innovative, "another system");
    assert_eq!(push_repair(&mut decoder, 29, 80, 5), Outcome::OutOfRange, "both have 50");
    push_symbols(&mut decoder, (31..100).chain(102..120));
    assert_eq!(
        push_repair(&mut decoder, 29, 72, 6),
        Outcome::OutOfRange,
        "32 with symbols 100 and 101"
    );
    assert_eq!(decoder.stats().refused, 4);
    decoder.check_totals();
}

/// Two rows of 128 bytes, until three redundant repairs have cost as much as the vectors of the null
/// space: 64 for each of two rows and six other columns. Then 64 for each symbol of the window. The
/// rows are searched for a solved one, too.
#[test]
fn work_for_redundant_repairs_is_counted() {
    let mut decoder = decoder();
    for batch in 0..2 {
        assert_eq!(push_repair(&mut decoder, 0, 8, batch), Outcome::Innovative);
    }
    let mut work = decoder.stats().work;
    for repetition in 1..=6 {
        assert_eq!(push_repair(&mut decoder, 0, 8, repetition % 2), Outcome::NonInnovative);
        work += if repetition <= 3 { 2 * 128 + 2 * 8 } else { 8 * 64 };
        work += if repetition == 3 { 2 * 6 * 64 } else { 0 };
        let stats = decoder.stats();
        assert_eq!(stats.work, work, "repetition {repetition}");
        assert_eq!(stats.repair_non_innovative, u64::from(repetition));
        assert_eq!((decoder.highest_seen(), decoder.equations_held()), (Some(7), 2));
    }
    assert_eq!(push_repair(&mut decoder, 0, 8, 2), Outcome::Innovative);
}

/// The first repair searches its row, the second is reduced by it and eliminated from it. Each symbol
/// that arrives is eliminated from the rows; the last one lets both be solved.
#[test]
fn work_for_innovative_packets_is_counted() {
    let mut decoder = decoder();
    push_symbols(&mut decoder, [0, 1]);
    assert_eq!(decoder.stats().work, 0, "symbols without repairs need none");
    let row = 128;
    push_repair(&mut decoder, 0, 6, 0);
    assert_eq!(decoder.stats().work, 4, "a row of four unknown symbols is searched");
    push_repair(&mut decoder, 0, 6, 1);
    assert_eq!(decoder.stats().work, 4 + 2 * row + 2 * 4);
    push_symbols(&mut decoder, [2]);
    assert_eq!(decoder.stats().work, 4 + 2 * row + 2 * 4 + 2 * row + 2 * 3);
    let before = decoder.stats().work;
    let result = decoder.push_source(3, &[1; 60]);
    assert_eq!((result.decoded, decoder.solved()), (2, &[4, 5][..]));
    // Two symbols, each from six rows, with the factors and coefficients of two equations.
    let solved = 2 * (2 + 2 * 64 + 6 * 64);
    assert_eq!(decoder.stats().work, before + 2 * row + solved);
}

/// A repair of symbols that are all zero.
fn push_zeros(decoder: &mut StreamDecoder, first: u64, count: u16, n: u32, len: usize) -> Outcome {
    let columns = Columns::Fresh { batch: n / 16, column: (n % 16) as u8 };
    decoder.push_repair(Window { first, count }, columns, &vec![0; len]).outcome
}

/// Windows whose symbols are lost, all or nine of ten, with every fourth repair twice. Short symbols come in
/// windows of at most 64 symbols, or slide over those before, as in BTP.
#[test]
fn correct_senders_stay_within_the_budget_of_work() {
    for (count, len, arriving) in
        [(256, MAX_SYMBOL_SIZE, 10), (256, 1_408, 10), (64, 64, 0), (64, 1, 0)]
    {
        let mut decoder = StreamDecoder::new(DecoderConfig::new(len, SEED));
        let mut sequence = 0;
        for first in (0..20).map(|window| window * u64::from(count)) {
            let end = first + u64::from(count);
            let arriving = (first..end).filter(|number| arriving > 0 && number % arriving == 0);
            arriving.for_each(|number| _ = decoder.push_source(number, &vec![0; len]));
            // One of 256 repairs depends on the others by chance.
            while decoder.first_missing() < end {
                for _ in 0..if sequence % 4 == 0 { 2 } else { 1 } {
                    push_zeros(&mut decoder, first, count, sequence, len);
                }
                sequence += 1;
            }
            decoder.release_below(end);
        }
        let DecoderStats { refused, .. } = decoder.stats();
        assert_eq!(refused, 0, "{sequence} repairs of {len} bytes");
        assert!(sequence < 21 * u32::from(count), "{sequence} repairs");
    }
}

/// Repairs that add nothing cost no more than 8 KiB of rows for each packet and 2 MiB, whether they are recognised
/// by elimination or without it. Those beyond it are refused, until packets have paid for it. What is still missing
/// is decoded then.
#[test]
fn redundant_repairs_beyond_their_budget_are_refused() {
    // What one packet may cost beyond it: an elimination, and the vectors of the null space.
    const PACKET: u64 = 400 * (1_024 + 512) + 64 * 400 * 112;
    let mut decoder = StreamDecoder::new(DecoderConfig::new(1_408, SEED));
    for sequence in 0..400 {
        assert_eq!(push_zeros(&mut decoder, 0, 512, sequence, 1_408), Outcome::Innovative);
    }
    let before = decoder.stats();
    for sequence in 0..2_000 {
        assert_ne!(push_zeros(&mut decoder, 0, 512, sequence % 400, 1), Outcome::Innovative);
        let work = decoder.stats().non_innovative_work;
        let most = (2 << 20) + (u64::from(sequence) << 13) + PACKET;
        assert!(work <= most, "{work} bytes for {sequence} repairs");
    }
    let stats = decoder.stats();
    let refused = stats.refused_for_work - before.refused_for_work;
    let recognised = stats.repair_non_innovative - before.repair_non_innovative;
    assert_eq!(refused + recognised, 2_000);
    assert!((350..450).contains(&recognised), "{recognised} recognised, {refused} refused");
    let taken = (400..2_000)
        .filter(|&sequence| push_zeros(&mut decoder, 0, 512, sequence, 1) == Outcome::Innovative)
        .count();
    assert_eq!((taken, decoder.first_missing()), (112, 512), "at most the next few are refused");
}

/// 128 for each symbol of the window, for its coefficients in 16 columns, and 64 as for other repairs.
#[test]
fn coefficients_of_recoded_repairs_are_counted_as_work() {
    let mut decoder = decoder();
    let push = |decoder: &mut StreamDecoder, batch| {
        let columns = Columns::Recoded { batch, vector: &[1; BATCH_SIZE] };
        decoder.push_repair(Window { first: 0, count: 8 }, columns, &[0; 60]).outcome
    };
    for batch in 0..2 {
        assert_eq!(push(&mut decoder, batch), Outcome::Innovative);
    }
    for _ in 0..3 {
        assert_eq!(push(&mut decoder, 1), Outcome::NonInnovative);
    }
    let before = decoder.stats();
    assert_eq!(push(&mut decoder, 0), Outcome::NonInnovative);
    let stats = decoder.stats();
    assert_eq!(stats.work - before.work, 8 * (128 + 64));
    assert_eq!(stats.non_innovative_work - before.non_innovative_work, 8 * (128 + 64));
}

/// A repair that would make a linear system too long is refused after its symbols were looked up.
#[test]
fn repairs_beyond_the_longest_span_count_as_redundant() {
    let config = DecoderConfig { max_span: 512, ..DecoderConfig::new(64, SEED) };
    let mut decoder = StreamDecoder::new(config);
    assert_eq!(push_zeros(&mut decoder, 0, 512, 0, 1), Outcome::Innovative);
    for sequence in 1..1_000 {
        assert_eq!(push_zeros(&mut decoder, 1, 512, sequence, 1), Outcome::OutOfRange);
    }
    let DecoderStats { refused, refused_for_work, .. } = decoder.stats();
    assert_eq!(refused, 999);
    assert!((500..900).contains(&refused_for_work), "{refused_for_work} refused for work");
}

/// Repairs of one byte that link as many symbols as possible, each of which adds something: some
/// of them are refused, and later ones are taken again until all symbols are decoded.
#[test]
fn long_linear_systems_of_short_repairs_exceed_the_budget_of_work() {
    let mut decoder = StreamDecoder::new(DecoderConfig::new(1_408, SEED));
    let (free, each) = (256 * 256 * 256, 256 * (256 + 64));
    let (mut sequence, mut taken) = (0, None);
    while decoder.first_missing() == 0 {
        // A packet that was taken is processed to its end.
        let most = free + u64::from(sequence) * each + (2 << 20);
        let stats = decoder.stats();
        assert!(stats.decoded > 0 || stats.work < most, "{sequence} repairs, {stats:?}");
        let outcome = push_zeros(&mut decoder, 0, 512, sequence, 1);
        if outcome == Outcome::OutOfRange {
            taken.get_or_insert(sequence);
        }
        sequence += 1;
        assert!(sequence < 5_000, "{:?}", decoder.stats());
    }
    assert!(taken.is_some_and(|taken| (100..400).contains(&taken)), "{taken:?} repairs at first");
    let stats = decoder.stats();
    assert_eq!(
        (stats.decoded, stats.refused_for_work, decoder.first_missing()),
        (512, stats.refused, 512)
    );
}

/// One long repair makes all symbols of a system of short ones long.
#[test]
fn a_long_solution_is_paid_for_by_later_packets() {
    let mut decoder = StreamDecoder::new(DecoderConfig::new(MAX_SYMBOL_SIZE, SEED));
    let mut sequence = 0;
    while decoder.first_missing() == 0 {
        let len = if sequence == 99 { MAX_SYMBOL_SIZE } else { 1 };
        push_zeros(&mut decoder, 0, 256, sequence, len);
        sequence += 1;
    }
    let stats = decoder.stats();
    assert_eq!((stats.decoded, decoder.first_missing()), (256, 256));
    let mut refused = 0;
    while push_zeros(&mut decoder, 256, 2, sequence, 1_408) == Outcome::OutOfRange {
        refused += 1;
    }
    let debt = stats.work - 256 * 256 * 256;
    let each = 256 * (256 + 1_408);
    assert!(refused > 500 && refused <= debt / each, "{refused} refused, {debt} bytes");
    assert_eq!(decoder.stats().refused_for_work, stats.refused_for_work + refused);
    assert_eq!(
        decoder.push_source(256, &[1]).decoded,
        1,
        "the repair and the symbol give the next one"
    );
}

/// Symbols are taken whatever repairs have cost.
#[test]
fn symbols_are_taken_while_repairs_are_refused() {
    let mut decoder = StreamDecoder::new(DecoderConfig::new(64, SEED));
    let mut sequence = 0;
    while push_zeros(&mut decoder, 0, 512, sequence, 1) != Outcome::OutOfRange {
        sequence += 1;
    }
    let missing = 512 - u64::from(sequence);
    for number in 0..missing {
        let result = decoder.push_source(number, &[0]);
        assert_ne!(result.outcome, Outcome::OutOfRange);
    }
    assert_eq!(decoder.first_missing(), 512);
}

#[test]
fn highest_symbol_is_that_of_an_accepted_packet() {
    let mut decoder = decoder();
    assert_eq!(decoder.highest_seen(), None);
    decoder.push_source(3, &[1]);
    decoder.push_source(70_000, &[1]);
    assert_eq!(decoder.highest_seen(), Some(3));
    push_sum(&mut decoder, 5);
    assert_eq!(decoder.highest_seen(), Some(6));
    push_symbols(&mut decoder, [0, 1, 2, 4, 5]);
    assert_eq!(decoder.highest_seen(), Some(6));
    // All symbols are known or given up.
    decoder.release_below(1_000);
    // The last 255 symbols are kept.
    for (first, highest) in [(740, 6), (743, 6), (744, 745)] {
        assert_eq!(push_sum(&mut decoder, first), Outcome::NonInnovative);
        assert_eq!(decoder.highest_seen(), Some(highest));
    }
    assert_eq!(push_repair(&mut decoder, 1_000, 2, 0), Outcome::Innovative);
    assert_eq!(decoder.highest_seen(), Some(1_001));
}

/// An idle stream keeps the rows that held equations need, and none of the other released ones.
#[test]
fn trimming_frees_released_symbols_that_no_equation_needs() {
    let mut decoder = decoder();
    push_symbols(&mut decoder, (0..100).filter(|&number| number != 98));
    decoder.release_below(90);
    assert_eq!(push_repair(&mut decoder, 40, 62, 0), Outcome::Innovative);
    decoder.trim();
    assert_eq!((decoder.base, decoder.first_missing()), (40, 98), "an equation needs them");
    push_symbols(&mut decoder, [98]);
    decoder.trim();
    assert_eq!((decoder.base, decoder.released()), (40, 90), "symbols 100 and 101 are unknown");
    push_symbols(&mut decoder, [100]);
    decoder.trim();
    assert_eq!((decoder.base, decoder.slots.len()), (90, 12), "the repair gave symbol 101");
    assert!((90..102).all(|number| decoder.symbol(number).is_some()), "not released");
    decoder.release_below(102);
    decoder.trim();
    assert_eq!((decoder.base, decoder.bytes_held()), (102, 0));
    // The stream continues; what needs symbols from before is refused.
    push_symbols(&mut decoder, [103]);
    assert_eq!(push_repair(&mut decoder, 101, 3, 0), Outcome::OutOfRange);
    assert_eq!(push_repair(&mut decoder, 102, 2, 0), Outcome::Innovative);
    assert_eq!(decoder.first_missing(), 104);
}
