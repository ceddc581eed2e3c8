//! Stateless resets (RFC 9000, section 10.3): a server without state of a connection, for instance
//! after a restart, ends it at the client at once instead of after the client's idle timeout.
//!
//! A token is an HMAC over the connection ID and the client's IP address, or the flow of a session over
//! relays. Its key is derived from the server's private key, so it survives restarts exactly if the
//! certificate does, and no further secret must be stored. The address is included because connection IDs are short and recur: hosts
//! at other addresses can elicit no token that a client accepts.

use aws_lc_rs::hmac;
use bats_types::Timestamp;
use rustc_hash::FxHashMap;

use super::ConnectionHandle;
use crate::config::{EndpointConfig, TransportConfig};
use crate::remote::Remote;
use crate::wire::stateless_reset::RESET_TOKEN_LEN;

/// Resets a second, and at once. All clients of a restarted server learn of it within seconds, while
/// a flood of packets with unknown connection IDs costs little.
const RESETS_PER_SECOND: u64 = 1_000;
pub(super) const RESET_BURST: u64 = 100;
/// In place of the connection ID in the token of an end-to-end session. Coded packets of a flow have none, and
/// its client's node and the flow are in the token.
pub(super) const ANY_CID: [u8; 4] = [0; 4];

pub(super) type Token = [u8; RESET_TOKEN_LEN];

/// First bytes of an HMAC.
fn truncated_hmac(key: &hmac::Key, parts: &[&[u8]]) -> Token {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    let tag = context.sign();
    let mut token = Token::default();
    token.copy_from_slice(&tag.as_ref()[..RESET_TOKEN_LEN]);
    token
}

/// Makes resets as a server and recognises them as a client.
pub(super) struct StatelessResets {
    /// `None`: no server, one without resets, or one in PSK mode, which answers only to holders of the
    /// key.
    key: Option<hmac::Key>,
    /// Connections of clients by their token. Tokens are looked up by their HMAC, so that the time
    /// of a lookup does not disclose them (RFC 9000, section 10.3.1).
    by_token: FxHashMap<Token, ConnectionHandle>,
    lookup_key: hmac::Key,
    /// For clients of direct connections, and for those of sessions over relays.
    allowances: [Allowance; 2],
}

/// Resets that may be sent at the time `refilled`.
#[derive(Clone, Copy)]
struct Allowance {
    left: u64,
    refilled: Timestamp,
}

impl Allowance {
    const NEW: Self = Self { left: RESET_BURST, refilled: Timestamp::ZERO };

    /// Whether another reset may be sent now.
    fn take(&mut self, now: Timestamp) -> bool {
        let millis = u64::try_from((now - self.refilled).as_millis()).unwrap_or(u64::MAX);
        let new = millis.saturating_mul(RESETS_PER_SECOND) / 1_000;
        if new > 0 {
            self.left = self.left.saturating_add(new).min(RESET_BURST);
            self.refilled = now;
        }
        let is_allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_allowed
    }
}

impl core::fmt::Debug for StatelessResets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StatelessResets").field("tokens", &self.by_token.len()).finish()
    }
}

impl StatelessResets {
    pub(super) fn new(config: &EndpointConfig, seed: &[u8; 32]) -> Self {
        let new_key = |bytes: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let sends =
            |transport: &TransportConfig| transport.stateless_resets && transport.psk.is_none();
        let server = config.server.as_ref().filter(|server| sends(&server.transport));
        let key = server.map(|server| {
            let identity = new_key(&server.identity.private_key);
            new_key(hmac::sign(&identity, b"openbats stateless reset").as_ref())
        });
        let lookup = hmac::sign(&new_key(seed), b"openbats lookup of reset tokens");
        Self {
            key,
            by_token: FxHashMap::default(),
            lookup_key: new_key(lookup.as_ref()),
            allowances: [Allowance::NEW; 2],
        }
    }

    /// The token of a server's connection with a client that is there.
    pub(super) fn token(&self, local_cid: [u8; 4], client: Remote) -> Option<Token> {
        Some(truncated_hmac(self.key.as_ref()?, &[&local_cid, &client.host_bytes()]))
    }

    /// Whether this end sends resets.
    pub(super) fn are_sent(&self) -> bool {
        self.key.is_some()
    }

    /// Whether another reset may be sent now, to the client of a relayed session or to a direct one.
    pub(super) fn take_allowance(&mut self, now: Timestamp, is_relayed: bool) -> bool {
        let [direct, relayed] = &mut self.allowances;
        (if is_relayed { relayed } else { direct }).take(now)
    }

    /// Records the token of a client's connection.
    pub(super) fn insert(&mut self, token: &Token, handle: ConnectionHandle) {
        self.by_token.insert(self.lookup(token), handle);
    }

    /// Forgets the token, if it is that of this connection.
    pub(super) fn remove(&mut self, token: &Token, handle: ConnectionHandle) {
        let key = self.lookup(token);
        if self.by_token.get(&key) == Some(&handle) {
            self.by_token.remove(&key);
        }
    }

    /// The client's connection with the token.
    pub(super) fn find(&self, token: &Token) -> Option<ConnectionHandle> {
        self.by_token.get(&self.lookup(token)).copied()
    }

    /// Whether no client's connection has a token.
    pub(super) fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    fn lookup(&self, token: &Token) -> Token {
        truncated_hmac(&self.lookup_key, &[token])
    }
}
