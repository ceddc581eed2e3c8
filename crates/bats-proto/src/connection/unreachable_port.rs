//! Peers that cannot be reached: ICMP "port unreachable" errors (RFC 8085, section 5.2; RFC 5927 for forged
//! ones), and NO_ROUTE packets of relays.

use core::time::Duration;

use bats_types::Timestamp;

use super::{Connection, MAX_ACK_DELAY, Role};
use crate::error::CloseReason;
use crate::wire::flow::NodeId;
use crate::wire::long_header::CID_LEN;

/// Time for which a route must be missing until an attempt to reach a node fails: relays report it once
/// a second, and a routing protocol has converged by then in most networks.
const MISSING_ROUTE_TIME: Duration = Duration::from_millis(900);

impl Connection {
    /// Whether an ICMP error that quotes this UDP payload answers a packet of this connection. A
    /// sender that does not see the packets would have to guess a connection ID.
    pub(crate) fn is_quoted(&self, payload: &[u8]) -> bool {
        // The quotation may end anywhere behind the connection IDs.
        match payload {
            [first, after @ ..] if first & 0x80 == 0 => {
                self.state.is_established() && after.starts_with(&self.remote_cid)
            }
            [_, _, _, _, _, length, after @ ..] => {
                let source = after.get(usize::from(*length)..).unwrap_or_default();
                source.first() == Some(&(CID_LEN as u8)) && source[1..].starts_with(&self.local_cid)
            }
            _ => false,
        }
    }

    /// Whether this is a client that no server has answered yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.role == Role::Client
            && self.state.is_handshaking()
            && self.handshake.peer_cid().is_none()
    }

    /// A relay has no route to the peer of this end-to-end session. Routes change, and the
    /// session cannot authenticate the relay. So an established session goes on, and an attempt ends
    /// when the route is still missing after [`MISSING_ROUTE_TIME`].
    pub(crate) fn handle_no_route(&mut self, now: Timestamp, relay: NodeId, destination: NodeId) {
        if !self.is_unanswered() {
            return;
        }
        let since = *self.unreachable_since.get_or_insert(now);
        if now - since >= MISSING_ROUTE_TIME {
            self.close_silently(CloseReason::Lost(format!(
                "{relay} has no route to {destination}"
            )));
        }
    }

    /// The peer's port is unreachable. A client without an answer fails at once. Otherwise the error
    /// could be forged or short-lived: the connection ends when errors persist for a probe timeout
    /// without any packet of the peer.
    pub(crate) fn handle_unreachable_port(&mut self, now: Timestamp) {
        if self.end_to_end.is_some() || !self.state.is_open() {
            return;
        }
        if self.is_unanswered() {
            return self.close_silently(CloseReason::Refused);
        }
        match self.unreachable_since {
            Some(since) if self.last_received_at <= since => {
                if now - since >= self.rtt.probe_timeout(MAX_ACK_DELAY) {
                    let text = "the peer has gone: its port is closed".to_owned();
                    self.close_silently(CloseReason::Lost(text));
                }
            }
            _ => self.unreachable_since = Some(now),
        }
    }
}
