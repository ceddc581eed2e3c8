//! A node's relay, its links and its own sessions across relays, joined by the endpoint.
//!
//! A session across relays has an address like any other peer, from a range that no network
//! delivers to (RFC 6666): it names the node at the other end and the flow. So the endpoint treats
//! the packets between the ends as datagrams.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;
use rand::Rng;

use super::{ConnectionHandle, Endpoint, Received};
use crate::config::ClientConfig;
use crate::connection::{Arrived, Connection, FirstLink, PacketSource};
use crate::error::ConnectError;
use crate::relay::{LinkId, LinkView, Relay, RelayConfig, RelayEvent, RelayStats};
use crate::wire::batch_rank::BatchRank;
use crate::wire::flow::{FlowKey, NodeId};
use crate::wire::short_header::PacketKind;

/// First 64 bits of the addresses of sessions across relays: the discard prefix 100::/64.
const PREFIX: [u16; 4] = [0x0100, 0, 0, 0];
/// Port in them.
const PORT: u16 = 1;

/// The address that stands for the other end of a session.
pub(super) fn address(peer: NodeId, flow: u32) -> SocketAddr {
    let [a, b, c, d] = PREFIX;
    let (node, half) = (peer.0, |x: u32| ((x >> 16) as u16, x as u16));
    let ((e, f), (g, h)) = (half(node), half(flow));
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), PORT)
}

/// The other end and the flow that an address stands for.
fn parse(address: SocketAddr) -> Option<(NodeId, u32)> {
    let IpAddr::V6(ip) = address.ip() else { return None };
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let join = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
    ([a, b, c, d] == PREFIX).then(|| (NodeId(join(e, f)), join(g, h)))
}

/// Whether an address stands for a session across relays: no datagram of a network may claim one.
pub(super) fn is_carried(address: SocketAddr) -> bool {
    parse(address).is_some()
}

/// What an endpoint has beside its connections when it is a node.
#[derive(Debug)]
pub(super) struct RelayNode {
    relay: Relay,
    /// Sessions of this node by the flow that they send.
    sessions: BTreeMap<FlowKey, ConnectionHandle>,
    /// Sessions that may have coded packets to send.
    eager: BTreeSet<FlowKey>,
    /// Whose turn it was last.
    last: Option<FlowKey>,
    /// Whether own sessions go before what is passed on: they take turns.
    own_turn: bool,
    /// Packets for this node's sessions.
    arrived: VecDeque<(FlowKey, PacketKind, Vec<u8>)>,
    /// Sessions that a link has asked for packets, and whether they gave one.
    touched: Vec<(ConnectionHandle, bool)>,
}

impl RelayNode {
    /// The flow that a session with this address sends.
    pub(super) fn key_of(&self, remote: SocketAddr) -> Option<(FlowKey, bool)> {
        let (destination, flow) = parse(remote)?;
        let key = FlowKey { destination, source: self.relay.node(), flow };
        Some((key, self.relay.is_recoding()))
    }

    pub(super) fn is_recoding(&self) -> bool {
        self.relay.is_recoding()
    }

    pub(super) fn insert(&mut self, key: FlowKey, handle: ConnectionHandle) {
        self.sessions.insert(key, handle);
    }

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
            self.eager.remove(&key);
        }
    }

    /// Sends an end-to-end packet.
    pub(super) fn send(&mut self, now: Timestamp, remote: SocketAddr, packet: &[u8]) {
        if let Some((key, _)) = self.key_of(remote) {
            self.relay.send_opaque(now, key, packet);
        }
    }

    /// A session has settled: it may want links.
    pub(super) fn note(&mut self, key: FlowKey, has_data: bool) -> Vec<LinkId> {
        if !has_data {
            self.eager.remove(&key);
            return Vec::new();
        }
        self.eager.insert(key);
        self.relay.routes(key.destination).collect()
    }

    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.relay.next_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        self.relay.handle_timeout(now);
    }
}

/// What one link may carry.
struct Pulling<'a> {
    link: LinkId,
    relay_node: &'a mut RelayNode,
    connections: &'a mut BTreeMap<ConnectionHandle, Box<Connection>>,
    recoded: bool,
}

impl Pulling<'_> {
    /// Whether a session's next packet is to leave by this link now.
    fn is_for_link(&mut self, now: Timestamp, key: FlowKey) -> bool {
        if !self.is_worthwhile(key) {
            return false;
        }
        self.relay_node.relay.has_room(now, key, self.link)
    }

    /// Whether this is a link for a session's next packet, be there room on it or not.
    fn is_worthwhile(&self, key: FlowKey) -> bool {
        let relay = &self.relay_node.relay;
        if !relay.routes(key.destination).any(|link| link == self.link) {
            return false;
        }
        let handle = self.relay_node.sessions.get(&key);
        let Some(session) = handle.and_then(|handle| self.connections.get(handle)) else {
            return false;
        };
        session.has_share_of(self.link.0)
            || relay.is_worthwhile(key.destination, self.link, session.carried_backlog())
    }

    /// Sessions whose way begins with this link, the one after the last in front.
    fn turns(&self) -> Vec<FlowKey> {
        let relay_node = &*self.relay_node;
        let after = relay_node.last.unwrap_or(FlowKey {
            destination: NodeId(u32::MAX),
            source: NodeId(u32::MAX),
            flow: u32::MAX,
        });
        let turns = relay_node
            .eager
            .range((core::ops::Bound::Excluded(after), core::ops::Bound::Unbounded));
        turns.chain(relay_node.eager.range(..=after)).copied().collect()
    }

    fn pull_own(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        for key in self.turns() {
            if !self.is_for_link(now, key) {
                continue;
            }
            let way = self.relay_node.relay.way(key.destination);
            let handle = self.relay_node.sessions.get(&key).copied();
            let session = handle.and_then(|handle| self.connections.get_mut(&handle));
            let first = FirstLink { link: self.link.0, view: *view, recoded: self.recoded, way };
            let (kind, has_more) = session.map_or((None, false), |session| {
                let kind = session.poll_carried(now, &first, out);
                (kind, session.has_carried_data())
            });
            self.relay_node.touched.extend(handle.map(|handle| (handle, kind.is_some())));
            let Some(kind) = kind else {
                // What is left may be the share of another link.
                if !has_more || way.links <= 1 {
                    self.relay_node.eager.remove(&key);
                }
                continue;
            };
            self.relay_node.last = Some(key);
            self.relay_node.relay.send_coded(now, key, self.link, kind, out);
            return self.relay_node.relay.pull(now, self.link, view, number, out);
        }
        None
    }
}

impl PacketSource for Pulling<'_> {
    fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let own_turn = self.relay_node.own_turn;
        self.relay_node.own_turn = !own_turn;
        if !own_turn && self.relay_node.relay.wants(now, self.link) {
            let pulled = self.relay_node.relay.pull(now, self.link, view, number, out);
            if pulled.is_some() {
                return pulled;
            }
        }
        self.pull_own(now, view, number, out)
            .or_else(|| self.relay_node.relay.pull(now, self.link, view, number, out))
    }

    fn has_more(&mut self, now: Timestamp) -> bool {
        self.relay_node.relay.wants(now, self.link)
            || self.turns().into_iter().any(|key| self.is_for_link(now, key))
    }

    fn has_backlog(&self) -> bool {
        self.relay_node.relay.has_backlog(self.link)
            || self.relay_node.eager.iter().any(|key| self.is_worthwhile(*key))
    }

    fn next_report(&mut self, now: Timestamp, mark: u64) -> Option<BatchRank> {
        self.relay_node.relay.next_report(now, self.link, mark)
    }

    fn has_report(&self) -> bool {
        self.relay_node.relay.has_report(self.link)
    }
}

impl Endpoint {
    /// Makes this endpoint a node that can relay and speak across relays. Nothing is carried for
    /// anybody yet: see [`Endpoint::admit`] and [`Endpoint::route`].
    ///
    /// # Errors
    ///
    /// If it is one already.
    pub fn enable_relay(&mut self, config: RelayConfig) -> Result<(), ConnectError> {
        if self.relay_node.is_some() {
            return Err(ConnectError::Configuration("this endpoint is a node already".to_owned()));
        }
        let seed = self.rng.next_u64();
        self.relay_node = Some(RelayNode {
            relay: Relay::new(config, seed),
            sessions: BTreeMap::new(),
            eager: BTreeSet::new(),
            last: None,
            own_turn: false,
            arrived: VecDeque::new(),
            touched: Vec::new(),
        });
        Ok(())
    }

    /// Lets the peer of an established connection have packets carried, and packets be handed to
    /// it. Who that may be is for the owner of the node to decide: see
    /// [`Endpoint::peer_fingerprint`]. False if the connection is not established, is itself a
    /// session across relays, or this is no node.
    pub fn admit(&mut self, link: ConnectionHandle) -> bool {
        let (Some(relay_node), Some(connection)) =
            (&mut self.relay_node, self.connections.get_mut(&link))
        else {
            return false;
        };
        if !connection.is_established() || connection.carried_key().is_some() {
            return false;
        }
        connection.admit();
        let feedback = connection.peer_reports_batches();
        relay_node.relay.add_link(LinkId(link.0), feedback);
        true
    }

    /// Packets for the node `destination` leave over this admitted link alone from now on. False if it
    /// is not admitted.
    pub fn route(&mut self, now: Timestamp, destination: NodeId, link: ConnectionHandle) -> bool {
        let link = LinkId(link.0);
        match &mut self.relay_node {
            Some(relay_node) if relay_node.relay.has_link(link) => {
                relay_node.relay.set_route(now, destination, link);
                self.wake_links();
                true
            }
            _ => false,
        }
    }

    /// Packets for the node `destination` leave over this admitted link, too: the links towards a node
    /// are used together, each as its own congestion control allows, and those that are silent are
    /// left out until they are heard again. False if the link is not admitted, or if there are
    /// [`MAX_PATHS`](crate::relay::MAX_PATHS) of them.
    pub fn add_route(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        link: ConnectionHandle,
    ) -> bool {
        let link = LinkId(link.0);
        let Some(relay_node) = self.relay_node.as_mut().filter(|c| c.relay.has_link(link)) else {
            return false;
        };
        let is_added = relay_node.relay.add_route(now, destination, link);
        self.wake_links();
        is_added
    }

    /// Packets for the node `destination` no longer leave over this link: what it has not brought over
    /// leaves by another, or waits for one.
    pub fn remove_route(&mut self, now: Timestamp, destination: NodeId, link: ConnectionHandle) {
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.relay.remove_route(now, destination, LinkId(link.0));
            self.release_shares(link);
            self.wake_links();
        }
    }

    /// What sessions have set aside for a link is for any other.
    fn release_shares(&mut self, link: ConnectionHandle) {
        let Some(relay_node) = &self.relay_node else { return };
        for handle in relay_node.sessions.values().copied().collect::<Vec<_>>() {
            if let Some(session) = self.connections.get_mut(&handle) {
                session.release_share(link.0);
            }
            self.mark_dirty(handle);
        }
    }

    /// A session may have been told that what left by a link was altered on the way.
    pub(super) fn leave_liar(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let Some(session) = self.connections.get_mut(&handle) else { return };
        let (Some(key), Some(link)) = (session.carried_key(), session.take_liar()) else { return };
        let Some(relay_node) = &mut self.relay_node else { return };
        if relay_node.relay.distrust(now, key.destination, LinkId(link)) {
            self.release_shares(ConnectionHandle(link));
            self.wake_links();
        }
    }

    /// A link may have fallen silent, or been heard again.
    pub(super) fn watch_link(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let (Some(relay_node), Some(link)) = (&mut self.relay_node, self.connections.get(&handle))
        else {
            return;
        };
        if !link.is_admitted() {
            return;
        }
        let (id, view) = (LinkId(handle.0), link.link_view(now));
        let was_alive = relay_node.relay.is_alive(id);
        relay_node.relay.set_view(now, id, &view);
        if relay_node.relay.is_alive(id) == was_alive {
            return;
        }
        self.wake_links();
    }

    /// Begins a session with another node, across as many relays as the routes say, with a handshake
    /// and keys of its own. It is used like any connection.
    ///
    /// # Errors
    ///
    /// If this is no node, or as
    /// [`Endpoint::connect`].
    pub fn connect_across(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        server_name: &str,
        config: ClientConfig,
    ) -> Result<ConnectionHandle, ConnectError> {
        let Some(relay_node) = &self.relay_node else {
            return Err(ConnectError::Configuration("this endpoint is no node".to_owned()));
        };
        let source = relay_node.relay.node();
        let flow = loop {
            let flow = self.rng.next_u32();
            if !relay_node.sessions.contains_key(&FlowKey { destination, source, flow }) {
                break flow;
            }
        };
        self.connect(now, address(destination, flow), server_name, config)
    }

    /// Whether a flow is that of a session of this node.
    pub(super) fn has_session(&self, key: FlowKey) -> bool {
        self.relay_node.as_ref().is_some_and(|relay_node| relay_node.sessions.contains_key(&key))
    }

    /// The node at the other end of a session across relays.
    pub fn remote_node(&self, handle: ConnectionHandle) -> Option<NodeId> {
        Some(self.connections.get(&handle)?.carried_key()?.destination)
    }

    /// Counters of the relay, if this is a node.
    pub fn relay_stats(&self) -> Option<RelayStats> {
        Some(self.relay_node.as_ref()?.relay.stats())
    }

    /// The next thing that the owner of the relay may want to know.
    pub fn poll_relay_event(&mut self) -> Option<RelayEvent> {
        self.relay_node.as_mut()?.relay.pop_event()
    }

    /// A link has got packets or reports: they go to the relay, and what is for this node itself to
    /// its sessions.
    pub(super) fn fetch_arrived(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let (Some(relay_node), Some(link)) =
            (&mut self.relay_node, self.connections.get_mut(&handle))
        else {
            return;
        };
        if !link.is_admitted() {
            return;
        }
        let id = LinkId(handle.0);
        let view = link.link_view(now);
        while let Some(arrived) = link.pop_arrived() {
            match arrived {
                Arrived::Report(report) => relay_node.relay.on_report(now, id, &view, &report),
                Arrived::Packet(kind, payload) => {
                    let delivery = relay_node.relay.on_carried(now, id, &view, kind, &payload);
                    if let Some(delivery) = delivery {
                        let payload = delivery.payload.to_vec();
                        relay_node.arrived.push_back((delivery.key, delivery.kind, payload));
                    }
                }
            }
        }
        self.deliver_arrived(now);
        self.wake_links();
    }

    fn deliver_arrived(&mut self, now: Timestamp) {
        while let Some((key, kind, mut payload)) =
            self.relay_node.as_mut().and_then(|relay_node| relay_node.arrived.pop_front())
        {
            if kind == PacketKind::Control {
                let remote = address(key.source, key.flow);
                let datagram = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
                self.handle_datagram(now, datagram);
                continue;
            }
            let handle =
                self.relay_node.as_ref().and_then(|c| c.sessions.get(&key.reversed())).copied();
            match handle.and_then(|handle| Some((handle, self.connections.get_mut(&handle)?))) {
                Some((handle, session)) => {
                    let slowest = self.relay_node.as_ref().map(|c| c.relay.slowest_inbound(key));
                    session.handle_carried(now, kind, &payload, slowest.unwrap_or_default());
                    self.mark_dirty(handle);
                }
                None => self.stats.datagrams_dropped += 1,
            }
        }
    }

    /// Whoever asks the relay may find a link silent: its shares are for the others then.
    pub(super) fn release_lost(&mut self) {
        while let Some(LinkId(id)) = self.relay_node.as_mut().and_then(|c| c.relay.pop_lost()) {
            self.release_shares(ConnectionHandle(id));
        }
    }

    /// Links that the relay has got something for, and sessions that gave packets, have to be looked
    /// at.
    pub(super) fn wake_links(&mut self) {
        self.release_lost();
        while let Some(LinkId(id)) = self.relay_node.as_mut().and_then(|c| c.relay.pop_ready()) {
            self.wake_link(ConnectionHandle(id));
        }
        let touched = self.relay_node.as_mut().map(|c| core::mem::take(&mut c.touched));
        for (handle, gave) in touched.into_iter().flatten() {
            if gave {
                self.mark_dirty(handle);
            } else if self.is_dirty.insert(handle) {
                self.dirty.push_back(handle);
                self.asked.insert(handle);
            }
        }
    }

    pub(super) fn wake_link(&mut self, handle: ConnectionHandle) {
        if let Some(link) = self.connections.get_mut(&handle) {
            link.wake_carriage();
            self.mark_dirty(handle);
        }
    }

    /// Asks a connection for datagrams; a link is offered what the relay and the sessions have.
    pub(super) fn poll_connection(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        buffer: &mut Vec<u8>,
    ) -> Option<super::Transmit> {
        let admitted = self.connections.get(&handle).is_some_and(|c| c.is_admitted());
        // A link that is given up must not be handed what was kept for it.
        self.watch_link(now, handle);
        self.release_lost();
        let Some(relay_node) = self.relay_node.as_mut().filter(|_| admitted) else {
            return self.connections.get_mut(&handle)?.poll_transmit(now, buffer, None);
        };
        let mut link = self.connections.remove(&handle)?;
        let recoded = relay_node.is_recoding() && link.peer_reports_batches();
        let mut pulling = Pulling {
            link: LinkId(handle.0),
            relay_node,
            connections: &mut self.connections,
            recoded,
        };
        let transmit = link.poll_transmit(now, buffer, Some(&mut pulling));
        self.connections.insert(handle, link);
        self.wake_links_but(handle);
        transmit
    }

    /// As `wake_links`; the link at hand has just been asked, and asks again while it sends.
    fn wake_links_but(&mut self, handle: ConnectionHandle) {
        let Some(relay_node) = &mut self.relay_node else { return };
        let mut others = Vec::new();
        while let Some(LinkId(id)) = relay_node.relay.pop_ready() {
            others.push(ConnectionHandle(id));
        }
        others.retain(|other| *other != handle);
        for other in others {
            self.wake_link(other);
        }
        self.wake_links();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sessions_are_told_from_those_of_networks() {
        let made = address(NodeId(0x0102_0304), 0xa0b0_c0d0);
        assert_eq!(made.to_string(), "[100::102:304:a0b0:c0d0]:1");
        assert_eq!(parse(made), Some((NodeId(0x0102_0304), 0xa0b0_c0d0)));
        for other in ["10.0.0.1:5", "[101::1]:1", "[::ffff:10.0.0.1]:4", "[100:0:0:1::1]:1"] {
            assert!(!is_carried(other.parse().unwrap()), "{other}");
        }
    }
}
