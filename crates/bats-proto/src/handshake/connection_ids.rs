//! The connection IDs in the long headers of a handshake (RFC 9000, section 7.2).

use crate::wire::long_header::{CID_LEN, ORIGINAL_CID_LEN};

/// The connection IDs of both ends.
#[derive(Debug)]
pub(super) struct ConnectionIds {
    local: [u8; CID_LEN],
    /// The client chose it for the server's first packets.
    original: [u8; ORIGINAL_CID_LEN],
    peer: Option<[u8; CID_LEN]>,
}

impl ConnectionIds {
    pub(super) fn new(
        local: [u8; CID_LEN],
        original: [u8; ORIGINAL_CID_LEN],
        peer: Option<[u8; CID_LEN]>,
    ) -> Self {
        Self { local, original, peer }
    }

    /// The one that this end chose for itself.
    pub(super) fn local(&self) -> &[u8; CID_LEN] {
        &self.local
    }

    /// The one that the client chose for the server's first packets.
    pub(super) fn original(&self) -> &[u8; ORIGINAL_CID_LEN] {
        &self.original
    }

    /// The one that the peer chose for itself, once it is known. A client knows it from the server's
    /// first authentic packet.
    pub(super) fn peer(&self) -> Option<[u8; CID_LEN]> {
        self.peer
    }

    /// The destination of the next packet.
    pub(super) fn destination(&self) -> &[u8] {
        match &self.peer {
            Some(peer) => peer,
            None => &self.original,
        }
    }

    /// A packet of the peer is authentic: uses its source connection ID from now on, if none was
    /// known before (RFC 9000, section 7.2).
    pub(super) fn on_authentic_source(&mut self, source: Option<[u8; CID_LEN]>) {
        self.peer = self.peer.or(source);
    }

    /// The peer's transport parameters have its connection ID.
    pub(super) fn set_peer(&mut self, peer: [u8; CID_LEN]) {
        self.peer = Some(peer);
    }
}
