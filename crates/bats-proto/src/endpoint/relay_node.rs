//! What the relay node of an endpoint does with its connections: links take packets of the relay and
//! of the node's own end-to-end sessions, and bring those of others.

use bats_types::Timestamp;

use super::connections::Connections;
use super::handle::ConnectionHandle;
use crate::datagram::Outgoing;
use crate::link::RelayInput;
use crate::relay::{LinkId, LinkPolicy};
use crate::wire::flow::{DIRECT_FLOW, FlowKey, NodeId};
use crate::wire::no_route::NoRoute;
use crate::wire::short_header::PacketKind;

mod group_calls;
mod groups;
mod link_packets;
mod state;

use link_packets::LinkPackets;
use state::ForThisNode;
pub(super) use state::RelayNode;

/// A packet for this node that links have brought.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A control packet of the end-to-end session that sends this flow.
    Control(FlowKey, Vec<u8>),
    /// A session has handled a coded packet.
    Handled(ConnectionHandle),
    /// A coded packet, for which no session sends this flow.
    UnknownFlow(FlowKey, Vec<u8>),
}

impl RelayNode {
    /// Admits the peer of an established link with this policy, or changes the policy. False if it is
    /// not established or is an end-to-end session.
    pub(super) fn admit(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        link: ConnectionHandle,
        policy: LinkPolicy,
    ) -> bool {
        let Some(mut connection) = connections.get_mut(link) else { return false };
        if !connection.is_established() || connection.flow_key().is_some() {
            return false;
        }
        connection.link_mut().admit();
        let feedback = connection.peer_reports_batches();
        drop(connection);
        self.relay.add_link(LinkId(link.0), feedback);
        self.relay.set_policy(now, LinkId(link.0), policy);
        self.wake_links(connections);
        true
    }

    /// Routes packets for a node over this admitted link only. False if it is not admitted.
    pub(super) fn route(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        destination: NodeId,
        link: ConnectionHandle,
    ) -> bool {
        let link = LinkId(link.0);
        if !self.relay.has_link(link) {
            return false;
        }
        self.relay.set_route(now, destination, link);
        self.wake_links(connections);
        true
    }

    /// Adds this link as a further route to a node. False if it is not admitted or there are too
    /// many.
    pub(super) fn add_route(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        destination: NodeId,
        link: ConnectionHandle,
    ) -> bool {
        let link = LinkId(link.0);
        if !self.relay.has_link(link) {
            return false;
        }
        let is_added = self.relay.add_route(now, destination, link);
        self.wake_links(connections);
        is_added
    }

    /// Removes this link as a route to a node.
    pub(super) fn remove_route(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        destination: NodeId,
        link: ConnectionHandle,
    ) {
        self.relay.remove_route(now, destination, LinkId(link.0));
        self.release_assigned_symbols(connections, link);
        self.wake_links(connections);
    }

    /// Replaces all routes to a node by these links with their tiers. False, without a change, if one
    /// is not admitted or there are too many.
    pub(super) fn set_routes(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        destination: NodeId,
        links: &[(ConnectionHandle, u8)],
    ) -> bool {
        let links: Vec<_> = links.iter().map(|&(link, tier)| (LinkId(link.0), tier)).collect();
        if links.iter().any(|&(link, _)| !self.relay.has_link(link)) {
            return false;
        }
        let before: Vec<LinkId> = self.relay.routes(destination).collect();
        if !self.relay.set_routes(now, destination, &links) {
            return false;
        }
        let after: Vec<LinkId> = self.relay.routes(destination).collect();
        for link in before.into_iter().filter(|link| !after.contains(link)) {
            self.release_assigned_symbols(connections, ConnectionHandle(link.0));
        }
        self.wake_links(connections);
        true
    }

    /// Adds the session that sends this flow. A direct one uses all admitted links with the neighbour.
    pub(super) fn insert(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        key: FlowKey,
        handle: ConnectionHandle,
    ) {
        self.sessions.insert(key, handle);
        if key.is_direct() {
            self.relay.set_direct(now, key.destination, true);
            self.wake_links(connections);
        }
    }

    /// The fingerprint of the certificate of a neighbour, from the links with it.
    pub(super) fn fingerprint_of(
        &self,
        connections: &Connections,
        neighbour: NodeId,
    ) -> Option<[u8; 32]> {
        let links = self.relay.links_with(neighbour).into_iter();
        let mut links = links.filter_map(|LinkId(id)| connections.get(ConnectionHandle(id)));
        links.next()?.peer_fingerprint()
    }

    /// Lets other links send the symbols that sessions have reserved for a link.
    fn release_assigned_symbols(&self, connections: &mut Connections, link: ConnectionHandle) {
        for &handle in self.sessions.values() {
            connections.change(handle, |session| session.session_mut().release_assigned(link.0));
        }
    }

    /// Avoids the link of a polluting path, if the session's peer has reported pollution.
    pub(super) fn avoid_polluting_link(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) {
        let Some(mut session) = connections.get_mut(handle) else { return };
        let (Some(key), Some(link)) =
            (session.flow_key(), session.session_mut().take_polluting_link())
        else {
            return;
        };
        drop(session);
        if self.relay.mark_polluting(now, key.destination, LinkId(link)) {
            self.release_assigned_symbols(connections, ConnectionHandle(link));
            self.wake_links(connections);
        }
    }

    /// Updates the relay's view of a link, and wakes links if its liveness has changed.
    pub(super) fn update_link_state(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) {
        let Some(link) = connections.get(handle) else { return };
        if !link.link().is_admitted() {
            return;
        }
        let (id, view) = (LinkId(handle.0), link.link().link_view(now));
        drop(link);
        let was_alive = self.relay.is_alive(id);
        self.relay.set_view(now, id, &view);
        if self.relay.is_alive(id) == was_alive {
            return;
        }
        self.wake_links(connections);
    }

    /// Passes packets and reports that a link has received to the relay. Returns whether the link is
    /// admitted. [`RelayNode::next_arrival`] then returns those for this node.
    pub(super) fn fetch_inputs(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) -> bool {
        let Some(mut link) = connections.get_mut(handle) else { return false };
        if !link.link().is_admitted() {
            return false;
        }
        let id = LinkId(handle.0);
        let view = link.link().link_view(now);
        while let Some(input) = link.link_mut().pop_relay_input() {
            match input {
                RelayInput::Report(report) => self.relay.on_report(now, id, &view, &report),
                RelayInput::Packet(kind, packet) => {
                    let delivery = self.relay.on_packet(now, id, &view, kind, &packet);
                    if let Some((key, length)) = delivery.map(|d| (d.key, d.payload.len())) {
                        // It is what follows the flow header.
                        let payload = packet.len().saturating_sub(length);
                        self.deliveries.push_back(ForThisNode { key, kind, packet, payload });
                    }
                }
            }
        }
        true
    }

    /// The next packet for this node. Coded packets are passed to their sessions before.
    pub(super) fn next_arrival(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
    ) -> Option<Arrival> {
        while let Some(delivery) = self.deliveries.pop_front() {
            let (key, kind, sent) = (delivery.key, delivery.kind, delivery.key.reversed());
            if key.destination.is_group() {
                self.groups.take(now, key, kind, delivery.payload());
                continue;
            }
            if kind == PacketKind::Control {
                let payload = delivery.into_payload();
                if let Some(hint) = NoRoute::decode(&payload) {
                    self.handle_no_route(now, connections, key, &hint);
                    continue;
                }
                return Some(Arrival::Control(sent, payload));
            }
            let handle = self.sessions.get(&sent).copied();
            let session = handle.and_then(|handle| Some((handle, connections.get_mut(handle)?)));
            let Some((handle, mut session)) = session else {
                return Some(Arrival::UnknownFlow(sent, delivery.into_payload()));
            };
            session.handle_flow_packet(
                now,
                kind,
                delivery.payload(),
                self.relay.slowest_inbound(key),
            );
            return Some(Arrival::Handled(handle));
        }
        None
    }

    /// A relay has no route for a packet of this node. That concerns all attempts to reach the node.
    fn handle_no_route(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        from: FlowKey,
        hint: &NoRoute<'_>,
    ) {
        if from.is_direct() {
            // There is no relay between the ends.
            return;
        }
        let (destination, source) = (hint.destination, self.relay.node());
        let quoted = FlowKey { destination, source, flow: from.flow };
        let session = self.sessions.get(&quoted);
        let session = session.and_then(|handle| connections.get(*handle));
        let is_quoted = session.is_some_and(|session| session.is_quoted(hint.quoted));
        if !is_quoted {
            return;
        }
        let flows = FlowKey { flow: 0, ..quoted }..=FlowKey { flow: DIRECT_FLOW - 1, ..quoted };
        for (_, &handle) in self.sessions.range(flows) {
            connections
                .change(handle, |session| session.handle_no_route(now, from.source, destination));
        }
    }

    /// Releases the symbols reserved for links that the relay has found unresponsive.
    fn release_unresponsive_links(&mut self, connections: &mut Connections) {
        while let Some(LinkId(id)) = self.relay.pop_lost() {
            self.release_assigned_symbols(connections, ConnectionHandle(id));
        }
    }

    /// Schedules links that have packets from the relay, and sessions that links have polled.
    pub(super) fn wake_links(&mut self, connections: &mut Connections) {
        self.release_unresponsive_links(connections);
        while let Some(LinkId(id)) = self.relay.pop_ready() {
            wake_link(connections, ConnectionHandle(id));
        }
        for (handle, sent) in core::mem::take(&mut self.serviced) {
            if sent {
                connections.mark_dirty(handle);
            } else {
                connections.schedule_mut().mark_polled_empty(handle);
            }
        }
    }

    /// As `wake_links`, except for the link that was just polled: it polls again while it sends.
    fn wake_links_except(&mut self, connections: &mut Connections, handle: ConnectionHandle) {
        let mut others = Vec::new();
        while let Some(LinkId(id)) = self.relay.pop_ready() {
            others.push(ConnectionHandle(id));
        }
        others.retain(|other| *other != handle);
        for other in others {
            wake_link(connections, other);
        }
        self.wake_links(connections);
    }

    /// Polls a connection for datagrams; an admitted link can take packets of relay and sessions.
    pub(super) fn poll_connection(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
        buffer: &mut Vec<u8>,
    ) -> Option<Outgoing> {
        let admitted = connections.get(handle).is_some_and(|c| c.link().is_admitted());
        // An unresponsive link must not get the packets reserved for it.
        self.update_link_state(now, connections, handle);
        self.release_unresponsive_links(connections);
        if !admitted {
            return connections.get_mut(handle)?.poll_transmit(now, buffer, None);
        }
        let (mut link, sessions) = connections.split(handle)?;
        let recoded = self.is_recoding() && link.peer_reports_batches();
        let link_id = LinkId(handle.0);
        let mut packets = LinkPackets { link: link_id, relay_node: self, sessions, recoded };
        let transmit = link.poll_transmit(now, buffer, Some(&mut packets));
        drop(link);
        self.wake_links_except(connections, handle);
        transmit
    }

    /// An end-to-end session was polled: records whether it has data, and wakes its links.
    pub(super) fn update_session(
        &mut self,
        connections: &mut Connections,
        key: FlowKey,
        has_data: bool,
        was_polled_empty: bool,
    ) {
        let links = self.record_data(key, has_data);
        // Do not wake a link that has just polled this session and got no packet, or it would
        // poll again without end: a session has data even if its window is full or the data is
        // reserved for another link.
        for link in links.into_iter().filter(|_| !was_polled_empty) {
            wake_link(connections, ConnectionHandle(link.0));
        }
    }

    /// Sends an end-to-end packet of a flow over the relay.
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        key: FlowKey,
        packet: &[u8],
    ) {
        self.relay.send_opaque(now, key, packet);
        self.wake_links(connections);
    }

    /// Handles the timers of the relay that are due.
    pub(super) fn handle_timeout(&mut self, now: Timestamp, connections: &mut Connections) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            self.relay.handle_timeout(now);
            self.groups.handle_timeout(now, &mut self.relay);
            self.wake_links(connections);
        }
    }

    /// A connection, with this flow if it was a session, has been removed.
    pub(super) fn remove_connection(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
        key: Option<FlowKey>,
    ) {
        self.forget(now, handle, key);
        self.wake_links(connections);
    }
}

/// Schedules a link to poll the relay.
fn wake_link(connections: &mut Connections, handle: ConnectionHandle) {
    connections.change(handle, |link| link.link_mut().wake_packet_source());
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::config::{ClientConfig, EndpointConfig, PeerTrust, PresharedKey, Security};
    use crate::datagram::Incoming;
    use crate::endpoint::Endpoint;
    use crate::error::GroupError;
    use crate::relay::{GroupEntryError, RelayConfig};
    use crate::remote::Remote;
    use crate::session::group::GroupOptions;
    use crate::wire::announcement::AnnouncementHeader;

    /// The endpoint of node 1.
    fn node() -> Endpoint {
        let config =
            EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
        let mut endpoint = Endpoint::new(config, [1; 32]).unwrap();
        endpoint.enable_relay(RelayConfig::new(NodeId(1))).unwrap();
        endpoint
    }

    fn client() -> ClientConfig {
        ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Default::default(),
        }
    }

    /// Only a quotation of the session's own packets counts, and a route that is missing for a moment
    /// ends nothing.
    #[test]
    fn attempts_end_by_reports_that_quote_their_packets_and_persist() {
        let mut endpoint = node();
        let start = Timestamp::from_millis(1_000);
        let session = endpoint.connect_across(start, NodeId(9), "node", client()).unwrap();
        let (flow, source) = {
            let connection = endpoint.connections.get(session).unwrap();
            (connection.flow_key().unwrap(), connection.local_cid())
        };
        let from = FlowKey { destination: NodeId(1), source: NodeId(5), flow: flow.flow };
        let quoted = [&[0xc0, 0, 0, 0, 0, 2, 7, 7, 4][..], &source].concat();
        let other = [&[0xc0, 0, 0, 0, 0, 2, 7, 7, 4][..], &source.map(|byte| byte ^ 1)].concat();
        let report = |endpoint: &mut Endpoint, at, from, hint: &NoRoute<'_>| {
            let relay_node = endpoint.relay_node.as_mut().unwrap();
            relay_node.handle_no_route(at, &mut endpoint.connections, from, hint);
        };
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
                report(&mut endpoint, at, from, &hint);
            }
        }
        assert!(is_open(&endpoint), "none of them is about a packet of the session");
        let hint = NoRoute { destination, quoted: &quoted };
        report(&mut endpoint, start, from, &hint);
        report(&mut endpoint, start + Duration::from_millis(100), from, &hint);
        assert!(is_open(&endpoint), "the route may come back");
        report(&mut endpoint, start + Duration::from_secs(1), from, &hint);
        assert!(!is_open(&endpoint));
    }

    #[test]
    fn groups_are_neither_nodes_nor_ends_of_sessions() {
        let mut endpoint = node();
        let (now, group) = (Timestamp::from_millis(1_000), NodeId(0xe000_0001));
        let error = endpoint.connect_across(now, group, "node", client()).unwrap_err();
        assert!(error.to_string().contains("is a group"), "{error}");
        let mut other = Endpoint::new(
            EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() },
            [1; 32],
        )
        .unwrap();
        let error = other.enable_relay(RelayConfig::new(group)).unwrap_err();
        assert!(error.to_string().contains("cannot be the ID of a node"), "{error}");
        // Neither is a node a group.
        let key = PresharedKey::new([1; 32]);
        let options = GroupOptions::default();
        assert_eq!(
            other.join_group(group, &key, options.clone()),
            Err(GroupError::NoRelay),
            "without a relay"
        );
        let expected = Err(GroupError::Entry(GroupEntryError::NotAGroup(NodeId(9))));
        assert_eq!(endpoint.join_group(NodeId(9), &key, options.clone()), expected);
        assert_eq!(endpoint.open_group_sender(now, NodeId(9), &key, options), expected);
    }

    /// The keys of a flow depend on salt and flow ID.
    #[test]
    fn each_flow_to_a_group_has_a_salt_and_an_id_of_its_own() {
        let (now, group) = (Timestamp::from_millis(1_000), NodeId(0xe000_0001));
        let key = PresharedKey::new([1; 32]);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..4 {
            let config =
                EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
            let mut endpoint = Endpoint::new(config, [seed; 32]).unwrap();
            endpoint.enable_relay(RelayConfig::new(NodeId(1))).unwrap();
            for _ in 0..64 {
                endpoint.open_group_sender(now, group, &key, GroupOptions::default()).unwrap();
            }
            let more = endpoint.open_group_sender(now, group, &key, GroupOptions::default());
            assert_eq!(more, Err(GroupError::TooMany(64)));
            let groups = &mut endpoint.relay_node.as_mut().unwrap().groups;
            for sender in groups.senders.values_mut() {
                let packet = sender.announcement(now).unwrap();
                let (header, ..) = AnnouncementHeader::decode(&packet).unwrap();
                assert!(!sender.flow().is_direct(), "relays would refuse it");
                assert!(seen.insert((sender.flow().flow, header.salt)));
            }
        }
        let salts: std::collections::BTreeSet<_> = seen.iter().map(|(_, salt)| salt).collect();
        assert_eq!(salts.len(), 4 * 64);
    }

    #[test]
    fn memberships_are_limited() {
        let (mut endpoint, key) = (node(), PresharedKey::new([1; 32]));
        let mut join = |number| {
            let group = NodeId(0xe000_0000 + number);
            endpoint.join_group(group, &key, GroupOptions::default())
        };
        let handles: Vec<_> = (0..64_u32).map(|number| join(number).unwrap()).collect();
        assert_eq!(join(5), Err(GroupError::AlreadyJoined(NodeId(0xe000_0005))));
        assert_eq!(join(64), Err(GroupError::TooMany(64)));
        endpoint.leave_group(handles[5]);
        endpoint.join_group(NodeId(0xe000_0005), &key, GroupOptions::default()).unwrap();
    }

    #[test]
    fn links_and_sessions_are_listed_in_the_order_in_which_they_began() {
        let mut endpoint = node();
        let now = Timestamp::from_millis(1_000);
        let mut expected = Vec::new();
        for number in 0..12_u16 {
            let begun = match number % 5 {
                0 | 3 => endpoint.connect_across(now, NodeId(9), "node", client()),
                _ => endpoint.connect(now, ([10, 0, 0, 1], number).into(), "node", client()),
            };
            expected.push(begun.unwrap());
        }
        let listed: Vec<_> = endpoint.connections.iter().map(|(handle, _)| handle).collect();
        assert_eq!(listed, expected);
        assert_eq!(endpoint.connections.len(), 12);
    }

    /// A sender that knows the connection ID of a session cannot use it from an address or in another flow.
    #[test]
    fn sessions_take_packets_of_their_flow_only() {
        let mut endpoint = node();
        let now = Timestamp::from_millis(1_000);
        let foreign = FlowKey { destination: NodeId(9), source: NodeId(5), flow: 7 };
        let error = endpoint.connect_in_flow(now, foreign, "node", client()).unwrap_err();
        assert!(error.to_string().contains("node 5 is not this node"), "{error}");
        let session = endpoint.connect_across(now, NodeId(9), "node", client()).unwrap();
        assert_eq!(endpoint.remote(session), None);
        assert_eq!(endpoint.remote_node(session), Some(NodeId(9)));
        let connection = endpoint.connections.get(session).unwrap();
        let (key, cid) = (connection.flow_key().unwrap(), connection.local_cid());
        drop(connection);
        let address = "[100::9:1:1]:1".parse().unwrap();
        let others = [
            Remote::Network(address),
            Remote::Relays(FlowKey { destination: NodeId(8), ..key }),
            Remote::Relays(FlowKey { flow: key.flow ^ 1, ..key }),
        ];
        for (remote, dropped) in
            others.map(|other| (other, 1)).into_iter().chain([(Remote::Relays(key), 0)])
        {
            let mut payload = [&[0x40][..], &cid, &[0; 60]].concat();
            let before = endpoint.endpoint_stats().datagrams_dropped;
            let packet = Incoming { remote, local_ip: None, ecn: 0, payload: &mut payload };
            endpoint.handle_datagram(now, packet);
            assert_eq!(endpoint.endpoint_stats().datagrams_dropped, before + dropped, "{remote:?}");
        }
    }
}
