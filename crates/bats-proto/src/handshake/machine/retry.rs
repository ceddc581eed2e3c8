//! A server asks a client to prove its address.

use bats_types::Timestamp;

use super::Handshake;

impl Handshake {
    /// Whether a retry would be followed: only the first one, of who has seen the first flight, before
    /// anything else was heard.
    pub(super) fn may_retry(&self, from_first: bool) -> bool {
        self.is_client && self.peer_cid.is_none() && !self.retried && from_first
    }

    /// Begins again with the token of a retry, in closed mode if it is proved.
    pub(super) fn on_retry(&mut self, now: Timestamp, retry: &[u8]) {
        let mut token = Vec::new();
        let told = match &self.closed {
            Some(closed) => {
                let told = closed.before_retry_proof(&self.original, &self.local_cid, retry);
                token.extend_from_slice(&closed.proof(&self.original, &self.local_cid));
                told
            }
            None => Some(retry),
        };
        let Some(told) = told else { return };
        token.extend_from_slice(told);
        self.retried = true;
        self.token = token;
        self.rewind();
        self.next_send = Some(now);
    }

    /// Client: whether packets that come before their keys may be kept. In closed mode not before the
    /// server was heard, so that strangers cause no memory.
    pub(crate) fn may_hold(&self) -> bool {
        self.closed.is_none() || self.peer_cid.is_some()
    }
}
