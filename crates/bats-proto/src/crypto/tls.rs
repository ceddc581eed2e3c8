//! TLS 1.3 by rustls: configurations and the session of one connection.

use core::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::quic;

use super::certificate;
use super::fingerprint::{AcceptAny, Pinned};
use super::keys::{DirectionalKeys, HeaderKey, Keys, PacketKey, Side};
use super::session::{CryptoError, KeyChange};
use crate::config::{ClientConfig, Identity, PeerTrust, ServerConfig};
use crate::error::ConnectError;

/// Application protocol (ALPN, RFC 9001, section 8.1); changes when old ends must not talk to
/// new ones although the packets are the same.
const PROTOCOL: &[u8] = b"openbats/1";
/// Makes the keys of Initial packets other than QUIC's, whose salt the library prescribes.
const INITIAL_LABEL: &[u8] = b"OpenBATS 1 initial";
const QUIC: quic::Version = quic::Version::V1;

fn provider() -> Arc<CryptoProvider> {
    // AES-128 first: the fastest where there is hardware for it, as secure as the key exchange.
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..default_provider() })
}

fn unusable(what: &str, error: &dyn fmt::Display) -> ConnectError {
    ConnectError::Configuration(format!("{what}: {error}"))
}

fn certificate_chain(identity: &Identity) -> Vec<CertificateDer<'static>> {
    identity.certificate_chain.iter().map(|der| CertificateDer::from(der.clone())).collect()
}

fn private_key(identity: &Identity) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.private_key.clone()))
}

/// Everything to begin connections to one name.
#[derive(Clone)]
pub(crate) struct ClientTls {
    config: Arc<rustls::ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ClientTls {
    pub(super) fn new(config: &ClientConfig, server_name: &str) -> Result<Self, ConnectError> {
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| ConnectError::ServerName(server_name.to_owned()))?;
        let provider = provider();
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable("TLS 1.3", &error))?;
        let builder = match &config.trust {
            PeerTrust::Authorities(authorities) => {
                let mut roots = RootCertStore::empty();
                for der in authorities {
                    roots
                        .add(CertificateDer::from(der.as_slice()))
                        .map_err(|error| unusable("certificate authority", &error))?;
                }
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| unusable("certificate authorities", &error))?;
                builder.with_webpki_verifier(verifier)
            }
            PeerTrust::Fingerprints(pins) => {
                if pins.is_empty() {
                    let text = "no fingerprint to compare with".to_owned();
                    return Err(ConnectError::Configuration(text));
                }
                let verifier =
                    Pinned::new(pins.clone(), provider.signature_verification_algorithms);
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            PeerTrust::DangerousAcceptAny => {
                let verifier = AcceptAny::new(provider.signature_verification_algorithms);
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let mut tls = match &config.identity {
            Some(identity) => builder
                .with_client_auth_cert(certificate_chain(identity), private_key(identity))
                .map_err(|error| unusable("own certificate", &error))?,
            None => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        tls.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(tls), name })
    }

    pub(super) fn start(self, parameters: Vec<u8>) -> Result<TlsSession, ConnectError> {
        quic::ClientConnection::new(self.config, QUIC, self.name, parameters)
            .map(|connection| TlsSession::new(connection.into()))
            .map_err(|error| unusable("TLS client", &error))
    }
}

/// Everything to accept connections.
pub(crate) struct ServerTls {
    config: Arc<rustls::ServerConfig>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

impl ServerTls {
    pub(super) fn new(config: &ServerConfig) -> Result<Self, ConnectError> {
        let identity = &config.identity;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable("TLS 1.3", &error))?
            .with_no_client_auth()
            .with_single_cert(certificate_chain(identity), private_key(identity))
            .map_err(|error| unusable("server certificate", &error))?;
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        // No resumption yet, so no tickets: they would be dead weight behind every handshake.
        tls.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(tls) })
    }

    pub(super) fn start(&self, parameters: Vec<u8>) -> Result<TlsSession, ConnectError> {
        quic::ServerConnection::new(self.config.clone(), QUIC, parameters)
            .map(|connection| TlsSession::new(connection.into()))
            .map_err(|error| unusable("TLS server", &error))
    }
}

pub(super) fn initial_keys(destination: &[u8], side: Side) -> Keys {
    let mut input = INITIAL_LABEL.to_vec();
    input.extend_from_slice(destination);
    let side = match side {
        Side::Client => rustls::Side::Client,
        Side::Server => rustls::Side::Server,
    };
    let suite = cipher_suite::TLS13_AES_128_GCM_SHA256;
    let Some(suite) = suite.tls13().and_then(|suite| suite.quic_suite()) else {
        unreachable!("the constant above is a TLS 1.3 suite with packet protection")
    };
    convert(suite.keys(&input, side, QUIC))
}

fn convert(keys: quic::Keys) -> Keys {
    let direction = |keys: quic::DirectionalKeys| DirectionalKeys {
        header: HeaderKey::tls(keys.header),
        packet: PacketKey::tls(keys.packet),
    };
    Keys { local: direction(keys.local), remote: direction(keys.remote) }
}

/// The TLS state of one connection.
pub(super) struct TlsSession {
    connection: quic::Connection,
    next: Option<quic::Secrets>,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("handshaking", &self.is_handshaking()).finish()
    }
}

impl TlsSession {
    fn new(connection: quic::Connection) -> Self {
        Self { connection, next: None }
    }

    pub(super) fn read(&mut self, data: &[u8]) -> Result<(), CryptoError> {
        self.connection.read_hs(data).map_err(|error| CryptoError {
            alert: self.connection.alert().map(u8::from),
            reason: error.to_string(),
        })
    }

    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        match self.connection.write_hs(out)? {
            quic::KeyChange::Handshake { keys } => Some(KeyChange::Handshake(convert(keys))),
            quic::KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                Some(KeyChange::OneRtt(convert(keys)))
            }
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    pub(super) fn peer_parameters(&self) -> Option<&[u8]> {
        self.connection.quic_transport_parameters()
    }

    pub(super) fn next_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some((PacketKey::tls(keys.local), PacketKey::tls(keys.remote)))
    }

    pub(super) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        Some(certificate::sha256(self.connection.peer_certificates()?.first()?))
    }
}
