//! The TLS session of a handshake, or its stand-in.

use core::time::Duration;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::quic::{self, ClientConnection, KeyChange, Secrets, ServerConnection, Version};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig, Side, version::TLS13};

use super::plain::PlainKey;
use super::symbol::{EXPORTER_LABEL, SECRET_LEN, SymbolKeys};
use super::verifier::PinnedVerifier;
use super::{DirectionalKeys, HeaderKey, Keys, PacketKey, fingerprint};
use crate::config::{self, Identity, PeerTrust, Security};
use crate::error::ConnectError;

/// Application protocol of the handshake.
const ALPN: &[u8] = b"openbats/1";

/// What the TLS session does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CryptoError(pub String);

/// What a client's sessions have in common.
pub enum ClientTls {
    /// Real.
    Tls(Arc<ClientConfig>, Box<ServerName<'static>>),
    /// Stand-in.
    Plain,
}

/// What a server's sessions have in common.
pub enum ServerTls {
    /// Real.
    Tls(Arc<ServerConfig>),
    /// Stand-in.
    Plain,
}

impl core::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ServerTls")
    }
}

/// The clock that TLS is given: one moment, told from outside.
#[derive(Debug)]
struct FixedTime(UnixTime);

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

fn unusable(error: impl core::fmt::Display) -> ConnectError {
    ConnectError::Configuration(error.to_string())
}

fn key_of(identity: &Identity) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = identity.certificate_chain.iter().cloned().map(CertificateDer::from).collect();
    (chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.private_key.clone())))
}

/// The TLS of a client, whatever carries it, and the name to be asked for.
///
/// # Errors
///
/// The name is none, or something in the configuration cannot be used.
pub fn tls_client(
    config: &config::ClientConfig,
    server_name: &str,
    alpn: &[u8],
) -> Result<(ClientConfig, ServerName<'static>), ConnectError> {
    let name = ServerName::try_from(server_name.to_owned())
        .map_err(|_| ConnectError::ServerName(server_name.to_owned()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let judged_at = match &config.trust {
        PeerTrust::Authorities { unix_time, .. } => *unix_time,
        // Fingerprints know no time.
        PeerTrust::Fingerprints(_) | PeerTrust::DangerousAcceptAny => Duration::ZERO,
    };
    let time = Arc::new(FixedTime(UnixTime::since_unix_epoch(judged_at)));
    let builder = ClientConfig::builder_with_details(provider.clone(), time)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?;
    let pinned = |accepted| Arc::new(PinnedVerifier { accepted, provider: provider.clone() });
    let builder = match &config.trust {
        PeerTrust::Authorities { certificates, .. } => {
            let mut roots = RootCertStore::empty();
            for authority in certificates {
                roots.add(CertificateDer::from(authority.clone())).map_err(unusable)?;
            }
            builder.with_root_certificates(roots)
        }
        PeerTrust::Fingerprints(accepted) => {
            builder.dangerous().with_custom_certificate_verifier(pinned(Some(accepted.clone())))
        }
        PeerTrust::DangerousAcceptAny => {
            builder.dangerous().with_custom_certificate_verifier(pinned(None))
        }
    };
    let mut tls = match &config.identity {
        Some(identity) => {
            let (chain, key) = key_of(identity);
            builder.with_client_auth_cert(chain, key).map_err(unusable)?
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![alpn.to_vec()];
    Ok((tls, name))
}

/// The TLS of a server, whatever carries it.
///
/// # Errors
///
/// Certificate or key cannot be used.
pub fn tls_server(
    config: &config::ServerConfig,
    alpn: &[u8],
) -> Result<ServerConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = key_of(&config.identity);
    // Clients show no certificates, so that no time is asked for.
    let time = Arc::new(FixedTime(UnixTime::since_unix_epoch(Duration::ZERO)));
    let mut tls = ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    tls.alpn_protocols = vec![alpn.to_vec()];
    // Resumption is not offered yet, so tickets would only cost packets.
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

impl ClientTls {
    pub(crate) fn new(
        config: &config::ClientConfig,
        server_name: &str,
        security: Security,
    ) -> Result<Self, ConnectError> {
        if security == Security::DangerousPlain {
            return Ok(Self::Plain);
        }
        let (tls, name) = tls_client(config, server_name, ALPN)?;
        Ok(Self::Tls(Arc::new(tls), Box::new(name)))
    }

    pub(crate) fn start(&self, parameters: Vec<u8>) -> Result<Session, ConnectError> {
        match self {
            Self::Tls(config, name) => {
                let connection = ClientConnection::new(
                    config.clone(),
                    Version::V1,
                    (**name).clone(),
                    parameters,
                )
                .map_err(unusable)?;
                Ok(Session::tls(quic::Connection::Client(connection)))
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
        if security == Security::DangerousPlain {
            return Ok(Self::Plain);
        }
        Ok(Self::Tls(Arc::new(tls_server(config, ALPN)?)))
    }

    pub(crate) fn start(&self, parameters: Vec<u8>) -> Result<Session, CryptoError> {
        match self {
            Self::Tls(config) => {
                let connection = ServerConnection::new(config.clone(), Version::V1, parameters)
                    .map_err(|error| CryptoError(error.to_string()))?;
                Ok(Session::tls(quic::Connection::Server(connection)))
            }
            Self::Plain => Ok(Session::plain(Side::Server, parameters)),
        }
    }

    /// Whether this is the stand-in.
    pub(crate) fn security(&self) -> Security {
        match self {
            Self::Tls(_) => Security::Tls,
            Self::Plain => Security::DangerousPlain,
        }
    }
}

/// Keys of the first level, which follow from a connection ID that everyone sees.
pub(crate) fn initial_keys(
    security: Security,
    destination: &[u8],
    is_client: bool,
) -> Option<Keys> {
    match security {
        Security::Tls => {
            let side = if is_client { Side::Client } else { Side::Server };
            let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
            let suite = suite.tls13()?.quic_suite()?;
            Some(Keys::from_tls(suite.keys(destination, side, Version::V1)))
        }
        Security::DangerousPlain => Some(plain_keys(1, is_client)),
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
    Tls { connection: Box<quic::Connection>, secrets: Option<Box<Secrets>> },
    Plain(PlainSession),
}

impl core::fmt::Debug for Session {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    fn tls(connection: quic::Connection) -> Self {
        Self(Inner::Tls { connection: Box::new(connection), secrets: None })
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
    pub(crate) fn read(&mut self, data: &[u8]) -> Result<(), CryptoError> {
        match &mut self.0 {
            Inner::Tls { connection, .. } => {
                connection.read_hs(data).map_err(|error| CryptoError(error.to_string()))
            }
            Inner::Plain(plain) => plain.read(data),
        }
    }

    /// Appends handshake data to be sent; with the keys of the next level, if it ends here.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Option<Unlocked> {
        match &mut self.0 {
            Inner::Tls { connection, secrets } => match connection.write_hs(out)? {
                KeyChange::Handshake { keys } => Some(Unlocked::Handshake(Keys::from_tls(keys))),
                KeyChange::OneRtt { keys, next } => {
                    *secrets = Some(Box::new(next));
                    Some(Unlocked::OneRtt(Keys::from_tls(keys)))
                }
            },
            Inner::Plain(plain) => plain.write(out),
        }
    }

    /// Whether the handshake is done on this side.
    pub(crate) fn is_done(&self) -> bool {
        match &self.0 {
            Inner::Tls { connection, .. } => !connection.is_handshaking(),
            Inner::Plain(plain) => plain.done,
        }
    }

    /// The peer's transport parameters.
    pub(crate) fn peer_parameters(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Tls { connection, .. } => connection.quic_transport_parameters(),
            Inner::Plain(plain) => plain.peer.as_deref(),
        }
    }

    /// Fingerprint of the peer's certificate.
    pub(crate) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        match &self.0 {
            Inner::Tls { connection, .. } => {
                connection.peer_certificates()?.first().map(|certificate| fingerprint(certificate))
            }
            Inner::Plain(_) => None,
        }
    }

    /// Keys for the symbols of a session that crosses relays; `None` before the handshake is done.
    pub(crate) fn symbol_keys(&self) -> Option<SymbolKeys> {
        match &self.0 {
            Inner::Tls { connection, .. } => {
                let mut octets = [0; 2 * SECRET_LEN];
                connection.export_keying_material(&mut octets, EXPORTER_LABEL, None).ok()?;
                let is_client = matches!(**connection, quic::Connection::Client(_));
                Some(SymbolKeys::from_exporter(&octets, is_client))
            }
            Inner::Plain(plain) => {
                plain.done.then(|| SymbolKeys::plain(plain.side == Side::Client))
            }
        }
    }

    /// The next generation of keys for data: (to seal, to open).
    pub(crate) fn next_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        match &mut self.0 {
            Inner::Tls { secrets, .. } => {
                let next = secrets.as_mut()?.next_packet_keys();
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
