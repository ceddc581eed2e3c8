//! What a handshake produces: keys, or an error.

use super::Keys;

/// The TLS session failed; the text says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CryptoError(pub String);

/// Keys that the handshake has produced.
#[derive(Debug)]
pub(crate) enum NewKeys {
    Handshake(Keys),
    OneRtt(Keys),
}
