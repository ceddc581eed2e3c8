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

use super::super::early::ExpiringMessage;
use super::Handshake;

impl Handshake {
    /// Takes TLS data after the handshake. Only a client that resumes sessions reads it, until it
    /// has the session tickets that it requested. Other data is discarded (RFC 9000, section 7.5),
    /// so that a peer can neither cause work nor fill memory with it.
    pub fn read_post_handshake(&mut self, now: Timestamp, offset: u64, data: &[u8]) {
        if self.completed {
            self.one_rtt.read(now, &mut self.session, offset, data);
        }
    }

    /// TLS data that this end sends after the handshake, from offset 0, until the peer has it.
    pub fn post_handshake_data(&self) -> &[u8] {
        self.one_rtt.outgoing()
    }

    /// The peer has acknowledged all TLS data after the handshake.
    pub fn on_post_handshake_acknowledged(&mut self) {
        self.one_rtt.on_acknowledged();
    }

    /// Frees the TLS session if the handshake is confirmed and nothing more is needed from it: its
    /// 1-RTT keys and the keys of the symbol seals have been taken, and a client has its session
    /// tickets. When the connection `is_idle`, no tickets are in flight: the server sends them with
    /// HANDSHAKE_DONE.
    pub fn release_session(&mut self, is_idle: bool) {
        if self.confirmed && (is_idle || !self.session.awaits_tickets()) {
            self.session.release();
            self.one_rtt.close_read();
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
        if self.levels.has_handshake_keys() {
            return Err(message);
        }
        self.early.push(message, expires)?;
        self.schedule.send_now(now);
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
        self.early.finish(self.session.is_early_accepted(), self.peer.as_ref())
    }

    /// Server: whether the client's early data is accepted.
    pub(crate) fn takes_early(&self) -> bool {
        self.early.accepts_data()
    }

    /// Server: takes received early data that may be delivered.
    pub(crate) fn take_early(&mut self) -> Vec<Vec<u8>> {
        self.early.take()
    }

    /// Server: records early messages (a bit mask) as delivered.
    pub(crate) fn record_early(&mut self, arrived: u32) {
        self.early.record(arrived);
    }

    /// Server, when the handshake is complete: stops accepting early data. Returns the messages (a
    /// bit mask) that replays of this first flight have delivered.
    pub(crate) fn close_early(&mut self) -> u32 {
        self.early.close()
    }

    /// Server: early packets refused because of the limit.
    pub(crate) fn early_refused(&self) -> u64 {
        self.early.refused()
    }

    /// Server: TLS has read the ClientHello and decided about early data.
    pub(super) fn decide_early(&mut self, now: Timestamp) {
        self.early.decide(now, self.levels.first_message(), || self.session.early_keys());
    }

    /// Client: whether early data should be sent now, that is, before the server has answered.
    pub(super) fn has_early(&self) -> bool {
        let answered = self.levels.has_handshake_keys();
        !answered && self.early.has_unsent()
    }

    pub(super) fn write_early(&mut self, now: Timestamp, out: &mut [u8]) -> Option<usize> {
        if !self.has_early() {
            return None;
        }
        let grease = self.rng.next_u32() as u8;
        self.early.write(now, out, &self.ids, grease)
    }
}
