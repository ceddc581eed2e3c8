//! ICMP "port unreachable" errors: which connections they concern.

use core::net::SocketAddr;
use core::time::Duration;

use bats_types::Timestamp;

use super::connections::Connections;
use super::handle::ConnectionHandle;
use crate::remote::Remote;

/// Least time between two searches among more than [`FEW_CONNECTIONS`], so that a flood of errors
/// costs little.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// A search among so many connections takes about as long as handling a packet.
const FEW_CONNECTIONS: usize = 256;

/// Searches for the connections that errors concern.
#[derive(Debug, Default)]
pub(super) struct UnreachablePorts {
    last_search: Option<Timestamp>,
}

impl UnreachablePorts {
    /// See [`Endpoint::handle_unreachable_port`](super::Endpoint::handle_unreachable_port).
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn handle_unreachable_port(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        remote: SocketAddr,
        quoted: &[u8],
    ) {
        let is_recent = |last| now - last < SEARCH_INTERVAL;
        if connections.len() > FEW_CONNECTIONS && self.last_search.is_some_and(is_recent) {
            return;
        }
        self.last_search = Some(now);
        let at_address: Vec<ConnectionHandle> = connections
            .iter()
            .filter(|(_, connection)| connection.remote() == Remote::Network(remote))
            .map(|(handle, _)| handle)
            .collect();
        let is_quoted = |handle: &ConnectionHandle| {
            connections.get(*handle).is_some_and(|connection| connection.is_quoted(quoted))
        };
        let is_proved = at_address.iter().any(is_quoted);
        for handle in at_address {
            let is_concerned = is_proved
                // Some hosts quote nothing of the payload. To end a connection attempt does little harm.
                || quoted.is_empty()
                    && connections.get(handle).is_some_and(|connection| connection.is_unanswered());
            if is_concerned {
                connections.change(handle, |connection| connection.handle_unreachable_port(now));
            }
        }
    }
}
