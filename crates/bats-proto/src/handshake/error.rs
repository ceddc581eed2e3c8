//! Why a handshake failed, and whose fault that was.

use crate::error::CloseReason;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The peer broke the protocol, or showed what this end does not accept.
    Peer,
    /// This end.
    Local,
    /// Nobody: the peer declined.
    Declined,
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// TLS refused what the peer sent, for instance its certificate.
    #[error("peer refused by TLS: {reason}")]
    Tls {
        /// Alert sent to the peer (RFC 8446, section 6).
        alert: Option<u8>,
        /// What TLS says.
        reason: String,
    },
    /// An authentic packet broke the rules.
    #[error("peer broke the handshake's rules: {0}")]
    Protocol(&'static str),
    /// The peer's transport parameters cannot be, or do not match its packets.
    #[error("peer's {0}")]
    Parameters(&'static str),
    /// The peer closed the attempt.
    #[error("peer closed the attempt with code {code:#x}: {reason}")]
    ClosedByPeer {
        /// Code of RFC 9000, section 20.1; 0x100 and more are TLS alerts.
        code: u64,
        /// The peer's words.
        reason: String,
    },
    /// The server refuses connections, for instance because it is full.
    #[error("server refuses connections")]
    Refused,
    /// No common version.
    #[error("no protocol version in common")]
    Version,
    /// TLS finished without giving what it must; a fault of this end.
    #[error("internal: {0}")]
    Internal(&'static str),
}

/// Codes of RFC 9000, section 20.1.
pub(super) mod code {
    pub(crate) const INTERNAL_ERROR: u64 = 0x1;
    pub(crate) const CONNECTION_REFUSED: u64 = 0x2;
    pub(crate) const TRANSPORT_PARAMETER_ERROR: u64 = 0x8;
    pub(crate) const PROTOCOL_VIOLATION: u64 = 0xa;
    pub(crate) const INVALID_TOKEN: u64 = 0xb;
    pub(crate) const APPLICATION_ERROR: u64 = 0xc;
    pub(crate) const CRYPTO_ERROR: u64 = 0x100;
}

impl HandshakeError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Tls { .. } | Self::Protocol(_) | Self::Parameters(_) => Blame::Peer,
            Self::ClosedByPeer { .. } | Self::Refused | Self::Version => Blame::Declined,
            Self::Internal(_) => Blame::Local,
        }
    }

    /// What to tell the peer (RFC 9000, section 20.1; RFC 9001, section 4.8).
    pub fn code(&self) -> u64 {
        match self {
            Self::Tls { alert, .. } => match alert {
                Some(alert) => code::CRYPTO_ERROR + u64::from(*alert),
                None => code::PROTOCOL_VIOLATION,
            },
            Self::Protocol(_) => code::PROTOCOL_VIOLATION,
            Self::Parameters(_) => code::TRANSPORT_PARAMETER_ERROR,
            Self::ClosedByPeer { .. } | Self::Refused | Self::Version => 0,
            Self::Internal(_) => code::INTERNAL_ERROR,
        }
    }

    /// The error that a CLOSE frame of the peer means.
    pub(super) fn closed_by_peer(close_code: u64, reason: String) -> Self {
        match close_code {
            code::CONNECTION_REFUSED => Self::Refused,
            _ => Self::ClosedByPeer { code: close_code, reason },
        }
    }
}

impl From<HandshakeError> for CloseReason {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Refused => Self::Refused,
            HandshakeError::Version => Self::Version,
            HandshakeError::ClosedByPeer { .. } => Self::ReportedByPeer(error.to_string()),
            HandshakeError::Protocol(rule) => Self::PeerMisbehaved(rule.to_owned()),
            HandshakeError::Tls { .. }
            | HandshakeError::Parameters(_)
            | HandshakeError::Internal(_) => Self::Handshake(error.to_string()),
        }
    }
}
