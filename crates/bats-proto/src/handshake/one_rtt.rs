//! The 1-RTT level of a handshake: its keys, and TLS data after the handshake in CRYPTO frames of
//! 1-RTT packets (RFC 9001, section 4.1.3).
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bats_types::Timestamp;

use super::level::Level;
use crate::crypto::{Keys, Session};

/// What the link takes from the handshake and what it sends for it.
#[derive(Debug)]
pub(super) struct OneRtt {
    /// Until the link has taken them.
    keys: Option<Keys>,
    /// Further TLS data is sent in CRYPTO frames of 1-RTT packets.
    is_installed: bool,
    received: Level,
    /// From offset 0, until the peer has it.
    outgoing: Vec<u8>,
}

impl OneRtt {
    pub(super) fn new() -> Self {
        Self {
            keys: None,
            is_installed: false,
            received: Level::post_handshake(),
            outgoing: Vec::new(),
        }
    }

    /// TLS has the keys: what it writes from now on is sent in 1-RTT packets.
    pub(super) fn install(&mut self, keys: Keys) {
        self.keys = Some(keys);
        self.is_installed = true;
    }

    pub(super) fn is_installed(&self) -> bool {
        self.is_installed
    }

    /// Takes the keys, once.
    pub(super) fn take_keys(&mut self) -> Option<Keys> {
        self.keys.take()
    }

    pub(super) fn send(&mut self, data: &[u8]) {
        self.outgoing.extend_from_slice(data);
    }

    /// TLS data to send, from offset 0, until the peer has it.
    pub(super) fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    /// The peer has all TLS data.
    pub(super) fn on_acknowledged(&mut self) {
        self.outgoing = Vec::new();
    }

    /// Takes TLS data of the peer as long as the session awaits tickets. Other data is discarded
    /// (RFC 9000, section 7.5), so that a peer can neither cause work nor fill memory with it.
    pub(super) fn read(&mut self, now: Timestamp, session: &mut Session, offset: u64, data: &[u8]) {
        if !session.awaits_tickets() || !self.received.receive(offset, data) {
            return;
        }
        while session.awaits_tickets()
            && let Some(message) = self.received.take_in_order(|data| session.next_message(data))
        {
            // A session that has failed awaits no tickets.
            let _failed = session.read(now, &message);
        }
    }

    /// Nothing more is read from the peer.
    pub(super) fn close_read(&mut self) {
        self.received.discard();
    }
}
