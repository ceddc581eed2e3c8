//! Identities of nodes from the key of their network. All nodes of the original have the same `server.key`. With
//! it, each node derives a key and a certificate of its own, and knows the certificates of the others: so a
//! node has a fingerprint, as all nodes of `batsd` have, without a list of them in the file.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use openbats::Fingerprint;
use rcgen::{CertificateParams, KeyPair};

use crate::limited_file;

/// PKCS #8 of an Ed25519 key (RFC 8410 section 7), without the 32 bytes of the key that follow.
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Longest key file: an RSA key of 16,384 bits has 13 KiB in PEM.
const MAX_FILE: u64 = 64 << 10;

/// The key of a network.
pub(crate) struct NetworkKey(Vec<u8>);

impl NetworkKey {
    /// Reads a key file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| {
            format!(
                "cannot read the network's key {0}, which is the same file on all nodes; `batsctl keygen {0}` \
                 makes it on one of them",
                path.display()
            )
        })?;
        limited_file::check_key(&file, path, "the network's key", " on all nodes")?;
        let path = path.display();
        let text = limited_file::read(file, MAX_FILE)
            .with_context(|| format!("cannot read {path}"))?
            .with_context(|| {
                format!(
                    "{path} is longer than the {MAX_FILE} bytes of a key: it must be one private key in PEM"
                )
            })?;
        Self::from_pem(&text).with_context(|| format!("{path}"))
    }

    /// Takes the private key of a PEM text.
    pub(crate) fn from_pem(text: &[u8]) -> anyhow::Result<Self> {
        let blocks = pem::parse_many(text).map_err(|error| anyhow!("not PEM: {error}"))?;
        let key = blocks.into_iter().find(|block| block.tag().ends_with("PRIVATE KEY"));
        let key = key.context("it has no private key")?;
        // Each encryption of one key gives other bytes (RFC 5958 section 3, RFC 1421 section 4.6.1.1).
        let is_encrypted = key.tag().starts_with("ENCRYPTED")
            || key.headers().get("Proc-Type").is_some_and(|kind| kind.contains("ENCRYPTED"));
        if is_encrypted {
            bail!(
                "its private key is encrypted with a passphrase, which batsd cannot ask for: decrypt it, for \
                 example with `openssl pkey -in FILE -out FILE`"
            );
        }
        match key.contents().len() {
            0..32 => Err(anyhow!("its private key is shorter than 32 bytes")),
            _ => Ok(Self(key.into_contents())),
        }
    }

    /// Key and certificate of a node, the same at each call and on each host.
    pub(crate) fn identity(&self, node: Ipv4Addr) -> anyhow::Result<Derived> {
        let secret = Salt::new(HKDF_SHA256, b"bats-protocol node").extract(&self.0);
        let mut seed = [0; 32];
        secret
            .expand(&[&node.octets()], HKDF_SHA256)
            .and_then(|key| key.fill(&mut seed))
            .map_err(|_| anyhow!("cannot derive a key"))?;
        let pkcs8 = [&PKCS8[..], &seed].concat();
        let key = KeyPair::try_from(&pkcs8[..])?;
        // Everything in it is fixed, and Ed25519 has no random numbers.
        let mut parameters = CertificateParams::new(vec!["openbats-node".to_owned()])?;
        parameters.not_before = rcgen::date_time_ymd(2000, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(4000, 1, 1);
        parameters.serial_number = Some(u64::from(node.to_bits()).into());
        let certificate = parameters.self_signed(&key)?;
        let pem = pem::encode(&pem::Pem::new("CERTIFICATE", certificate.der().to_vec()))
            + &pem::encode(&pem::Pem::new("PRIVATE KEY", pkcs8));
        Ok(Derived { pem, fingerprint: Fingerprint::of(certificate.der()) })
    }
}

/// A derived identity.
pub(crate) struct Derived {
    pub(crate) pem: String,
    pub(crate) fingerprint: Fingerprint,
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn identities_depend_on_key_and_node_and_on_nothing_else() {
        let pem = |byte| pem::encode(&pem::Pem::new("PRIVATE KEY", vec![byte; 40]));
        let print = |byte, node| {
            let key = NetworkKey::from_pem(pem(byte).as_bytes()).unwrap();
            key.identity(Ipv4Addr::new(1, 0, 0, node)).unwrap().fingerprint
        };
        assert_eq!(print(1, 1), print(1, 1));
        assert_ne!(print(1, 1), print(1, 2));
        assert_ne!(print(1, 1), print(2, 1));
        // Nodes of other versions and hosts derive the same.
        assert_eq!(
            print(1, 1).to_string(),
            "e73c879e64f603a332041d25fc39b777f538ee0f67068e636afd101391638c72"
        );
        for wrong in ["", "-----BEGIN", &pem::encode(&pem::Pem::new("CERTIFICATE", vec![1; 40]))] {
            assert!(NetworkKey::from_pem(wrong.as_bytes()).is_err(), "{wrong}");
        }
        let short = pem::encode(&pem::Pem::new("PRIVATE KEY", vec![1; 31]));
        assert!(NetworkKey::from_pem(short.as_bytes()).is_err());
        let derived =
            NetworkKey::from_pem(pem(1).as_bytes()).unwrap().identity(Ipv4Addr::LOCALHOST).unwrap();
        let read = openbats::Identity::from_pem("derived", derived.pem.as_bytes()).unwrap();
        assert_eq!(read.fingerprint(), derived.fingerprint);
    }

    fn error(text: &[u8]) -> String {
        format!("{:#}", NetworkKey::from_pem(text).err().unwrap())
    }

    #[test]
    fn encrypted_keys_are_refused() {
        let sealed = pem::encode(&pem::Pem::new("ENCRYPTED PRIVATE KEY", vec![1; 40]));
        assert!(error(sealed.as_bytes()).contains("encrypted"));
        // As `openssl rsa -aes128 -traditional` writes it.
        let traditional = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                           DEK-Info: AES-128-CBC,00\n\n\
                           AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n\
                           -----END RSA PRIVATE KEY-----\n";
        assert!(error(traditional.as_bytes()).contains("encrypted"));
    }

    #[test]
    fn key_files_have_limits_of_size_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.key");
        let read = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            NetworkKey::read(&path).map_err(|error| format!("{error:#}"))
        };
        let key = pem::encode(&pem::Pem::new("PRIVATE KEY", vec![1; 40]));
        assert!(read(&key, 0o600).is_ok());
        assert!(read(&key, 0o640).is_ok());
        let error = read(&key, 0o644).err().unwrap();
        assert!(error.contains("server.key has the mode 0644"), "{error}");
        let long = key + &"\n".repeat(64 << 10);
        let error = read(&long, 0o600).err().unwrap();
        assert!(error.contains("longer than the 65536 bytes"), "{error}");
        // A device without an end, which everyone may read.
        assert!(NetworkKey::read(Path::new("/dev/zero")).is_err());
    }
}
