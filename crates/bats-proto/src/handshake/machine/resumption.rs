//! TLS session resumption and early data within a handshake.
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
use bytes::Bytes;
use rand::Rng;

use super::super::early::{EarlyReceiver, ExpiringMessage};
use super::Handshake;
use crate::crypto::fingerprint;

impl Handshake {
    /// Takes TLS data after the handshake. Only a client that resumes sessions reads it, until it
    /// has the session tickets that it requested. Other data is discarded (RFC 9000, section 7.5),
    /// so that a peer can neither cause work nor fill memory with it.
    pub fn read_post_handshake(&mut self, now: Timestamp, offset: u64, data: &[u8]) {
        let session = &mut self.session;
        let is_read = self.completed && session.awaits_tickets();
        if !is_read || !self.post_handshake.receive(offset, data) {
            return;
        }
        while session.awaits_tickets()
            && let Some(message) =
                self.post_handshake.take_in_order(|data| session.next_message(data))
        {
            // A session that has failed awaits no tickets.
            let _failed = session.read(now, &message);
        }
    }

    /// TLS data that this end sends after the handshake, from offset 0, until the peer has it.
    pub fn post_handshake_data(&self) -> &[u8] {
        &self.post_handshake_data
    }

    /// The peer has acknowledged all TLS data after the handshake.
    pub fn on_post_handshake_acknowledged(&mut self) {
        self.post_handshake_data = Vec::new();
    }

    /// Frees the TLS session if the handshake is confirmed and nothing more is needed from it: its
    /// 1-RTT keys and the keys of the symbol seals have been taken, and a client has its session
    /// tickets. When the connection `is_idle`, no tickets are in flight: the server sends them with
    /// HANDSHAKE_DONE.
    pub fn release_session(&mut self, is_idle: bool) {
        if self.confirmed && (is_idle || !self.session.awaits_tickets()) {
            self.session.release();
            self.post_handshake.discard();
        }
    }

    /// Whether an earlier TLS session was resumed; known once the handshake is complete.
    pub fn is_resumed(&self) -> bool {
        self.session.is_resumed()
    }

    /// Client: accepts a message for the first flight, or returns it if it does not fit.
    pub(crate) fn push_early(
        &mut self,
        now: Timestamp,
        message: Bytes,
        expires: Timestamp,
    ) -> Result<(), Bytes> {
        if self.levels[1].keys.is_some() {
            return Err(message);
        }
        let Some(early) = &mut self.early else { return Err(message) };
        early.push(message, expires)?;
        self.next_send = Some(now);
        Ok(())
    }

    /// Client, when the handshake is complete: the early messages, and how many of them, counted
    /// from the first, the server has. The others must be sent again. `None` if there was no early
    /// data.
    ///
    /// # Errors
    ///
    /// The rule that the server violated: it accepted early data but now advertises smaller limits.
    pub(crate) fn finish_early(
        &mut self,
    ) -> Result<Option<(Vec<ExpiringMessage>, usize)>, &'static str> {
        let Some(early) = self.early.take() else { return Ok(None) };
        let accepted = self.session.is_early_accepted();
        if accepted
            && self.peer.as_ref().is_some_and(|advertised| !early.limits_kept_by(advertised))
        {
            return Err("early data accepted with smaller limits than those of the session");
        }
        let messages = early.messages().to_vec();
        let arrived = if accepted { self.early_arrived.trailing_ones() as usize } else { 0 };
        let arrived = arrived.min(messages.len());
        Ok(Some((messages, arrived)))
    }

    /// Server: whether the client's early data is accepted.
    pub(crate) fn takes_early(&self) -> bool {
        self.early_data.as_ref().is_some_and(|early| early.accepts_data())
    }

    /// Server: takes received early data that may be delivered.
    pub(crate) fn take_early(&mut self) -> Vec<Vec<u8>> {
        self.early_data.as_mut().map(|early| early.take()).unwrap_or_default()
    }

    /// Server: records early messages (a bit mask) as delivered.
    pub(crate) fn record_early(&mut self, arrived: u32) {
        if let Some(early) = &mut self.early_data {
            early.record(arrived);
        }
    }

    /// Server, when the handshake is complete: stops accepting early data. Returns the messages (a
    /// bit mask) that replays of this first flight have delivered.
    pub(crate) fn close_early(&mut self) -> u32 {
        self.early_data.as_mut().map_or(0, |early| early.finish())
    }

    /// Server: early packets refused because of the limit.
    pub(crate) fn early_refused(&self) -> u64 {
        self.early_data.as_ref().map_or(0, |early| early.refused)
    }

    /// Server: TLS has read the ClientHello and decided about early data.
    pub(super) fn decide_early(&mut self, now: Timestamp) {
        if let (Some(ledger), Some(hello)) = (&self.ledger, self.levels[0].first_message()) {
            let keys = self.session.early_keys();
            let early = EarlyReceiver::new(now, ledger.clone(), fingerprint(hello), keys);
            self.early_data = Some(Box::new(early));
        }
    }

    /// Client: whether early data should be sent now, that is, before the server has answered.
    pub(super) fn has_early(&self) -> bool {
        let answered = self.levels[1].keys.is_some();
        !answered && self.early.as_ref().is_some_and(|early| early.has_unsent())
    }

    pub(super) fn write_early(&mut self, now: Timestamp, out: &mut [u8]) -> Option<usize> {
        if !self.has_early() {
            return None;
        }
        let grease = self.rng.next_u32() as u8;
        let destination: &[u8] = match &self.peer_cid {
            Some(cid) => cid,
            None => &self.original,
        };
        self.early.as_mut()?.write(now, out, destination, &self.local_cid, grease)
    }
}
