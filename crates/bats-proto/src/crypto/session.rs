//! One TLS exchange, real or stand-in, as the handshake sees it: octets in, octets and keys out.

use std::sync::Arc;

use super::keys::{Keys, PacketKey, Side};
use super::plain::PlainSession;
use super::tls::{self, TlsSession};
use crate::config::{ClientConfig, Security, ServerConfig};
use crate::error::ConnectError;

/// What the TLS exchange could not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CryptoError {
    /// TLS alert to tell the peer (RFC 8446, section 6), if there is one.
    pub(crate) alert: Option<u8>,
    /// What is wrong.
    pub(crate) reason: String,
}

impl CryptoError {
    pub(super) fn peer(alert: u8, reason: &str) -> Self {
        Self { alert: Some(alert), reason: reason.to_owned() }
    }
}

/// Keys that the exchange made; what is written after them belongs to the next level.
#[derive(Debug)]
pub(crate) enum KeyChange {
    Handshake(Keys),
    OneRtt(Keys),
}

/// A client's configuration, checked.
#[derive(Clone, Debug)]
pub(crate) enum ClientSetup {
    Tls(Box<tls::ClientTls>),
    Plain,
}

impl ClientSetup {
    pub(crate) fn new(
        config: &ClientConfig,
        server_name: &str,
        security: Security,
    ) -> Result<Self, ConnectError> {
        Ok(match security {
            Security::Tls => Self::Tls(Box::new(tls::ClientTls::new(config, server_name)?)),
            Security::DangerousPlain => Self::Plain,
        })
    }

    /// `parameters` are the transport parameters as they travel.
    pub(crate) fn start(
        self,
        parameters: Vec<u8>,
        seed: &[u8; 32],
    ) -> Result<Session, ConnectError> {
        Ok(Session(match self {
            Self::Tls(setup) => Inner::Tls(Box::new(setup.start(parameters)?)),
            Self::Plain => {
                Inner::Plain(Box::new(PlainSession::new(Side::Client, parameters, seed)))
            }
        }))
    }
}

/// A server's configuration, checked; shared by all its connections.
#[derive(Clone, Debug)]
pub(crate) enum ServerSetup {
    Tls(Arc<tls::ServerTls>),
    Plain,
}

impl ServerSetup {
    pub(crate) fn new(config: &ServerConfig, security: Security) -> Result<Self, ConnectError> {
        Ok(match security {
            Security::Tls => Self::Tls(Arc::new(tls::ServerTls::new(config)?)),
            Security::DangerousPlain => Self::Plain,
        })
    }

    pub(crate) fn security(&self) -> Security {
        match self {
            Self::Tls(_) => Security::Tls,
            Self::Plain => Security::DangerousPlain,
        }
    }

    pub(crate) fn start(
        &self,
        parameters: Vec<u8>,
        seed: &[u8; 32],
    ) -> Result<Session, ConnectError> {
        Ok(Session(match self {
            Self::Tls(setup) => Inner::Tls(Box::new(setup.start(parameters)?)),
            Self::Plain => {
                Inner::Plain(Box::new(PlainSession::new(Side::Server, parameters, seed)))
            }
        }))
    }
}

/// The exchange of one connection.
#[derive(Debug)]
pub(crate) struct Session(Inner);

#[derive(Debug)]
enum Inner {
    Tls(Box<TlsSession>),
    Plain(Box<PlainSession>),
}

impl Session {
    /// Takes the next octets of the peer's stream; those of different levels in separate calls.
    pub(crate) fn read(&mut self, data: &[u8]) -> Result<(), CryptoError> {
        match &mut self.0 {
            Inner::Tls(session) => session.read(data),
            Inner::Plain(session) => session.read(data),
        }
    }

    /// Appends what is to be sent at the current level. Call again until it answers `None`; after
    /// keys the next level begins.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        match &mut self.0 {
            Inner::Tls(session) => session.write(out),
            Inner::Plain(session) => session.write(out),
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        match &self.0 {
            Inner::Tls(session) => session.is_handshaking(),
            Inner::Plain(session) => session.is_handshaking(),
        }
    }

    /// The peer's transport parameters as they travelled, proved only once the handshake is done.
    pub(crate) fn peer_parameters(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Tls(session) => session.peer_parameters(),
            Inner::Plain(session) => session.peer_parameters(),
        }
    }

    /// Packet keys (local, remote) of the next 1-RTT generation; `None` before the first.
    pub(crate) fn next_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        match &mut self.0 {
            Inner::Tls(session) => session.next_keys(),
            Inner::Plain(session) => session.next_keys(),
        }
    }

    /// SHA-256 of the peer's end-entity certificate.
    pub(crate) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        match &self.0 {
            Inner::Tls(session) => session.peer_fingerprint(),
            Inner::Plain(_) => None,
        }
    }
}
