//! The configuration of TLS that `quinn-proto` calls.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt::Display;
use std::sync::Arc;

use bats_proto::ConnectError;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{ClientConfig, Keys, ServerConfig, Session, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side};
use rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, ServerConnection, Suite, Version};

use super::tls_session::{TlsSession, initial_keys};
use super::watch::Watch;

/// The QUIC version (RFC 9000).
pub(super) const VERSION: u32 = 1;

pub(super) fn unusable(error: impl Display) -> ConnectError {
    ConnectError::Configuration(error.to_string())
}

/// # Errors
///
/// `tls` has no cipher suite for Initial packets.
pub(super) fn client_config(
    tls: rustls::ClientConfig,
    watch: Watch,
) -> Result<Arc<dyn ClientConfig>, ConnectError> {
    let initial = initial_suite(tls.crypto_provider())?;
    Ok(Arc::new(Client { tls: Arc::new(tls), initial, watch }))
}

/// # Errors
///
/// `tls` has no cipher suite for Initial packets, or cannot be used with QUIC.
pub(super) fn server_config(
    tls: rustls::ServerConfig,
    watch: Watch,
) -> Result<Arc<dyn ServerConfig>, ConnectError> {
    let initial = initial_suite(tls.crypto_provider())?;
    let tls = Arc::new(tls);
    ServerConnection::new(tls.clone(), Version::V1, Vec::new()).map_err(unusable)?;
    let retry = QuicServerConfig::with_initial(tls.clone(), initial).map_err(unusable)?;
    Ok(Arc::new(Server { tls, retry, initial, watch }))
}

/// The suite of Initial packets (RFC 9001 section 5.2).
fn initial_suite(provider: &CryptoProvider) -> Result<Suite, ConnectError> {
    let mut suites = provider.cipher_suites.iter();
    let suite = suites.find(|suite| suite.suite() == TLS13_AES_128_GCM_SHA256);
    let suite = suite.and_then(|suite| suite.tls13()?.quic_suite());
    suite.ok_or_else(|| unusable("TLS has no AES-128-GCM, which QUIC needs"))
}

fn encoded(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = Vec::new();
    params.write(&mut bytes);
    bytes
}

struct Client {
    tls: Arc<rustls::ClientConfig>,
    initial: Suite,
    watch: Watch,
}

impl ClientConfig for Client {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, quinn_proto::ConnectError> {
        if version != VERSION {
            return Err(quinn_proto::ConnectError::UnsupportedVersion);
        }
        // There is no other error with a text. The rest, such as a lack of random bytes, depends on no name.
        let refused = |error: &dyn Display| {
            let text = format!("{server_name:?}: {error}");
            quinn_proto::ConnectError::InvalidServerName(text)
        };
        let name = ServerName::try_from(server_name).map_err(|error| refused(&error))?.to_owned();
        let connection =
            ClientConnection::new(self.tls.clone(), Version::V1, name, encoded(params))
                .map_err(|error| refused(&error))?;
        let session = TlsSession::new(connection.into(), self.initial, self.watch.clone());
        Ok(Box::new(session))
    }
}

struct Server {
    tls: Arc<rustls::ServerConfig>,
    /// For the tags of Retry packets.
    retry: QuicServerConfig,
    initial: Suite,
    watch: Watch,
}

impl ServerConfig for Server {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        if version == VERSION {
            Ok(initial_keys(&self.initial, dst_cid, Side::Server, &self.watch))
        } else {
            Err(UnsupportedVersion)
        }
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.retry.retry_tag(version, orig_dst_cid, packet)
    }

    #[allow(clippy::expect_used, reason = "no error can be returned, and none depends on a peer")]
    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        debug_assert_eq!(version, VERSION, "initial keys were made");
        let connection = ServerConnection::new(self.tls.clone(), Version::V1, encoded(params))
            .expect("a connection was made from this configuration before");
        Box::new(TlsSession::new(connection.into(), self.initial, self.watch.clone()))
    }
}
