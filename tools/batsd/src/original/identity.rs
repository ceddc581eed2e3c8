//! Identities of nodes from the key of their network. All nodes of the original have the same `server.key`. With
//! it, each node derives a key and a certificate of its own, and knows the certificates of the others: so a
//! node has a fingerprint, as all nodes of `batsd` have, without a list of them in the file.

use std::net::Ipv4Addr;

use anyhow::{Context, anyhow};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use openbats::Fingerprint;
use rcgen::{CertificateParams, KeyPair};

/// PKCS #8 of an Ed25519 key (RFC 8410 section 7), without the 32 bytes of the key that follow.
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The key of a network.
pub(super) struct NetworkKey(Vec<u8>);

impl NetworkKey {
    /// Takes the private key of a PEM text.
    pub(super) fn from_pem(text: &str) -> anyhow::Result<Self> {
        let blocks = pem::parse_many(text).map_err(|error| anyhow!("not PEM: {error}"))?;
        let key = blocks.into_iter().find(|block| block.tag().ends_with("PRIVATE KEY"));
        let key = key.context("it has no private key")?;
        match key.contents().len() {
            0..32 => Err(anyhow!("its private key is shorter than 32 bytes")),
            _ => Ok(Self(key.into_contents())),
        }
    }

    /// Key and certificate of a node, the same at each call and on each host.
    pub(super) fn identity(&self, node: Ipv4Addr) -> anyhow::Result<Derived> {
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
pub(super) struct Derived {
    pub(super) pem: String,
    pub(super) fingerprint: Fingerprint,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_depend_on_key_and_node_and_on_nothing_else() {
        let pem = |byte| pem::encode(&pem::Pem::new("PRIVATE KEY", vec![byte; 40]));
        let print = |byte, node| {
            let key = NetworkKey::from_pem(&pem(byte)).unwrap();
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
            assert!(NetworkKey::from_pem(wrong).is_err(), "{wrong}");
        }
        let short = pem::encode(&pem::Pem::new("PRIVATE KEY", vec![1; 31]));
        assert!(NetworkKey::from_pem(&short).is_err());
        let derived = NetworkKey::from_pem(&pem(1)).unwrap().identity(Ipv4Addr::LOCALHOST).unwrap();
        let read = openbats::Identity::from_pem("derived", derived.pem.as_bytes()).unwrap();
        assert_eq!(read.fingerprint(), derived.fingerprint);
    }
}
