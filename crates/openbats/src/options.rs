//! What a user decides for a connection or for a server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::{
    ClientConfig, ClosedKey, Mode, PeerTrust, Resumption, ServerConfig, SessionStore,
    TransportConfig,
};

use crate::clock::unix_time;
use crate::compress::CompressionOffer;
use crate::error::IdentityError;
use crate::identity::{Fingerprint, Identity, read_certificates};

/// What the layers below do not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    pub(crate) wish: Option<CompressionOffer>,
    /// Mode QUIC: messages as datagrams.
    pub(crate) has_datagrams: bool,
}

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

/// What the options of both sides have in common.
macro_rules! common_options {
    ($options:ty) => {
        impl $options {
            /// Limits and behaviour of the connections.
            #[must_use]
            pub fn transport(mut self, transport: TransportConfig) -> Self {
                self.transport = transport;
                self
            }

            /// BTP and TRANSPARENT: how long a message of this side is worth something if it was
            /// sent without a deadline of its own, in place of what
            /// [`transport`](Self::transport) says.
            #[must_use]
            pub fn deadline(mut self, deadline: Duration) -> Self {
                self.deadline = Some(deadline);
                self
            }

            /// Mode QUIC: messages go as datagrams (RFC 9221), each at once and once or not at all,
            /// in any order, and no longer than
            /// [`Connection::longest_message`](crate::Connection::longest_message), about 1,200
            /// bytes. One that waited for longer than its deadline is not sent. Both ends must
            /// want it: otherwise the connection fails and says so.
            #[must_use]
            pub fn quic_datagrams(mut self, enable: bool) -> Self {
                self.has_datagrams = enable;
                self
            }

            /// Closed mode: the other end must have this key, too, and whoever has not hears nothing from
            /// here. See [closed mode](crate#closed-mode); [`read_closed_key`](crate::read_closed_key)
            /// reads a key from a file.
            #[must_use]
            pub fn closed_key(mut self, key: ClosedKey) -> Self {
                self.closed_key = Some(key);
                self
            }

            /// Compresses messages with Zstandard at a level of 1 to 19, 1 for links that are faster
            /// than discs, if the other end wants it, too: see [compression](crate#compression).
            #[cfg(feature = "zstd")]
            #[must_use]
            pub fn compression(mut self, level: i32) -> Self {
                self.compression = Some(level);
                self
            }
        }
    };
}

common_options!(ClientOptions);
common_options!(ServerOptions);

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    trust: Trust,
    transport: TransportConfig,
    mode: Option<Mode>,
    deadline: Option<Duration>,
    sessions: Option<SessionStore>,
    early_data: bool,
    closed_key: Option<ClosedKey>,
    compression: Option<i32>,
    has_datagrams: bool,
    #[cfg(test)]
    is_lying: bool,
}

impl ClientOptions {
    /// Defaults for everything but the trust.
    #[must_use]
    pub fn new(trust: Trust) -> Self {
        Self {
            trust,
            transport: TransportConfig::default(),
            mode: None,
            deadline: None,
            sessions: None,
            early_data: false,
            closed_key: None,
            compression: None,
            has_datagrams: false,
            #[cfg(test)]
            is_lying: false,
        }
    }

    /// The mode, in place of the one in [`transport`](Self::transport).
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Keeps the sessions that servers offer in `store`, and takes them up again: the next handshake
    /// with the same server needs no certificate. A session stands on the trust that it was begun
    /// with and is taken up under no other. Modes BTP, BRTP, BRCTP and TRANSPARENT.
    #[must_use]
    pub fn sessions(mut self, store: &SessionStore) -> Self {
        self.sessions = Some(store.clone());
        self
    }

    /// Mode BTP, with [`sessions`](Self::sessions): what
    /// [`Endpoint::connect_early`](crate::Endpoint::connect_early) is given travels with the first
    /// flight, where there is a session and the server takes such messages
    /// ([`ServerOptions::early_data`]), and arrives after half a round trip.
    ///
    /// Who records that flight can send it again. One server delivers each message once all the same;
    /// of several behind one address, each with sessions of its own, none takes those of another.
    /// But early messages are believed before it is known that their sender is there now: what must
    /// not be done at another's time does not belong in one.
    #[must_use]
    pub fn early_data(mut self) -> Self {
        self.early_data = true;
        self
    }

    /// Says that it compresses, and then sends messages as they are.
    #[cfg(all(test, feature = "zstd"))]
    pub(crate) fn lying_of_compression(mut self) -> Self {
        self.is_lying = true;
        self
    }

    /// How long a handshake may take.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.transport.handshake_timeout
    }

    pub(crate) fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.transport.handshake_timeout = timeout;
        self
    }

    pub(crate) fn into_config(self) -> (ClientConfig, Extras) {
        let mut trust = self.trust.0;
        if let PeerTrust::Authorities { unix_time: at, .. } = &mut trust {
            *at = unix_time();
        }
        let mut transport = self.transport;
        transport.mode = self.mode.unwrap_or(transport.mode);
        transport.deadline = self.deadline.unwrap_or(transport.deadline);
        if let Some(store) = self.sessions {
            transport.resumption = Some(Resumption { store, unix_time: unix_time() });
        }
        transport.early_data |= self.early_data;
        transport.closed = self.closed_key.or(transport.closed);
        let wish = CompressionOffer::of(self.compression, &mut transport);
        #[cfg(test)]
        if self.is_lying {
            transport.application = crate::compress::AGREES;
        }
        let extras = Extras { wish, has_datagrams: self.has_datagrams };
        (ClientConfig { trust, identity: None, transport: Arc::new(transport) }, extras)
    }
}

/// What a server shows and allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    identity: Identity,
    transport: TransportConfig,
    modes: Vec<Mode>,
    deadline: Option<Duration>,
    compression: Option<i32>,
    has_datagrams: bool,
    retry_threshold: usize,
    max_connections: usize,
    early_data: bool,
    closed_key: Option<ClosedKey>,
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
            compression: None,
            has_datagrams: false,
            retry_threshold: 64,
            max_connections: 10_000,
            early_data: false,
            closed_key: None,
            stranger_budget: None,
        }
    }

    /// The modes among which a client may choose, in place of what [`transport`](Self::transport)
    /// says. Without either it is BRTP alone; a client that asks for another is refused.
    #[must_use]
    pub fn modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Self {
        self.modes = modes.into_iter().collect();
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

    /// Bytes that a peer's connection may hold, in whole messages or in parts, before the
    /// application has vouched for the peer by [`Connection::trust_peer`]; one that holds more is
    /// closed. For servers whose peers say first who they are: until then many of them cost little.
    /// What comes in at once, a megabyte at most over all connections, may be beyond it for a moment.
    /// Without this every connection may fill its whole
    /// [`receive_budget`](crate::TransportConfig::receive_budget) at once.
    ///
    /// [`Connection::trust_peer`]: crate::Connection::trust_peer
    #[must_use]
    pub fn stranger_budget(mut self, bytes: usize) -> Self {
        self.stranger_budget = Some(bytes);
        self
    }

    pub(crate) fn strangers(&self) -> Option<usize> {
        self.stranger_budget
    }

    /// Takes messages of BTP, which must be among the [`modes`](Self::modes), with the first flight of
    /// clients that were here before. Each is delivered once, and before it is known that the client
    /// is there now; see [`ClientOptions::early_data`]. Connections are accepted at that moment, and
    /// end if the client does not finish its handshake in ten seconds.
    #[must_use]
    pub fn early_data(mut self) -> Self {
        self.early_data = true;
        self
    }

    pub(crate) fn into_config(self) -> (ServerConfig, Extras) {
        let mut transport = self.transport;
        if let Some((first, others)) = self.modes.split_first() {
            (transport.mode, transport.also_accepted) = (*first, others.to_vec());
        }
        transport.deadline = self.deadline.unwrap_or(transport.deadline);
        transport.early_data |= self.early_data;
        transport.closed = self.closed_key.or(transport.closed);
        let wish = CompressionOffer::of(self.compression, &mut transport);
        let config = ServerConfig {
            identity: self.identity.0,
            transport: Arc::new(transport),
            retry_threshold: self.retry_threshold,
            max_connections: self.max_connections,
        };
        (config, Extras { wish, has_datagrams: self.has_datagrams })
    }
}
