//! Datagrams of unknown connections and packets of unknown flows: they are stateless resets of a
//! server, or are answered by one.

use bats_types::Timestamp;
use rand::Rng;

use super::answers::Answers;
use super::connections::Connections;
use super::handle::ConnectionHandle;
use super::relay_node::RelayNode;
use super::stateless_reset::{ANY_CID, StatelessResets, Token};
use crate::config::EndpointConfig;
use crate::connection::Connection;
use crate::datagram::Incoming;
use crate::remote::Remote;
use crate::stats::EndpointStats;
use crate::wire::short_header::{self, SHORT_OVERHEAD};
use crate::wire::stateless_reset::{reset_len, token_of, write_reset};

/// Longest reset in bytes, with room to spare.
const MAX_LEN: usize = 64;

/// Resets that a server sends for packets which it does not know, and those that a client receives.
#[derive(Debug)]
pub(super) struct UnknownPackets {
    resets: StatelessResets,
    sent: u64,
    received: u64,
}

impl UnknownPackets {
    /// `seed` is that of the endpoint.
    pub(super) fn new(config: &EndpointConfig, seed: &[u8; 32]) -> Self {
        Self { resets: StatelessResets::new(config, seed), sent: 0, received: 0 }
    }

    /// The token of a new connection of a server, if it sends resets.
    pub(super) fn token(&self, local_cid: [u8; 4], remote: Remote) -> Option<Token> {
        let cid = if remote.is_over_relays() { ANY_CID } else { local_cid };
        self.resets.token(cid, remote)
    }

    /// A client's connection is established with a server of this token.
    pub(super) fn record_token(&mut self, token: &Token, handle: ConnectionHandle) {
        self.resets.insert(token, handle);
    }

    /// A client's connection with a server of this token has ended.
    pub(super) fn forget_token(&mut self, token: &Token, handle: ConnectionHandle) {
        self.resets.remove(token, handle);
    }

    /// Writes what it counts.
    pub(super) fn count_in(&self, stats: &mut EndpointStats) {
        stats.stateless_resets_sent = self.sent;
        stats.stateless_resets_received = self.received;
    }

    /// Handles a datagram with a short header and an unknown connection ID, if it is a reset by the
    /// server of a connection. Returns whether it is.
    pub(super) fn handle_reset(
        &mut self,
        connections: &mut Connections,
        datagram: &Incoming<'_>,
    ) -> bool {
        if self.resets.is_empty() {
            return false;
        }
        let Some(token) = token_of(datagram.payload) else { return false };
        let Some(handle) = self.resets.find(token) else { return false };
        let remote = connections.get(handle).map(|connection| connection.remote());
        if remote != Some(datagram.remote) {
            return false;
        }
        self.resets.remove(token, handle);
        self.received += 1;
        connections.change(handle, Connection::on_stateless_reset);
        true
    }

    /// Answers a datagram with a short header and an unknown connection ID that is no reset.
    pub(super) fn answer_unknown_cid(
        &mut self,
        now: Timestamp,
        datagram: &Incoming<'_>,
        rng: &mut impl Rng,
        answers: &mut Answers,
    ) {
        if let Some(cid) = short_header::destination(datagram.payload) {
            let len = reset_len(datagram.payload.len());
            self.send_reset(now, (datagram, cid, len), rng, answers);
        }
    }

    /// Answers a packet of a flow that belongs to no session: the session may have ended here without the
    /// other end's knowledge. While the flow has a session, no node gets its token: a user of a relay can
    /// write any source.
    pub(super) fn answer_unknown_flow(
        &mut self,
        now: Timestamp,
        packet: &Incoming<'_>,
        node: &RelayNode,
        rng: &mut impl Rng,
        answers: &mut Answers,
    ) {
        if packet.remote.flow_key().is_none_or(|key| node.has_session(key)) {
            return;
        }
        // The shortest reset, which no node answers: both ends of a flow are servers.
        let len = reset_len(packet.payload.len()).and_then(|_| reset_len(SHORT_OVERHEAD + 1));
        self.send_reset(now, (packet, ANY_CID, len), rng, answers);
    }

    /// Answers a datagram to this connection ID with a reset of this length, if any fits.
    fn send_reset(
        &mut self,
        now: Timestamp,
        (datagram, cid, len): (&Incoming<'_>, [u8; 4], Option<usize>),
        rng: &mut impl Rng,
        answers: &mut Answers,
    ) {
        let Some(len) = len else { return };
        if !self.resets.are_sent() {
            return;
        }
        if !self.resets.take_allowance(now, datagram.remote.is_over_relays()) {
            return answers.on_refused();
        }
        let Some(token) = self.resets.token(cid, datagram.remote) else { return };
        let mut random = [0; MAX_LEN];
        let reset = &mut random[..len.min(MAX_LEN)];
        rng.fill_bytes(reset);
        write_reset(reset, &token);
        self.sent += 1;
        answers.push(datagram, reset.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::ServerConfig;
    use crate::config::{EndpointConfig, TransportConfig};
    use crate::crypto::generate_identity;
    use crate::datagram::Received;
    use crate::endpoint::Endpoint;
    use crate::endpoint::stateless_reset::RESET_BURST;
    use crate::relay::RelayConfig;
    use crate::wire::flow::{FlowKey, NodeId};

    /// A flow from this node to another one.
    fn flow(flow: u32) -> FlowKey {
        FlowKey { destination: NodeId(2), source: NodeId(1), flow }
    }

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
        let key = flow(99);
        let mut endpoint = node();
        let receive = |endpoint: &mut Endpoint, len: usize| {
            let mut bytes = vec![0x40; len];
            endpoint.handle_unknown_cid(now, &Incoming::over_relays(key, &mut bytes));
            endpoint.handle_unknown_flow(now, &Incoming::over_relays(key, &mut bytes));
            let answers = core::iter::from_fn(|| endpoint.answers.pop());
            answers.map(|answer| (answer.remote, answer.payload.len())).collect::<Vec<_>>()
        };
        for len in [26, 27, 60, 1_200] {
            assert_eq!(
                receive(&mut endpoint, len),
                [(Remote::Relays(key), SHORT_OVERHEAD); 2],
                "{len}"
            );
        }
        assert_eq!(receive(&mut endpoint, SHORT_OVERHEAD), [], "the answer gets none");
        let relay_node = endpoint.relay_node.as_mut().unwrap();
        relay_node.insert(now, &mut endpoint.connections, key, ConnectionHandle(9));
        assert_eq!(receive(&mut endpoint, 1_200), [], "the token is that of the session");
    }

    /// The token of a reset is that of the connection, which another endpoint of the address may have.
    #[test]
    fn datagrams_of_other_endpoints_of_the_address_get_no_answer() {
        let now = Timestamp::from_millis(1_000);
        let mut endpoint = node();
        let two = core::num::NonZeroU8::new(2).unwrap();
        endpoint.set_steering(crate::Steering::new(0, two).unwrap());
        for (first, answers) in [(2, 1), (3, 0)] {
            let mut bytes = [first; 100];
            bytes[0] = 0x40;
            let remote = ([192, 0, 2, 1], 9).into();
            let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut bytes };
            endpoint.handle(now, crate::Input::Datagram(packet));
            let sent = core::iter::from_fn(|| endpoint.answers.pop()).count();
            assert_eq!(sent, answers, "connection ID {first}");
        }
        assert_eq!(endpoint.endpoint_stats().datagrams_dropped, 2);
    }

    /// A flood of packets of unknown flows leaves the resets of direct clients.
    #[test]
    fn flows_and_direct_clients_have_resets_of_their_own() {
        let now = Timestamp::from_millis(1_000);
        let mut endpoint = node();
        for number in 0..1_000 {
            let mut payload = [0x40; 60];
            endpoint.handle_unknown_cid(now, &Incoming::over_relays(flow(number), &mut payload));
            while endpoint.answers.pop().is_some() {}
        }
        assert_eq!(endpoint.endpoint_stats().stateless_resets_sent, RESET_BURST);
        let remote = ([192, 0, 2, 1], 9).into();
        let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut [0x40; 60] };
        endpoint.handle_unknown_cid(now, &packet.into());
        assert_eq!(endpoint.endpoint_stats().stateless_resets_sent, RESET_BURST + 1);
    }
}
