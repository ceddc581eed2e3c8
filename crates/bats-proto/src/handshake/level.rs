//! One level of the handshake: a small reliable stream under its own keys.

use crate::crypto::Keys;

/// Octets of TLS data accepted on one level: a long certificate chain.
const MAX_CRYPTO_DATA: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Level {
    pub(super) keys: Option<Keys>,
    /// Everything this end has to say on the level.
    outgoing: Vec<u8>,
    acknowledged: usize,
    /// Sent in the current repetition up to here.
    cursor: usize,
    /// What arrived, holes included, and which octets are real.
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
    pub(super) fn with_keys(keys: Option<Keys>) -> Self {
        Self { keys, ..Self::default() }
    }

    pub(super) fn send(&mut self, data: &[u8]) {
        self.outgoing.extend_from_slice(data);
    }

    /// The next part to be sent, at most `max` octets: (offset, data).
    pub(super) fn next_part(&self, max: usize) -> Option<(usize, &[u8])> {
        let end = self.outgoing.len().min(self.cursor + max);
        (self.cursor < end).then(|| (self.cursor, &self.outgoing[self.cursor..end]))
    }

    pub(super) fn advance(&mut self, octets: usize) {
        self.cursor += octets;
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
        let Some(end) = offset.checked_add(data.len()).filter(|&end| end <= MAX_CRYPTO_DATA) else {
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
