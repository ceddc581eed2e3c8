//! One encryption level of the handshake: a small reliable stream with its own keys.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use crate::crypto::Keys;

/// Limit of TLS data in Initial packets in bytes: a ClientHello with large key shares. Everyone
/// knows the Initial keys, so an unauthenticated peer can cause this memory use with one small
/// packet.
const MAX_INITIAL_DATA: usize = 8 << 10;
/// Limit of TLS data in Handshake packets in bytes: a long certificate chain.
const MAX_HANDSHAKE_DATA: usize = 64 << 10;
/// Limit of TLS data after the handshake in bytes: some session tickets.
const MAX_POST_HANDSHAKE_DATA: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Level {
    /// Limit of received bytes.
    limit: usize,
    pub(super) keys: Option<Keys>,
    /// All data that this end sends on the level.
    outgoing: Vec<u8>,
    acknowledged: usize,
    /// End of the data sent in the current transmission round.
    cursor: usize,
    /// Received data with gaps, and which bytes of it are present.
    incoming: Vec<u8>,
    present: Vec<bool>,
    received: usize,
    /// Bytes passed to the TLS session.
    consumed: usize,
    /// TLS needs no more data of this level; data that arrives is ignored.
    is_closed: bool,
    pub(super) next_pn: u64,
    /// Received data must be acknowledged.
    pub(super) ack_pending: bool,
}

impl Level {
    /// The Initial level; its keys are available from the start.
    pub(super) fn initial(keys: Option<Keys>) -> Self {
        Self { keys, ..Self::new(MAX_INITIAL_DATA) }
    }

    /// The Handshake level.
    pub(super) fn handshake() -> Self {
        Self::new(MAX_HANDSHAKE_DATA)
    }

    /// TLS data after the handshake, protected with 1-RTT keys.
    pub(super) fn post_handshake() -> Self {
        Self::new(MAX_POST_HANDSHAKE_DATA)
    }

    /// The first TLS message (RFC 8446, section 4), once it is complete.
    pub(super) fn first_message(&self) -> Option<&[u8]> {
        let arrived = self.incoming.get(..self.received)?;
        let &[_, a, b, c] = arrived.first_chunk()?;
        arrived.get(..(u32::from_be_bytes([0, a, b, c]) as usize).saturating_add(4))
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
            is_closed: false,
            next_pn: 0,
            ack_pending: false,
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

    /// The next data to send, at most `max` bytes: (offset, data).
    pub(super) fn next_part(&self, max: usize) -> Option<(usize, &[u8])> {
        let rest = self.outgoing.get(self.cursor..)?;
        let part = rest.get(..max).unwrap_or(rest);
        (!part.is_empty()).then_some((self.cursor, part))
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.cursor = self.cursor.saturating_add(bytes);
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.keys.is_some() && self.cursor < self.outgoing.len()
    }

    pub(super) fn has_unacknowledged(&self) -> bool {
        self.keys.is_some() && self.acknowledged < self.outgoing.len()
    }

    /// Begins another transmission round with the unacknowledged data.
    pub(super) fn rewind(&mut self) {
        self.cursor = self.acknowledged;
    }

    /// The peer acknowledges everything below `offset`, clamped to the data that was sent.
    pub(super) fn on_acknowledged(&mut self, offset: u64) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.outgoing.len());
        self.acknowledged = self.acknowledged.max(offset);
        self.cursor = self.cursor.max(self.acknowledged);
    }

    /// Length of the data received without gaps.
    pub(super) fn received(&self) -> usize {
        self.received
    }

    /// Ignores all further data: TLS has taken what this level has for it.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Discards the keys and all data (RFC 9001, section 4.9).
    pub(super) fn discard(&mut self) {
        *self = Self { is_closed: true, ..Self::new(0) };
    }

    /// Takes received data; false if it exceeds the limit. A closed level ignores it.
    pub(super) fn receive(&mut self, offset: u64, data: &[u8]) -> bool {
        if self.is_closed {
            return true;
        }
        let Ok(offset) = usize::try_from(offset) else { return false };
        let Some(end) = offset.checked_add(data.len()).filter(|&end| end <= self.limit) else {
            return false;
        };
        if self.incoming.len() < end {
            self.incoming.resize(end, 0);
            self.present.resize(end, false);
        }
        let bytes = self.incoming.get_mut(offset..end);
        let (Some(bytes), Some(present)) = (bytes, self.present.get_mut(offset..end)) else {
            return false;
        };
        bytes.copy_from_slice(data);
        present.fill(true);
        while self.present.get(self.received) == Some(&true) {
            self.received = self.received.saturating_add(1);
        }
        true
    }

    /// Takes the next data for the TLS session: as much as `wanted` returns for the data that is
    /// there in order.
    pub(super) fn take_in_order(&mut self, wanted: impl Fn(&[u8]) -> usize) -> Option<Vec<u8>> {
        let fresh = self.incoming.get(self.consumed..self.received)?;
        let fresh = fresh.get(..wanted(fresh)).unwrap_or(fresh).to_vec();
        self.consumed = self.consumed.saturating_add(fresh.len());
        (!fresh.is_empty()).then_some(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_beyond_the_limit_of_a_level_is_refused() {
        for (mut level, limit) in [
            (Level::initial(None), 8 << 10),
            (Level::handshake(), 64 << 10),
            (Level::post_handshake(), 8 << 10),
        ] {
            assert!(level.receive(limit - 1, &[1]));
            assert!(!level.receive(limit, &[1]));
            assert!(!level.receive(u64::MAX, &[1]));
            assert!(level.incoming.len() as u64 <= limit);
            assert_eq!(level.received(), 0);
        }
    }

    #[test]
    fn first_message_has_the_length_of_its_header() {
        let mut level = Level::initial(None);
        assert_eq!(level.first_message(), None);
        assert!(level.receive(0, &[1, 0, 0, 2, 7]));
        assert_eq!(level.first_message(), None);
        assert!(level.receive(5, &[8, 2, 0]));
        assert_eq!(level.first_message(), Some(&[1, 0, 0, 2, 7, 8][..]));
    }
}
