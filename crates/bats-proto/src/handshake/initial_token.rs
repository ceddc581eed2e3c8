//! The token of Initial packets: address validation by Retry (RFC 9000, section 8.1.2), the proof of
//! the pre-shared key, and the salt of the server's Initial keys in PSK mode.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use super::connection_ids::ConnectionIds;
use super::packet;
use crate::config::Security;
use crate::crypto::{InitialSecrets, Keys, PskSecrets, SALT_LEN, initial_keys};
use crate::wire::long_header::LongKind;

/// The token that this end sends, and what it expects of the server's.
#[derive(Debug, Default)]
pub(super) struct InitialToken {
    /// In PSK mode a client's begins with the proof, and a server's is the salt of its keys.
    bytes: Vec<u8>,
    /// PSK mode, client: the server's salt, once one of its packets is authentic.
    salt: Option<[u8; SALT_LEN]>,
    retried: bool,
    /// Set for a client in PSK mode.
    psk: Option<Box<PskSecrets>>,
}

impl InitialToken {
    /// A client's: in PSK mode the proof.
    pub(super) fn client(psk: Option<PskSecrets>, ids: &ConnectionIds) -> Self {
        let bytes = psk.as_ref().map(|psk| psk.proof(ids.original(), ids.local()).to_vec());
        Self { bytes: bytes.unwrap_or_default(), psk: psk.map(Box::new), ..Self::default() }
    }

    /// A server's in PSK mode: the salt of its Initial keys.
    pub(super) fn server(salt: [u8; SALT_LEN]) -> Self {
        Self { bytes: salt.to_vec(), ..Self::default() }
    }

    /// The token in packets of this kind.
    pub(super) fn of(&self, kind: LongKind) -> &[u8] {
        if kind == LongKind::Initial { &self.bytes } else { &[] }
    }

    /// Whether this end is a client in PSK mode.
    pub(super) fn has_psk(&self) -> bool {
        self.psk.is_some()
    }

    /// Client: takes the token of a Retry, only of the first one, and in PSK mode only if its proof
    /// is right. Returns whether the handshake must begin again with it.
    pub(super) fn on_retry(&mut self, retry: &[u8], ids: &ConnectionIds) -> bool {
        if self.retried {
            return false;
        }
        let mut token = Vec::new();
        let verified = match &self.psk {
            Some(psk) => {
                let verified = psk.verify_retry_proof(ids.original(), ids.local(), retry);
                token.extend_from_slice(&psk.proof(ids.original(), ids.local()));
                verified
            }
            None => Some(retry),
        };
        let Some(verified) = verified else { return false };
        token.extend_from_slice(verified);
        self.retried = true;
        self.bytes = token;
        true
    }

    /// Opens an Initial packet with this token. In PSK mode the first authentic one gives a client
    /// the server's salt, which completes `keys`; packets with another salt are not authentic.
    pub(super) fn open(
        &mut self,
        packet: &mut [u8],
        number_at: usize,
        salt: Option<[u8; SALT_LEN]>,
        keys: &mut Keys,
        (security, ids): (Security, &ConnectionIds),
    ) -> Option<Vec<u8>> {
        let Some(psk) = self.psk.as_deref() else {
            return packet::open(packet, &keys.remote, number_at);
        };
        let salt = salt?;
        if self.salt.is_some() {
            return packet::open(packet, &keys.remote, number_at)
                .filter(|_| self.salt == Some(salt));
        }
        let secrets = InitialSecrets {
            psk: Some(psk),
            destination: ids.original(),
            source: ids.local(),
            salt: &salt,
        };
        let servers = initial_keys(security, &secrets, true)?.remote;
        let payload = packet::open(packet, &servers, number_at)?;
        secrets.log_server();
        (keys.remote, self.salt) = (servers, Some(salt));
        Some(payload)
    }

    /// The handshake is confirmed: no more Initial packets are sent.
    pub(super) fn discard(&mut self) {
        (self.bytes, self.psk) = (Vec::new(), None);
    }
}
