//! ICMP "port unreachable" errors.

use std::net::SocketAddr;

use bats_proto::CloseReason;

use super::{ID_LEN, Quic};

impl Quic {
    /// Handles an ICMP "port unreachable" error for a datagram to `remote`; `quoted` is the part of
    /// its payload that the error quotes, perhaps empty. Clients that no server has answered are
    /// refused. Established connections keep their idle timeout: `quinn-proto` does not expose the
    /// connection IDs of their packets, so that a forged error could not be recognised.
    pub(in crate::transport) fn handle_unreachable_port(
        &mut self,
        remote: SocketAddr,
        quoted: &[u8],
    ) {
        if !quoted.is_empty() && !self.is_own_first_flight(quoted) {
            return;
        }
        for (id, connection) in &mut self.connections {
            if connection.remote == remote && connection.is_unanswered() {
                connection.session.end(CloseReason::Refused);
                self.dirty.insert(*id);
            }
        }
    }

    /// Whether these are the first bytes of a long-header packet (RFC 9000, section 17.2) of this
    /// endpoint.
    fn is_own_first_flight(&self, packet: &[u8]) -> bool {
        let [first, _, _, _, _, length, after @ ..] = packet else { return false };
        let source = after.get(usize::from(*length)..).unwrap_or_default();
        first & 0x80 != 0
            && source.first() == Some(&(ID_LEN as u8))
            && source[1..].first_chunk::<ID_LEN>().is_some_and(|id| self.ids.is_ours(*id))
    }
}
