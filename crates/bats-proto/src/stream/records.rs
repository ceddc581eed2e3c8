//! A limit of TLS records without data. Each key update that a peer asks for costs as much as a hundred segments
//! of data, and TLS itself limits only those without any data between them.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

/// Bytes before the content of a record: its type, version and length.
const HEADER_LEN: usize = 5;
/// Records without data at once: far more than a handshake, its tickets and the key updates of a correct peer. Chosen.
const BURST: u64 = 64;
/// One more for each of so many bytes received.
const BYTES: u64 = 1 << 20;

/// Follows the records of a stream.
#[derive(Debug, Default)]
pub(super) struct Records {
    header: [u8; HEADER_LEN],
    /// Bytes of the header that have arrived.
    have: usize,
    /// Bytes of the content that have not arrived.
    left: usize,
    bytes: u64,
    /// Records that ended without giving data.
    without_data: u64,
}

impl Records {
    /// The next bytes of the stream have given data of so many records. Returns whether there are too many
    /// records without data.
    pub(super) fn exceed(&mut self, bytes: &[u8], with_data: u64) -> bool {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        self.without_data =
            self.without_data.saturating_add(self.ended(bytes)).saturating_sub(with_data);
        self.without_data > BURST.saturating_add(self.bytes / BYTES)
    }

    /// The number of records that end in these bytes.
    fn ended(&mut self, mut bytes: &[u8]) -> u64 {
        let mut ended: u64 = 0;
        while !bytes.is_empty() {
            if self.have < HEADER_LEN {
                let missing = self.header.get_mut(self.have..).unwrap_or_default();
                let (part, rest) = bytes.split_at(bytes.len().min(missing.len()));
                missing.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                self.have = self.have.saturating_add(part.len());
                let [_, _, _, high, low] = self.header;
                self.left = u16::from_be_bytes([high, low]).into();
                bytes = rest;
            } else {
                let (part, rest) = bytes.split_at(bytes.len().min(self.left));
                self.left = self.left.saturating_sub(part.len());
                bytes = rest;
            }
            if self.have == HEADER_LEN && self.left == 0 {
                self.have = 0;
                ended = ended.saturating_add(1);
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(len: u16) -> Vec<u8> {
        let [high, low] = len.to_be_bytes();
        [&[23, 3, 3, high, low][..], &vec![7; len.into()]].concat()
    }

    #[test]
    fn records_are_counted_in_any_fragments() {
        let stream: Vec<u8> = [0, 1, 17, 300, 16_384, 0, 0].into_iter().flat_map(record).collect();
        for piece in [1, 2, 3, 7, 1_000, usize::MAX] {
            let mut records = Records::default();
            let ended: u64 = stream.chunks(piece).map(|part| records.ended(part)).sum();
            assert_eq!((ended, records.have), (7, 0), "{piece}");
        }
    }

    #[test]
    fn records_without_data_are_limited_by_a_burst_and_the_bytes_received() {
        let mut records = Records::default();
        assert!((0..10_000).all(|_| !records.exceed(&record(20), 1)), "data is not limited");
        assert!((0..BURST).all(|_| !records.exceed(&record(20), 0)));
        assert!(records.exceed(&record(20), 0));
        // A mebibyte of data pays for another one.
        for _ in 0..64 {
            records.exceed(&record(16_384), 1);
        }
        assert!(!records.exceed(&[], 0));
        assert!(records.exceed(&record(20), 0));
    }
}
