//! What a client's TLS follows from: whom it believes and who it is.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, version::TLS13};

use super::clock::ToldTime;
use super::fingerprint;
use super::verifier::PinnedVerifier;
use crate::config::{self, Identity, PeerTrust};
use crate::error::ConnectError;

pub(super) fn unusable(error: impl core::fmt::Display) -> ConnectError {
    ConnectError::Configuration(error.to_string())
}

pub(super) fn key_of(
    identity: &Identity,
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = identity.certificate_chain.iter().cloned().map(CertificateDer::from).collect();
    (chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.private_key.clone())))
}

/// The TLS of a client but for time, application protocol and sessions. TLS takes a session up only
/// under the very objects that it was begun under, so that they are kept with the sessions.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) tls: ClientConfig,
    pub(super) verifier: Arc<dyn ServerCertVerifier>,
}

/// The time at which certificates are judged when a connection begins.
pub(super) fn judged_at(trust: &PeerTrust) -> Option<Duration> {
    match trust {
        PeerTrust::Authorities { unix_time, .. } => Some(*unix_time),
        // Fingerprints know no time.
        PeerTrust::Fingerprints(_) | PeerTrust::DangerousAcceptAny => None,
    }
}

impl Template {
    pub(super) fn new(config: &config::ClientConfig) -> Result<Self, ConnectError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match &config.trust {
            PeerTrust::Authorities { certificates, .. } => {
                let mut roots = RootCertStore::empty();
                for authority in certificates {
                    roots.add(CertificateDer::from(authority.clone())).map_err(unusable)?;
                }
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                    .build()
                    .map_err(unusable)?
            }
            PeerTrust::Fingerprints(accepted) => Arc::new(PinnedVerifier {
                accepted: Some(accepted.clone()),
                provider: provider.clone(),
            }),
            PeerTrust::DangerousAcceptAny => {
                Arc::new(PinnedVerifier { accepted: None, provider: provider.clone() })
            }
        };
        let time = Arc::new(ToldTime::new(Duration::ZERO, Timestamp::ZERO));
        let builder = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone());
        let mut tls = match &config.identity {
            Some(identity) => {
                let (chain, key) = key_of(identity);
                builder.with_client_auth_cert(chain, key).map_err(unusable)?
            }
            None => builder.with_no_client_auth(),
        };
        tls.resumption = rustls::client::Resumption::disabled();
        Ok(Self { tls, verifier })
    }
}

/// What a session stands on: a session of one such basis is never taken up under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Basis([u8; 32]);

impl Basis {
    pub(super) fn of(config: &config::ClientConfig) -> Self {
        let mut bytes = Vec::new();
        let mut put = |part: &[u8]| {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        };
        match &config.trust {
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
        if let Some(identity) = &config.identity {
            put(b"identity");
            identity.certificate_chain.iter().for_each(|certificate| put(certificate));
            put(&identity.private_key);
        }
        Self(fingerprint(&bytes))
    }
}
