//! Everything cryptographic behind one wall: no type of the TLS library leaves this module.
//!
//! Packet protection is QUIC's (RFC 9001) with TLS 1.3 by rustls. [`Security::DangerousPlain`]
//! replaces TLS by a deterministic exchange and seals by checksums, for simulation and fuzzing.
//!
//! [`Security::DangerousPlain`]: crate::config::Security::DangerousPlain

mod certificate;
mod fingerprint;
mod keys;
mod plain;
mod session;
mod tls;
mod token;

pub use certificate::{IdentityError, fingerprint, generate_identity};
pub use keys::{DirectionalKeys, HeaderKey, Keys, PacketKey, Side};
pub(crate) use session::{ClientSetup, KeyChange, ServerSetup, Session};
pub(crate) use token::{TokenKey, TokenPurpose};
