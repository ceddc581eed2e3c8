//! Stateless resets (RFC 9000, section 10.3): a server without state of a connection, for instance
//! after a restart, ends it at the client at once instead of after the client's idle timeout.
//!
//! A token is an HMAC over the connection ID and the client's IP address. Its key is derived from the
//! server's private key, so it survives restarts exactly if the certificate does, and no further
//! secret must be stored. The address is included because connection IDs are short and recur: hosts
//! at other addresses can elicit no token that a client accepts.

use core::net::IpAddr;

use aws_lc_rs::hmac;
use bats_types::Timestamp;
use rand::Rng;
use rustc_hash::FxHashMap;

use super::relay_node::addresses::is_relayed_address;
use super::{ConnectionHandle, Endpoint, Received};
use crate::config::{EndpointConfig, TransportConfig};
use crate::wire::short_header::{self, SHORT_OVERHEAD};
use crate::wire::stateless_reset::{RESET_TOKEN_LEN, reset_len, token_of, write_reset};

/// Resets a second, and at once. All clients of a restarted server learn of it within seconds, while
/// a flood of packets with unknown connection IDs costs little.
const RESETS_PER_SECOND: u64 = 1_000;
const RESET_BURST: u64 = 100;
/// In place of the connection ID in the token of an end-to-end session. Coded packets of a flow have none, and
/// the address of the session stands for the client's node and the flow.
pub(super) const ANY_CID: [u8; 4] = [0; 4];
/// Longest reset in bytes, with room to spare.
const MAX_LEN: usize = 64;

type Token = [u8; RESET_TOKEN_LEN];

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

    /// The token of a server's connection with a client at this address.
    pub(super) fn token(&self, local_cid: [u8; 4], client: IpAddr) -> Option<Token> {
        let client = match client {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Some(truncated_hmac(self.key.as_ref()?, &[&local_cid, &client.octets()]))
    }

    fn lookup(&self, token: &Token) -> Token {
        truncated_hmac(&self.lookup_key, &[token])
    }
}

impl Endpoint {
    /// A connection is established: records its token, if this end is the client.
    pub(super) fn record_reset_token(&mut self, handle: ConnectionHandle) {
        let connection = self.connections.get(&handle);
        if let Some(token) = connection.and_then(|connection| connection.reset_token()) {
            let key = self.resets.lookup(token);
            self.resets.by_token.insert(key, handle);
        }
    }

    pub(super) fn forget_reset_token(&mut self, handle: ConnectionHandle, token: Option<&Token>) {
        let Some(token) = token else { return };
        let key = self.resets.lookup(token);
        if self.resets.by_token.get(&key) == Some(&handle) {
            self.resets.by_token.remove(&key);
        }
    }

    /// Handles a datagram with a short header and an unknown connection ID: it may be a reset of the
    /// server, or be answered by one.
    pub(super) fn handle_unknown_cid(&mut self, now: Timestamp, datagram: &Received<'_>) {
        if self.handle_reset(datagram) {
            return;
        }
        if is_relayed_address(datagram.remote) {
            return self.handle_unknown_flow(now, datagram);
        }
        self.stats.datagrams_dropped += 1;
        if let Some(cid) = short_header::destination(datagram.payload) {
            self.send_reset(now, datagram, cid, reset_len(datagram.payload.len()));
        }
    }

    /// Handles a packet of a flow that belongs to no session: the session may have ended here without the
    /// other end's knowledge. While the flow has a session, no node gets its token: a user of a relay can
    /// write any source.
    pub(super) fn handle_unknown_flow(&mut self, now: Timestamp, packet: &Received<'_>) {
        self.stats.datagrams_dropped += 1;
        let key = self.relay_node.as_ref().and_then(|node| node.key_of(packet.remote));
        if key.is_none_or(|(key, _)| self.has_session(key)) {
            return;
        }
        // The shortest reset, which no node answers: both ends of a flow are servers.
        let len = reset_len(packet.payload.len()).and_then(|_| reset_len(SHORT_OVERHEAD + 1));
        self.send_reset(now, packet, ANY_CID, len);
    }

    fn handle_reset(&mut self, datagram: &Received<'_>) -> bool {
        if self.resets.by_token.is_empty() {
            return false;
        }
        let Some(token) = token_of(datagram.payload) else { return false };
        let key = self.resets.lookup(token);
        let Some(&handle) = self.resets.by_token.get(&key) else { return false };
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        if connection.remote() != datagram.remote {
            return false;
        }
        self.resets.by_token.remove(&key);
        self.stats.stateless_resets_received += 1;
        connection.on_stateless_reset();
        self.mark_dirty(handle);
        true
    }

    fn send_reset(
        &mut self,
        now: Timestamp,
        datagram: &Received<'_>,
        cid: [u8; 4],
        len: Option<usize>,
    ) {
        let Some(len) = len else { return };
        if self.resets.key.is_none() {
            return;
        }
        let is_relayed = is_relayed_address(datagram.remote);
        let [direct, relayed] = &mut self.resets.allowances;
        if !(if is_relayed { relayed } else { direct }).take(now) {
            self.stats.answers_dropped += 1;
            return;
        }
        let Some(token) = self.resets.token(cid, datagram.remote.ip()) else { return };
        let mut random = [0; MAX_LEN];
        let reset = &mut random[..len.min(MAX_LEN)];
        self.rng.fill_bytes(reset);
        write_reset(reset, &token);
        let reset = reset.to_vec();
        self.stats.stateless_resets_sent += 1;
        self.answer(datagram, reset);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::ServerConfig;
    use crate::crypto::generate_identity;
    use crate::relay::RelayConfig;
    use crate::wire::flow::NodeId;

    fn node() -> Endpoint {
        let transport = TransportConfig { stateless_resets: true, ..TransportConfig::default() };
        let server = ServerConfig {
            identity: generate_identity(&["node.example".to_owned()]).unwrap(),
            transport: Arc::new(transport),
            client_trust: None,
            retry_threshold: 1,
            max_connections: 1,
        };
        let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
        let mut endpoint = Endpoint::new(config, [1; 32]).unwrap();
        endpoint.enable_relay(RelayConfig::new(NodeId(1))).unwrap();
        endpoint
    }

    /// A user of a relay can write the node and the flow of another one in a packet.
    #[test]
    fn flows_get_the_shortest_reset_and_none_while_they_have_a_session() {
        let now = Timestamp::from_millis(1_000);
        let remote = crate::endpoint::relay_node::addresses::address(NodeId(2), 99);
        let mut endpoint = node();
        let receive = |endpoint: &mut Endpoint, len: usize| {
            let mut bytes = vec![0x40; len];
            let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut bytes };
            endpoint.handle_unknown_cid(now, &packet);
            let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut bytes };
            endpoint.handle_unknown_flow(now, &packet);
            let answers = endpoint.answers.drain(..);
            answers.map(|(to, _, bytes)| (to, bytes.len())).collect::<Vec<_>>()
        };
        for len in [26, 27, 60, 1_200] {
            assert_eq!(receive(&mut endpoint, len), [(remote, SHORT_OVERHEAD); 2], "{len}");
        }
        assert_eq!(receive(&mut endpoint, SHORT_OVERHEAD), [], "the answer gets none");
        let relay_node = endpoint.relay_node.as_mut().unwrap();
        let (key, _) = relay_node.key_of(remote).unwrap();
        relay_node.insert(key, ConnectionHandle(9));
        assert_eq!(receive(&mut endpoint, 1_200), [], "the token is that of the session");
    }

    /// A flood of packets of unknown flows leaves the resets of direct clients.
    #[test]
    fn flows_and_direct_clients_have_resets_of_their_own() {
        let now = Timestamp::from_millis(1_000);
        let mut endpoint = node();
        for flow in 0..1_000 {
            let remote = crate::endpoint::relay_node::addresses::address(NodeId(2), flow);
            let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut [0x40; 60] };
            endpoint.handle_unknown_cid(now, &packet);
            endpoint.answers.clear();
        }
        assert_eq!(endpoint.stats.stateless_resets_sent, RESET_BURST);
        let remote = ([192, 0, 2, 1], 9).into();
        let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut [0x40; 60] };
        endpoint.handle_unknown_cid(now, &packet);
        assert_eq!(endpoint.stats.stateless_resets_sent, RESET_BURST + 1);
    }
}
