//! What remains of a TLS session when the handshake is over.

use rustls::quic::Secrets;

/// A few hundred bytes instead of the kilobytes of the TLS library, because an endpoint may have
/// thousands of idle connections.
pub(super) struct ReleasedSession {
    /// For the keys of the next key phases.
    pub(super) secrets: Secrets,
    pub(super) is_resumed: bool,
    pub(super) peer_fingerprint: Option<[u8; 32]>,
}
