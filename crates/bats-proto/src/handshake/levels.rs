//! The Initial and the Handshake level together: which of them TLS reads and writes, and what both
//! have to send.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use super::level::Level;
use crate::crypto::Keys;
use crate::wire::long_header::LongKind;

/// The encryption levels with long headers.
#[derive(Debug)]
pub(super) struct Levels {
    initial: Level,
    handshake: Level,
}

impl Levels {
    /// The Handshake level has no keys yet.
    pub(super) fn new(initial: Option<Keys>) -> Self {
        Self { initial: Level::initial(initial), handshake: Level::handshake() }
    }

    fn all(&self) -> [&Level; 2] {
        [&self.initial, &self.handshake]
    }

    fn all_mut(&mut self) -> [&mut Level; 2] {
        [&mut self.initial, &mut self.handshake]
    }

    /// The level of packets of this kind.
    pub(super) fn of(&mut self, kind: LongKind) -> Option<&mut Level> {
        match kind {
            LongKind::Initial => Some(&mut self.initial),
            LongKind::Handshake => Some(&mut self.handshake),
            LongKind::Retry | LongKind::Early => None,
        }
    }

    /// Whether the Handshake level has keys, so that TLS uses it instead of the Initial level.
    pub(super) fn has_handshake_keys(&self) -> bool {
        self.handshake.keys.is_some()
    }

    pub(super) fn set_handshake_keys(&mut self, keys: Keys) {
        self.handshake.keys = Some(keys);
    }

    /// The highest level with keys: TLS reads and writes its data.
    pub(super) fn current(&mut self) -> &mut Level {
        if self.has_handshake_keys() { &mut self.handshake } else { &mut self.initial }
    }

    /// The kind of packets of the highest level with keys.
    pub(super) fn current_kind(&self) -> LongKind {
        if self.has_handshake_keys() { LongKind::Handshake } else { LongKind::Initial }
    }

    /// Ignores further data of the levels that TLS has read. If TLS `is_done` these are both; else
    /// those below the one that it reads now.
    pub(super) fn close_read(&mut self, is_done: bool) {
        if is_done || self.has_handshake_keys() {
            self.initial.close();
        }
        if is_done {
            self.handshake.close();
        }
    }

    /// The first TLS message of the Initial level, the ClientHello at a server.
    pub(super) fn first_message(&self) -> Option<&[u8]> {
        self.initial.first_message()
    }

    /// Discards the keys and the data of the Initial level (RFC 9001, section 4.9.1).
    pub(super) fn discard_initial(&mut self) {
        self.initial.discard();
    }

    /// Discards the keys and the data of both levels (RFC 9001, section 4.9.2).
    pub(super) fn discard(&mut self) {
        self.all_mut().into_iter().for_each(Level::discard);
    }

    /// Begins another transmission round of all unacknowledged data.
    pub(super) fn rewind(&mut self) {
        self.all_mut().into_iter().for_each(Level::rewind);
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.all().into_iter().any(Level::has_unsent)
    }

    pub(super) fn has_unacknowledged(&self) -> bool {
        self.all().into_iter().any(Level::has_unacknowledged)
    }

    /// Whether an acknowledgement must be sent and can be protected.
    pub(super) fn is_ack_due(&self) -> bool {
        self.all().into_iter().any(|level| level.ack_pending && level.keys.is_some())
    }

    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.all_mut().into_iter().for_each(Level::trim);
    }
}
