//! Verifiers for peers that no authority vouches for.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::certificate;

/// Believes the holders of certain certificates, whatever name, issuer and dates these have.
#[derive(Debug)]
pub(super) struct Pinned {
    pins: Vec<[u8; 32]>,
    proof: Proof,
}

impl Pinned {
    pub(super) fn new(pins: Vec<[u8; 32]>, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { pins, proof: Proof(algorithms) }
    }
}

/// Believes everyone who holds the key of the certificate shown.
#[derive(Debug)]
pub(super) struct AcceptAny(Proof);

impl AcceptAny {
    pub(super) fn new(algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self(Proof(algorithms))
    }
}

/// The part that nobody is spared: the peer proves that it has the private key.
#[derive(Debug)]
struct Proof(WebPkiSupportedAlgorithms);

impl Proof {
    fn verify(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.0)
    }
}

macro_rules! signatures_by {
    ($proof:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, signature, &self.$proof.0)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$proof.verify(message, cert, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$proof.0.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pins.contains(&certificate::sha256(end_entity)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    signatures_by!(proof);
}

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures_by!(0);
}
