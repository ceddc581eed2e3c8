//! Stateless proofs of address: what a client got at one address it can only have seen there.
//!
//! ```text
//! | purpose, 1 | expiry in ms, 8 | original destination, 8 | HMAC-SHA-256, 32 |
//! ```
//!
//! The HMAC also covers address, port and the connection ID that the retry made the client use
//! (RFC 9000, sections 8.1.2 to 8.1.4).

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use aws_lc_rs::hmac;
use bats_types::Timestamp;

use crate::wire::long_header::ORIGINAL_CID_LEN;
use crate::wire::varint::Reader;

/// Time for one round trip, generously.
const LIFETIME: Duration = Duration::from_secs(15);
const TAG_LEN: usize = 32;

/// What a token is for; others are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenPurpose {
    /// Handed out in a Retry packet.
    Retry = 1,
}

/// Why a token proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// Not made here, or for another address or connection ID.
    Forged,
    /// Made here, too long ago.
    Expired,
}

/// Makes and checks tokens; from one seed always the same.
pub(crate) struct TokenKey(hmac::Key);

impl core::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("TokenKey")
    }
}

impl TokenKey {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The connection ID that a client shall use after a retry; unpredictable, not remembered.
    pub(crate) fn retry_cid(
        &self,
        now: Timestamp,
        remote: SocketAddr,
        original: &[u8; ORIGINAL_CID_LEN],
    ) -> [u8; ORIGINAL_CID_LEN] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(b"retry cid");
        context.update(&now.as_nanos().to_be_bytes());
        update_address(&mut context, remote);
        context.update(original);
        let tag = context.sign();
        let mut cid = [0; ORIGINAL_CID_LEN];
        cid.copy_from_slice(&tag.as_ref()[..ORIGINAL_CID_LEN]);
        cid
    }

    /// A token for a client at `remote` that began with `original` and continues with `cid`.
    pub(crate) fn make(
        &self,
        now: Timestamp,
        purpose: TokenPurpose,
        remote: SocketAddr,
        original: &[u8; ORIGINAL_CID_LEN],
        cid: &[u8; ORIGINAL_CID_LEN],
    ) -> Vec<u8> {
        let expiry = (now + LIFETIME).as_micros() / 1_000;
        let mut token = vec![purpose as u8];
        token.extend_from_slice(&expiry.to_be_bytes());
        token.extend_from_slice(original);
        let tag = self.context(&token, remote, cid).sign();
        token.extend_from_slice(tag.as_ref());
        token
    }

    /// Checks a token; gives back the original destination.
    pub(crate) fn check(
        &self,
        now: Timestamp,
        purpose: TokenPurpose,
        remote: SocketAddr,
        cid: &[u8; ORIGINAL_CID_LEN],
        token: &[u8],
    ) -> Result<[u8; ORIGINAL_CID_LEN], TokenError> {
        let (body, tag) = token.split_last_chunk::<TAG_LEN>().ok_or(TokenError::Forged)?;
        let expected = self.context(body, remote, cid).sign();
        aws_lc_rs::constant_time::verify_slices_are_equal(expected.as_ref(), tag)
            .map_err(|_| TokenError::Forged)?;
        let mut reader = Reader::new(body);
        let kind = reader.u8();
        let (Some(expiry), Some(original)) = (reader.array(), reader.array()) else {
            return Err(TokenError::Forged);
        };
        if kind != Some(purpose as u8) || !reader.is_empty() {
            return Err(TokenError::Forged);
        }
        if now.as_micros() / 1_000 > u64::from_be_bytes(expiry) {
            return Err(TokenError::Expired);
        }
        Ok(original)
    }

    fn context(
        &self,
        body: &[u8],
        remote: SocketAddr,
        cid: &[u8; ORIGINAL_CID_LEN],
    ) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(b"token");
        update_address(&mut context, remote);
        context.update(cid);
        context.update(body);
        context
    }
}

fn update_address(context: &mut hmac::Context, remote: SocketAddr) {
    let address = match remote.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    context.update(&address.octets());
    context.update(&remote.port().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: [u8; 8] = *b"original";
    const CID: [u8; 8] = *b"next cid";
    const RETRY: TokenPurpose = TokenPurpose::Retry;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], port))
    }

    #[test]
    fn a_token_is_good_for_its_address_id_and_time_only() {
        let key = TokenKey::new(&[1; 32]);
        let now = Timestamp::from_millis(5_000);
        let token = key.make(now, RETRY, address(9), &ORIGINAL, &CID);
        let check = |at, remote, cid, token: &[u8]| key.check(at, RETRY, remote, cid, token);
        assert_eq!(check(now, address(9), &CID, &token), Ok(ORIGINAL));
        assert_eq!(check(now + LIFETIME, address(9), &CID, &token), Ok(ORIGINAL));
        let late = now + LIFETIME + Duration::from_millis(1);
        assert_eq!(check(late, address(9), &CID, &token), Err(TokenError::Expired));
        assert_eq!(check(now, address(10), &CID, &token), Err(TokenError::Forged));
        let elsewhere = SocketAddr::from(([192, 0, 2, 8], 9));
        assert_eq!(check(now, elsewhere, &CID, &token), Err(TokenError::Forged));
        assert_eq!(check(now, address(9), &ORIGINAL, &token), Err(TokenError::Forged));
        let other = TokenKey::new(&[2; 32]);
        assert_eq!(other.check(now, RETRY, address(9), &CID, &token), Err(TokenError::Forged));
    }

    #[test]
    fn a_changed_or_cut_token_is_forged() {
        let key = TokenKey::new(&[1; 32]);
        let token = key.make(Timestamp::ZERO, RETRY, address(9), &ORIGINAL, &CID);
        for bit in 0..8 * token.len() {
            let mut copy = token.clone();
            copy[bit / 8] ^= 1 << (bit % 8);
            let checked = key.check(Timestamp::ZERO, RETRY, address(9), &CID, &copy);
            assert_eq!(checked, Err(TokenError::Forged));
        }
        for len in 0..token.len() {
            let checked = key.check(Timestamp::ZERO, RETRY, address(9), &CID, &token[..len]);
            assert_eq!(checked, Err(TokenError::Forged));
        }
    }
}
