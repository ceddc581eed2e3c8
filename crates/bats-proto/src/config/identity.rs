//! Identity of an end, and which identities it trusts.

use core::time::Duration;

/// Certificate chain and private key of an endpoint, in DER.
#[derive(Clone)]
pub struct Identity {
    /// X.509 certificates, end entity first.
    pub certificate_chain: Vec<Vec<u8>>,
    /// PKCS#8 private key.
    pub private_key: Vec<u8>,
}

impl core::fmt::Debug for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").field("certificates", &self.certificate_chain.len()).finish()
    }
}

/// Which peers an end trusts: a client its server, or a server its clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PeerTrust {
    /// Certificate authorities; the validity period is checked, and by a client the server's name.
    Authorities {
        /// Certificates of the authorities, in DER.
        certificates: Vec<Vec<u8>>,
        /// Current Unix time; the core has no clock. For a client at the start of the connection,
        /// for a server at time zero of its endpoint's clock.
        unix_time: Duration,
    },
    /// SHA-256 fingerprints of the peer's end-entity certificate.
    Fingerprints(Vec<[u8; 32]>),
    /// Any peer. Encrypted, but a client is open to man-in-the-middle attacks. A server asks its
    /// clients for a certificate and accepts those without one.
    DangerousAcceptAny,
}
