//! The sending half of a level's TLS stream.

use super::range_set::RangeSet;

/// What TLS said at one level, what of it has arrived, and what is to be sent (again).
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    data: Vec<u8>,
    acknowledged: RangeSet,
    pending: RangeSet,
}

impl Outgoing {
    pub(super) fn push(&mut self, octets: &[u8]) {
        let start = self.data.len() as u64;
        self.data.extend_from_slice(octets);
        self.pending.insert(start, self.data.len() as u64);
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        self.acknowledged.missing(0, self.data.len() as u64).is_empty()
    }

    /// What is to be sent: offsets and octets, in order.
    pub(super) fn all_pending(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pending
            .iter()
            .filter_map(|(start, end)| Some((start, self.data.get(start as usize..end as usize)?)))
    }

    pub(super) fn on_sent(&mut self, start: u64, end: u64) {
        self.pending.remove(start, end);
    }

    pub(super) fn on_acknowledged(&mut self, start: u64, end: u64) {
        self.acknowledged.insert(start, end);
        self.pending.remove(start, end);
    }

    pub(super) fn on_lost(&mut self, start: u64, end: u64) {
        for (start, end) in self.acknowledged.missing(start, end).iter() {
            self.pending.insert(start, end);
        }
    }

    /// Sends everything again that is not acknowledged. Returns whether there is anything.
    pub(super) fn repeat(&mut self) -> bool {
        self.on_lost(0, self.data.len() as u64);
        self.has_pending()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Outgoing {
        pub(in super::super) fn next(&self) -> Option<(u64, &[u8])> {
            self.all_pending().next()
        }
    }

    #[test]
    fn only_what_is_missing_is_repeated() {
        let mut stream = Outgoing::default();
        stream.push(b"0123456789");
        assert_eq!(stream.next(), Some((0, b"0123456789".as_slice())));
        stream.on_sent(0, 10);
        assert_eq!(stream.next(), None);
        stream.on_acknowledged(3, 6);
        stream.on_lost(0, 10);
        assert_eq!(stream.next(), Some((0, b"012".as_slice())));
        stream.on_sent(0, 3);
        assert_eq!(stream.next(), Some((6, b"6789".as_slice())));
        stream.on_sent(6, 10);
        assert!(stream.repeat());
        stream.on_acknowledged(0, 10);
        assert!(!stream.repeat());
        assert!(stream.is_acknowledged());
        stream.push(b"ab");
        assert!(!stream.is_acknowledged());
        assert_eq!(stream.next(), Some((10, b"ab".as_slice())));
    }
}
