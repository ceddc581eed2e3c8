//! Restarted peers: stateless resets (RFC 9000, section 10.3) at the client, and newer instances.

use super::{Connection, Role};
use crate::error::CloseReason;
use crate::wire::stateless_reset::RESET_TOKEN_LEN;

impl Connection {
    /// The token that ends a stateless reset of this connection, at a client.
    pub(crate) fn reset_token(&self) -> Option<&[u8; RESET_TOKEN_LEN]> {
        if self.role == Role::Server || !self.is_established() {
            return None;
        }
        self.handshake.peer_parameters()?.reset_token.as_ref()
    }

    /// Instance of the authenticated peer, if it announces one.
    pub(crate) fn peer_instance(&self) -> Option<u64> {
        let instance = self.handshake.peer_parameters()?.instance;
        (instance > 0 && self.is_established()).then_some(instance)
    }

    /// The peer was restarted, and a connection with the new process is established.
    pub(crate) fn on_restarted_peer(&mut self) {
        self.close_silently(CloseReason::Lost("the peer was restarted".to_owned()));
    }

    /// The server has no state of this connection any more.
    pub(crate) fn on_stateless_reset(&mut self) {
        let text = "the server does not know the connection any more: it was restarted, or has \
                    closed the connection";
        self.close_silently(CloseReason::Lost(text.to_owned()));
    }
}
