//! Packets and timers of a connection, and coded packets that links of the relay transport for it.

use core::time::Duration;

use bats_types::Timestamp;

use super::Connection;
use crate::datagram::{Incoming, Outgoing};
use crate::link::PacketSource;
use crate::session::FirstLink;
use crate::wire::short_header::{self, PacketKind};

/// ECN codepoint CE: congestion experienced (RFC 3168).
const ECN_CE: u8 = 0b11;

impl Connection {
    /// Takes a packet for this connection.
    pub(crate) fn handle_datagram(&mut self, now: Timestamp, datagram: Incoming<'_>) {
        let has_long_header = datagram.payload.first().is_some_and(|byte| byte & 0x80 != 0);
        if self.link.is_dead() || (has_long_header && self.link.handshake().is_confirmed()) {
            return;
        }
        let payload = datagram.payload;
        if !self.link.on_datagram(payload.len()) {
            return;
        }
        if has_long_header {
            self.handle_handshake_datagram(now, payload);
        } else if short_header::destination(payload).is_some() {
            let ce = datagram.ecn & 0b11 == ECN_CE;
            let from = (datagram.remote, datagram.local_ip);
            self.link.handle_packet(now, from, payload, ce, &mut self.session);
        } else {
            self.link.on_malformed();
        }
        self.session.update_application(&self.link.capacity());
    }

    /// Writes the next datagrams to `buffer`; `None` if there is nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
        source: Option<&mut dyn PacketSource>,
    ) -> Option<Outgoing> {
        self.link.poll_transmit(now, buffer, &mut self.session, source)
    }

    /// Handles all expired timers.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        if self.link.handle_timeout(now, &mut self.session) {
            self.session.update_application(&self.link.capacity());
        }
    }

    /// When to call [`Connection::handle_timeout`] at the latest.
    pub(crate) fn next_timeout(&self, now: Timestamp) -> Option<Timestamp> {
        self.link.next_timeout(now, &self.session)
    }

    /// A timer stays due although it was handled: closes the connection instead of spinning.
    pub(crate) fn on_stuck_timer(&mut self, now: Timestamp) {
        self.link.on_stuck_timer(now, &mut self.session);
    }

    /// Whether this is an end-to-end session with coded packets to send.
    pub(crate) fn has_end_to_end_data(&self) -> bool {
        self.link.is_active() && self.session.has_end_to_end_data()
    }

    /// Writes the next coded packet of an end-to-end session for a link of the relay.
    pub(crate) fn poll_end_to_end(
        &mut self,
        now: Timestamp,
        first: &FirstLink,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        if !self.link.is_active() {
            return None;
        }
        let (measured, capacity) = (self.link.path_view(), || self.link.capacity());
        let kind = self.session.poll_end_to_end(now, first, &measured, capacity, out)?;
        let wants_answer = self.session.on_end_to_end_sent(now, self.link.idle_time());
        self.link.on_coded_over_relays(now, out.len(), wants_answer, &self.session);
        Some(kind)
    }

    /// Takes a coded packet that the relay delivers; `slowest` is the longest RTT of the links that
    /// these packets arrive over.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn handle_flow_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        slowest: Duration,
    ) {
        if self.session.flow_key().is_none() {
            return;
        }
        self.session.set_slowest_inbound(slowest, self.link.rtt().smoothed);
        if !self.link.is_active() {
            if self.link.is_handshaking() {
                self.session.hold_end_to_end(kind, payload);
            }
            return;
        }
        let (_, idle_timeout) = self.link.idle_time();
        let ping = self.session.takes_keep_alive(now, idle_timeout);
        if self.link.on_coded_from_relays(now, kind, payload, ping, &mut self.session) {
            self.session.update_application(&self.link.capacity());
        }
    }
}
