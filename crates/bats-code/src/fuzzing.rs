//! Drives the stream decoder from bytes and compares it with naive Gaussian elimination. Used by
//! fuzz targets, by the replay of their corpora, and by property tests. Not part of the API.

use alloc::vec;
use alloc::vec::Vec;

use crate::BATCH_SIZE;
use crate::gf256;
use crate::kernel::Kernel;
use crate::recode::{CoefficientVector, Recoder};
use crate::stream::{
    Columns, DecoderConfig, Outcome, StreamDecoder, StreamEncoder, Window, coefficients,
};

pub mod rfc;

/// Number of source symbols in a run.
pub const SYMBOLS: usize = 96;
const MAX_SYMBOL_SIZE: usize = 150;
const SEED: u64 = 0x5eed;

/// Reference decoder: plain Gauss-Jordan elimination, row by row.
#[derive(Clone, Debug, Default)]
pub struct NaiveDecoder {
    rows: Vec<Vec<u8>>,
}

impl NaiveDecoder {
    /// Adds an equation over all symbols. Returns whether it raised the rank.
    pub fn push(&mut self, mut line: Vec<u8>) -> bool {
        for row in &self.rows {
            let Some(pivot) = row.iter().position(|&x| x != 0) else { continue };
            add_multiple(line[pivot], row, &mut line);
        }
        let Some(pivot) = line.iter().position(|&x| x != 0) else { return false };
        let inverse = gf256::inv(line[pivot]);
        line.iter_mut().for_each(|x| *x = gf256::mul(inverse, *x));
        for row in &mut self.rows {
            add_multiple(row[pivot], &line, row);
        }
        self.rows.push(line);
        true
    }

    /// Whether the equations determine a symbol.
    #[must_use]
    pub fn contains(&self, number: usize) -> bool {
        self.rows.iter().any(|row| row[number] != 0 && row.iter().filter(|&&x| x != 0).count() == 1)
    }
}

fn add_multiple(factor: u8, row: &[u8], line: &mut [u8]) {
    for (x, &y) in line.iter_mut().zip(row) {
        *x ^= gf256::mul(factor, y);
    }
}

/// Content of source symbol `number`.
fn symbol(number: usize) -> Vec<u8> {
    let len = 1 + (number * 37) % MAX_SYMBOL_SIZE;
    (0..len).map(|x| (x * 31 + number * 17 + x * number) as u8).collect()
}

fn line_of(window: Window, batch: u32, vector: &[(u8, u8)]) -> Vec<u8> {
    let mut line = vec![0; SYMBOLS];
    let first = window.first as usize;
    let mut column = vec![0; usize::from(window.count)];
    for &(number, factor) in vector {
        coefficients(SEED, batch, number, &mut column);
        add_multiple(factor, &column, &mut line[first..][..usize::from(window.count)]);
    }
    line
}

/// A coefficient that is sometimes zero, but never for the first symbol.
fn mixed(b: u8, c: u8, i: u8) -> u8 {
    let x = b.rotate_left(u32::from(i)) ^ c.wrapping_mul(i | 1).wrapping_add(i);
    if i == 0 {
        x | 1
    } else if x & 7 == 7 {
        0
    } else {
        x
    }
}

/// Adds a linear combination of symbols to `output`. Returns the length of the longest one used.
fn combine(first: usize, vector: &[u8], output: &mut [u8]) -> usize {
    let mut len = 0;
    for (number, &factor) in (first..).zip(vector).filter(|&(_, &factor)| factor != 0) {
        let symbol = symbol(number);
        add_multiple(factor, &symbol, &mut output[..symbol.len()]);
        len = len.max(symbol.len());
    }
    len
}

/// Counters of a run, for tests to check that a run was not trivial.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunReport {
    /// Repairs that the decoder reported as innovative.
    pub innovative: usize,
    /// Symbols solved from repairs.
    pub decoded: usize,
}

/// Pushes correctly coded packets selected by `data` and compares the decoder with the reference
/// after each: the same symbols are known with the correct content, and the missing rank is equal.
///
/// # Panics
/// The decoders disagree.
pub fn compare_with_reference(kernel: Kernel, data: &[u8]) -> RunReport {
    let mut encoder = StreamEncoder::with_kernel(MAX_SYMBOL_SIZE, SEED, kernel);
    (0..SYMBOLS).for_each(|number| {
        assert_eq!(encoder.push(&symbol(number)), Ok(number as u64));
    });
    let mut config = DecoderConfig::new(MAX_SYMBOL_SIZE, SEED);
    config.history = 20;
    let mut decoder = StreamDecoder::with_kernel(config, kernel);
    let mut naive = NaiveDecoder::default();
    let mut report = RunReport::default();
    // After the application skips symbols, the reference may know more than the decoder.
    let mut skipped = false;

    for operation in data.chunks_exact(4) {
        let [kind, a, b, c] = [operation[0], operation[1], operation[2], operation[3]];
        let first = usize::from(a) % SYMBOLS;
        let count = (1 + usize::from(b) % 40).min(SYMBOLS - first);
        let window = Window { first: first as u64, count: count as u16 };
        // Few batch IDs, so that batches recur over other windows and packets repeat.
        let (batch, column) = (u32::from(c >> 4), c & 15);
        let mut buffer = [0; MAX_SYMBOL_SIZE];
        let (result, line) = match kind % 8 {
            0..=2 => {
                let mut line = vec![0; SYMBOLS];
                line[first] = 1;
                (decoder.push_source(first as u64, &symbol(first)), line)
            }
            5 => {
                // A packet that a relay recoded from all or some packets of an S-batch.
                let count = count.min(BATCH_SIZE);
                let vector: Vec<u8> = (0..count as u8).map(|i| mixed(b, c, i)).collect();
                let mut line = vec![0; SYMBOLS];
                line[first..][..count].copy_from_slice(&vector);
                let len = combine(first, &vector, &mut buffer);
                let window = Window { first: first as u64, count: count as u16 };
                let columns = Columns::Explicit { coefficients: &vector };
                let result = decoder.push_repair(window, columns, &buffer[..len]);
                (result, line)
            }
            3..=4 => {
                let outputs = &mut [&mut buffer[..]];
                let Ok(len) = encoder.encode(window, batch, column, outputs) else { continue };
                let columns = Columns::Fresh { batch, column };
                let result = decoder.push_repair(window, columns, &buffer[..len]);
                (result, line_of(window, batch, &[(column, 1)]))
            }
            6 => {
                let vector = recoded(&mut encoder, window, batch, &[b, c, kind], &mut buffer);
                let Some((vector, len)) = vector else { continue };
                let columns = Columns::Recoded { batch, vector: &vector };
                let factors: Vec<(u8, u8)> = (0..).zip(vector).collect();
                let result = decoder.push_repair(window, columns, &buffer[..len]);
                (result, line_of(window, batch, &factors))
            }
            _ => {
                let missing = decoder.first_missing();
                // Usually the application has read in order; rarely it skips symbols.
                let to = if b == 255 { missing + 3 } else { missing.min(first as u64) };
                skipped |= to > missing;
                decoder.release_below(to);
                compare(&decoder, &naive, skipped);
                continue;
            }
        };
        report.decoded += result.decoded;
        match result.outcome {
            Outcome::OutOfRange => {}
            Outcome::Innovative => {
                report.innovative += usize::from(kind % 8 > 2);
                let raised = naive.push(line);
                assert!(raised || skipped, "innovative packet does not raise the rank");
            }
            Outcome::NonInnovative => {
                let raised = naive.push(line);
                assert!(!raised || skipped, "non-innovative packet raises the rank");
            }
        }
        compare(&decoder, &naive, skipped);
    }
    report
}

/// A packet recoded by two consecutive relays from columns of a batch.
fn recoded(
    encoder: &mut StreamEncoder,
    window: Window,
    batch: u32,
    choice: &[u8; 3],
    output: &mut [u8],
) -> Option<(CoefficientVector, usize)> {
    let mut first = Recoder::new(MAX_SYMBOL_SIZE);
    for &byte in choice {
        let column = byte % 16;
        let mut buffer = [0; MAX_SYMBOL_SIZE];
        let len = encoder.encode(window, batch, column, &mut [&mut buffer]).ok()?;
        first.push(&crate::recode::unit_vector(usize::from(column))?, &buffer[..len]);
    }
    let mut second = Recoder::new(MAX_SYMBOL_SIZE);
    let mut vector = [0; 16];
    for draw in 0..2 {
        let mut buffer = [0; MAX_SYMBOL_SIZE];
        let seed = u64::from(choice[0]);
        let len = first.recode_random(seed, draw, &mut vector, &mut buffer).ok()?;
        second.push(&vector, &buffer[..len]);
    }
    let len = second.recode_random(9, u32::from(choice[1]), &mut vector, output).ok()?;
    Some((vector, len))
}

fn compare(decoder: &StreamDecoder, naive: &NaiveDecoder, skipped: bool) {
    let end = SYMBOLS as u64;
    for number in 0..SYMBOLS {
        let expected = naive.contains(number);
        let position = number as u64;
        if let Some(content) = decoder.symbol(position) {
            assert!(expected, "symbol {number} is not determined");
            let correct = symbol(number);
            assert_eq!(content[..correct.len()], correct);
            assert!(content[correct.len()..].iter().all(|&x| x == 0), "padding is not zero");
        } else if !skipped {
            assert!(
                !expected || position < decoder.released(),
                "symbol {number} is determined but not decoded"
            );
        }
    }
    let first_missing = (decoder.released()..end).find(|&n| decoder.symbol(n).is_none());
    assert_eq!(decoder.first_missing().min(end), first_missing.unwrap_or(end));
    if !skipped {
        // The ranges cover all symbols, so that the ranks add up.
        let missing: usize = decoder
            .missing_ranges(end, usize::MAX)
            .iter()
            .map(|range| usize::from(range.rank_missing))
            .sum();
        assert_eq!(missing, SYMBOLS - naive.rows.len(), "missing rank");
    }
}

/// Pushes arbitrary packets to a decoder with small limits. Nothing panics, memory stays bounded,
/// and all queries return valid values.
///
/// # Panics
/// A limit is exceeded.
pub fn push_arbitrary_packets(data: &[u8]) {
    let config = DecoderConfig {
        max_symbol_size: 64,
        seed: 1,
        max_symbols_held: 300,
        max_equations: 40,
        max_span: 100,
        max_unknowns: 100,
        history: 10,
    };
    let mut decoder = StreamDecoder::new(config);
    for operation in data.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..operation.len()].copy_from_slice(operation);
        let [kind, a, b, c, d, e, f, g] = bytes;
        let near = decoder.released() + u64::from(a) + u64::from(b & 1) * 256;
        let number = match kind >> 4 {
            0 => u64::MAX - u64::from(a),
            1 => u64::from(a),
            2 => near.saturating_sub(u64::from(b)),
            _ => near,
        };
        let payload = vec![c; usize::from(d) % 70];
        let window = Window { first: number, count: u16::from_le_bytes([e, f & 3]) };
        match kind & 7 {
            0 | 1 => drop(decoder.push_source(number, &payload)),
            2..=4 => {
                let columns = Columns::Fresh { batch: u32::from(g), column: c };
                decoder.push_repair(window, columns, &payload);
            }
            5 => {
                let mut vector = [0; 16];
                vector[usize::from(c) % 16] = g;
                vector[usize::from(d) % 16] = f;
                let columns = Columns::Recoded { batch: u32::from(b), vector: &vector };
                decoder.push_repair(window, columns, &payload);
            }
            6 => decoder.release_below(decoder.released() + u64::from(a) % 64),
            _ => {
                let ranges = decoder.missing_ranges(number, usize::from(b) % 8);
                assert!(ranges.len() <= 7);
                let firsts = || ranges.iter().map(|range| range.first);
                assert!(firsts().zip(firsts().skip(1)).all(|(x, y)| x < y));
            }
        }
        assert!(decoder.equations_held() <= config.max_equations);
        // Symbols: 300 ahead, span and window below. Rows: 64 + 63 bytes, coefficients 512 + 63.
        let rows = 300 + 100 + 512 + 10;
        let bound = rows * (127 + 64) + 40 * (127 + 575) + 40 * 2 * 4096;
        assert!(decoder.bytes_held() <= bound, "{} bytes", decoder.bytes_held());
        assert!(decoder.first_missing() >= decoder.released());
    }
}
