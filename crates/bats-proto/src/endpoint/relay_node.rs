//! The relay node of an endpoint: its relay, its links and its own end-to-end sessions.

use bats_types::Timestamp;
use rand::Rng;

use super::handle::ConnectionHandle;
use super::{Endpoint, Received};
use crate::config::ClientConfig;
use crate::error::ConnectError;
use crate::link::RelayInput;
use crate::relay::{
    FlowStatus, LinkId, LinkPolicy, LinkQueue, RelayConfig, RelayEvent, RelayStats,
};
use crate::wire::flow::{FlowKey, NodeId};
use crate::wire::no_route::NoRoute;
use crate::wire::short_header::PacketKind;

pub(super) mod addresses;
mod link_packets;
mod state;

use addresses::address;
use link_packets::LinkPackets;
pub(super) use state::RelayNode;

impl Endpoint {
    /// Makes this endpoint a relay node, which can relay flows and open end-to-end sessions. It
    /// relays nothing before [`Endpoint::admit`] and [`Endpoint::route`] are called.
    ///
    /// # Errors
    ///
    /// If it already is one.
    pub fn enable_relay(&mut self, config: RelayConfig) -> Result<(), ConnectError> {
        if self.relay_node.is_some() {
            return Err(ConnectError::Configuration(
                "this endpoint already is a relay node".to_owned(),
            ));
        }
        let seed = self.rng.next_u64();
        self.relay_node = Some(RelayNode::new(config, seed));
        Ok(())
    }

    /// Admits the peer of an established link: the node relays its packets and sends it relayed
    /// packets. The owner of the node decides whom to admit: see [`Endpoint::peer_fingerprint`].
    ///
    /// False if the connection is not established or is an end-to-end session, or if this endpoint
    /// is no relay node.
    pub fn admit(&mut self, link: ConnectionHandle) -> bool {
        self.admit_with(link, LinkPolicy::default())
    }

    /// As [`Endpoint::admit`], but takes only the packets from the peer that `policy` allows. Also
    /// changes the policy of an admitted link.
    pub fn admit_with(&mut self, link: ConnectionHandle, policy: LinkPolicy) -> bool {
        let (Some(relay_node), Some(connection)) =
            (&mut self.relay_node, self.connections.get_mut(link))
        else {
            return false;
        };
        if !connection.is_established() || connection.flow_key().is_some() {
            return false;
        }
        connection.link_mut().admit();
        let feedback = connection.peer_reports_batches();
        relay_node.relay.add_link(LinkId(link.0), feedback);
        relay_node.relay.set_policy(LinkId(link.0), policy);
        true
    }

    /// Routes packets for the node `destination` over this admitted link only. False if the link is
    /// not admitted.
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

    /// Adds this admitted link as a further route to the node `destination`.
    ///
    /// All links towards a node are used at once, each as its own congestion control allows.
    /// Unresponsive links are not used until they answer again. False if the link is not admitted,
    /// or if there already are [`MAX_PATHS`](crate::relay::MAX_PATHS) of them.
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

    /// Removes this link as a route to the node `destination`. Its undelivered packets use another
    /// link, or wait for one.
    pub fn remove_route(&mut self, now: Timestamp, destination: NodeId, link: ConnectionHandle) {
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.relay.remove_route(now, destination, LinkId(link.0));
            self.release_assigned_symbols(link);
            self.wake_links();
        }
    }

    /// Replaces all routes to the node `destination` at once by these links, each with a tier: the
    /// links of the lowest tier that has a responsive one are used. An empty list removes the route;
    /// undelivered packets then wait for a new one.
    ///
    /// False, without a change, if a link is not admitted or if there are more than
    /// [`MAX_PATHS`](crate::relay::MAX_PATHS).
    pub fn set_routes(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        links: &[(ConnectionHandle, u8)],
    ) -> bool {
        let Some(relay_node) = &mut self.relay_node else { return false };
        let links: Vec<_> = links.iter().map(|&(link, tier)| (LinkId(link.0), tier)).collect();
        if links.iter().any(|&(link, _)| !relay_node.relay.has_link(link)) {
            return false;
        }
        let before: Vec<LinkId> = relay_node.relay.routes(destination).collect();
        if !relay_node.relay.set_routes(now, destination, &links) {
            return false;
        }
        let after: Vec<LinkId> = relay_node.relay.routes(destination).collect();
        for link in before.into_iter().filter(|link| !after.contains(link)) {
            self.release_assigned_symbols(ConnectionHandle(link.0));
        }
        self.wake_links();
        true
    }

    /// Whether the peer of an established connection answers.
    pub fn is_responsive(&self, now: Timestamp, handle: ConnectionHandle) -> bool {
        self.connections.get(handle).is_some_and(|link| link.link().link_view(now).alive)
    }

    /// Lets other links send the symbols that sessions have reserved for a link.
    fn release_assigned_symbols(&mut self, link: ConnectionHandle) {
        let Some(relay_node) = &self.relay_node else { return };
        for handle in relay_node.sessions.values().copied().collect::<Vec<_>>() {
            if let Some(session) = self.connections.get_mut(handle) {
                session.session_mut().release_assigned(link.0);
            }
            self.connections.mark_dirty(handle);
        }
    }

    /// Avoids the link of a polluting path, if the session's peer has reported pollution.
    pub(super) fn avoid_polluting_link(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let Some(session) = self.connections.get_mut(handle) else { return };
        let (Some(key), Some(link)) =
            (session.flow_key(), session.session_mut().take_polluting_link())
        else {
            return;
        };
        let Some(relay_node) = &mut self.relay_node else { return };
        if relay_node.relay.mark_polluting(now, key.destination, LinkId(link)) {
            self.release_assigned_symbols(ConnectionHandle(link));
            self.wake_links();
        }
    }

    /// Updates the relay's view of a link, and wakes links if its liveness has changed.
    pub(super) fn update_link_state(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let (Some(relay_node), Some(link)) = (&mut self.relay_node, self.connections.get(handle))
        else {
            return;
        };
        if !link.link().is_admitted() {
            return;
        }
        let (id, view) = (LinkId(handle.0), link.link().link_view(now));
        let was_alive = relay_node.relay.is_alive(id);
        relay_node.relay.set_view(now, id, &view);
        if relay_node.relay.is_alive(id) == was_alive {
            return;
        }
        self.wake_links();
    }

    /// Opens an end-to-end session with another node over the relays that the routes define, with
    /// its own handshake and keys. It is used like any connection.
    ///
    /// # Errors
    ///
    /// If this endpoint is no relay node, or as [`Endpoint::connect`].
    pub fn connect_across(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        server_name: &str,
        config: ClientConfig,
    ) -> Result<ConnectionHandle, ConnectError> {
        let Some(relay_node) = &self.relay_node else {
            return Err(ConnectError::Configuration("this endpoint is no relay node".to_owned()));
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

    /// Whether a session of this node sends this flow.
    pub(super) fn has_session(&self, key: FlowKey) -> bool {
        self.relay_node.as_ref().is_some_and(|relay_node| relay_node.sessions.contains_key(&key))
    }

    /// The peer's node of an end-to-end session.
    pub fn remote_node(&self, handle: ConnectionHandle) -> Option<NodeId> {
        Some(self.connections.get(handle)?.flow_key()?.destination)
    }

    /// Statistics of the relay, if this endpoint is a relay node.
    pub fn relay_stats(&self) -> Option<RelayStats> {
        Some(self.relay_node.as_ref()?.relay.stats())
    }

    /// The flows of the relay, in the order of their keys; empty if this endpoint is no relay node.
    pub fn relay_flows(&self, now: Timestamp) -> Vec<FlowStatus> {
        self.relay_node.as_ref().map_or_else(Vec::new, |node| node.relay.flows(now).collect())
    }

    /// The packets that the relay has to send over an admitted link.
    pub fn relay_link_queue(&self, link: ConnectionHandle) -> Option<LinkQueue> {
        self.relay_node.as_ref()?.relay.link_queue(LinkId(link.0))
    }

    /// The next event of the relay.
    pub fn poll_relay_event(&mut self) -> Option<RelayEvent> {
        self.relay_node.as_mut()?.relay.pop_event()
    }

    /// Passes packets and reports that a link has received to the relay, and those for this node to
    /// its sessions.
    pub(super) fn fetch_relay_inputs(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let (Some(relay_node), Some(link)) =
            (&mut self.relay_node, self.connections.get_mut(handle))
        else {
            return;
        };
        if !link.link().is_admitted() {
            return;
        }
        let id = LinkId(handle.0);
        let view = link.link().link_view(now);
        while let Some(input) = link.link_mut().pop_relay_input() {
            match input {
                RelayInput::Report(report) => relay_node.relay.on_report(now, id, &view, &report),
                RelayInput::Packet(kind, payload) => {
                    let delivery = relay_node.relay.on_packet(now, id, &view, kind, &payload);
                    if let Some(delivery) = delivery {
                        let payload = delivery.payload.to_vec();
                        relay_node.deliveries.push_back((delivery.key, delivery.kind, payload));
                    }
                }
            }
        }
        self.deliver_to_sessions(now);
        self.wake_links();
    }

    fn deliver_to_sessions(&mut self, now: Timestamp) {
        while let Some((key, kind, mut payload)) =
            self.relay_node.as_mut().and_then(|relay_node| relay_node.deliveries.pop_front())
        {
            if kind == PacketKind::Control {
                if let Some(hint) = NoRoute::decode(&payload) {
                    self.handle_no_route(now, key, &hint);
                    continue;
                }
                let remote = address(key.source, key.flow);
                let datagram = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
                self.handle_datagram(now, datagram);
                continue;
            }
            let handle =
                self.relay_node.as_ref().and_then(|c| c.sessions.get(&key.reversed())).copied();
            match handle.and_then(|handle| Some((handle, self.connections.get_mut(handle)?))) {
                Some((handle, session)) => {
                    let slowest = self.relay_node.as_ref().map(|c| c.relay.slowest_inbound(key));
                    session.handle_flow_packet(now, kind, &payload, slowest.unwrap_or_default());
                    // After each packet: a burst of them takes more than the reserve for one.
                    self.memory.balance(now, &mut self.connections, handle);
                    self.connections.mark_dirty(handle);
                }
                None => {
                    let remote = address(key.source, key.flow);
                    let packet = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
                    self.handle_unknown_flow(now, &packet);
                }
            }
        }
    }

    /// A relay has no route for a packet of this node. That concerns all attempts to reach the node.
    fn handle_no_route(&mut self, now: Timestamp, from: FlowKey, hint: &NoRoute<'_>) {
        let Some(relay_node) = &self.relay_node else { return };
        let (destination, source) = (hint.destination, relay_node.relay.node());
        let quoted = FlowKey { destination, source, flow: from.flow };
        let session = relay_node.sessions.get(&quoted);
        let session = session.and_then(|handle| self.connections.get(*handle));
        if !session.is_some_and(|session| session.is_quoted(hint.quoted)) {
            return;
        }
        let flows = FlowKey { flow: 0, ..quoted }..=FlowKey { flow: u32::MAX, ..quoted };
        let handles: Vec<_> = relay_node.sessions.range(flows).map(|(_, handle)| *handle).collect();
        for handle in handles {
            if let Some(session) = self.connections.get_mut(handle) {
                session.handle_no_route(now, from.source, destination);
                self.connections.mark_dirty(handle);
            }
        }
    }

    /// Releases the symbols reserved for links that the relay has found unresponsive.
    pub(super) fn release_unresponsive_links(&mut self) {
        while let Some(LinkId(id)) = self.relay_node.as_mut().and_then(|c| c.relay.pop_lost()) {
            self.release_assigned_symbols(ConnectionHandle(id));
        }
    }

    /// Schedules links that have packets from the relay, and sessions that links have polled.
    pub(super) fn wake_links(&mut self) {
        self.release_unresponsive_links();
        while let Some(LinkId(id)) = self.relay_node.as_mut().and_then(|c| c.relay.pop_ready()) {
            self.wake_link(ConnectionHandle(id));
        }
        let serviced = self.relay_node.as_mut().map(|c| core::mem::take(&mut c.serviced));
        for (handle, sent) in serviced.into_iter().flatten() {
            if sent {
                self.connections.mark_dirty(handle);
            } else {
                self.connections.schedule_mut().mark_polled_empty(handle);
            }
        }
    }

    pub(super) fn wake_link(&mut self, handle: ConnectionHandle) {
        if let Some(link) = self.connections.get_mut(handle) {
            link.link_mut().wake_packet_source();
            self.connections.mark_dirty(handle);
        }
    }

    /// Polls a connection for datagrams; an admitted link can take packets of relay and sessions.
    pub(super) fn poll_connection(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        buffer: &mut Vec<u8>,
    ) -> Option<super::Transmit> {
        let admitted = self.connections.get(handle).is_some_and(|c| c.link().is_admitted());
        // An unresponsive link must not get the packets reserved for it.
        self.update_link_state(now, handle);
        self.release_unresponsive_links();
        let Some(relay_node) = self.relay_node.as_mut().filter(|_| admitted) else {
            return self.connections.get_mut(handle)?.poll_transmit(now, buffer, None);
        };
        let mut link = self.connections.take(handle)?;
        let recoded = relay_node.is_recoding() && link.peer_reports_batches();
        let mut packets = LinkPackets {
            link: LinkId(handle.0),
            relay_node,
            connections: &mut self.connections,
            recoded,
        };
        let transmit = link.poll_transmit(now, buffer, Some(&mut packets));
        self.connections.put_back(handle, link);
        self.wake_links_except(handle);
        transmit
    }

    /// As `wake_links`, except for the link that was just polled: it polls again while it sends.
    fn wake_links_except(&mut self, handle: ConnectionHandle) {
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
    use core::time::Duration;

    use super::*;
    use crate::config::{EndpointConfig, PeerTrust, Security};

    /// Only a quotation of the session's own packets counts, and a route that is missing for a moment
    /// ends nothing.
    #[test]
    fn attempts_end_by_reports_that_quote_their_packets_and_persist() {
        let config =
            EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
        let mut endpoint = Endpoint::new(config, [1; 32]).unwrap();
        endpoint.enable_relay(RelayConfig::new(NodeId(1))).unwrap();
        let client = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Default::default(),
        };
        let start = Timestamp::from_millis(1_000);
        let session = endpoint.connect_across(start, NodeId(9), "node", client).unwrap();
        let (flow, source) = {
            let connection = endpoint.connections.get(session).unwrap();
            (connection.flow_key().unwrap(), connection.local_cid())
        };
        let from = FlowKey { destination: NodeId(1), source: NodeId(5), flow: flow.flow };
        let quoted = [&[0xc0, 0, 0, 0, 0, 2, 7, 7, 4][..], &source].concat();
        let other = [&[0xc0, 0, 0, 0, 0, 2, 7, 7, 4][..], &source.map(|byte| byte ^ 1)].concat();
        let is_open =
            |endpoint: &Endpoint| endpoint.connections.get(session).unwrap().is_unanswered();
        let destination = NodeId(9);
        for at in [0, 1_000, 2_000, 3_000].map(|ms| start + Duration::from_millis(ms)) {
            for (from, hint) in [
                (from, NoRoute { destination, quoted: &other }),
                (from, NoRoute { destination, quoted: &[] }),
                (from, NoRoute { destination: NodeId(8), quoted: &quoted }),
                (FlowKey { flow: flow.flow ^ 1, ..from }, NoRoute { destination, quoted: &quoted }),
            ] {
                endpoint.handle_no_route(at, from, &hint);
            }
        }
        assert!(is_open(&endpoint), "none of them is about a packet of the session");
        let hint = NoRoute { destination, quoted: &quoted };
        endpoint.handle_no_route(start, from, &hint);
        endpoint.handle_no_route(start + Duration::from_millis(100), from, &hint);
        assert!(is_open(&endpoint), "the route may come back");
        endpoint.handle_no_route(start + Duration::from_secs(1), from, &hint);
        assert!(!is_open(&endpoint));
    }
}
