//! The receiving half of a level's TLS stream.

use super::range_set::RangeSet;

/// Octets that are kept beyond what TLS has taken (RFC 9000, section 7.5 asks for 4,096 at least;
/// chains of certificates want more).
const MAX_BUFFERED: u64 = 64 << 10;
/// Parts with gaps between them that are kept.
const MAX_PARTS: usize = 32;

/// Puts parts of a stream in order. The first octet to arrive for a place is the one that counts.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// Octets handed out.
    taken: u64,
    /// What arrived, from `taken` on; octets not in `have` mean nothing.
    buffer: Vec<u8>,
    have: RangeSet,
}

impl Reassembly {
    /// Takes a part. Returns whether it brought anything new.
    pub(super) fn insert(&mut self, offset: u64, data: &[u8]) -> Result<bool, &'static str> {
        const TOO_FAR: &str = "TLS data beyond the buffer's end";
        let end = offset.checked_add(data.len() as u64).ok_or(TOO_FAR)?;
        if end > self.taken + MAX_BUFFERED {
            return Err(TOO_FAR);
        }
        let missing = self.have.missing(offset.max(self.taken), end);
        if missing.is_empty() {
            return Ok(false);
        }
        if self.have.count() >= MAX_PARTS && !self.have.iter().any(|(s, e)| s <= end && offset <= e)
        {
            return Err("too many gaps in TLS data");
        }
        let needed = (end - self.taken) as usize;
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        for (start, end) in missing.iter() {
            let to = (start - self.taken) as usize..(end - self.taken) as usize;
            let from = (start - offset) as usize..(end - offset) as usize;
            self.buffer[to].copy_from_slice(&data[from]);
            self.have.insert(start, end);
        }
        Ok(true)
    }

    /// What can be read in order now, if anything.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        let (start, end) = self.have.first()?;
        if start != self.taken {
            return None;
        }
        self.have.remove_first();
        let rest = self.buffer.split_off((end - start) as usize);
        self.taken = end;
        Some(core::mem::replace(&mut self.buffer, rest))
    }

    pub(super) fn clear(&mut self) {
        self.buffer = Vec::new();
        self.have.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_hold_at_and_beyond_them() {
        let mut stream = Reassembly::default();
        assert_eq!(stream.insert(MAX_BUFFERED - 1, b"x"), Ok(true));
        assert!(stream.insert(MAX_BUFFERED, b"x").is_err());
        assert!(stream.insert(u64::MAX, b"x").is_err());
        let mut stream = Reassembly::default();
        for part in 0..MAX_PARTS as u64 {
            assert_eq!(stream.insert(2 + 2 * part, b"x"), Ok(true));
        }
        assert!(stream.insert(1_000, b"x").is_err());
        // Filling gaps is always allowed.
        assert_eq!(stream.insert(0, &[7; 200]), Ok(true));
        assert_eq!(stream.take().map(|data| data.len()), Some(200));
    }

    #[test]
    fn the_first_octet_counts() {
        let mut stream = Reassembly::default();
        assert_eq!(stream.insert(1, b"b"), Ok(true));
        assert_eq!(stream.take(), None);
        assert_eq!(stream.insert(0, b"XXX"), Ok(true));
        assert_eq!(stream.insert(0, b"YYY"), Ok(false));
        assert_eq!(stream.take(), Some(b"XbX".to_vec()));
        assert_eq!(stream.insert(0, b"ZZZ"), Ok(false));
        assert_eq!(stream.take(), None);
    }

    proptest! {
        #[test]
        fn any_order_gives_the_stream(parts in proptest::collection::vec((0_usize..500, 1_usize..80), 0..60)) {
            let text: Vec<u8> = (0..600).map(|i| (i * 7 % 251) as u8).collect();
            let mut stream = Reassembly::default();
            let mut read = Vec::new();
            for (start, len) in parts.into_iter().chain([(300, 300), (0, 300)]) {
                let end = (start + len).min(600);
                if stream.insert(start as u64, &text[start..end]).is_ok() {
                    while let Some(data) = stream.take() {
                        read.extend(data);
                    }
                }
            }
            prop_assert_eq!(read, text);
        }
    }
}
