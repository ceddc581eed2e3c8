//! The TLS session of a handshake, or its stand-in for simulation.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::client::{Resumption, TicketRequest};
use rustls::pki_types::ServerName;
use rustls::quic::{self, ClientConnection, KeyChange, Secrets, ServerConnection, Version};
use rustls::{ClientConfig, HandshakeKind, ServerConfig, Side, version::TLS13};

use super::clock::ExternalClock;
use super::plain::PlainKey;
use super::psk::PskSecrets;
use super::store::ConnectionSessionStore;
use super::symbol::{EXPORTER_LABEL, SECRET_LEN, SymbolKeys};
use super::tickets::ServerSessions;
use super::trust::{Template, TrustIdentity, certificate_and_key, config_error, verification_time};
use super::{DirectionalKeys, HeaderKey, Keys, PacketKey, fingerprint};
use crate::config::{self, Mode, Security};
use crate::error::ConnectError;

/// ALPN protocol of the handshake.
const ALPN: &[u8] = b"openbats/1";
/// Session tickets that a client requests per connection: one for the next connection and one
/// spare, because each is used once and a connection may end before new tickets arrive.
const TICKETS: u8 = 2;

/// The TLS session failed; the text says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CryptoError(pub String);

/// TLS setup of a client.
pub enum ClientTls {
    /// Real TLS.
    Tls(Box<ClientParts>),
    /// The stand-in.
    Plain,
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
    Plain,
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
    let mut tls = Template::new(config)?.tls;
    let base = verification_time(&config.trust).unwrap_or_default();
    tls.time_provider = Arc::new(ExternalClock::new(base, Timestamp::ZERO));
    tls.alpn_protocols = vec![alpn.to_vec()];
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
    // Clients present no certificates, so TLS needs no time.
    tls_server_at(config, alpn, Arc::new(ExternalClock::new(Duration::ZERO, Timestamp::ZERO)))
}

fn tls_server_at(
    config: &config::ServerConfig,
    alpn: &[u8],
    clock: Arc<ExternalClock>,
) -> Result<ServerConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = certificate_and_key(&config.identity);
    let mut tls = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])
        .map_err(config_error)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(config_error)?;
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

impl ClientTls {
    /// Prepares TLS for a connection to `server` that starts at `now`.
    pub(crate) fn new(
        now: Timestamp,
        config: &config::ClientConfig,
        server: SocketAddr,
        server_name: &str,
        security: Security,
    ) -> Result<Self, ConnectError> {
        let transport = &config.transport;
        let Some(resumption) = &transport.resumption else {
            if transport.early_data {
                return Err(config_error("early data needs a session store"));
            }
            if security == Security::DangerousPlain {
                return Ok(Self::Plain);
            }
            let (tls, name) = tls_client(config, server_name, ALPN)?;
            let clock = Arc::new(ExternalClock::new(Duration::ZERO, now));
            return Ok(Self::Tls(Box::new(ClientParts { tls, name, clock, store: None })));
        };
        if security == Security::DangerousPlain {
            return Err(config_error("the stand-in for TLS does not support resumption"));
        }
        if transport.early_data && transport.mode != Mode::Btp {
            return Err(config_error(
                "early data can be replayed, so only mode 0 (BTP) supports it",
            ));
        }
        let name = name_of(server_name)?;
        let base = verification_time(&config.trust).unwrap_or(resumption.unix_time);
        let clock = Arc::new(ExternalClock::new(base, now));
        let trust_identity = TrustIdentity::of(config);
        let template = resumption.store.template(trust_identity, config)?;
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
            Self::Plain => Ok(Session::plain(Side::Client, parameters)),
        }
    }
}

impl ServerTls {
    pub(crate) fn new(
        config: &config::ServerConfig,
        security: Security,
    ) -> Result<Self, ConnectError> {
        let transport = &config.transport;
        if transport.early_data && !transport.offers(Mode::Btp) {
            return Err(config_error("early data needs mode 0 (BTP), which is not offered"));
        }
        if security == Security::DangerousPlain {
            if transport.early_data {
                return Err(config_error("the stand-in for TLS does not support early data"));
            }
            return Ok(Self::Plain);
        }
        let clock = Arc::new(ExternalClock::new(Duration::ZERO, Timestamp::ZERO));
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

    /// Starts a session; `take_early` allows early data, if the configuration enables it.
    pub(crate) fn start(
        &self,
        parameters: Vec<u8>,
        take_early: bool,
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
            Self::Plain => Ok(Session::plain(Side::Server, parameters)),
        }
    }

    /// Sessions evicted for newer ones.
    pub(crate) fn sessions_displaced(&self) -> u64 {
        match self {
            Self::Tls(parts) => parts.sessions.displaced(),
            Self::Plain => 0,
        }
    }

    /// TLS or the stand-in.
    pub(crate) fn security(&self) -> Security {
        match self {
            Self::Tls(..) => Security::Tls,
            Self::Plain => Security::DangerousPlain,
        }
    }
}

/// Initial keys, derived from the client's destination connection ID, which everyone can see, and
/// in PSK mode also from the pre-shared key.
pub(crate) fn initial_keys(
    security: Security,
    psk: Option<&PskSecrets>,
    destination: &[u8],
    is_client: bool,
) -> Option<Keys> {
    let material = psk.map(|psk| psk.keying_material(destination));
    match security {
        Security::Tls => {
            let side = if is_client { Side::Client } else { Side::Server };
            let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
            let suite = suite.tls13()?.quic_suite()?;
            let material = material.as_ref().map_or(destination, <[u8; 32]>::as_slice);
            Some(Keys::from_tls(suite.keys(material, side, Version::V1)))
        }
        Security::DangerousPlain => {
            // One bit less, because `plain_keys` doubles the label.
            let label = material.map_or(1, |[a, b, c, d, e, f, g, h, ..]| {
                u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1
            });
            Some(plain_keys(label, is_client))
        }
    }
}

/// Keys of the stand-in. Everyone can compute them; fuzzing does.
pub(crate) fn plain_keys(label: u64, is_client: bool) -> Keys {
    let direction = |client: bool| DirectionalKeys {
        header: HeaderKey::Plain,
        packet: PacketKey::Plain(PlainKey::new(label * 2 + u64::from(client))),
    };
    Keys { local: direction(is_client), remote: direction(!is_client) }
}

/// Keys that the handshake has produced.
#[derive(Debug)]
pub(crate) enum NewKeys {
    Handshake(Keys),
    OneRtt(Keys),
}

/// The TLS session of one end.
pub struct Session(Inner);

enum Inner {
    Tls(Box<TlsSession>),
    Plain(PlainSession),
}

struct TlsSession {
    connection: quic::Connection,
    secrets: Option<Secrets>,
    clock: Arc<ExternalClock>,
    /// The session store of a client.
    store: Option<Arc<ConnectionSessionStore>>,
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
        Self(Inner::Tls(Box::new(TlsSession { connection, secrets: None, clock, store })))
    }

    fn plain(side: Side, parameters: Vec<u8>) -> Self {
        Self(Inner::Plain(PlainSession {
            side,
            parameters,
            peer: None,
            incoming: Vec::new(),
            step: 0,
            done: false,
            generation: 0,
        }))
    }

    /// Takes handshake data that arrived in order.
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
                tls.connection.read_hs(data).map_err(|error| CryptoError(error.to_string()))
            }
            Inner::Plain(plain) => plain.read(data),
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
            Inner::Plain(plain) => plain.write(out),
        }
    }

    /// Whether the handshake is complete at this end.
    pub(crate) fn is_done(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => !tls.connection.is_handshaking(),
            Inner::Plain(plain) => plain.done,
        }
    }

    /// Whether an earlier session was resumed; known once the handshake is complete.
    pub(crate) fn is_resumed(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.handshake_kind() == Some(HandshakeKind::Resumed),
            Inner::Plain(_) => false,
        }
    }

    /// Keys of early data. Client: from the start, if it resumes a session that allows early data.
    /// Server: once it has read the ClientHello and accepted early data.
    pub(crate) fn early_keys(&self) -> Option<DirectionalKeys> {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.zero_rtt_keys().map(DirectionalKeys::from_tls),
            Inner::Plain(_) => None,
        }
    }

    /// Client: whether the server accepted early data; known once the handshake is complete.
    pub(crate) fn is_early_accepted(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => match &tls.connection {
                quic::Connection::Client(client) => client.is_early_data_accepted(),
                quic::Connection::Server(_) => false,
            },
            Inner::Plain(_) => false,
        }
    }

    /// The peer's transport parameters. A client that resumes a session gets those of the earlier
    /// session until the handshake is complete.
    pub(crate) fn peer_parameters(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.quic_transport_parameters(),
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
            Inner::Plain(_) => None,
        }
    }

    /// Keys for the symbols of an end-to-end session; `None` before the handshake is complete.
    pub(crate) fn symbol_keys(&self) -> Option<SymbolKeys> {
        match &self.0 {
            Inner::Tls(tls) => {
                let mut bytes = [0; 2 * SECRET_LEN];
                tls.connection.export_keying_material(&mut bytes, EXPORTER_LABEL, None).ok()?;
                let is_client = matches!(tls.connection, quic::Connection::Client(_));
                Some(SymbolKeys::from_exporter(&bytes, is_client))
            }
            Inner::Plain(plain) => {
                plain.done.then(|| SymbolKeys::plain(plain.side == Side::Client))
            }
        }
    }

    /// 1-RTT keys of the next key phase: (to seal, to open).
    pub(crate) fn next_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        match &mut self.0 {
            Inner::Tls(tls) => {
                let next = tls.secrets.as_mut()?.next_packet_keys();
                Some((PacketKey::Aead(next.local), PacketKey::Aead(next.remote)))
            }
            Inner::Plain(plain) => {
                plain.generation += 1;
                let keys = plain_keys(8 + plain.generation, plain.side == Side::Client);
                Some((keys.local.packet, keys.remote.packet))
            }
        }
    }
}

/// Lengths in bytes of the stand-in's flights: those of TLS with a small certificate.
const PLAIN_CLIENT_HELLO: usize = 280;
const PLAIN_SERVER_HELLO: usize = 96;
const PLAIN_SERVER_FLIGHT: usize = 800;
const PLAIN_FINISHED: usize = 36;

struct PlainSession {
    side: Side,
    parameters: Vec<u8>,
    peer: Option<Vec<u8>>,
    incoming: Vec<u8>,
    step: u8,
    done: bool,
    generation: u64,
}

impl PlainSession {
    fn flight(&self, len: usize) -> Vec<u8> {
        let mut flight = (self.parameters.len() as u16).to_be_bytes().to_vec();
        flight.extend_from_slice(&self.parameters);
        flight.resize(len.max(flight.len()), 0);
        flight
    }

    fn take_parameters(&mut self, from: usize) -> Result<(), CryptoError> {
        let malformed = || CryptoError("malformed stand-in handshake".to_owned());
        let flight = self.incoming.get(from..).ok_or_else(malformed)?;
        let (len, rest) = flight.split_first_chunk::<2>().ok_or_else(malformed)?;
        let len = usize::from(u16::from_be_bytes(*len));
        self.peer = Some(rest.get(..len).ok_or_else(malformed)?.to_vec());
        Ok(())
    }

    fn read(&mut self, data: &[u8]) -> Result<(), CryptoError> {
        let limit = PLAIN_CLIENT_HELLO + PLAIN_SERVER_HELLO + PLAIN_SERVER_FLIGHT + PLAIN_FINISHED;
        if self.incoming.len() + data.len() > limit {
            return Err(CryptoError("too much handshake data".to_owned()));
        }
        self.incoming.extend_from_slice(data);
        let len = self.incoming.len();
        match self.side {
            Side::Client if self.step == 1 && len >= PLAIN_SERVER_HELLO => self.step = 2,
            _ => {}
        }
        match self.side {
            Side::Client if self.step == 3 && len >= PLAIN_SERVER_HELLO + PLAIN_SERVER_FLIGHT => {
                self.take_parameters(PLAIN_SERVER_HELLO)?;
                self.step = 4;
            }
            Side::Server if self.step == 0 && len >= PLAIN_CLIENT_HELLO => {
                self.take_parameters(0)?;
                self.step = 1;
            }
            Side::Server if self.step == 3 && len >= PLAIN_CLIENT_HELLO + PLAIN_FINISHED => {
                self.step = 4;
                self.done = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn write(&mut self, out: &mut Vec<u8>) -> Option<NewKeys> {
        match (self.side, self.step) {
            (Side::Client, 0) => {
                out.extend(self.flight(PLAIN_CLIENT_HELLO));
                self.step = 1;
                None
            }
            (Side::Client, 2) => {
                self.step = 3;
                Some(NewKeys::Handshake(plain_keys(2, self.side == Side::Client)))
            }
            (Side::Client, 4) => {
                out.extend([1; PLAIN_FINISHED]);
                self.step = 5;
                self.done = true;
                Some(NewKeys::OneRtt(plain_keys(3, self.side == Side::Client)))
            }
            (Side::Server, 1) => {
                out.extend([2; PLAIN_SERVER_HELLO]);
                self.step = 2;
                Some(NewKeys::Handshake(plain_keys(2, self.side == Side::Client)))
            }
            (Side::Server, 2) => {
                out.extend(self.flight(PLAIN_SERVER_FLIGHT));
                self.step = 3;
                Some(NewKeys::OneRtt(plain_keys(3, self.side == Side::Client)))
            }
            _ => None,
        }
    }
}
