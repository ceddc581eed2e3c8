//! The encoder: holds source symbols until they are released and makes repairs from them.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::{MAX_SYMBOL_SIZE, StreamError, Window, coefficients};
use crate::BATCH_SIZE;
use crate::kernel::Kernel;
use crate::rows::{ALIGNMENT, AlignedRow, RowPool};

/// Memory of rows kept for reuse, in bytes.
const POOL_BYTES: usize = 1 << 20;

/// Numbers source symbols, holds them, and makes repairs.
#[derive(Debug)]
pub struct StreamEncoder {
    seed: u64,
    max_symbol_size: usize,
    kernel: Kernel,
    rows: VecDeque<AlignedRow>,
    first: u64,
    bytes_held: usize,
    pool: RowPool,
    /// Scratch: the coefficients of the columns under construction.
    matrix: Vec<u8>,
}

impl StreamEncoder {
    /// An encoder for symbols of at most `max_symbol_size` bytes (clamped to 1 ..=
    /// [`MAX_SYMBOL_SIZE`]). The decoder must use the same `seed`.
    #[must_use]
    pub fn new(max_symbol_size: usize, seed: u64) -> Self {
        Self::with_kernel(max_symbol_size, seed, Kernel::active())
    }

    /// As [`StreamEncoder::new`], with a kernel of the caller's choice.
    #[must_use]
    pub fn with_kernel(max_symbol_size: usize, seed: u64, kernel: Kernel) -> Self {
        let max_symbol_size = max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        Self {
            seed,
            max_symbol_size,
            kernel,
            rows: VecDeque::new(),
            first: 0,
            bytes_held: 0,
            pool: RowPool::new(max_symbol_size, POOL_BYTES),
            matrix: Vec::new(),
        }
    }

    /// Frees memory that is kept only for future symbols. Call it when the stream is idle.
    pub fn trim(&mut self) {
        self.pool.trim();
        self.rows.shrink_to_fit();
        self.matrix = Vec::new();
    }

    /// Appends a symbol and returns its number.
    ///
    /// # Errors
    /// [`StreamError::SymbolSize`].
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, symbol: &[u8]) -> Result<u64, StreamError> {
        self.append(symbol.len(), |row| row.copy_from_slice(symbol))
    }

    /// Appends a symbol of `len` bytes that `write` fills in place; the buffer is zeroed before.
    ///
    /// # Errors
    /// [`StreamError::SymbolSize`]; then `write` is not called.
    pub fn push_with(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<u64, StreamError> {
        self.append(len, |row| {
            row.fill(0);
            write(row);
        })
    }

    fn append(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Result<u64, StreamError> {
        if len == 0 || len > self.max_symbol_size {
            return Err(StreamError::SymbolSize);
        }
        let mut row = self.pool.take(len);
        write(row.as_mut_slice());
        self.bytes_held += row.bytes();
        let number = self.next();
        self.rows.push_back(row);
        Ok(number)
    }

    /// A symbol that is still held.
    #[must_use]
    pub fn symbol(&self, number: u64) -> Option<&[u8]> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.rows.get(index).map(AlignedRow::as_slice)
    }

    /// Releases all symbols below `number`: the peer has them or no longer needs them.
    pub fn release_below(&mut self, number: u64) {
        while self.first < number {
            let Some(row) = self.rows.pop_front() else { break };
            self.first += 1;
            self.bytes_held -= row.bytes();
            self.pool.give(row);
        }
    }

    /// Number of the oldest symbol held; equal to [`StreamEncoder::next`] if none is held.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number that the next symbol will get.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + self.rows.len() as u64
    }

    /// Memory of the symbols held, in bytes.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.bytes_held
    }

    /// Encodes columns `first_column ..` of batch `batch` over `window`, one for each output, in
    /// one pass over the symbols: one call for eight columns costs much less than eight calls.
    /// Returns the length of the columns, which is that of the longest symbol in the window.
    ///
    /// # Errors
    /// [`StreamError::Window`], [`StreamError::Columns`] for column indices above 15,
    /// [`StreamError::OutputSize`]. On an error no output is written.
    pub fn encode(
        &mut self,
        window: Window,
        batch: u32,
        first_column: u8,
        outputs: &mut [&mut [u8]],
    ) -> Result<usize, StreamError> {
        if usize::from(first_column) + outputs.len() > BATCH_SIZE {
            return Err(StreamError::Columns);
        }
        self.combine(window, (first_column..).map(|column| (batch, column)), outputs)
    }

    /// As [`StreamEncoder::encode`], for columns of several batches: `columns[i]` is the batch and
    /// column of `outputs[i]`. One call for all columns of a window is fastest.
    ///
    /// # Errors
    /// As [`StreamEncoder::encode`], and [`StreamError::Columns`] if the numbers of columns and
    /// outputs differ.
    pub fn encode_columns(
        &mut self,
        window: Window,
        columns: &[(u32, u8)],
        outputs: &mut [&mut [u8]],
    ) -> Result<usize, StreamError> {
        let beyond = columns.iter().any(|&(_, column)| usize::from(column) >= BATCH_SIZE);
        if beyond || columns.len() != outputs.len() {
            return Err(StreamError::Columns);
        }
        self.combine(window, columns.iter().copied(), outputs)
    }

    /// Encodes a column for each output. `columns` yields at least as many items.
    fn combine(
        &mut self,
        window: Window,
        columns: impl Iterator<Item = (u32, u8)>,
        outputs: &mut [&mut [u8]],
    ) -> Result<usize, StreamError> {
        let end = window.end().ok_or(StreamError::Window)?;
        if window.first < self.first || end > self.next() {
            return Err(StreamError::Window);
        }
        let start = (window.first - self.first) as usize;
        let count = usize::from(window.count);
        let symbols = || self.rows.range(start..start + count);
        let len = symbols().map(|row| row.as_slice().len()).max().unwrap_or(0);
        if outputs.iter().any(|output| output.len() < len) {
            return Err(StreamError::OutputSize);
        }
        self.matrix.resize(outputs.len() * count, 0);
        for (line, (batch, column)) in self.matrix.chunks_exact_mut(count).zip(columns) {
            coefficients(self.seed, batch, column, line);
        }
        // The caller's outputs have no padding. Whole 64-byte blocks are written to them directly,
        // the remaining bytes go through a padded buffer.
        let whole = len - len % ALIGNMENT;
        let rows: Vec<&[u8]> = symbols().map(AlignedRow::padded).collect();
        self.kernel.product_ragged(&self.matrix, &rows, outputs, whole);
        if whole < len {
            let rows: Vec<&[u8]> = rows.iter().map(|row| row.get(whole..).unwrap_or(&[])).collect();
            let mut tails = vec![[0; ALIGNMENT]; outputs.len()];
            let mut targets: Vec<&mut [u8]> = tails.iter_mut().map(|tail| &mut tail[..]).collect();
            self.kernel.product_ragged(&self.matrix, &rows, &mut targets, ALIGNMENT);
            for (output, tail) in outputs.iter_mut().zip(&tails) {
                output[whole..len].copy_from_slice(&tail[..len - whole]);
            }
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf256;

    #[test]
    fn columns_are_linear_combinations_of_symbols_of_different_lengths() {
        let mut encoder = StreamEncoder::new(200, 42);
        let symbols: Vec<Vec<u8>> =
            (1..=20u8).map(|i| (0..i * 9).map(|x| x ^ i).collect()).collect();
        for symbol in &symbols {
            encoder.push(symbol).unwrap();
        }
        let mut storage = vec![vec![0xee; 200]; 9];
        let mut outputs: Vec<&mut [u8]> = storage.iter_mut().map(Vec::as_mut_slice).collect();
        let window = Window { first: 3, count: 15 };
        let len = encoder.encode(window, 5, 7, &mut outputs).unwrap();
        assert_eq!(len, 18 * 9);
        for (i, output) in storage.iter().enumerate() {
            let mut line = [0; 15];
            coefficients(42, 5, 7 + i as u8, &mut line);
            for (position, &x) in output[..len].iter().enumerate() {
                let sum = line.iter().zip(&symbols[3..18]).fold(0, |sum, (&c, symbol)| {
                    sum ^ gf256::mul(c, symbol.get(position).copied().unwrap_or(0))
                });
                assert_eq!(x, sum);
            }
            assert!(output[len..].iter().all(|&x| x == 0xee));
        }
    }

    /// A symbol of up to 64 bytes takes a row of 127 bytes.
    #[test]
    fn releasing_symbols_frees_their_memory() {
        let mut encoder = StreamEncoder::new(200, 42);
        for number in 0..5 {
            assert_eq!(encoder.push(&[1; 60]), Ok(number));
        }
        for (below, left) in [(0, 5), (2, 3), (1, 3), (4, 1), (9, 0)] {
            encoder.release_below(below);
            let first = 5 - left as u64;
            assert_eq!(
                (encoder.first(), encoder.next(), encoder.bytes_held()),
                (first, 5, left * 127)
            );
        }
    }

    #[test]
    fn encode_columns_matches_single_calls() {
        for len in [1_usize, 63, 64, 65, 128, 191, 700] {
            let mut encoder = StreamEncoder::new(700, 7);
            for i in 0..40u8 {
                // Two thirds of the symbols are shorter than the longest.
                let symbol: Vec<u8> = (0..len).map(|x| (x as u8) ^ i).collect();
                encoder.push(&symbol[..len.div_ceil(1 + usize::from(i % 3))]).unwrap();
            }
            let window = Window { first: 1, count: 39 };
            let columns = [(3, 15), (9, 0), (3, 1), (u32::MAX, 7)];
            let mut together = vec![vec![0; 700]; columns.len()];
            let mut outputs: Vec<&mut [u8]> = together.iter_mut().map(Vec::as_mut_slice).collect();
            assert_eq!(encoder.encode_columns(window, &columns, &mut outputs), Ok(len));
            for (&(batch, column), expected) in columns.iter().zip(&together) {
                let mut single = vec![0; 700];
                let outputs = &mut [single.as_mut_slice()];
                assert_eq!(encoder.encode(window, batch, column, outputs), Ok(len));
                assert_eq!(&single, expected);
            }
            let wrong = encoder.encode_columns(window, &columns[..1], &mut []);
            assert_eq!(wrong, Err(StreamError::Columns));
            let wrong = encoder.encode_columns(window, &[(0, 16)], &mut [&mut [0; 700]]);
            assert_eq!(wrong, Err(StreamError::Columns));
        }
    }

    #[test]
    fn invalid_arguments_are_errors_and_release_frees_memory() {
        let mut encoder = StreamEncoder::new(100, 0);
        assert_eq!(encoder.push(&[]), Err(StreamError::SymbolSize));
        assert_eq!(encoder.push(&[0; 101]), Err(StreamError::SymbolSize));
        assert_eq!(encoder.push_with(3, |row| row.copy_from_slice(b"abc")), Ok(0));
        assert_eq!(encoder.push(&[1; 100]), Ok(1));
        let mut short = [0; 50];
        let mut encode = |encoder: &mut StreamEncoder, first, count, column| {
            encoder.encode(Window { first, count }, 0, column, &mut [&mut short])
        };
        assert_eq!(encode(&mut encoder, 0, 2, 0), Err(StreamError::OutputSize));
        assert_eq!(encode(&mut encoder, 0, 1, 0), Ok(3));
        assert_eq!(encode(&mut encoder, 0, 0, 0), Err(StreamError::Window));
        assert_eq!(encode(&mut encoder, 0, 3, 0), Err(StreamError::Window));
        assert_eq!(encode(&mut encoder, u64::MAX, 2, 0), Err(StreamError::Window));
        assert_eq!(encode(&mut encoder, 0, 1, 16), Err(StreamError::Columns));
        assert_eq!(encoder.symbol(0), Some(&b"abc"[..]));
        assert!(encoder.bytes_held() >= 103);
        encoder.release_below(1);
        assert_eq!((encoder.first(), encoder.next(), encoder.symbol(0)), (1, 2, None));
        encoder.release_below(99);
        assert_eq!((encoder.first(), encoder.next(), encoder.bytes_held()), (2, 2, 0));
    }

    #[test]
    fn rows_of_released_symbols_are_kept_until_the_stream_is_idle() {
        let mut encoder = StreamEncoder::new(200, 42);
        (0..3).for_each(|_| _ = encoder.push(&[1; 60]));
        let mut output = [0; 60];
        let window = Window { first: 0, count: 3 };
        assert_eq!(encoder.encode(window, 0, 0, &mut [&mut output]), Ok(60));
        encoder.release_below(2);
        assert_eq!(encoder.pool.free_bytes(), 2 * 127);
        encoder.trim();
        assert_eq!((encoder.pool.free_bytes(), encoder.matrix.capacity()), (0, 0));
        assert!(encoder.rows.capacity() < 4);
        assert_eq!((encoder.bytes_held(), encoder.symbol(2)), (127, Some(&[1; 60][..])));
    }

    #[test]
    fn error_messages_name_the_invalid_argument() {
        for (error, words) in [
            (StreamError::SymbolSize, "symbol"),
            (StreamError::Window, "window"),
            (StreamError::Columns, "column"),
            (StreamError::OutputSize, "output"),
        ] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
