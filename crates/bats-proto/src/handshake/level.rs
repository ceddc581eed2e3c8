//! One level of the handshake: a small reliable stream under its own keys.

use crate::crypto::Keys;

/// Bytes of TLS data accepted on the first level: a hello with large key shares. Its keys are
/// known to everyone, so that a stranger can have that much memory used by one small packet.
const MAX_INITIAL_DATA: usize = 8 << 10;
/// Bytes of TLS data accepted on the second level: a long certificate chain.
const MAX_HANDSHAKE_DATA: usize = 64 << 10;
/// Bytes of TLS data accepted after the handshake: some tickets, which the store of sessions keeps.
const MAX_LATER_DATA: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Level {
    /// Bytes accepted.
    limit: usize,
    pub(super) keys: Option<Keys>,
    /// Everything this end has to say on the level.
    outgoing: Vec<u8>,
    acknowledged: usize,
    /// Sent in the current repetition up to here.
    cursor: usize,
    /// What arrived, holes included, and which bytes are real.
    incoming: Vec<u8>,
    present: Vec<bool>,
    received: usize,
    /// Handed to the session.
    consumed: usize,
    pub(super) next_pn: u64,
    /// Something arrived that the peer does not know of.
    pub(super) owes_ack: bool,
}

impl Level {
    /// The first level; its keys are there from the beginning.
    pub(super) fn initial(keys: Option<Keys>) -> Self {
        Self { keys, ..Self::new(MAX_INITIAL_DATA) }
    }

    /// The second level.
    pub(super) fn handshake() -> Self {
        Self::new(MAX_HANDSHAKE_DATA)
    }

    /// What comes after the handshake, under the keys of data.
    pub(super) fn later() -> Self {
        Self::new(MAX_LATER_DATA)
    }

    /// The first message of TLS (RFC 8446, section 4), once it is there.
    pub(super) fn first_message(&self) -> Option<&[u8]> {
        let arrived = &self.incoming[..self.received];
        let &[_, a, b, c] = arrived.first_chunk()?;
        arrived.get(..4 + u32::from_be_bytes([0, a, b, c]) as usize)
    }

    fn new(limit: usize) -> Self {
        Self {
            limit,
            keys: None,
            outgoing: Vec::new(),
            acknowledged: 0,
            cursor: 0,
            incoming: Vec::new(),
            present: Vec::new(),
            received: 0,
            consumed: 0,
            next_pn: 0,
            owes_ack: false,
        }
    }

    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.outgoing.shrink_to_fit();
        self.incoming.shrink_to_fit();
        self.present.shrink_to_fit();
    }

    pub(super) fn send(&mut self, data: &[u8]) {
        self.outgoing.extend_from_slice(data);
    }

    /// The next part to be sent, at most `max` bytes: (offset, data).
    pub(super) fn next_part(&self, max: usize) -> Option<(usize, &[u8])> {
        let end = self.outgoing.len().min(self.cursor + max);
        (self.cursor < end).then(|| (self.cursor, &self.outgoing[self.cursor..end]))
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.cursor += bytes;
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.keys.is_some() && self.cursor < self.outgoing.len()
    }

    pub(super) fn has_unacknowledged(&self) -> bool {
        self.keys.is_some() && self.acknowledged < self.outgoing.len()
    }

    /// Begins another repetition.
    pub(super) fn rewind(&mut self) {
        self.cursor = self.acknowledged;
    }

    /// The peer has everything below `offset`; lies about more are cut to what was sent.
    pub(super) fn on_acknowledged(&mut self, offset: u64) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.outgoing.len());
        self.acknowledged = self.acknowledged.max(offset);
        self.cursor = self.cursor.max(self.acknowledged);
    }

    /// How far everything has arrived.
    pub(super) fn received(&self) -> usize {
        self.received
    }

    /// Takes a part; false if it is beyond what is accepted.
    pub(super) fn receive(&mut self, offset: u64, data: &[u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else { return false };
        let Some(end) = offset.checked_add(data.len()).filter(|&end| end <= self.limit) else {
            return false;
        };
        if self.incoming.len() < end {
            self.incoming.resize(end, 0);
            self.present.resize(end, false);
        }
        self.incoming[offset..end].copy_from_slice(data);
        self.present[offset..end].fill(true);
        while self.present.get(self.received) == Some(&true) {
            self.received += 1;
        }
        true
    }

    /// Data in order that the session has not seen.
    pub(super) fn take_fresh(&mut self) -> Option<Vec<u8>> {
        let fresh = self.incoming[self.consumed..self.received].to_vec();
        self.consumed = self.received;
        (!fresh.is_empty()).then_some(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_get_little_memory_and_what_is_beyond_is_refused() {
        for (mut level, limit) in [
            (Level::initial(None), 8 << 10),
            (Level::handshake(), 64 << 10),
            (Level::later(), 8 << 10),
        ] {
            assert!(level.receive(limit - 1, &[1]));
            assert!(!level.receive(limit, &[1]));
            assert!(!level.receive(u64::MAX, &[1]));
            assert!(level.incoming.len() as u64 <= limit);
            assert_eq!(level.received(), 0);
        }
    }

    #[test]
    fn the_first_message_is_what_its_length_says() {
        let mut level = Level::initial(None);
        assert_eq!(level.first_message(), None);
        assert!(level.receive(0, &[1, 0, 0, 2, 7]));
        assert_eq!(level.first_message(), None);
        assert!(level.receive(5, &[8, 2, 0]));
        assert_eq!(level.first_message(), Some(&[1, 0, 0, 2, 7, 8][..]));
    }
}
