//! Retry: address validation by a token (RFC 9000, section 8.1.2).
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bats_types::Timestamp;

use super::Handshake;

impl Handshake {
    /// Whether the client accepts a Retry: only the first one, from a sender that has seen the
    /// first flight, and before any other answer.
    pub(super) fn may_retry(&self, from_first: bool) -> bool {
        self.is_client && self.peer_cid.is_none() && !self.retried && from_first
    }

    /// Restarts the handshake with the token of a Retry; in PSK mode only if its proof is right.
    pub(super) fn on_retry(&mut self, now: Timestamp, retry: &[u8]) {
        let mut token = Vec::new();
        let verified = match &self.psk {
            Some(psk) => {
                let verified = psk.verify_retry_proof(&self.original, &self.local_cid, retry);
                token.extend_from_slice(&psk.proof(&self.original, &self.local_cid));
                verified
            }
            None => Some(retry),
        };
        let Some(verified) = verified else { return };
        token.extend_from_slice(verified);
        self.retried = true;
        self.token = token;
        self.rewind();
        self.next_send = Some(now);
    }

    /// Client: whether packets that arrive before their keys may be buffered. In PSK mode only
    /// after the server has answered, so that unauthenticated peers cause no memory use.
    pub(crate) fn may_buffer_early_packets(&self) -> bool {
        self.psk.is_none() || self.peer_cid.is_some()
    }
}
