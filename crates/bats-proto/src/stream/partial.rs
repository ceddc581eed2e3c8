//! The message that is being received. Memory is at most its bytes and a piece, and its bytes once more while it is
//! completed: how long it will be is not known, and a vector that grows would take up to three times its bytes.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bytes::Bytes;

use super::frame::MAX_PART;

/// The bytes that have arrived.
#[derive(Debug, Default)]
pub(super) struct Partial {
    /// All but the last are full.
    pieces: Vec<Vec<u8>>,
    len: usize,
}

impl Partial {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes, after which `left` others follow in the same frame.
    pub(super) fn push(&mut self, mut bytes: &[u8], left: usize) {
        // A message of one frame gets its exact size, and needs no copy.
        let first = bytes.len().saturating_add(left).min(MAX_PART);
        while !bytes.is_empty() {
            let size = if self.pieces.is_empty() { first } else { MAX_PART };
            let piece = match self.pieces.last_mut().filter(|piece| piece.len() < piece.capacity())
            {
                Some(piece) => piece,
                None => {
                    self.pieces.push(Vec::with_capacity(size));
                    continue;
                }
            };
            let room = piece.capacity().saturating_sub(piece.len());
            let (part, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            piece.extend_from_slice(part);
            self.len = self.len.saturating_add(part.len());
            bytes = rest;
        }
    }

    /// The whole message, if any byte of it has arrived before.
    pub(super) fn take(&mut self) -> Bytes {
        let Self { mut pieces, len } = core::mem::take(self);
        if let [piece] = &mut pieces[..]
            && piece.len() == piece.capacity()
        {
            return core::mem::take(piece).into();
        }
        let mut message = Vec::with_capacity(len);
        // Each piece is freed once it is copied.
        pieces.into_iter().for_each(|piece| message.extend_from_slice(&piece));
        message.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_parts_are_joined_with_at_most_a_piece_to_spare() {
        let content: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
        for len in [1, 5, MAX_PART - 1, MAX_PART, MAX_PART + 1, 3 * MAX_PART, 300_000] {
            for part in [1, 1_000, 16_384, MAX_PART, usize::MAX] {
                let mut partial = Partial::default();
                for frame in content[..len].chunks(MAX_PART.min(part.max(4_000))) {
                    let mut left = frame.len();
                    for bytes in frame.chunks(part) {
                        left -= bytes.len();
                        partial.push(bytes, left);
                    }
                }
                let held: usize = partial.pieces.iter().map(Vec::capacity).sum();
                assert!(held < len + MAX_PART, "{held} for {len} in parts of {part}");
                assert_eq!(partial.len(), len);
                let message = partial.take();
                assert!(message == content[..len] && partial.is_empty());
            }
        }
    }

    #[test]
    fn announced_bytes_take_one_piece() {
        let mut partial = Partial::default();
        partial.push(&[1], 10);
        partial.push(&[2; 10], 0);
        partial.push(&[3], 10);
        partial.push(&[3], usize::MAX);
        let sizes: Vec<_> = partial.pieces.iter().map(Vec::capacity).collect();
        assert_eq!(sizes, [11, MAX_PART]);
    }
}
