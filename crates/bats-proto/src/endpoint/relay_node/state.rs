//! What an endpoint that is a relay node keeps.

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;

use super::addresses::parse;
use crate::endpoint::handle::ConnectionHandle;
use crate::relay::{LinkId, Relay, RelayConfig};
use crate::wire::flow::FlowKey;
use crate::wire::short_header::PacketKind;

/// State of an endpoint that is a relay node.
#[derive(Debug)]
pub(in crate::endpoint) struct RelayNode {
    pub(super) relay: Relay,
    /// End-to-end sessions of this node, by the flow that they send.
    pub(super) sessions: BTreeMap<FlowKey, ConnectionHandle>,
    /// Sessions that may have coded packets to send.
    pub(super) ready: BTreeSet<FlowKey>,
    /// The session that sent last, for round robin.
    pub(super) last: Option<FlowKey>,
    /// Whether own sessions go before relayed flows next; they alternate.
    pub(super) own_session_next: bool,
    /// Packets for this node's sessions.
    pub(super) deliveries: VecDeque<(FlowKey, PacketKind, Vec<u8>)>,
    /// Sessions that a link has polled, and whether they gave a packet.
    pub(super) serviced: Vec<(ConnectionHandle, bool)>,
}

impl RelayNode {
    pub(super) fn new(config: RelayConfig, seed: u64) -> Self {
        Self {
            relay: Relay::new(config, seed),
            sessions: BTreeMap::new(),
            ready: BTreeSet::new(),
            last: None,
            own_session_next: false,
            deliveries: VecDeque::new(),
            serviced: Vec::new(),
        }
    }

    /// The flow that a session with this address sends, and whether the relay recodes.
    pub(in crate::endpoint) fn key_of(&self, remote: SocketAddr) -> Option<(FlowKey, bool)> {
        let (destination, flow) = parse(remote)?;
        let key = FlowKey { destination, source: self.relay.node(), flow };
        Some((key, self.relay.is_recoding()))
    }

    pub(in crate::endpoint) fn is_recoding(&self) -> bool {
        self.relay.is_recoding()
    }

    pub(in crate::endpoint) fn insert(&mut self, key: FlowKey, handle: ConnectionHandle) {
        self.sessions.insert(key, handle);
    }

    pub(in crate::endpoint) fn remove_connection(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        key: Option<FlowKey>,
    ) {
        self.relay.remove_link(now, LinkId(handle.0));
        if let Some(key) = key
            && self.sessions.get(&key) == Some(&handle)
        {
            self.sessions.remove(&key);
            self.ready.remove(&key);
        }
    }

    /// Sends an end-to-end packet.
    pub(in crate::endpoint) fn send(&mut self, now: Timestamp, remote: SocketAddr, packet: &[u8]) {
        if let Some((key, _)) = self.key_of(remote) {
            self.relay.send_opaque(now, key, packet);
        }
    }

    /// Records whether a session has data; returns the links to wake.
    pub(in crate::endpoint) fn update_session(
        &mut self,
        key: FlowKey,
        has_data: bool,
    ) -> Vec<LinkId> {
        if !has_data {
            self.ready.remove(&key);
            return Vec::new();
        }
        self.ready.insert(key);
        self.relay.routes(key.destination).collect()
    }

    pub(in crate::endpoint) fn next_timeout(&self) -> Option<Timestamp> {
        self.relay.next_timeout()
    }

    pub(in crate::endpoint) fn handle_timeout(&mut self, now: Timestamp) {
        self.relay.handle_timeout(now);
    }
}
