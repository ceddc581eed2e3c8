//! The endpoints of a run, and how they are configured.

use std::sync::Arc;

use bats_proto::config::Security;
use bats_proto::crypto::generate_identity;
use bats_proto::{
    ClientConfig, Endpoint, EndpointConfig, Identity, PeerTrust, ServerConfig, TransportConfig,
};

/// The endpoints of a run, client first: plain packets without TLS, everything else as in
/// production.
pub fn endpoints(transport: &TransportConfig, seed: u64) -> [Endpoint; 2] {
    let transport = Arc::new(transport.clone());
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport,
        client_trust: None,
        retry_threshold: usize::MAX,
        max_connections: 64,
    };
    [None, Some(server)].map(|server| {
        let mut bytes = [u8::from(server.is_some()); 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let security = Security::DangerousPlain;
        let config = EndpointConfig { security, server, ..EndpointConfig::default() };
        Endpoint::new(config, bytes).expect("plain security needs no certificate")
    })
}

/// What endpoints of a simulation use for security: TLS if its secrets are logged, so that a capture
/// can be decrypted, otherwise the deterministic stand-in. TLS makes runs with equal seeds differ.
///
/// # Panics
///
/// If no certificate can be generated.
pub fn security_of(transport: &TransportConfig) -> (Security, Identity) {
    if transport.key_log.is_none() {
        let identity = Identity { certificate_chain: Vec::new(), private_key: Vec::new() };
        return (Security::DangerousPlain, identity);
    }
    let identity = generate_identity(&["node".to_owned()]).expect("a valid name");
    (Security::Tls, identity)
}

/// The client configuration. It accepts any certificate, because plain security has none.
pub fn client_config(transport: &TransportConfig) -> ClientConfig {
    ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport.clone()),
    }
}
