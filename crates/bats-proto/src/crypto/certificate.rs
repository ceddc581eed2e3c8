//! Self-signed certificates and fingerprints.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use aws_lc_rs::digest;

use crate::config::Identity;

/// SHA-256 fingerprint of a certificate in DER.
pub fn fingerprint(certificate: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    bytes
}

/// Generates a private key and a self-signed certificate for these names.
///
/// # Errors
///
/// A text that says why the names are invalid.
pub fn generate_identity(names: &[String]) -> Result<Identity, String> {
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| error.to_string())?;
    Ok(Identity {
        certificate_chain: vec![made.cert.der().to_vec()],
        private_key: made.signing_key.serialize_der(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector of FIPS 180-2, appendix B.1.
    #[test]
    fn fingerprint_is_sha_256() {
        let expected: Vec<u8> = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
            .as_bytes()
            .chunks(2)
            .map(|hex| u8::from_str_radix(core::str::from_utf8(hex).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(fingerprint(b"abc")[..], expected);
    }
}
