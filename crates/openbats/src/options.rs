//! Options of clients and servers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::{
    ClientConfig, Mode, PeerTrust, PresharedKey, Resumption, ServerConfig, SessionStore,
    TransportConfig,
};

use crate::clock::unix_time;
use crate::compress::CompressionOffer;
use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, read_certificates};
use crate::identity_error::IdentityError;
use crate::known_hosts::KnownHosts;

/// Options that the transport bindings and the protocol do not handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    pub(crate) compression_offer: Option<CompressionOffer>,
    /// Mode QUIC: send messages as datagrams.
    pub(crate) has_datagrams: bool,
}

/// Which servers a client trusts. There is no default: the user must choose.
#[derive(Clone, Debug)]
pub struct Trust(Source);

#[derive(Clone, Debug)]
enum Source {
    Peer(PeerTrust),
    KnownHosts(KnownHosts),
}

impl Trust {
    /// Trusts the server whose certificate has this fingerprint, regardless of its name.
    #[must_use]
    pub fn fingerprint(fingerprint: Fingerprint) -> Self {
        Self(Source::Peer(PeerTrust::Fingerprints(vec![fingerprint.0])))
    }

    /// The fingerprint, if exactly one is trusted.
    pub(crate) fn only_fingerprint(&self) -> Option<Fingerprint> {
        match &self.0 {
            Source::Peer(PeerTrust::Fingerprints(prints)) => match prints[..] {
                [print] => Some(Fingerprint(print)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Trusts servers whose certificate has one of these fingerprints.
    #[must_use]
    pub fn fingerprints(fingerprints: impl IntoIterator<Item = Fingerprint>) -> Self {
        let fingerprints = fingerprints.into_iter().map(|print| print.0).collect();
        Self(Source::Peer(PeerTrust::Fingerprints(fingerprints)))
    }

    /// Trust on first use, as ssh has it: the first certificate of a server is recorded, and a
    /// connection to a server whose certificate has changed fails with [`TrustError::Changed`]. The
    /// first connection to a server is open to a man-in-the-middle attack, later ones are not.
    ///
    /// Nothing is sent to the server before its certificate is checked, except for early data of a
    /// resumed session with the same certificate.
    ///
    /// [`TrustError::Changed`]: crate::TrustError::Changed
    #[must_use]
    pub fn known_hosts(known_hosts: KnownHosts) -> Self {
        Self(Source::KnownHosts(known_hosts))
    }

    /// Trusts servers whose certificate is issued by one of the authorities in a PEM file and is
    /// valid for the name passed to `connect`.
    ///
    /// # Errors
    /// The file cannot be read or holds no certificate.
    pub fn authorities(pem: impl AsRef<Path>) -> Result<Self, IdentityError> {
        let certificates = read_certificates(pem.as_ref())?;
        let unix_time = Duration::ZERO;
        Ok(Self(Source::Peer(PeerTrust::Authorities { certificates, unix_time })))
    }

    /// Trusts any server. The connection is encrypted, but open to a man-in-the-middle attack.
    #[must_use]
    pub fn dangerous_any() -> Self {
        Self(Source::Peer(PeerTrust::DangerousAcceptAny))
    }

    /// Whether the trust is a file of known servers.
    pub(crate) fn is_known_hosts(&self) -> bool {
        matches!(self.0, Source::KnownHosts(_))
    }

    /// The trust of a connection or endpoint that starts now.
    fn into_config(self) -> PeerTrust {
        let mut trust = match self.0 {
            Source::Peer(trust) => trust,
            // `known_hosts` has replaced it; without certainty, trust no peer.
            Source::KnownHosts(_) => PeerTrust::Fingerprints(Vec::new()),
        };
        if let PeerTrust::Authorities { unix_time: at, .. } = &mut trust {
            *at = unix_time();
        }
        trust
    }
}

/// Options that clients and servers have in common.
macro_rules! common_options {
    ($options:ty) => {
        impl $options {
            /// Limits and behaviour of the connections.
            #[must_use]
            pub fn transport(mut self, transport: TransportConfig) -> Self {
                self.transport = transport;
                self
            }

            /// BTP and TRANSPARENT: deadline of messages that are sent without a deadline of their
            /// own. Overrides the one in [`transport`](Self::transport).
            #[must_use]
            pub fn deadline(mut self, deadline: Duration) -> Self {
                self.deadline = Some(deadline);
                self
            }

            /// Mode QUIC: sends messages as datagrams (RFC 9221): unreliable, unordered, never
            /// delivered twice, and at most
            /// [`Connection::longest_message`](crate::Connection::longest_message) bytes long
            /// (about 1,200). A message that waits beyond its deadline is not sent. Both ends must
            /// enable it: otherwise the connection fails with an error that says so.
            #[must_use]
            pub fn quic_datagrams(mut self, enable: bool) -> Self {
                self.has_datagrams = enable;
                self
            }

            /// PSK mode: the other end must have the same key; peers without it get no answer. See
            /// [PSK mode](crate#psk-mode); [`read_preshared_key`](crate::read_preshared_key) reads
            /// a key from a file.
            #[must_use]
            pub fn preshared_key(mut self, key: PresharedKey) -> Self {
                self.preshared_key = Some(key);
                self
            }

            /// Compresses messages with Zstandard at a level from 1 to 19, if the other end enables
            /// it, too: see [compression](crate#compression). Use level 1 for links that are faster
            /// than disks.
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

/// Options of a client's connection.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    trust: Trust,
    identity: Option<Identity>,
    transport: TransportConfig,
    mode: Option<Mode>,
    deadline: Option<Duration>,
    sessions: Option<SessionStore>,
    early_data: bool,
    preshared_key: Option<PresharedKey>,
    compression: Option<i32>,
    has_datagrams: bool,
    #[cfg(test)]
    ignores_compression: bool,
}

impl ClientOptions {
    /// Sets the trust; all other options have their defaults.
    #[must_use]
    pub fn new(trust: Trust) -> Self {
        Self {
            trust,
            identity: None,
            transport: TransportConfig::default(),
            mode: None,
            deadline: None,
            sessions: None,
            early_data: false,
            preshared_key: None,
            compression: None,
            has_datagrams: false,
            #[cfg(test)]
            ignores_compression: false,
        }
    }

    /// Presents this certificate to a server that asks for one
    /// ([`ServerOptions::client_trust`]), and proves that this end has its key.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Selects the mode. Overrides the one in [`transport`](Self::transport).
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Keeps session tickets in `store` and resumes sessions: the next handshake with the same
    /// server needs no certificate. A session is resumed only under the trust with which it was
    /// established. Modes BTP, BRTP, BRCTP and TRANSPARENT.
    #[must_use]
    pub fn sessions(mut self, store: &SessionStore) -> Self {
        self.sessions = Some(store.clone());
        self
    }

    /// Mode BTP, with [`sessions`](Self::sessions): sends the messages passed to
    /// [`Endpoint::connect_early`](crate::Endpoint::connect_early) with the first flight (0-RTT),
    /// if there is a session to resume and the server accepts early data
    /// ([`ServerOptions::early_data`]). They arrive after half a round trip.
    ///
    /// An attacker who records that flight can replay it. A server still delivers each message only
    /// once, and of several servers behind one address none accepts the early data of another's
    /// sessions. But early messages are delivered before the client has proved that it is there
    /// now: do not use them for requests that must not be executed at a later time.
    #[must_use]
    pub fn early_data(mut self) -> Self {
        self.early_data = true;
        self
    }

    /// Offers compression, but sends messages in the form in which they are passed.
    #[cfg(all(test, feature = "zstd"))]
    pub(crate) fn ignoring_compression(mut self) -> Self {
        self.ignores_compression = true;
        self
    }

    /// Adds what a node has in common for all its connections, where these options have nothing.
    pub(crate) fn with_node_defaults(
        mut self,
        identity: &Identity,
        preshared_key: Option<&PresharedKey>,
    ) -> Self {
        self.identity.get_or_insert_with(|| identity.clone());
        if self.preshared_key.is_none() {
            self.preshared_key = preshared_key.cloned();
        }
        self
    }

    /// Longest time for a handshake.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.transport.handshake_timeout
    }

    pub(crate) fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.transport.handshake_timeout = timeout;
        self
    }

    /// The file of known servers, if the trust depends on one, and the name of this server in it.
    /// Servers that it contains are checked in the TLS handshake, too, so that sessions are resumed
    /// only with the same certificate; the check afterwards can report both fingerprints.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn known_hosts(
        &mut self,
        server_name: &str,
        port: u16,
    ) -> Result<Option<(KnownHosts, String)>, TrustError> {
        let Source::KnownHosts(known_hosts) = &self.trust.0 else { return Ok(None) };
        // There is no handshake and no certificate.
        if self.mode.unwrap_or(self.transport.mode) == Mode::Udp {
            self.trust = Trust::dangerous_any();
            return Ok(None);
        }
        let known_hosts = known_hosts.clone();
        let name = known_hosts.name_of(server_name, port);
        let fingerprints = known_hosts.fingerprints(&name)?;
        self.trust = match self.sessions.is_some() && !fingerprints.is_empty() {
            true => Trust::fingerprints(fingerprints),
            false => Trust::dangerous_any(),
        };
        if matches!(self.trust.0, Source::Peer(PeerTrust::DangerousAcceptAny)) {
            // Early data would leave before the certificate is checked.
            self.early_data = false;
            self.transport.early_data = false;
        }
        Ok(Some((known_hosts, name)))
    }

    pub(crate) fn into_config(self) -> (ClientConfig, Extras) {
        let trust = self.trust.into_config();
        let mut transport = self.transport;
        transport.mode = self.mode.unwrap_or(transport.mode);
        transport.deadline = self.deadline.unwrap_or(transport.deadline);
        if let Some(store) = self.sessions {
            transport.resumption = Some(Resumption { store, unix_time: unix_time() });
        }
        transport.early_data |= self.early_data;
        transport.psk = self.preshared_key.or(transport.psk);
        transport.key_log = transport.key_log.or_else(crate::key_log::from_environment);
        let compression_offer = CompressionOffer::from_level(self.compression, &mut transport);
        #[cfg(test)]
        if self.ignores_compression {
            transport.application = crate::compress::COMPRESSION_BIT;
        }
        let extras = Extras { compression_offer, has_datagrams: self.has_datagrams };
        let identity = self.identity.map(|identity| identity.0);
        (ClientConfig { trust, identity, transport: Arc::new(transport) }, extras)
    }
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    identity: Identity,
    client_trust: Option<Trust>,
    transport: TransportConfig,
    stateless_resets: bool,
    modes: Vec<Mode>,
    deadline: Option<Duration>,
    compression: Option<i32>,
    has_datagrams: bool,
    retry_threshold: usize,
    max_connections: usize,
    early_data: bool,
    preshared_key: Option<PresharedKey>,
    untrusted_peer_budget: Option<usize>,
}

impl ServerOptions {
    /// Sets the identity; all other options have their defaults.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            client_trust: None,
            transport: TransportConfig::default(),
            stateless_resets: true,
            modes: Vec::new(),
            deadline: None,
            compression: None,
            has_datagrams: false,
            retry_threshold: 64,
            max_connections: 10_000,
            early_data: false,
            preshared_key: None,
            untrusted_peer_budget: None,
        }
    }

    /// Accepts only clients whose certificate this trusts ([`ClientOptions::identity`]). With
    /// [`Trust::dangerous_any`] clients may present any certificate or none. In each case
    /// [`Connection::peer_fingerprint`] says which one it is. The default asks clients for none.
    /// A client that is not accepted fails to connect, with an error that says so. Trust on first use
    /// ([`Trust::known_hosts`]) is for servers only. Modes BTP, BRTP, BRCTP, TRANSPARENT, TCP and QUIC.
    ///
    /// [`Connection::peer_fingerprint`]: crate::Connection::peer_fingerprint
    #[must_use]
    pub fn client_trust(mut self, trust: Trust) -> Self {
        self.client_trust = Some(trust);
        self
    }

    /// Why clients cannot be authenticated as requested.
    pub(crate) fn client_trust_problem(&self) -> Option<&'static str> {
        if self.client_trust.as_ref()?.is_known_hosts() {
            return Some(
                "a file of known servers says nothing about clients: trust them by fingerprints or \
                 by authorities",
            );
        }
        let mode = self.modes.first().copied().unwrap_or(self.transport.mode);
        let others = match self.modes.is_empty() {
            true => &self.transport.also_accepted,
            false => &self.modes,
        };
        (mode == Mode::Udp || others.contains(&Mode::Udp)).then_some(
            "mode 11 (UDP) has no handshake, so that a server cannot authenticate its clients",
        )
    }

    /// The modes that clients may request. Overrides those in [`transport`](Self::transport). The
    /// default is BRTP alone; a client that requests another mode is refused.
    #[must_use]
    pub fn modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Self {
        self.modes = modes.into_iter().collect();
        self
    }

    /// Whether clients learn at once that this server was restarted and has lost their connections, by
    /// stateless resets (RFC 9000 section 10.3): the default. Without them they wait for their idle
    /// timeout, and a scan for servers gets no answer. Resets need the same certificate after the
    /// restart; a server with a [`preshared_key`](Self::preshared_key) sends none.
    #[must_use]
    pub fn stateless_resets(mut self, resets: bool) -> Self {
        self.stateless_resets = resets;
        self
    }

    /// Number of half-open connections from which on clients must validate their address with a
    /// Retry token (RFC 9000 section 8.1.2), which costs one round trip. 0 validates every client;
    /// the default is 64.
    #[must_use]
    pub fn retry_threshold(mut self, half_open: usize) -> Self {
        self.retry_threshold = half_open;
        self
    }

    /// Largest number of open connections, by default 10,000; more are refused.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Bytes that the connection of an untrusted peer may hold, in complete or partial messages,
    /// until the application calls [`Connection::trust_peer`]. A connection that holds more is
    /// closed.
    ///
    /// For servers whose peers identify themselves first: until then even many peers hold little
    /// memory. Data that arrives at once, at most 1 MB over all connections, may exceed the limit
    /// for a moment. Without this option every connection may use its whole
    /// [`receive_budget`](crate::TransportConfig::receive_budget) from the start.
    ///
    /// [`Connection::trust_peer`]: crate::Connection::trust_peer
    #[must_use]
    pub fn untrusted_peer_budget(mut self, bytes: usize) -> Self {
        self.untrusted_peer_budget = Some(bytes);
        self
    }

    pub(crate) fn untrusted_budget(&self) -> Option<usize> {
        self.untrusted_peer_budget
    }

    /// Accepts early messages (0-RTT) of BTP, which must be among the [`modes`](Self::modes), from
    /// clients that resume a session. Each is delivered once, but before the client has proved that
    /// it is there now; see [`ClientOptions::early_data`]. Such a connection is accepted at once,
    /// and ends if the client does not complete its handshake within 10 s.
    #[must_use]
    pub fn early_data(mut self) -> Self {
        self.early_data = true;
        self
    }

    /// PSK mode: also accepts clients with this key, at most three besides the first one. So the keys
    /// of clients can be changed one after the other. See
    /// [`Endpoint::set_preshared_keys`](crate::Endpoint::set_preshared_keys).
    #[must_use]
    pub fn also_accept_preshared_key(mut self, key: PresharedKey) -> Self {
        self.transport.also_accepted_psks.push(key);
        self
    }

    pub(crate) fn into_config(self) -> (ServerConfig, Extras) {
        let mut transport = self.transport;
        if let Some((first, others)) = self.modes.split_first() {
            (transport.mode, transport.also_accepted) = (*first, others.to_vec());
        }
        transport.deadline = self.deadline.unwrap_or(transport.deadline);
        transport.stateless_resets = self.stateless_resets;
        transport.early_data |= self.early_data;
        transport.psk = self.preshared_key.or(transport.psk);
        transport.key_log = transport.key_log.or_else(crate::key_log::from_environment);
        let compression_offer = CompressionOffer::from_level(self.compression, &mut transport);
        let config = ServerConfig {
            identity: self.identity.0,
            transport: Arc::new(transport),
            client_trust: self.client_trust.map(Trust::into_config),
            retry_threshold: self.retry_threshold,
            max_connections: self.max_connections,
        };
        (config, Extras { compression_offer, has_datagrams: self.has_datagrams })
    }
}
