//! TLS for the TCP carrier, with the same identities and the same trust as the coded modes.

use std::sync::Arc;

use openbats::{Fingerprint, Identity};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::config::{Believed, say_once_that_anyone_is_believed};
use crate::event::{Code, Failure};

/// Tells two peers of this framing from other users of TLS.
const PROTOCOL: &[u8] = b"openbats-tcp/1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::ConnectFailed, error.to_string())
}

pub(super) fn server_config(identity: &Identity) -> Result<Arc<ServerConfig>, Failure> {
    let chain = identity.certificates().iter().map(|der| CertificateDer::from(der.clone()));
    let key = PrivateKeyDer::try_from(identity.private_key().to_vec()).map_err(failed)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .with_no_client_auth()
        .with_single_cert(chain.collect(), key)
        .map_err(failed)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

pub(super) fn client_config(believed: &Believed) -> Result<Arc<ClientConfig>, Failure> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?;
    let verifier: Arc<dyn ServerCertVerifier> = match believed {
        Believed::Anyone => {
            say_once_that_anyone_is_believed();
            Arc::new(Pinned { pin: None, algorithms })
        }
        Believed::Fingerprint(pin) => Arc::new(Pinned { pin: Some(*pin), algorithms }),
        Believed::Authorities(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
                roots.add(certificate.map_err(failed)?).map_err(failed)?;
            }
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(failed)?
        }
    };
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// Believes one certificate, or any, as long as the peer holds its key.
#[derive(Debug)]
struct Pinned {
    pin: Option<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.pin {
            Some(pin) if Fingerprint::of(end_entity) != pin => {
                Err(rustls::Error::General("the server's certificate is not the one pinned".into()))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
