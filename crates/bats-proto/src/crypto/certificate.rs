//! Self-signed identities and fingerprints of certificates.

use aws_lc_rs::digest;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use crate::config::Identity;

/// Why an identity could not be made: a name that is no DNS name or address, or no randomness.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot make a certificate: {0}")]
pub struct IdentityError(String);

/// Makes a key (ECDSA, P-256) and a certificate that it signs itself, for these DNS names and IP
/// addresses. Uses the system's randomness.
pub fn generate_identity(names: &[String]) -> Result<Identity, IdentityError> {
    let failed = |error: rcgen::Error| IdentityError(error.to_string());
    let key = KeyPair::generate().map_err(failed)?;
    let mut parameters = CertificateParams::new(names).map_err(failed)?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, "OpenBATS");
    parameters.distinguished_name = subject;
    let certificate = parameters.self_signed(&key).map_err(failed)?;
    Ok(Identity {
        certificate_chain: vec![certificate.der().to_vec()],
        private_key: key.serialize_der(),
    })
}

/// SHA-256 of the end-entity certificate, to be pinned by
/// [`PeerTrust::Fingerprints`](crate::PeerTrust::Fingerprints). `None` for an empty chain.
pub fn fingerprint(identity: &Identity) -> Option<[u8; 32]> {
    identity.certificate_chain.first().map(|der| sha256(der))
}

/// SHA-256 (FIPS 180-4).
pub(super) fn sha256(octets: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, octets).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_small_and_different() {
        let names = ["bats.example".to_owned(), "192.0.2.1".to_owned()];
        let (a, b) = (generate_identity(&names).unwrap(), generate_identity(&names).unwrap());
        // Small enough for a server's flight of one packet.
        assert!(a.certificate_chain[0].len() < 500, "{}", a.certificate_chain[0].len());
        assert_ne!(fingerprint(&a), fingerprint(&b));
        assert_eq!(fingerprint(&a), Some(sha256(&a.certificate_chain[0])));
    }

    #[test]
    fn names_are_checked() {
        assert!(generate_identity(&["nicht-ascii-ä".to_owned()]).is_err());
    }

    /// FIPS 180-4, example "abc".
    #[test]
    fn sha256_of_abc() {
        assert_eq!(sha256(b"abc")[..4], [0xba, 0x78, 0x16, 0xbf]);
    }
}
