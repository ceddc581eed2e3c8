//! Certificates and keys of an endpoint.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bats_proto::{PresharedKey, crypto};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::fingerprint::Fingerprint;
use crate::identity_error::IdentityError;
use crate::key_exposure::{key_exposure, warn_once};

/// Longest file of certificates or keys: a chain of certificates in PEM has some KiB.
const MAX_FILE: u64 = 1 << 20;

/// A certificate chain and its private key.
#[derive(Clone, Debug)]
pub struct Identity(pub(crate) bats_proto::Identity);

impl Identity {
    /// Generates a self-signed certificate for these DNS names or IP addresses. Clients can trust
    /// it by its [`fingerprint`](Self::fingerprint).
    ///
    /// # Errors
    /// A name is invalid.
    pub fn generate(names: &[&str]) -> Result<Self, IdentityError> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        crypto::generate_identity(&names).map(Self).map_err(IdentityError::Generate)
    }

    /// Reads a certificate chain (end entity first) and a private key from PEM files. The first key file that all
    /// users may read is a warning in the log; [`key_exposure`](crate::key_exposure) finds each of them.
    ///
    /// # Errors
    /// A file cannot be read, or holds no certificate or key.
    pub fn from_pem_files(
        certificates: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, IdentityError> {
        let (certificates, key) = (certificates.as_ref(), key.as_ref());
        let certificate_chain = read_certificates(certificates)?;
        let file = open(key)?;
        warn_once(&file, key, "the private key").map_err(|source| failed(key, source))?;
        let text = read_file(file, key)?;
        let private_key = PrivateKeyDer::from_pem_slice(&text)
            .map_err(|error| content(key, format!("no private key found: {error}")))?;
        Ok(Self(bats_proto::Identity {
            certificate_chain,
            private_key: private_key.secret_der().to_vec(),
        }))
    }

    /// Reads a certificate chain (end entity first) and a private key from one PEM text.
    ///
    /// # Errors
    /// The text holds no certificate or no key; `name` names it in the error.
    pub fn from_pem(name: &str, pem: &[u8]) -> Result<Self, IdentityError> {
        let name = Path::new(name);
        let certificate_chain = parse_certificates(name, pem)?;
        let private_key = PrivateKeyDer::from_pem_slice(pem)
            .map_err(|error| content(name, format!("no private key found: {error}")))?;
        Ok(Self(bats_proto::Identity {
            certificate_chain,
            private_key: private_key.secret_der().to_vec(),
        }))
    }

    /// Returns the certificate chain (DER), end entity first.
    #[must_use]
    pub fn certificates(&self) -> &[Vec<u8>] {
        &self.0.certificate_chain
    }

    /// Returns the private key (DER), for another TLS stack of the same program.
    #[must_use]
    pub fn private_key(&self) -> &[u8] {
        &self.0.private_key
    }

    /// Returns the SHA-256 fingerprint of the end entity's certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let certificate = self.0.certificate_chain.first().map_or(&[][..], Vec::as_slice);
        Fingerprint::of(certificate)
    }
}

pub(crate) fn read_certificates(path: &Path) -> Result<Vec<Vec<u8>>, IdentityError> {
    parse_certificates(path, &read(path)?)
}

fn parse_certificates(path: &Path, text: &[u8]) -> Result<Vec<Vec<u8>>, IdentityError> {
    let certificates = CertificateDer::pem_slice_iter(text)
        .map(|certificate| certificate.map(|der| der.to_vec()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| content(path, format!("not PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(content(path, "no certificate found".into()));
    }
    Ok(certificates)
}

/// Reads a pre-shared key of PSK mode from a file: 64 hexadecimal digits, as `openssl rand -hex 32`
/// writes them. Leading and trailing white space is ignored.
///
/// # Errors
/// The file cannot be read, does not hold a key, or all users may read it.
pub fn read_preshared_key(path: impl AsRef<Path>) -> Result<PresharedKey, IdentityError> {
    let path = path.as_ref();
    let file = open(path)?;
    let exposure = key_exposure(&file, path, "the pre-shared key", " on both ends");
    if let Some(problem) = exposure.map_err(|source| failed(path, source))? {
        return Err(content(path, format!("it {problem}")));
    }
    let bytes = read_file(file, path)?;
    let text = str::from_utf8(&bytes).unwrap_or_default();
    text.trim().parse().map_err(|error| content(path, format!("{error}")))
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    read_file(open(path)?, path)
}

fn open(path: &Path) -> Result<File, IdentityError> {
    File::open(path).map_err(|source| failed(path, source))
}

/// Reads an open file. Devices and pipes have no size, so the limit counts what is read.
pub(crate) fn read_file(file: File, path: &Path) -> Result<Vec<u8>, IdentityError> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|source| failed(path, source))?;
    match bytes.len() as u64 {
        0..=MAX_FILE => Ok(bytes),
        _ => Err(content(path, format!("it is longer than {MAX_FILE} bytes"))),
    }
}

fn failed(path: &Path, source: std::io::Error) -> IdentityError {
    IdentityError::Read { path: path.display().to_string(), source }
}

fn content(path: &Path, problem: String) -> IdentityError {
    IdentityError::Content { path: path.display().to_string(), problem }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn errors_name_missing_and_empty_files() {
        let missing = Identity::from_pem_files("/nowhere/c.pem", "/nowhere/k.pem").unwrap_err();
        assert!(missing.to_string().contains("/nowhere/c.pem"), "{missing}");
        let empty = Identity::from_pem_files("/dev/null", "/dev/null").unwrap_err();
        assert!(empty.to_string().contains("no certificate"), "{empty}");
        // A device without an end.
        let endless = Identity::from_pem_files("/dev/zero", "/dev/zero").unwrap_err();
        assert!(endless.to_string().contains("longer than 1048576 bytes"), "{endless}");
    }

    #[test]
    fn pre_shared_keys_are_read_from_files() {
        let path = std::env::temp_dir().join(format!("openbats-psk-{}", std::process::id()));
        let allow = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        for (content, is_key) in [
            ("0f".repeat(32).into_bytes(), true),
            (format!(" {}\r\n", "A0".repeat(32)).into_bytes(), true),
            (Vec::new(), false),
            (b"0f\n".repeat(32), false),
            (vec![0xff; 64], false),
            (vec![7; 32], false),
        ] {
            std::fs::write(&path, &content).unwrap();
            allow(0o640);
            match read_preshared_key(&path) {
                Ok(_) => assert!(is_key, "{content:?}"),
                Err(error) => {
                    assert!(!is_key, "{content:?}");
                    let text = error.to_string();
                    assert!(text.contains("64 hexadecimal digits"), "{text}");
                    assert!(text.contains(path.to_str().unwrap()), "{text}");
                }
            }
        }
        std::fs::write(&path, "0f".repeat(32)).unwrap();
        allow(0o644);
        let error = read_preshared_key(&path).unwrap_err().to_string();
        assert!(error.contains("has the mode 0644") && error.contains("chmod o="), "{error}");
        std::fs::remove_file(&path).unwrap();
        let missing = read_preshared_key(&path).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read"), "{missing}");
    }
}
