//! TLS configuration from trust and identity.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, version::TLS13};

use super::clock::ExternalClock;
use super::fingerprint;
use super::verifier::PinnedVerifier;
use crate::config::{Identity, PeerTrust};
use crate::error::ConnectError;

pub(super) fn config_error(error: impl core::fmt::Display) -> ConnectError {
    ConnectError::Configuration(error.to_string())
}

pub(super) fn certificate_and_key(
    identity: &Identity,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = identity.certificate_chain.iter().cloned().map(CertificateDer::from).collect();
    (chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.private_key.clone())))
}

fn roots(certificates: &[Vec<u8>]) -> Result<RootCertStore, ConnectError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates {
        roots.add(CertificateDer::from(authority.clone())).map_err(config_error)?;
    }
    Ok(roots)
}

/// How a server verifies its clients; `None` if they are not asked for certificates.
pub(super) fn client_verifier(
    trust: Option<&PeerTrust>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, ConnectError> {
    let pinned = |accepted| Arc::new(PinnedVerifier { accepted, provider: provider.clone() });
    Ok(match trust {
        None => None,
        Some(PeerTrust::Authorities { certificates, .. }) => {
            let roots = Arc::new(roots(certificates)?);
            let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            Some(builder.build().map_err(config_error)?)
        }
        Some(PeerTrust::Fingerprints(accepted)) => Some(pinned(Some(accepted.clone()))),
        Some(PeerTrust::DangerousAcceptAny) => Some(pinned(None)),
    })
}

/// TLS configuration of a client without clock, application protocol and session store. TLS resumes
/// a session only with the same configuration objects, so they are kept with the sessions.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) tls: ClientConfig,
    pub(super) verifier: Arc<dyn ServerCertVerifier>,
}

/// The Unix time for certificate verification at the start of a connection.
pub(super) fn verification_time(trust: &PeerTrust) -> Option<Duration> {
    match trust {
        PeerTrust::Authorities { unix_time, .. } => Some(*unix_time),
        // Fingerprint checks do not depend on time.
        PeerTrust::Fingerprints(_) | PeerTrust::DangerousAcceptAny => None,
    }
}

impl Template {
    pub(super) fn new(
        trust: &PeerTrust,
        identity: Option<&Identity>,
    ) -> Result<Self, ConnectError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match trust {
            PeerTrust::Authorities { certificates, .. } => {
                let roots = Arc::new(roots(certificates)?);
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(config_error)?
            }
            PeerTrust::Fingerprints(accepted) => Arc::new(PinnedVerifier {
                accepted: Some(accepted.clone()),
                provider: provider.clone(),
            }),
            PeerTrust::DangerousAcceptAny => {
                Arc::new(PinnedVerifier { accepted: None, provider: provider.clone() })
            }
        };
        let time = Arc::new(ExternalClock::new(Duration::ZERO, Timestamp::ZERO));
        let builder = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(config_error)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone());
        let mut tls = match identity {
            Some(identity) => {
                let (chain, key) = certificate_and_key(identity);
                builder.with_client_auth_cert(chain, key).map_err(config_error)?
            }
            None => builder.with_no_client_auth(),
        };
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self { tls, verifier })
    }
}

/// Hash of trust and identity; a session is resumed only with the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TrustIdentity([u8; 32]);

impl TrustIdentity {
    pub(super) fn of(trust: &PeerTrust, identity: Option<&Identity>) -> Self {
        let mut bytes = Vec::new();
        let mut put = |part: &[u8]| {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        };
        match trust {
            PeerTrust::Authorities { certificates, .. } => {
                put(b"authorities");
                certificates.iter().for_each(|certificate| put(certificate));
            }
            PeerTrust::Fingerprints(accepted) => {
                put(b"fingerprints");
                accepted.iter().for_each(|print| put(print));
            }
            PeerTrust::DangerousAcceptAny => put(b"any"),
        }
        if let Some(identity) = identity {
            put(b"identity");
            identity.certificate_chain.iter().for_each(|certificate| put(certificate));
            put(&identity.private_key);
        }
        Self(fingerprint(&bytes))
    }
}
