//! The TLS session of a handshake, or its stand-in for simulation.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::client::{Resumption, TicketRequest};
use rustls::pki_types::ServerName;
use rustls::quic::{self, ClientConnection, KeyChange, Secrets, ServerConnection, Version};
use rustls::{ClientConfig, HandshakeKind, ServerConfig, Side, version::TLS13};

use super::clock::ExternalClock;
use super::key_log::{CLIENT_INITIAL, SERVER_INITIAL, tls_key_log};
use super::new_keys::{CryptoError, NewKeys};
use super::plain_identity::PlainIdentity;
use super::plain_session::{PlainSession, plain_keys};
use super::psk::PskSecrets;
use super::released::ReleasedSession;
use super::store::ConnectionSessionStore;
use super::symbol::{EXPORTER_LABEL, SECRET_LEN, SymbolKeys};
use super::tickets::ServerSessions;
use super::tls_errors::describe_tls_error;
use super::trust::{
    Template, TrustIdentity, certificate_and_key, client_verifier, config_error, verification_time,
};
use super::{DirectionalKeys, Keys, PacketKey, fingerprint};
use crate::config::{self, Security};
use crate::error::ConnectError;
use crate::remote::Remote;
use crate::wire::long_header::{CID_LEN, ORIGINAL_CID_LEN};

/// ALPN protocol of the handshake.
const ALPN: &[u8] = b"openbats/1";
/// Session tickets that a client requests per connection: one for the next connection and one
/// spare, because each is used once and a connection may end before new tickets arrive.
const TICKETS: u8 = 2;
/// Type of a TLS message by which a server asks for the client's certificate (RFC 8446 section 4).
const CERTIFICATE_REQUEST: u8 = 13;

/// TLS setup of a client.
pub enum ClientTls {
    /// Real TLS.
    Tls(Box<ClientParts>),
    /// The stand-in, also that of direct sessions.
    Plain(PlainIdentity),
}

/// Shared parts of a server's sessions.
pub struct ServerParts {
    tls: Arc<ServerConfig>,
    clock: Arc<ExternalClock>,
    pub(super) sessions: Arc<ServerSessions>,
}

/// Parts of a client's session.
pub struct ClientParts {
    tls: ClientConfig,
    name: ServerName<'static>,
    clock: Arc<ExternalClock>,
    store: Option<Arc<ConnectionSessionStore>>,
}

/// TLS setup shared by a server's sessions.
pub enum ServerTls {
    /// Real TLS.
    Tls(ServerParts),
    /// The stand-in.
    Plain(PlainIdentity),
    /// None: the handshakes of direct sessions, whose ends the links have authenticated.
    OfLinks,
}

impl core::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ServerTls")
    }
}

/// TLS configuration of a client for any transport, and the server name. Without resumption.
///
/// # Errors
///
/// The server name or the configuration is invalid.
pub fn tls_client(
    config: &config::ClientConfig,
    server_name: &str,
    alpn: &[u8],
) -> Result<(ClientConfig, ServerName<'static>), ConnectError> {
    let name = name_of(server_name)?;
    let mut tls = Template::new(&config.trust, config.identity.as_ref())?.tls;
    let base = verification_time(&config.trust).unwrap_or_default();
    tls.time_provider = Arc::new(ExternalClock::new(base, Timestamp::ZERO));
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.key_log = tls_key_log(config.transport.key_log.as_ref());
    Ok((tls, name))
}

fn name_of(server_name: &str) -> Result<ServerName<'static>, ConnectError> {
    ServerName::try_from(server_name.to_owned())
        .map_err(|_| ConnectError::ServerName(server_name.to_owned()))
}

/// TLS configuration of a server for any transport. Without resumption.
///
/// # Errors
///
/// The certificate or the key is invalid.
pub fn tls_server(
    config: &config::ServerConfig,
    alpn: &[u8],
) -> Result<ServerConfig, ConnectError> {
    tls_server_at(config, alpn, Arc::new(server_clock(config)))
}

/// The clock that a server verifies client certificates with.
fn server_clock(config: &config::ServerConfig) -> ExternalClock {
    let base = config.client_trust.as_ref().and_then(verification_time).unwrap_or_default();
    ExternalClock::new(base, Timestamp::ZERO)
}

fn tls_server_at(
    config: &config::ServerConfig,
    alpn: &[u8],
    clock: Arc<ExternalClock>,
) -> Result<ServerConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = certificate_and_key(&config.identity);
    let verifier = client_verifier(config.client_trust.as_ref(), &provider)?;
    let builder = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])
        .map_err(config_error)?;
    let mut tls = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    }
    .with_single_cert(chain, key)
    .map_err(config_error)?;
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.key_log = tls_key_log(config.transport.key_log.as_ref());
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

impl ClientTls {
    /// Prepares TLS for a connection to `server` that starts at `now`.
    pub(crate) fn new(
        now: Timestamp,
        config: &config::ClientConfig,
        server: Remote,
        server_name: &str,
        security: Security,
    ) -> Result<Self, ConnectError> {
        let transport = &config.transport;
        // Each session over relays has a flow of its own, for which no ticket would be found again.
        let resumption = transport.resumption.as_ref().filter(|_| !server.is_over_relays());
        let Some(resumption) = resumption else {
            if transport.early_data {
                return Err(config_error("early data needs a session store"));
            }
            if security == Security::DangerousPlain {
                let own = config.identity.as_ref();
                return Ok(Self::Plain(PlainIdentity::new(own, Some(&config.trust))));
            }
            let (tls, name) = tls_client(config, server_name, ALPN)?;
            let clock = Arc::new(ExternalClock::new(Duration::ZERO, now));
            return Ok(Self::Tls(Box::new(ClientParts { tls, name, clock, store: None })));
        };
        if security == Security::DangerousPlain {
            return Err(config_error("the stand-in for TLS does not support resumption"));
        }
        if transport.early_data && !transport.mode.supports_early_data() {
            return Err(config_error(
                "early data can be replayed, so only mode 0 (BTP) supports it",
            ));
        }
        let name = name_of(server_name)?;
        let base = verification_time(&config.trust).unwrap_or(resumption.unix_time);
        let clock = Arc::new(ExternalClock::new(base, now));
        let (trust, identity) = (&config.trust, config.identity.as_ref());
        let trust_identity = TrustIdentity::of(trust, identity);
        let template = resumption.store.template(trust_identity, trust, identity)?;
        let store = Arc::new(ConnectionSessionStore::new(
            resumption.store.clone(),
            (trust_identity, template.clone()),
            server,
            name.clone(),
            ALPN,
            clock.clone(),
        ));
        let mut tls = template.tls;
        tls.time_provider = clock.clone();
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.key_log = tls_key_log(transport.key_log.as_ref());
        tls.enable_early_data = transport.early_data;
        tls.resumption = Resumption::store(store.clone());
        tls.send_ticket_request =
            Some(TicketRequest { new_session_count: TICKETS, resumption_count: TICKETS });
        Ok(Self::Tls(Box::new(ClientParts { tls, name, clock, store: Some(store) })))
    }

    pub(crate) fn start(self, parameters: Vec<u8>) -> Result<Session, ConnectError> {
        match self {
            Self::Tls(parts) => {
                let ClientParts { tls, name, clock, store } = *parts;
                let connection =
                    ClientConnection::new(Arc::new(tls), Version::V1, name, parameters)
                        .map_err(config_error)?;
                Ok(Session::tls(quic::Connection::Client(connection), clock, store))
            }
            Self::Plain(identity) => Ok(Session::plain(Side::Client, parameters, identity)),
        }
    }
}

impl ServerTls {
    pub(crate) fn new(
        config: &config::ServerConfig,
        security: Security,
    ) -> Result<Self, ConnectError> {
        let transport = &config.transport;
        if transport.early_data && !transport.offers_early() {
            return Err(config_error("early data needs mode 0 (BTP), which is not offered"));
        }
        if security == Security::DangerousPlain {
            if let Some(config::PeerTrust::Authorities { .. }) = config.client_trust {
                return Err(config_error("the stand-in for TLS has no certificate authorities"));
            }
            if transport.early_data {
                return Err(config_error("the stand-in for TLS does not support early data"));
            }
            let trust = config.client_trust.as_ref();
            return Ok(Self::Plain(PlainIdentity::new(Some(&config.identity), trust)));
        }
        let clock = Arc::new(server_clock(config));
        let mut tls = tls_server_at(config, ALPN, clock.clone())?;
        let sessions = Arc::new(ServerSessions::new(clock.clone()));
        tls.session_storage = sessions.clone();
        // As many as a client requests; none to a client that requests none.
        tls.max_tls13_tickets = usize::from(TICKETS);
        // QUIC's TLS allows only 0 or 2^32 - 1 here (RFC 9001, section 4.6.1); the receiver of
        // early packets enforces the limit.
        tls.max_early_data_size = if transport.early_data { u32::MAX } else { 0 };
        Ok(Self::Tls(ServerParts { tls: Arc::new(tls), clock, sessions }))
    }

    /// Starts a session; `take_early` allows early data, if the configuration enables it. `neighbour` is the fingerprint
    /// of the peer of a direct session.
    pub(crate) fn start(
        &self,
        parameters: Vec<u8>,
        take_early: bool,
        neighbour: Option<[u8; 32]>,
    ) -> Result<Session, CryptoError> {
        match self {
            Self::Tls(ServerParts { tls, clock, .. }) => {
                let mut connection = ServerConnection::new(tls.clone(), Version::V1, parameters)
                    .map_err(|error| CryptoError(error.to_string()))?;
                if !take_early {
                    connection.reject_early_data();
                }
                Ok(Session::tls(quic::Connection::Server(connection), clock.clone(), None))
            }
            Self::Plain(identity) => Ok(Session::plain(Side::Server, parameters, identity.clone())),
            Self::OfLinks => {
                let identity = PlainIdentity::OfLinks(neighbour);
                Ok(Session::plain(Side::Server, parameters, identity))
            }
        }
    }

    /// Sessions evicted for newer ones.
    pub(crate) fn sessions_displaced(&self) -> u64 {
        match self {
            Self::Tls(parts) => parts.sessions.displaced(),
            Self::Plain(_) | Self::OfLinks => 0,
        }
    }

    /// TLS or the stand-in.
    pub(crate) fn security(&self) -> Security {
        match self {
            Self::Tls(..) => Security::Tls,
            Self::Plain(_) | Self::OfLinks => Security::DangerousPlain,
        }
    }
}

/// Input of the derivation of Initial keys.
pub(crate) struct InitialSecrets<'a> {
    /// Set in PSK mode.
    pub(crate) psk: Option<&'a PskSecrets>,
    /// Connection ID that the client chose for the server.
    pub(crate) destination: &'a [u8; ORIGINAL_CID_LEN],
    /// The client's own connection ID; used in PSK mode.
    pub(crate) source: &'a [u8; CID_LEN],
    /// PSK mode: the salt that the server has chosen. Without it only the client's direction has
    /// the right keys.
    pub(crate) salt: &'a [u8],
}

impl InitialSecrets<'_> {
    /// PSK mode: logs the material of the keys for packets of the client.
    pub(crate) fn log_client(&self) {
        self.log(CLIENT_INITIAL, self.destination, &[]);
    }

    /// PSK mode: logs the material of the keys for packets of the server.
    pub(crate) fn log_server(&self) {
        self.log(SERVER_INITIAL, self.salt, self.salt);
    }

    /// Logs what a capture and the secrets of TLS do not show.
    fn log(&self, label: &str, identifier: &[u8], salt: &[u8]) {
        if let Some(psk) = self.psk
            && let Some(log) = &psk.key_log
        {
            let material = psk.keying_material(self.destination, self.source, salt);
            log.write(label, identifier, &material);
        }
    }
}

/// Initial keys, derived from the client's destination connection ID, which everyone can see (RFC
/// 9001, section 5.2), and in PSK mode also from the pre-shared key and the server's salt.
pub(crate) fn initial_keys(
    security: Security,
    secrets: &InitialSecrets<'_>,
    is_client: bool,
) -> Option<Keys> {
    let InitialSecrets { psk, destination, source, salt } = *secrets;
    let Some(psk) = psk else { return initial_keys_of(security, destination, None, is_client) };
    let keys = |salt: &[u8]| {
        let material = psk.keying_material(destination, source, salt);
        initial_keys_of(security, &material, Some(&material), is_client)
    };
    let (clients, servers) = (keys(&[])?, keys(salt)?);
    Some(match is_client {
        true => Keys { local: clients.local, remote: servers.remote },
        false => Keys { local: servers.local, remote: clients.remote },
    })
}

fn initial_keys_of(
    security: Security,
    connection_id: &[u8],
    material: Option<&[u8; 32]>,
    is_client: bool,
) -> Option<Keys> {
    match security {
        Security::Tls => {
            let side = if is_client { Side::Client } else { Side::Server };
            let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
            let suite = suite.tls13()?.quic_suite()?;
            Some(Keys::from_tls(suite.keys(connection_id, side, Version::V1)))
        }
        Security::DangerousPlain => {
            // One bit less, because `plain_keys` doubles the label.
            let label = material.map_or(1, |&[a, b, c, d, e, f, g, h, ..]| {
                u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1
            });
            Some(plain_keys(label, is_client))
        }
    }
}

/// The TLS session of one end.
pub struct Session(Inner);

enum Inner {
    Tls(Box<TlsSession>),
    /// After [`Session::release`].
    Released(Box<ReleasedSession>),
    Plain(PlainSession),
}

struct TlsSession {
    connection: quic::Connection,
    secrets: Option<Secrets>,
    clock: Arc<ExternalClock>,
    /// The session store of a client.
    store: Option<Arc<ConnectionSessionStore>>,
    is_certificate_requested: bool,
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    fn tls(
        connection: quic::Connection,
        clock: Arc<ExternalClock>,
        store: Option<Arc<ConnectionSessionStore>>,
    ) -> Self {
        Self(Inner::Tls(Box::new(TlsSession {
            connection,
            secrets: None,
            clock,
            store,
            is_certificate_requested: false,
        })))
    }

    fn plain(side: Side, parameters: Vec<u8>, identity: PlainIdentity) -> Self {
        Self(Inner::Plain(PlainSession {
            side,
            parameters,
            identity,
            peer: None,
            peer_fingerprint: None,
            incoming: Vec::new(),
            step: 0,
            done: false,
            generation: 0,
        }))
    }

    /// Client: whether the server has asked for a certificate. It may still refuse the one that this
    /// end presents when the handshake is complete here (RFC 8446 section 4.4.2.4).
    pub(crate) fn is_certificate_requested(&self) -> bool {
        matches!(&self.0, Inner::Tls(tls) if tls.is_certificate_requested)
    }

    /// Frees what only the handshake needs, and session tickets: the peer's certificates, the
    /// configuration and the state of the TLS library. Key updates go on. Without effect before the
    /// handshake is complete at this end.
    pub(crate) fn release(&mut self) {
        let released = match &mut self.0 {
            Inner::Tls(tls) if !tls.connection.is_handshaking() => {
                tls.secrets.take().map(|secrets| (secrets, is_resumed(&tls.connection)))
            }
            Inner::Tls(_) | Inner::Released(_) => None,
            Inner::Plain(plain) => return plain.release(),
        };
        if let Some((secrets, is_resumed)) = released {
            let peer_fingerprint = self.peer_fingerprint();
            let released = ReleasedSession { secrets, is_resumed, peer_fingerprint };
            self.0 = Inner::Released(Box::new(released));
        }
    }

    /// Client: whether further session tickets are useful.
    pub(crate) fn awaits_tickets(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => match &tls.connection {
                quic::Connection::Client(client) => {
                    tls.store.is_some() && client.tls13_tickets_received() < u32::from(TICKETS)
                }
                quic::Connection::Server(_) => false,
            },
            Inner::Released(_) | Inner::Plain(_) => false,
        }
    }

    /// Takes whole messages of the handshake that arrived in order.
    pub(crate) fn read(&mut self, now: Timestamp, data: &[u8]) -> Result<(), CryptoError> {
        match &mut self.0 {
            Inner::Tls(tls) => {
                tls.clock.set(now);
                if let Some(store) = &tls.store
                    && !tls.connection.is_handshaking()
                    && let Some(chain) = tls.connection.peer_certificates()
                {
                    store.set_chain(chain);
                }
                let is_client = matches!(tls.connection, quic::Connection::Client(_));
                tls.is_certificate_requested |=
                    is_client && data.first() == Some(&CERTIFICATE_REQUEST);
                tls.connection.read_hs(data).map_err(|error| {
                    // TLS reads nothing after an error, so no tickets either.
                    tls.store = None;
                    CryptoError(describe_tls_error(&error, is_client))
                })
            }
            Inner::Released(_) => Ok(()),
            Inner::Plain(plain) => plain.read(data),
        }
    }

    /// Length of the first TLS message in `data` (RFC 8446, section 4), or 0 if it is incomplete.
    pub(crate) fn next_message(&self, data: &[u8]) -> usize {
        match &self.0 {
            Inner::Tls(_) | Inner::Released(_) => {
                let Some(&[_, a, b, c]) = data.first_chunk() else { return 0 };
                let len = (u32::from_be_bytes([0, a, b, c]) as usize).saturating_add(4);
                if data.len() < len { 0 } else { len }
            }
            Inner::Plain(plain) => plain.wanted().min(data.len()),
        }
    }

    /// Appends handshake data to send to `out`; returns the keys of the next level if this level is
    /// complete.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Option<NewKeys> {
        match &mut self.0 {
            Inner::Tls(tls) => match tls.connection.write_hs(out)? {
                KeyChange::Handshake { keys } => Some(NewKeys::Handshake(Keys::from_tls(keys))),
                KeyChange::OneRtt { keys, next } => {
                    tls.secrets = Some(next);
                    Some(NewKeys::OneRtt(Keys::from_tls(keys)))
                }
            },
            Inner::Released(_) => None,
            Inner::Plain(plain) => plain.write(out),
        }
    }

    /// Whether the handshake is complete at this end.
    pub(crate) fn is_done(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => !tls.connection.is_handshaking(),
            Inner::Released(_) => true,
            Inner::Plain(plain) => plain.done,
        }
    }

    /// Whether an earlier session was resumed; known once the handshake is complete.
    pub(crate) fn is_resumed(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => is_resumed(&tls.connection),
            Inner::Released(released) => released.is_resumed,
            Inner::Plain(_) => false,
        }
    }

    /// Keys of early data. Client: from the start, if it resumes a session that allows early data.
    /// Server: once it has read the ClientHello and accepted early data.
    pub(crate) fn early_keys(&self) -> Option<DirectionalKeys> {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.zero_rtt_keys().map(DirectionalKeys::from_tls),
            Inner::Released(_) | Inner::Plain(_) => None,
        }
    }

    /// Client: whether the server accepted early data; known once the handshake is complete.
    pub(crate) fn is_early_accepted(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => match &tls.connection {
                quic::Connection::Client(client) => client.is_early_data_accepted(),
                quic::Connection::Server(_) => false,
            },
            Inner::Released(_) | Inner::Plain(_) => false,
        }
    }

    /// The peer's transport parameters. A client that resumes a session gets those of the earlier
    /// session until the handshake is complete.
    pub(crate) fn peer_parameters(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.quic_transport_parameters(),
            Inner::Released(_) => None,
            Inner::Plain(plain) => plain.peer.as_deref(),
        }
    }

    /// Fingerprint of the peer's certificate.
    pub(crate) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        match &self.0 {
            Inner::Tls(tls) => tls
                .connection
                .peer_certificates()?
                .first()
                .map(|certificate| fingerprint(certificate)),
            Inner::Released(released) => released.peer_fingerprint,
            Inner::Plain(plain) => plain.peer_fingerprint,
        }
    }

    /// Keys for the symbols of an end-to-end session; `None` before the handshake is complete,
    /// after [`Session::release`], and for a direct session.
    pub(crate) fn symbol_keys(&self) -> Option<SymbolKeys> {
        match &self.0 {
            Inner::Tls(tls) => {
                let mut bytes = [0; 2 * SECRET_LEN];
                tls.connection.export_keying_material(&mut bytes, EXPORTER_LABEL, None).ok()?;
                let is_client = matches!(tls.connection, quic::Connection::Client(_));
                Some(SymbolKeys::from_exporter(&bytes, is_client))
            }
            Inner::Released(_) => None,
            Inner::Plain(plain) => {
                let seals = plain.done && plain.seals_symbols();
                seals.then(|| SymbolKeys::plain(plain.side == Side::Client))
            }
        }
    }

    /// 1-RTT keys of the next key phase: (to seal, to open).
    pub(crate) fn next_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        match &mut self.0 {
            Inner::Tls(tls) => Some(next_keys(tls.secrets.as_mut()?)),
            Inner::Released(released) => Some(next_keys(&mut released.secrets)),
            Inner::Plain(plain) => {
                plain.generation = plain.generation.wrapping_add(1);
                let keys = plain_keys(plain.generation.wrapping_add(8), plain.side == Side::Client);
                Some((keys.local.packet, keys.remote.packet))
            }
        }
    }
}

fn next_keys(secrets: &mut Secrets) -> (PacketKey, PacketKey) {
    let next = secrets.next_packet_keys();
    (PacketKey::Aead(next.local), PacketKey::Aead(next.remote))
}

fn is_resumed(connection: &quic::Connection) -> bool {
    connection.handshake_kind() == Some(HandshakeKind::Resumed)
}
