//! What an endpoint that is a relay node keeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;
use rand::Rng;

use super::groups::GroupTable;
use crate::endpoint::handle::ConnectionHandle;
use crate::relay::{FlowStatus, LinkId, LinkQueue, Relay, RelayConfig, RelayEvent, RelayStats};
use crate::wire::flow::{DIRECT_FLOW, FlowKey, NodeId};
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
    pub(super) deliveries: VecDeque<ForThisNode>,
    /// Sessions that a link has polled, and whether they gave a packet.
    pub(super) serviced: Vec<(ConnectionHandle, bool)>,
    /// Senders and memberships of groups.
    pub(super) groups: GroupTable,
}

/// A packet for a session of this node.
#[derive(Debug)]
pub(super) struct ForThisNode {
    pub(super) key: FlowKey,
    pub(super) kind: PacketKind,
    /// With its flow header.
    pub(super) packet: Vec<u8>,
    /// Where the payload begins.
    pub(super) payload: usize,
}

impl ForThisNode {
    pub(super) fn payload(&self) -> &[u8] {
        self.packet.get(self.payload..).unwrap_or_default()
    }

    pub(super) fn into_payload(mut self) -> Vec<u8> {
        self.packet.drain(..self.payload.min(self.packet.len()));
        self.packet
    }
}

impl RelayNode {
    pub(in crate::endpoint) fn new(config: RelayConfig, seed: u64) -> Self {
        Self {
            relay: Relay::new(config, seed),
            sessions: BTreeMap::new(),
            ready: BTreeSet::new(),
            last: None,
            own_session_next: false,
            deliveries: VecDeque::new(),
            serviced: Vec::new(),
            groups: GroupTable::default(),
        }
    }

    pub(in crate::endpoint) fn is_recoding(&self) -> bool {
        self.relay.is_recoding()
    }

    /// Whether a session of this node sends this flow.
    pub(in crate::endpoint) fn has_session(&self, key: FlowKey) -> bool {
        self.sessions.contains_key(&key)
    }

    /// Whether sessions of this node may send this flow.
    pub(in crate::endpoint) fn may_send(&self, key: FlowKey) -> bool {
        key.source == self.relay.node()
    }

    /// The flow that a new session with a node sends: no other session of this node does.
    pub(in crate::endpoint) fn fresh_flow(
        &self,
        destination: NodeId,
        rng: &mut impl Rng,
    ) -> FlowKey {
        self.unused_flow(destination, || rng.next_u32() & !DIRECT_FLOW)
    }

    /// As `fresh_flow`, for a direct session with a neighbour.
    pub(in crate::endpoint) fn fresh_direct_flow(
        &self,
        neighbour: NodeId,
        rng: &mut impl Rng,
    ) -> FlowKey {
        self.unused_flow(neighbour, || rng.next_u32() | DIRECT_FLOW)
    }

    fn unused_flow(&self, destination: NodeId, mut random: impl FnMut() -> u32) -> FlowKey {
        let source = self.relay.node();
        loop {
            let key = FlowKey { destination, source, flow: random() };
            if !self.has_session(key) {
                return key;
            }
        }
    }

    /// Whether there is an admitted link with this neighbour.
    pub(in crate::endpoint) fn has_link_with(&self, neighbour: NodeId) -> bool {
        !self.relay.links_with(neighbour).is_empty()
    }

    /// Whether this node has a direct session with a neighbour.
    fn has_direct_session(&self, neighbour: NodeId) -> bool {
        let first =
            FlowKey { destination: neighbour, source: self.relay.node(), flow: DIRECT_FLOW };
        self.sessions.range(first..=FlowKey { flow: u32::MAX, ..first }).next().is_some()
    }

    /// A connection, with this flow if it was a session, has ended.
    pub(super) fn forget(
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
            if key.is_direct() && !self.has_direct_session(key.destination) {
                self.relay.set_direct(now, key.destination, false);
            }
        }
    }

    /// Records whether a session has data; returns the links to wake.
    pub(super) fn record_data(&mut self, key: FlowKey, has_data: bool) -> Vec<LinkId> {
        if !has_data {
            self.ready.remove(&key);
            return Vec::new();
        }
        self.ready.insert(key);
        self.relay.routes(key).collect()
    }

    pub(in crate::endpoint) fn next_timeout(&self) -> Option<Timestamp> {
        Timestamp::earlier(self.relay.next_timeout(), self.groups.next_timeout())
    }

    pub(in crate::endpoint) fn stats(&self) -> RelayStats {
        self.relay.stats()
    }

    /// The flows of the relay, in the order of their keys.
    pub(in crate::endpoint) fn flows(&self, now: Timestamp) -> Vec<FlowStatus> {
        self.relay.flows(now).collect()
    }

    /// The packets that the relay has to send over an admitted link.
    pub(in crate::endpoint) fn link_queue(&self, link: ConnectionHandle) -> Option<LinkQueue> {
        self.relay.link_queue(LinkId(link.0))
    }

    /// The next event of the relay.
    pub(in crate::endpoint) fn pop_event(&mut self) -> Option<RelayEvent> {
        self.relay.pop_event()
    }
}
