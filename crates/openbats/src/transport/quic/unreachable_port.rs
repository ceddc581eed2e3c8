//! ICMP "port unreachable" errors.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{CloseReason, Timestamp};

use super::connection::Connection;
use super::{ID_LEN, Quic};

/// Longest time by which QUIC delays acknowledgements (RFC 9000, section 18.2), a part of the probe
/// timeout.
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// Data with which the ICMP errors of a connection are compared.
#[derive(Debug, Default)]
pub(super) struct PeerReachability {
    /// First bytes of the destination connection ID in the packets of this end. If the peer's IDs
    /// are shorter, these bytes differ in each packet and most errors are ignored.
    sent_id: Option<[u8; ID_LEN]>,
    /// Time of the first error since the last datagram of the peer, and the number of datagrams
    /// received until then.
    unreachable_since: Option<(Timestamp, u64)>,
}

impl PeerReachability {
    /// Records the connection ID of a sent datagram, if it has a short header.
    pub(super) fn on_sent(&mut self, datagram: &[u8]) {
        if let [first, id @ ..] = datagram
            && first & 0x80 == 0
        {
            self.sent_id = id.first_chunk().copied();
        }
    }

    /// Whether the error quotes a short-header packet of this end. Others must guess 8 bytes.
    fn is_quoted(&self, quoted: &[u8]) -> bool {
        match (quoted, self.sent_id) {
            ([first, after @ ..], Some(id)) => first & 0x80 == 0 && after.starts_with(&id),
            _ => false,
        }
    }

    /// Handles an error that quotes a packet. Returns whether errors have persisted for a probe
    /// timeout without any datagram of the peer: a single one could be short-lived.
    fn has_vanished(&mut self, now: Timestamp, received: u64, probe_timeout: Duration) -> bool {
        match self.unreachable_since {
            Some((since, before)) if before == received => now - since >= probe_timeout,
            _ => {
                self.unreachable_since = Some((now, received));
                false
            }
        }
    }
}

impl Connection {
    /// Handles an ICMP error; returns whether it ended the connection.
    fn on_unreachable_port(&mut self, now: Timestamp, quoted: &[u8], is_own_flight: bool) -> bool {
        if self.session.is_closed() {
            return false;
        }
        if self.is_unanswered() && (quoted.is_empty() || is_own_flight) {
            self.session.end(CloseReason::Refused);
            return true;
        }
        let received = self.quic.stats().udp_rx.datagrams;
        let probe_timeout = self.quic.rtt().saturating_mul(3).saturating_add(MAX_ACK_DELAY);
        let has_vanished = self.reachability.is_quoted(quoted)
            && self.reachability.has_vanished(now, received, probe_timeout);
        if has_vanished {
            let text = "the peer has gone: its port is closed".to_owned();
            self.session.end(CloseReason::Lost(text));
        }
        has_vanished
    }
}

impl Quic {
    /// Handles an ICMP "port unreachable" error for a datagram to `remote`; `quoted` is the part of
    /// its payload that the error quotes, perhaps empty. It ends clients that no server has answered,
    /// and connections that receive nothing while errors persist that quote their packets.
    pub(in crate::transport) fn handle_unreachable_port(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        quoted: &[u8],
    ) {
        let is_own_flight = self.is_own_first_flight(quoted);
        for (id, connection) in &mut self.connections {
            if connection.remote == remote
                && connection.on_unreachable_port(now, quoted, is_own_flight)
            {
                self.dirty.insert(*id);
            }
        }
    }

    /// Whether these are the first bytes of a long-header packet (RFC 9000, section 17.2) of this
    /// endpoint.
    fn is_own_first_flight(&self, packet: &[u8]) -> bool {
        let [first, _, _, _, _, length, after @ ..] = packet else { return false };
        let source = after.get(usize::from(*length)..).unwrap_or_default();
        let Some((length, source)) = source.split_first() else { return false };
        first & 0x80 != 0
            && usize::from(*length) == ID_LEN
            && source.first_chunk::<ID_LEN>().is_some_and(|id| self.ids.is_ours(*id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_persistent_errors_that_quote_a_packet_show_a_closed_port() {
        let at = |millis| Timestamp::from_millis(millis);
        let timeout = Duration::from_millis(100);
        let mut peer = PeerReachability::default();
        assert!(!peer.is_quoted(&[0x40, 1, 2, 3, 4, 5, 6, 7, 8]), "nothing was sent");
        peer.on_sent(&[0xc0, 9, 9, 9, 9, 9, 9, 9, 9]);
        peer.on_sent(&[0x40, 1, 2, 3, 4, 5, 6, 7, 8, 77]);
        assert!(peer.is_quoted(&[0x61, 1, 2, 3, 4, 5, 6, 7, 8]));
        for forged in
            [&[][..], &[0x40], &[0x40, 1, 2, 3, 4, 5, 6, 7], &[0xc0, 1, 2, 3, 4, 5, 6, 7, 8]]
        {
            assert!(!peer.is_quoted(forged), "{forged:?}");
        }
        assert!(!peer.has_vanished(at(0), 5, timeout), "the first error");
        assert!(!peer.has_vanished(at(99), 5, timeout));
        assert!(peer.has_vanished(at(100), 5, timeout));
        assert!(!peer.has_vanished(at(101), 6, timeout), "the peer has sent something");
        assert!(!peer.has_vanished(at(200), 6, timeout));
        assert!(peer.has_vanished(at(201), 6, timeout));
    }
}
