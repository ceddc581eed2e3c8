//! The public interface of an endpoint that is a relay node: each call is passed to the relay node.

use std::sync::Arc;

use bats_types::Timestamp;
use bytes::Bytes;
use rand::Rng;

use super::relay_node::RelayNode;
use super::{ConnectionHandle, Endpoint, GroupHandle};
use crate::config::{ClientConfig, PeerTrust, PresharedKey, TransportConfig};
use crate::datagram::Local;
use crate::error::{ConnectError, GroupError, SendError};
use crate::handshake::Protection;
use crate::relay::{
    FlowStatus, GroupEntry, LinkId, LinkPolicy, LinkQueue, RelayConfig, RelayEvent, RelayStats,
};
use crate::remote::Remote;
use crate::session::group::{
    GroupEvent, GroupMessage, GroupOptions, GroupReceiverStats, GroupSenderStats,
};
use crate::wire::flow::{FlowKey, NodeId};

impl Endpoint {
    /// Makes this endpoint a relay node, which can relay flows and open end-to-end sessions. It
    /// relays nothing before [`Endpoint::admit`] and [`Endpoint::route`] are called.
    ///
    /// # Errors
    ///
    /// If it already is one, or if the node's ID is that of a group.
    pub fn enable_relay(&mut self, config: RelayConfig) -> Result<(), ConnectError> {
        if self.relay_node.is_some() {
            return Err(ConnectError::Configuration(
                "this endpoint already is a relay node".to_owned(),
            ));
        }
        if config.node.is_group() {
            let text = format!("{} is a group and cannot be the ID of a node", config.node);
            return Err(ConnectError::Configuration(text));
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
    pub fn admit(&mut self, now: Timestamp, link: ConnectionHandle) -> bool {
        self.admit_with(now, link, LinkPolicy::default())
    }

    /// As [`Endpoint::admit`], but takes only the packets from the peer that `policy` allows. Also
    /// changes the policy of an admitted link, at once. Direct sessions with the neighbour that it names use the link
    /// from now on.
    pub fn admit_with(
        &mut self,
        now: Timestamp,
        link: ConnectionHandle,
        policy: LinkPolicy,
    ) -> bool {
        let Some(relay_node) = &mut self.relay_node else { return false };
        relay_node.admit(now, &mut self.connections, link, policy)
    }

    /// Routes packets for the node `destination` over this admitted link only. False if the link is
    /// not admitted.
    pub fn route(&mut self, now: Timestamp, destination: NodeId, link: ConnectionHandle) -> bool {
        let Some(relay_node) = &mut self.relay_node else { return false };
        relay_node.route(now, &mut self.connections, destination, link)
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
        let Some(relay_node) = &mut self.relay_node else { return false };
        relay_node.add_route(now, &mut self.connections, destination, link)
    }

    /// Removes this link as a route to the node `destination`. Its undelivered packets use another
    /// link, or wait for one.
    pub fn remove_route(&mut self, now: Timestamp, destination: NodeId, link: ConnectionHandle) {
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.remove_route(now, &mut self.connections, destination, link);
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
        relay_node.set_routes(now, &mut self.connections, destination, links)
    }

    /// Whether the peer of an established connection answers.
    pub fn is_responsive(&self, now: Timestamp, handle: ConnectionHandle) -> bool {
        self.connections.get(handle).is_some_and(|link| link.link().link_view(now).alive)
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
        let key = relay_node.fresh_flow(destination, &mut self.rng);
        self.connect_in_flow(now, key, server_name, config)
    }

    /// Opens a direct session with a neighbour over all admitted links with it, those that are admitted later included:
    /// those whose [`LinkPolicy::neighbour`] names it. It has neither a TLS handshake nor seals of its own, because the
    /// links authenticate the neighbour and protect each packet, nor a pre-shared key; it needs no route. It is used
    /// like any connection.
    ///
    /// # Errors
    ///
    /// If this endpoint is no relay node or has no link with the neighbour, if the configuration has a pre-shared key or
    /// resumption, which are those of the links, or as [`Endpoint::connect`].
    pub fn connect_neighbour(
        &mut self,
        now: Timestamp,
        neighbour: NodeId,
        transport: Arc<TransportConfig>,
    ) -> Result<ConnectionHandle, ConnectError> {
        let unusable = |text: String| Err(ConnectError::Configuration(text));
        let Some(relay_node) = &self.relay_node else {
            return unusable("this endpoint is no relay node".to_owned());
        };
        if !relay_node.has_link_with(neighbour) {
            return unusable(format!("there is no link with {neighbour}"));
        }
        if transport.psk.is_some() || transport.resumption.is_some() {
            return unusable("pre-shared keys and resumption are those of the links".to_owned());
        }
        let key = relay_node.fresh_direct_flow(neighbour, &mut self.rng);
        self.connect_in_flow(
            now,
            key,
            "",
            ClientConfig { trust: PeerTrust::DangerousAcceptAny, identity: None, transport },
        )
    }

    /// Opens the session that sends this flow.
    pub(crate) fn connect_in_flow(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        server_name: &str,
        config: ClientConfig,
    ) -> Result<ConnectionHandle, ConnectError> {
        // The flow ID alone decides, as at the other end.
        let protection = match key.is_direct() {
            true => Protection::Links(self.fingerprint_of(key.destination)),
            false => Protection::Handshake(self.security),
        };
        let to = (Remote::Relays(key), server_name);
        self.connect_to(now, Local::default(), to, config, protection)
    }

    /// The fingerprint of a neighbour's certificate, as the handshakes of the links have shown it.
    fn fingerprint_of(&self, neighbour: NodeId) -> Option<[u8; 32]> {
        self.relay_node.as_ref()?.fingerprint_of(&self.connections, neighbour)
    }

    /// Whether a connection is a direct session with a neighbour.
    pub fn is_direct(&self, handle: ConnectionHandle) -> bool {
        self.flow_key(handle).is_some_and(FlowKey::is_direct)
    }

    /// The flow that an end-to-end session sends.
    pub(crate) fn flow_key(&self, handle: ConnectionHandle) -> Option<FlowKey> {
        self.connections.get(handle)?.flow_key()
    }

    /// The peer's node of an end-to-end or direct session.
    pub fn remote_node(&self, handle: ConnectionHandle) -> Option<NodeId> {
        Some(self.flow_key(handle)?.destination)
    }

    /// Sets how the packets of `source` to `group` pass through this node, in place of the entry that there may be.
    ///
    /// `incoming` are the links that they are accepted from: all those with the neighbour that leads to the source,
    /// and none if this node is the source. `branches` are the neighbours that they go to, each by its links in order
    /// of preference; the first responsive one is used, and a neighbour with an incoming link is left out. Each
    /// branch repairs its own losses and delays no other one. Nothing is learned from packets: without an entry they
    /// are dropped. Links that are removed leave the entry.
    ///
    /// # Errors
    ///
    /// This endpoint is no relay node, or the entry is not valid: see [`GroupEntryError`](crate::relay::GroupEntryError).
    pub fn set_group_entry(
        &mut self,
        now: Timestamp,
        source: NodeId,
        group: NodeId,
        incoming: &[ConnectionHandle],
        branches: &[Vec<ConnectionHandle>],
    ) -> Result<(), GroupError> {
        let relay_node = self.relay_node.as_mut().ok_or(GroupError::NoRelay)?;
        let ids = |links: &[ConnectionHandle]| links.iter().map(|link| LinkId(link.0)).collect();
        let branches = branches.iter().map(|branch| ids(branch)).collect();
        let entry = GroupEntry { incoming: ids(incoming), branches };
        relay_node.set_group_entry(now, &mut self.connections, source, group, entry)
    }

    /// Removes the entry of a source and a group: packets are dropped from now on. False if there is none.
    pub fn remove_group_entry(&mut self, source: NodeId, group: NodeId) -> bool {
        self.relay_node.as_mut().is_some_and(|node| node.remove_group_entry(source, group))
    }

    /// Opens a sender of messages to a group. Only holders of `key` can read them, and each holder can forge them:
    /// the key proves that a member has sent a message, and not which one. Entries of this node and of the relays
    /// say where the messages go.
    ///
    /// # Errors
    ///
    /// This endpoint is no relay node that recodes, `group` is no group, or there are too many senders.
    pub fn open_group_sender(
        &mut self,
        now: Timestamp,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<GroupHandle, GroupError> {
        let relay_node = self.relay_node.as_mut().ok_or(GroupError::NoRelay)?;
        relay_node.open_group_sender(now, group, key, options, self.instance, &mut self.rng)
    }

    /// Queues a message for a group. It is sent once, as early as the fastest branch allows; a branch that does not
    /// keep up loses messages.
    ///
    /// # Errors
    ///
    /// [`SendError::Blocked`] until [`GroupEvent::Writable`], or nothing can be sent any more.
    pub fn send_to_group(
        &mut self,
        now: Timestamp,
        sender: GroupHandle,
        message: Bytes,
    ) -> Result<(), SendError> {
        let relay_node = self.relay_node.as_mut().ok_or(SendError::Closed)?;
        relay_node.send_to_group(now, &mut self.connections, sender, message)
    }

    /// Ends a sender after the messages that it has accepted. Announces the end to the members.
    pub fn finish_group_sender(&mut self, now: Timestamp, sender: GroupHandle) {
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.finish_group_sender(now, sender);
        }
    }

    /// Makes this node a member of a group: messages of all sources whose entries lead here can be received, those
    /// of at most [`MAX_GROUP_SOURCES`](crate::MAX_GROUP_SOURCES) at once. A source is heard from the first message
    /// that it sends after one of its announcements has arrived.
    ///
    /// # Errors
    ///
    /// This endpoint is no relay node that recodes, `group` is no group, the node is a member of it already, or of
    /// too many.
    pub fn join_group(
        &mut self,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<GroupHandle, GroupError> {
        let relay_node = self.relay_node.as_mut().ok_or(GroupError::NoRelay)?;
        relay_node.join_group(group, key, options)
    }

    /// The next message to a group; `None` until [`GroupEvent::Readable`].
    pub fn recv_from_group(&mut self, member: GroupHandle) -> Option<GroupMessage> {
        self.relay_node.as_mut()?.recv_from_group(member)
    }

    /// Ends a membership; unread messages are dropped.
    pub fn leave_group(&mut self, member: GroupHandle) {
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.leave_group(member);
        }
    }

    /// Counters of a sender; `None` once it has ended.
    pub fn group_sender_stats(&self, sender: GroupHandle) -> Option<GroupSenderStats> {
        self.relay_node.as_ref()?.group_sender_stats(sender)
    }

    /// Whether senders to groups have something left to send or to announce, or were not finished.
    pub fn has_group_senders(&self) -> bool {
        self.relay_node.as_ref().is_some_and(|node| node.has_group_senders())
    }

    /// Counters of a membership; `None` once it has ended.
    pub fn group_receiver_stats(&self, member: GroupHandle) -> Option<GroupReceiverStats> {
        self.relay_node.as_ref()?.group_receiver_stats(member)
    }

    /// The next event of a group.
    pub fn poll_group_event(&mut self) -> Option<(GroupHandle, GroupEvent)> {
        self.relay_node.as_mut()?.pop_group_event()
    }

    /// Statistics of the relay, if this endpoint is a relay node.
    pub fn relay_stats(&self) -> Option<RelayStats> {
        Some(self.relay_node.as_ref()?.stats())
    }

    /// The flows of the relay, in the order of their keys; empty if this endpoint is no relay node.
    pub fn relay_flows(&self, now: Timestamp) -> Vec<FlowStatus> {
        self.relay_node.as_ref().map_or_else(Vec::new, |node| node.flows(now))
    }

    /// The packets that the relay has to send over an admitted link.
    pub fn relay_link_queue(&self, link: ConnectionHandle) -> Option<LinkQueue> {
        self.relay_node.as_ref()?.link_queue(link)
    }

    /// The next event of the relay.
    pub fn poll_relay_event(&mut self) -> Option<RelayEvent> {
        self.relay_node.as_mut()?.pop_event()
    }
}
