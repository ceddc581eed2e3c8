//! What a user decides for a connection or for a server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::{ClientConfig, Mode, PeerTrust, ServerConfig, TransportConfig};

use crate::clock::unix_time;
use crate::error::IdentityError;
use crate::identity::{Fingerprint, Identity, read_certificates};

/// Whom a client believes. There is no default: the choice is the user's.
#[derive(Clone, Debug)]
pub struct Trust(PeerTrust);

impl Trust {
    /// The server whose certificate has this fingerprint, whatever its name.
    #[must_use]
    pub fn fingerprint(fingerprint: Fingerprint) -> Self {
        Self(PeerTrust::Fingerprints(vec![fingerprint.0]))
    }

    /// Servers with one of these fingerprints.
    #[must_use]
    pub fn fingerprints(fingerprints: impl IntoIterator<Item = Fingerprint>) -> Self {
        Self(PeerTrust::Fingerprints(fingerprints.into_iter().map(|print| print.0).collect()))
    }

    /// Servers whose certificate comes from one of the authorities in a PEM file and has the
    /// name that is connected to.
    ///
    /// # Errors
    /// The file cannot be read or holds no certificate.
    pub fn authorities(pem: impl AsRef<Path>) -> Result<Self, IdentityError> {
        let certificates = read_certificates(pem.as_ref())?;
        Ok(Self(PeerTrust::Authorities { certificates, unix_time: Duration::ZERO }))
    }

    /// Anyone. The connection is encrypted, but an active attacker can sit in the middle.
    #[must_use]
    pub fn dangerous_any() -> Self {
        Self(PeerTrust::DangerousAcceptAny)
    }
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    trust: Trust,
    transport: TransportConfig,
    mode: Option<Mode>,
    deadline: Option<Duration>,
}

impl ClientOptions {
    /// Defaults for everything but the trust.
    #[must_use]
    pub fn new(trust: Trust) -> Self {
        Self { trust, transport: TransportConfig::default(), mode: None, deadline: None }
    }

    /// Limits and behaviour of the connection.
    #[must_use]
    pub fn transport(mut self, transport: TransportConfig) -> Self {
        self.transport = transport;
        self
    }

    /// The mode, in place of the one in [`transport`](Self::transport).
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// BTP and TRANSPARENT: how long a message of this side is worth something if it was sent
    /// without a deadline of its own, in place of what [`transport`](Self::transport) says.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    pub(crate) fn into_config(self) -> ClientConfig {
        let mut trust = self.trust.0;
        if let PeerTrust::Authorities { unix_time: at, .. } = &mut trust {
            *at = unix_time();
        }
        let mut transport = self.transport;
        transport.mode = self.mode.unwrap_or(transport.mode);
        transport.deadline = self.deadline.unwrap_or(transport.deadline);
        ClientConfig { trust, identity: None, transport: Arc::new(transport) }
    }
}

/// What a server shows and allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    identity: Identity,
    transport: TransportConfig,
    modes: Vec<Mode>,
    deadline: Option<Duration>,
    retry_threshold: usize,
    max_connections: usize,
    stranger_budget: Option<usize>,
}

impl ServerOptions {
    /// Defaults for everything but the identity.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            transport: TransportConfig::default(),
            modes: Vec::new(),
            deadline: None,
            retry_threshold: 64,
            max_connections: 10_000,
            stranger_budget: None,
        }
    }

    /// Limits and behaviour of the connections.
    #[must_use]
    pub fn transport(mut self, transport: TransportConfig) -> Self {
        self.transport = transport;
        self
    }

    /// The modes among which a client may choose, in place of what [`transport`](Self::transport)
    /// says. Without either it is BRTP alone; a client that asks for another is refused.
    #[must_use]
    pub fn modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Self {
        self.modes = modes.into_iter().collect();
        self
    }

    /// BTP and TRANSPARENT: how long a message of this side is worth something if it was sent
    /// without a deadline of its own, in place of what [`transport`](Self::transport) says.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Half-open connections from which on a client must first prove its address with a token,
    /// which costs it a round trip. 0 asks everyone; the default is 64.
    #[must_use]
    pub fn retry_threshold(mut self, half_open: usize) -> Self {
        self.retry_threshold = half_open;
        self
    }

    /// Connections open at once, 10,000 by default; more are refused.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Octets that a peer's connection may hold, in whole messages or in parts, before the
    /// application has vouched for the peer by [`Connection::trust_peer`]; one that holds more is
    /// closed. For servers whose peers say first who they are: until then many of them cost little.
    /// What comes in at once, a megabyte at most over all connections, may be beyond it for a moment.
    /// Without this every connection may fill its whole
    /// [`receive_budget`](crate::TransportConfig::receive_budget) at once.
    ///
    /// [`Connection::trust_peer`]: crate::Connection::trust_peer
    #[must_use]
    pub fn stranger_budget(mut self, octets: usize) -> Self {
        self.stranger_budget = Some(octets);
        self
    }

    pub(crate) fn strangers(&self) -> Option<usize> {
        self.stranger_budget
    }

    pub(crate) fn into_config(self) -> ServerConfig {
        let mut transport = self.transport;
        if let Some((first, others)) = self.modes.split_first() {
            (transport.mode, transport.also_accepted) = (*first, others.to_vec());
        }
        transport.deadline = self.deadline.unwrap_or(transport.deadline);
        ServerConfig {
            identity: self.identity.0,
            transport: Arc::new(transport),
            retry_threshold: self.retry_threshold,
            max_connections: self.max_connections,
        }
    }
}
