//! Keys and the TLS session. Types of the TLS library stay within this module, except for the
//! transport bindings that run TLS over another transport: [`stream`](crate::stream) and QUIC.

mod certificate;
#[cfg(test)]
mod client_trust_tests;
mod clock;
mod group;
mod key_log;
#[cfg(test)]
mod key_log_tests;
mod new_keys;
mod plain;
mod plain_identity;
mod plain_session;
mod psk;
mod released;
mod session;
#[cfg(test)]
mod session_tests;
mod store;
mod symbol;
mod tickets;
mod tls_errors;
mod trust;
mod verifier;

pub use certificate::{fingerprint, generate_identity};
pub(crate) use group::GroupKeys;
pub use key_log::KeyLog;
pub use new_keys::CryptoError;
pub(crate) use new_keys::NewKeys;
pub use plain::PlainKey;
pub use plain_identity::PlainIdentity;
pub(crate) use plain_session::plain_keys;
pub(crate) use psk::{PskSecrets, SALT_LEN};
pub use session::{
    ClientParts, ClientTls, ServerParts, ServerTls, Session, tls_client, tls_server,
};
pub(crate) use session::{InitialSecrets, initial_keys};
pub use store::SessionStore;
pub(crate) use symbol::{SymbolKey, SymbolKeys};
pub use tls_errors::{describe_alert, describe_tls_error};

/// Length of an authentication tag in bytes.
pub const TAG_LEN: usize = 16;

/// Protects packet payloads.
pub enum PacketKey {
    /// AEAD of TLS 1.3.
    Aead(Box<dyn rustls::quic::PacketKey>),
    /// Checksum of the stand-in for simulation.
    Plain(PlainKey),
}

/// Protects packet headers (RFC 9001, section 5.4).
pub enum HeaderKey {
    /// Header protection of TLS 1.3's cipher suite.
    Aead(Box<dyn rustls::quic::HeaderProtectionKey>),
    /// No mask.
    Plain,
}

impl core::fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PacketKey")
    }
}

impl core::fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HeaderKey")
    }
}

/// Keys of one direction.
#[derive(Debug)]
pub struct DirectionalKeys {
    /// For headers.
    pub header: HeaderKey,
    /// For payloads.
    pub packet: PacketKey,
}

/// Keys of both directions of one encryption level.
#[derive(Debug)]
pub struct Keys {
    /// For packets that this end sends.
    pub local: DirectionalKeys,
    /// For packets that the peer sends.
    pub remote: DirectionalKeys,
}

impl DirectionalKeys {
    fn from_tls(keys: rustls::quic::DirectionalKeys) -> Self {
        Self { header: HeaderKey::Aead(keys.header), packet: PacketKey::Aead(keys.packet) }
    }
}

impl Keys {
    fn from_tls(keys: rustls::quic::Keys) -> Self {
        let direction = DirectionalKeys::from_tls;
        Self { local: direction(keys.local), remote: direction(keys.remote) }
    }
}

impl PacketKey {
    /// Seals the first `len` bytes of `buffer` and writes the tag to its last [`TAG_LEN`] bytes.
    /// `buffer` has `len + TAG_LEN` bytes.
    pub fn seal_in_place(&self, pn: u64, header: &[u8], buffer: &mut [u8], len: usize) {
        let (payload, tag) = buffer.split_at_mut(len);
        match self {
            Self::Aead(key) => {
                // Sealing fails only for lengths far beyond a datagram. Then the tag stays zero and
                // the peer drops the packet.
                if let Ok(sealed) = key.encrypt_in_place(pn, header, payload) {
                    tag[..TAG_LEN].copy_from_slice(sealed.as_ref());
                }
            }
            Self::Plain(key) => tag[..TAG_LEN].copy_from_slice(&key.tag(pn, header, payload)),
        }
    }

    /// Opens `buffer` (payload and tag); returns the payload's length, or `None` if it is not
    /// authentic.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn open_in_place(&self, pn: u64, header: &[u8], buffer: &mut [u8]) -> Option<usize> {
        match self {
            Self::Aead(key) => {
                key.decrypt_in_place(pn, header, buffer).ok().map(|plain| plain.len())
            }
            Self::Plain(key) => {
                let len = buffer.len().checked_sub(TAG_LEN)?;
                let (payload, tag) = buffer.split_at(len);
                (key.tag(pn, header, payload) == tag).then_some(len)
            }
        }
    }

    /// Number of packets that may be sealed with this key (RFC 9001, section 6.6).
    pub fn confidentiality_limit(&self) -> u64 {
        match self {
            Self::Aead(key) => key.confidentiality_limit(),
            Self::Plain(_) => 1 << 40,
        }
    }

    /// Number of forged packets after which this key must not be used (RFC 9001, section 6.6).
    pub fn integrity_limit(&self) -> u64 {
        match self {
            Self::Aead(key) => key.integrity_limit(),
            Self::Plain(_) => 1 << 40,
        }
    }
}

impl HeaderKey {
    /// The mask for the first byte and the packet number (RFC 9001, section 5.4).
    pub fn mask(&self, sample: &[u8; 16]) -> [u8; 5] {
        match self {
            Self::Aead(key) => {
                // The library masks in place, and masking zeros yields the mask. With the first
                // byte of a short header and a 4-byte packet number all five bytes are masked.
                let mut first = 0x03;
                let mut number = [0; 4];
                if key.encrypt_in_place(sample, &mut first, &mut number).is_err() {
                    return [0; 5];
                }
                [first ^ 0x03, number[0], number[1], number[2], number[3]]
            }
            Self::Plain => [0; 5],
        }
    }
}
