//! What protects a session: a handshake of its own, or the links with a neighbour.

use crate::config::Security;

/// What authenticates the ends of a session and protects its packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protection {
    /// The session's own handshake.
    Handshake(Security),
    /// The links with a neighbour, whose certificate has this fingerprint: a direct session.
    Links(Option<[u8; 32]>),
}

impl Protection {
    /// What protects the session's own packets. Those of a direct session have checksums only.
    pub(crate) fn security(self) -> Security {
        match self {
            Self::Handshake(security) => security,
            Self::Links(_) => Security::DangerousPlain,
        }
    }
}
