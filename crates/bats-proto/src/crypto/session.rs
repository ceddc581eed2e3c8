//! The TLS session of a handshake, or its stand-in.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::client::{Resumption, TicketRequest};
use rustls::pki_types::ServerName;
use rustls::quic::{self, ClientConnection, KeyChange, Secrets, ServerConnection, Version};
use rustls::{ClientConfig, HandshakeKind, ServerConfig, Side, version::TLS13};

use super::clock::ToldTime;
use super::closed::ClosedSecrets;
use super::plain::PlainKey;
use super::store::StoreOf;
use super::symbol::{EXPORTER_LABEL, SECRET_LEN, SymbolKeys};
use super::tickets::ServerSessions;
use super::trust::{Basis, Template, judged_at, key_of, unusable};
use super::{DirectionalKeys, HeaderKey, Keys, PacketKey, fingerprint};
use crate::config::{self, Mode, Security};
use crate::error::ConnectError;

/// Application protocol of the handshake.
const ALPN: &[u8] = b"openbats/1";
/// Sessions that a client asks for with each connection: one for the next, and one to spare, because
/// each is used once and a connection may end before new ones come.
const TICKETS: u8 = 2;

/// What the TLS session does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CryptoError(pub String);

/// What a client's session begins with.
pub enum ClientTls {
    /// Real.
    Tls(Box<ClientParts>),
    /// Stand-in.
    Plain,
}

/// What a server's sessions are made of.
pub struct ServerParts {
    tls: Arc<ServerConfig>,
    clock: Arc<ToldTime>,
    pub(super) sessions: Arc<ServerSessions>,
}

/// What a client's session is made of.
pub struct ClientParts {
    tls: ClientConfig,
    name: ServerName<'static>,
    clock: Arc<ToldTime>,
    store: Option<Arc<StoreOf>>,
}

/// What a server's sessions have in common.
pub enum ServerTls {
    /// Real.
    Tls(ServerParts),
    /// Stand-in.
    Plain,
}

impl core::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ServerTls")
    }
}

/// The TLS of a client, whatever carries it, and the name to be asked for. Every handshake is a full
/// one.
///
/// # Errors
///
/// The name is none, or something in the configuration cannot be used.
pub fn tls_client(
    config: &config::ClientConfig,
    server_name: &str,
    alpn: &[u8],
) -> Result<(ClientConfig, ServerName<'static>), ConnectError> {
    let name = name_of(server_name)?;
    let mut tls = Template::new(config)?.tls;
    let base = judged_at(&config.trust).unwrap_or_default();
    tls.time_provider = Arc::new(ToldTime::new(base, Timestamp::ZERO));
    tls.alpn_protocols = vec![alpn.to_vec()];
    Ok((tls, name))
}

fn name_of(server_name: &str) -> Result<ServerName<'static>, ConnectError> {
    ServerName::try_from(server_name.to_owned())
        .map_err(|_| ConnectError::ServerName(server_name.to_owned()))
}

/// The TLS of a server, whatever carries it. It offers no sessions to be taken up.
///
/// # Errors
///
/// Certificate or key cannot be used.
pub fn tls_server(
    config: &config::ServerConfig,
    alpn: &[u8],
) -> Result<ServerConfig, ConnectError> {
    // Clients show no certificates, so that no time is asked for.
    tls_server_at(config, alpn, Arc::new(ToldTime::new(Duration::ZERO, Timestamp::ZERO)))
}

fn tls_server_at(
    config: &config::ServerConfig,
    alpn: &[u8],
    clock: Arc<ToldTime>,
) -> Result<ServerConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = key_of(&config.identity);
    let mut tls = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    tls.alpn_protocols = vec![alpn.to_vec()];
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

impl ClientTls {
    /// For connections to `server` from `now` on.
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
                return Err(unusable("early data need a store of sessions"));
            }
            if security == Security::DangerousPlain {
                return Ok(Self::Plain);
            }
            let (tls, name) = tls_client(config, server_name, ALPN)?;
            let clock = Arc::new(ToldTime::new(Duration::ZERO, now));
            return Ok(Self::Tls(Box::new(ClientParts { tls, name, clock, store: None })));
        };
        if security == Security::DangerousPlain {
            return Err(unusable("the stand-in for TLS has no sessions to be taken up"));
        }
        if transport.early_data && transport.mode != Mode::Btp {
            return Err(unusable("early data can be replayed, so that only mode 0 (BTP) has them"));
        }
        let name = name_of(server_name)?;
        let base = judged_at(&config.trust).unwrap_or(resumption.unix_time);
        let clock = Arc::new(ToldTime::new(base, now));
        let basis = Basis::of(config);
        let template = resumption.store.template(basis, config)?;
        let store = Arc::new(StoreOf::new(
            resumption.store.clone(),
            (basis, template.clone()),
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
                        .map_err(unusable)?;
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
            return Err(unusable("early data are for mode 0 (BTP), which is not offered"));
        }
        if security == Security::DangerousPlain {
            if transport.early_data {
                return Err(unusable("the stand-in for TLS has no early data"));
            }
            return Ok(Self::Plain);
        }
        let clock = Arc::new(ToldTime::new(Duration::ZERO, Timestamp::ZERO));
        let mut tls = tls_server_at(config, ALPN, clock.clone())?;
        let sessions = Arc::new(ServerSessions::new(clock.clone()));
        tls.session_storage = sessions.clone();
        // As many as a client asks for, and none to one that does not.
        tls.max_tls13_tickets = usize::from(TICKETS);
        // QUIC's TLS knows none or any number; the limit is the packets' affair.
        tls.max_early_data_size = if transport.early_data { u32::MAX } else { 0 };
        Ok(Self::Tls(ServerParts { tls: Arc::new(tls), clock, sessions }))
    }

    /// Begins a session; one that may `take_early` data, if the configuration has them.
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

    /// Sessions that made room for others.
    pub(crate) fn sessions_displaced(&self) -> u64 {
        match self {
            Self::Tls(parts) => parts.sessions.displaced(),
            Self::Plain => 0,
        }
    }

    /// Whether this is the stand-in.
    pub(crate) fn security(&self) -> Security {
        match self {
            Self::Tls(..) => Security::Tls,
            Self::Plain => Security::DangerousPlain,
        }
    }
}

/// Keys of the first level, which follow from a connection ID that everyone sees, and in closed mode
/// from the shared key.
pub(crate) fn initial_keys(
    security: Security,
    closed: Option<&ClosedSecrets>,
    destination: &[u8],
    is_client: bool,
) -> Option<Keys> {
    let material = closed.map(|closed| closed.keying_material(destination));
    match security {
        Security::Tls => {
            let side = if is_client { Side::Client } else { Side::Server };
            let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
            let suite = suite.tls13()?.quic_suite()?;
            let material = material.as_ref().map_or(destination, <[u8; 32]>::as_slice);
            Some(Keys::from_tls(suite.keys(material, side, Version::V1)))
        }
        Security::DangerousPlain => {
            // One bit less, because a label is doubled.
            let label = material.map_or(1, |[a, b, c, d, e, f, g, h, ..]| {
                u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1
            });
            Some(plain_keys(label, is_client))
        }
    }
}

/// Keys of the stand-in: everyone can compute them, fuzzing does.
pub(crate) fn plain_keys(label: u64, is_client: bool) -> Keys {
    let direction = |client: bool| DirectionalKeys {
        header: HeaderKey::Plain,
        packet: PacketKey::Plain(PlainKey::new(label * 2 + u64::from(client))),
    };
    Keys { local: direction(is_client), remote: direction(!is_client) }
}

/// What the handshake has to say next, and what it unlocked.
#[derive(Debug)]
pub(crate) enum Unlocked {
    Handshake(Keys),
    OneRtt(Keys),
}

/// One end's handshake.
pub struct Session(Inner);

enum Inner {
    Tls(Box<TlsSession>),
    Plain(PlainSession),
}

struct TlsSession {
    connection: quic::Connection,
    secrets: Option<Secrets>,
    clock: Arc<ToldTime>,
    /// Where a client's sessions go.
    store: Option<Arc<StoreOf>>,
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    fn tls(
        connection: quic::Connection,
        clock: Arc<ToldTime>,
        store: Option<Arc<StoreOf>>,
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
                tls.clock.tell(now);
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

    /// Appends handshake data to be sent; with the keys of the next level, if it ends here.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Option<Unlocked> {
        match &mut self.0 {
            Inner::Tls(tls) => match tls.connection.write_hs(out)? {
                KeyChange::Handshake { keys } => Some(Unlocked::Handshake(Keys::from_tls(keys))),
                KeyChange::OneRtt { keys, next } => {
                    tls.secrets = Some(next);
                    Some(Unlocked::OneRtt(Keys::from_tls(keys)))
                }
            },
            Inner::Plain(plain) => plain.write(out),
        }
    }

    /// Whether the handshake is done on this side.
    pub(crate) fn is_done(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => !tls.connection.is_handshaking(),
            Inner::Plain(plain) => plain.done,
        }
    }

    /// Whether an earlier session was taken up, known once the handshake is done.
    pub(crate) fn is_resumed(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.handshake_kind() == Some(HandshakeKind::Resumed),
            Inner::Plain(_) => false,
        }
    }

    /// Keys of early data: the client's once the session was begun, if it takes up one that has them;
    /// the server's once it has read the client's first message and accepted.
    pub(crate) fn early_keys(&self) -> Option<DirectionalKeys> {
        match &self.0 {
            Inner::Tls(tls) => tls.connection.zero_rtt_keys().map(DirectionalKeys::from_tls),
            Inner::Plain(_) => None,
        }
    }

    /// Client: whether the server takes early data, known once the handshake is done.
    pub(crate) fn is_early_accepted(&self) -> bool {
        match &self.0 {
            Inner::Tls(tls) => match &tls.connection {
                quic::Connection::Client(client) => client.is_early_data_accepted(),
                quic::Connection::Server(_) => false,
            },
            Inner::Plain(_) => false,
        }
    }

    /// The peer's transport parameters. A client that takes up a session has those of the earlier one
    /// until its handshake is done.
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

    /// Keys for the symbols of a session that crosses relays; `None` before the handshake is done.
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

    /// The next generation of keys for data: (to seal, to open).
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

/// Lengths of the stand-in's flights: those of TLS with a small certificate.
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
        let broken = || CryptoError("malformed stand-in handshake".to_owned());
        let flight = self.incoming.get(from..).ok_or_else(broken)?;
        let (len, rest) = flight.split_first_chunk::<2>().ok_or_else(broken)?;
        let len = usize::from(u16::from_be_bytes(*len));
        self.peer = Some(rest.get(..len).ok_or_else(broken)?.to_vec());
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

    fn write(&mut self, out: &mut Vec<u8>) -> Option<Unlocked> {
        match (self.side, self.step) {
            (Side::Client, 0) => {
                out.extend(self.flight(PLAIN_CLIENT_HELLO));
                self.step = 1;
                None
            }
            (Side::Client, 2) => {
                self.step = 3;
                Some(Unlocked::Handshake(plain_keys(2, self.side == Side::Client)))
            }
            (Side::Client, 4) => {
                out.extend([1; PLAIN_FINISHED]);
                self.step = 5;
                self.done = true;
                Some(Unlocked::OneRtt(plain_keys(3, self.side == Side::Client)))
            }
            (Side::Server, 1) => {
                out.extend([2; PLAIN_SERVER_HELLO]);
                self.step = 2;
                Some(Unlocked::Handshake(plain_keys(2, self.side == Side::Client)))
            }
            (Side::Server, 2) => {
                out.extend(self.flight(PLAIN_SERVER_FLIGHT));
                self.step = 3;
                Some(Unlocked::OneRtt(plain_keys(3, self.side == Side::Client)))
            }
            _ => None,
        }
    }
}
