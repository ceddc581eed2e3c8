//! Storage of symbols: rows that are aligned to 64 bytes, zero-padded to a multiple of 64 bytes,
//! and recycled.
//!
//! The kernels work on multiples of 64 bytes only. A row is allocated for its own symbol, not for
//! the longest symbol, so that flows of small messages use little memory.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Alignment of a row and unit of its padded length, in bytes.
pub const ALIGNMENT: usize = 64;

/// Rounds a length up to a multiple of [`ALIGNMENT`].
#[inline]
#[must_use]
pub const fn padded_length(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// One symbol, aligned and zero-padded.
#[derive(Debug)]
pub struct AlignedRow {
    /// `capacity + ALIGNMENT - 1` bytes; the row starts at `start`, the first aligned one.
    buffer: Box<[u8]>,
    start: u32,
    len: u32,
}

impl AlignedRow {
    fn with_capacity(capacity: usize) -> Self {
        let buffer = vec![0u8; capacity + ALIGNMENT - 1].into_boxed_slice();
        // `align_offset` may fail. The row is unaligned then, which only costs speed.
        let start = match buffer.as_ptr().align_offset(ALIGNMENT) {
            offset if offset < ALIGNMENT => offset,
            _ => 0,
        };
        Self { buffer, start: start as u32, len: 0 }
    }

    fn capacity(&self) -> usize {
        self.buffer.len() + 1 - ALIGNMENT
    }

    /// Sets the length (at most the capacity) and zeroes the padding after it.
    fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity());
        self.len = len as u32;
        let start = self.start as usize;
        let padded = padded_length(len);
        if padded > len {
            self.buffer[start + len..start + padded].fill(0);
        }
    }

    /// The symbol.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.len as usize]
    }

    /// The symbol, mutable. Excludes the padding, which stays zero.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..][..self.len as usize]
    }

    /// The symbol with its padding: a multiple of 64 bytes.
    #[inline]
    #[must_use]
    pub fn padded(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..padded_length(self.len as usize)]
    }

    /// The symbol with its padding, mutable. For kernels, which keep the padding zero.
    #[inline]
    pub(crate) fn padded_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..][..padded_length(self.len as usize)]
    }

    /// Memory of the row, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }
}

/// Size classes below the largest: 64 << 0 .. 64 << 7.
const SMALL_CLASSES: usize = 8;

/// Allocates rows and recycles returned ones.
#[derive(Debug)]
pub struct RowPool {
    largest: usize,
    free: [Vec<AlignedRow>; SMALL_CLASSES + 1],
    free_bytes: usize,
    max_free_bytes: usize,
}

impl RowPool {
    /// A pool for rows of at most `max_len` bytes. It keeps at most `max_free_bytes` bytes of rows
    /// for reuse.
    #[must_use]
    pub fn new(max_len: usize, max_free_bytes: usize) -> Self {
        Self {
            largest: padded_length(max_len.max(1)),
            free: Default::default(),
            free_bytes: 0,
            max_free_bytes,
        }
    }

    /// Size class and capacity for a length: the largest size if the length is above half of it,
    /// else a power of two.
    fn class(&self, len: usize) -> (usize, usize) {
        let len = padded_length(len.max(1));
        if len > self.largest / 2 {
            return (SMALL_CLASSES, self.largest);
        }
        let capacity = len.next_power_of_two();
        let class = (capacity / ALIGNMENT).trailing_zeros() as usize;
        if class >= SMALL_CLASSES { (SMALL_CLASSES, self.largest) } else { (class, capacity) }
    }

    /// A row of `len` bytes with unspecified content; the padding is zero. `len` is limited to the
    /// largest size of the pool.
    #[must_use]
    pub fn take(&mut self, len: usize) -> AlignedRow {
        let len = len.min(self.largest);
        let (class, capacity) = self.class(len);
        let mut row = match self.free[class].pop() {
            Some(row) => {
                self.free_bytes -= row.bytes();
                row
            }
            None => AlignedRow::with_capacity(capacity),
        };
        row.set_len(len);
        row
    }

    /// A row with a copy of `content`.
    #[must_use]
    pub fn copy_of(&mut self, content: &[u8]) -> AlignedRow {
        let mut row = self.take(content.len());
        let len = row.as_slice().len();
        row.as_mut_slice().copy_from_slice(&content[..len]);
        row
    }

    /// Bytes of the rows kept for reuse.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Frees the rows kept for reuse.
    pub fn trim(&mut self) {
        self.free = Default::default();
        self.free_bytes = 0;
    }

    /// Returns a row for reuse, or frees it if the limit is reached.
    pub fn give(&mut self, row: AlignedRow) {
        let (class, capacity) = self.class(row.capacity());
        if capacity == row.capacity() && self.free_bytes + row.bytes() <= self.max_free_bytes {
            self.free_bytes += row.bytes();
            self.free[class].push(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_aligned_padded_and_recycled() {
        let mut pool = RowPool::new(1408, 1 << 20);
        for len in [1, 63, 64, 65, 700, 704, 705, 1300, 1408] {
            let mut row = pool.take(len);
            row.as_mut_slice().fill(0xff);
            assert_eq!(row.padded().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(row.as_slice().len(), len);
            assert_eq!(row.padded().len(), padded_length(len));
            pool.give(row);
            let shorter = pool.take(len.div_ceil(2) + len / 4);
            let len = shorter.as_slice().len();
            assert!(shorter.padded()[len..].iter().all(|&byte| byte == 0));
            pool.give(shorter);
        }
        assert!(pool.free_bytes > 0);
        assert_eq!(pool.copy_of(b"abc").as_slice(), b"abc");
    }

    #[test]
    fn small_symbols_use_small_rows_and_the_pool_is_bounded() {
        let mut pool = RowPool::new(8896, 4096);
        assert!(pool.take(100).bytes() < 256);
        let rows: Vec<_> = (0..100).map(|_| pool.take(100)).collect();
        rows.into_iter().for_each(|row| pool.give(row));
        assert!(pool.free_bytes <= 4096);
        pool.trim();
        assert!(pool.free_bytes == 0 && pool.free.iter().all(Vec::is_empty));
    }

    #[test]
    fn lengths_above_the_largest_are_limited() {
        let mut pool = RowPool::new(100, 0);
        assert_eq!(pool.copy_of(&[7; 1000]).as_slice().len(), 128);
    }

    /// A row has the capacity of its class, and 63 bytes more for alignment.
    #[test]
    fn rows_have_the_capacity_of_their_class() {
        for (largest, len, capacity) in [
            (1408, 0, 64),
            (1408, 64, 64),
            (1408, 65, 128),
            (1408, 704, 1024),
            (1408, 705, 1408),
            (1408, 9999, 1408),
            (100_000, 8192, 8192),
            (100_000, 8193, 100_032),
            (1, 1, 64),
            (0, 1, 64),
        ] {
            let mut pool = RowPool::new(largest, 0);
            let row = pool.take(len);
            assert_eq!(
                (row.capacity(), row.bytes()),
                (capacity, capacity + 63),
                "{len} of {largest}"
            );
        }
    }

    #[test]
    fn rows_are_recycled_by_class_up_to_the_limit() {
        let row_bytes = 64 + 63;
        let mut pool = RowPool::new(1408, 2 * row_bytes);
        let rows: Vec<_> = (0..3).map(|_| pool.take(10)).collect();
        rows.into_iter().for_each(|row| pool.give(row));
        assert_eq!((pool.free_bytes, pool.free[0].len()), (2 * row_bytes, 2));
        let row = pool.take(64);
        assert_eq!((pool.free_bytes, pool.free[0].len()), (row_bytes, 1));
        // Rows of another class are not reused, and rows of another pool are not kept.
        assert_eq!(pool.take(65).capacity(), 128);
        assert_eq!(pool.free_bytes, row_bytes);
        pool.give(row);
        assert_eq!(pool.free_bytes, 2 * row_bytes);
        pool.trim();
        pool.give(RowPool::new(192, 0).take(192));
        assert_eq!(pool.free_bytes, 0);
    }
}
