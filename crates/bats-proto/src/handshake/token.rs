//! Retry tokens: address validation without state on the server (RFC 9000, section 8.1).
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use core::time::Duration;

use aws_lc_rs::hmac;
use bats_types::Timestamp;

use crate::remote::Remote;
use crate::wire::long_header::ORIGINAL_CID_LEN;

/// How long a token is valid; a client answers a Retry at once.
const LIFETIME: Duration = Duration::from_secs(10);
const TAG: usize = 32;

/// Makes and checks tokens. A token is its expiry time and an HMAC over it, the client's address
/// or flow, and the client's initial destination connection ID.
pub(super) struct TokenKey(hmac::Key);

impl core::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("TokenKey")
    }
}

impl TokenKey {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    fn message(expiry: u64, remote: Remote, cid: &[u8; ORIGINAL_CID_LEN]) -> Vec<u8> {
        let mut message = expiry.to_be_bytes().to_vec();
        message.extend_from_slice(&remote.host_bytes());
        if let Some(address) = remote.address() {
            message.extend_from_slice(&address.port().to_be_bytes());
        }
        message.extend_from_slice(cid);
        message
    }

    pub(super) fn make(
        &self,
        now: Timestamp,
        remote: Remote,
        cid: &[u8; ORIGINAL_CID_LEN],
    ) -> Vec<u8> {
        let expiry = (now + LIFETIME).as_micros();
        let tag = hmac::sign(&self.0, &Self::message(expiry, remote, cid));
        let mut token = expiry.to_be_bytes().to_vec();
        token.extend_from_slice(tag.as_ref());
        token
    }

    pub(super) fn check(
        &self,
        now: Timestamp,
        token: &[u8],
        remote: Remote,
        cid: &[u8; ORIGINAL_CID_LEN],
    ) -> bool {
        let Some((expiry, tag)) = token.split_first_chunk::<8>() else { return false };
        let expiry = u64::from_be_bytes(*expiry);
        let fresh = expiry >= now.as_micros() && expiry <= (now + LIFETIME).as_micros();
        let message = Self::message(expiry, remote, cid);
        fresh && tag.len() == TAG && hmac::verify(&self.0, &message, tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::flow::{FlowKey, NodeId};

    #[test]
    fn token_is_valid_only_for_its_address_attempt_and_lifetime() {
        let key = TokenKey::new([7; 32]);
        let now = Timestamp::from_millis(100_000);
        let remote = |address: &str| Remote::Network(address.parse().unwrap());
        let (other_port, other_host) = (remote("10.0.0.1:5001"), remote("10.0.0.2:5000"));
        let remote = remote("10.0.0.1:5000");
        let token = key.make(now, remote, &[1; 8]);
        assert!(key.check(now + Duration::from_secs(9), &token, remote, &[1; 8]));
        assert!(!key.check(now + Duration::from_secs(11), &token, remote, &[1; 8]));
        assert!(!key.check(now, &token, other_port, &[1; 8]));
        assert!(!key.check(now, &token, other_host, &[1; 8]));
        assert!(!key.check(now, &token, remote, &[2; 8]));
        assert!(!TokenKey::new([8; 32]).check(now, &token, remote, &[1; 8]));
        for i in 0..token.len() {
            let mut forged = token.clone();
            forged[i] ^= 1;
            assert!(!key.check(now, &forged, remote, &[1; 8]), "byte {i}");
        }
        assert!(!key.check(now, &[], remote, &[1; 8]));
    }

    #[test]
    fn tokens_of_sessions_over_relays_are_bound_to_their_flow() {
        let key = TokenKey::new([7; 32]);
        let now = Timestamp::from_millis(100_000);
        let flow = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };
        let token = key.make(now, Remote::Relays(flow), &[1; 8]);
        assert!(key.check(now, &token, Remote::Relays(flow), &[1; 8]));
        for other in [FlowKey { destination: NodeId(4), ..flow }, FlowKey { flow: 4, ..flow }] {
            assert!(!key.check(now, &token, Remote::Relays(other), &[1; 8]));
        }
    }
}
