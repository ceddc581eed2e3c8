//! Rows of octets as the kernels want them: aligned to 64 octets and padded with zeros to a
//! multiple of 64.

/// Alignment and granularity of rows: one AVX-512 register, one cache line.
pub const ALIGNMENT: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// One row: `len` octets of content, zeros up to `stride`.
#[derive(Clone, Default)]
pub struct Row {
    lines: Vec<Line>,
    len: usize,
}

impl core::fmt::Debug for Row {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Row").field("len", &self.len).field("stride", &self.stride()).finish()
    }
}

/// `len` rounded up to whole lines.
pub const fn padded(len: usize) -> usize {
    len.div_ceil(ALIGNMENT) * ALIGNMENT
}

impl Row {
    /// A row of zeros that can hold `capacity` octets; its content is empty.
    pub fn zeroed(capacity: usize) -> Self {
        Self { lines: vec![Line([0; ALIGNMENT]); capacity.div_ceil(ALIGNMENT)], len: 0 }
    }

    /// A row with this content and capacity, at least the content's length.
    pub fn from_slice(content: &[u8], capacity: usize) -> Self {
        let mut row = Self::zeroed(capacity.max(content.len()));
        row.set(content);
        row
    }

    /// Replaces the content; what does not fit the stride is cut off.
    pub fn set(&mut self, content: &[u8]) {
        let len = content.len().min(self.stride());
        let octets = self.octets_mut();
        octets[..len].copy_from_slice(&content[..len]);
        octets[len..].fill(0);
        self.len = len;
    }

    /// Lets `fill` write the content into the stride and say how long it is.
    pub fn set_with(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) {
        let stride = self.stride();
        let octets = self.octets_mut();
        let len = fill(octets).min(stride);
        octets[len..].fill(0);
        self.len = len;
    }

    /// Octets of content.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no content.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Octets of the whole row.
    pub fn stride(&self) -> usize {
        self.lines.len() * ALIGNMENT
    }

    /// The content.
    pub fn content(&self) -> &[u8] {
        &self.octets()[..self.len]
    }

    /// Content and padding.
    pub fn octets(&self) -> &[u8] {
        // SAFETY: `Line` is `repr(C)` and consists of 64 octets without padding, so the vector's
        // initialised lines are that many initialised octets; the lifetime is that of `self`.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.stride()) }
    }

    /// Content and padding. Whoever writes behind the content must restore the zeros or call
    /// [`Row::set_len`].
    pub fn octets_mut(&mut self) -> &mut [u8] {
        let stride = self.stride();
        // SAFETY: as in `octets`, and `&mut self` makes the borrow unique.
        unsafe { core::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), stride) }
    }

    /// Declares the first `len` octets to be the content; at most the stride.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.stride());
    }
}

/// Rows of one size that were given back, so that steady state allocates nothing.
#[derive(Debug, Default)]
pub struct RowPool {
    free: Vec<Row>,
    capacity: usize,
}

/// Rows kept for reuse; the rest goes back to the allocator.
const MAX_FREE_ROWS: usize = 1_024;

impl RowPool {
    /// A pool of rows for `capacity` octets.
    pub fn new(capacity: usize) -> Self {
        Self { free: Vec::new(), capacity }
    }

    /// A row whose content the caller will set; its octets are unspecified until then.
    pub fn take(&mut self) -> Row {
        self.free.pop().unwrap_or_else(|| Row::zeroed(self.capacity))
    }

    /// Gives a row back.
    pub fn give(&mut self, row: Row) {
        if self.free.len() < MAX_FREE_ROWS && row.stride() == padded(self.capacity) {
            self.free.push(row);
        }
    }

    /// Octets that one row occupies.
    pub fn row_bytes(&self) -> usize {
        padded(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_aligned_padded_and_clean_after_reuse() {
        let mut pool = RowPool::new(100);
        let mut row = pool.take();
        row.set(&[7; 100]);
        assert_eq!(row.octets().as_ptr() as usize % ALIGNMENT, 0);
        assert_eq!(row.stride(), 128);
        pool.give(row);
        let mut row = pool.take();
        row.set(&[1; 10]);
        assert_eq!(row.content(), [1; 10]);
        assert!(row.octets()[10..].iter().all(|&octet| octet == 0));
        row.set(&[2; 200]);
        assert_eq!(row.len(), 128);
    }
}
