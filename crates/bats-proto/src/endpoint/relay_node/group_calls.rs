//! Calls of the application for groups.

use bats_types::Timestamp;
use bytes::Bytes;
use rand::Rng;

use super::state::RelayNode;
use super::wake_link;
use crate::config::PresharedKey;
use crate::endpoint::connections::Connections;
use crate::endpoint::handle::{ConnectionHandle, GroupHandle};
use crate::error::{GroupError, SendError};
use crate::relay::{GroupEntry, GroupEntryError, LinkId, Relay};
use crate::session::group::{
    GroupEvent, GroupMessage, GroupOptions, GroupReceiver, GroupReceiverStats, GroupSender,
    GroupSenderStats,
};
use crate::wire::announcement::ANNOUNCEMENT_SALT_LEN;
use crate::wire::flow::{DIRECT_FLOW, FlowKey, NodeId};

/// Maximum number of senders, and of memberships, of a node.
const MAX_GROUPS: usize = 64;

impl RelayNode {
    fn check_group(&self, group: NodeId) -> Result<(), GroupError> {
        if !group.is_group() {
            return Err(GroupEntryError::NotAGroup(group).into());
        }
        if !self.is_recoding() {
            return Err(GroupEntryError::NotRecoding.into());
        }
        Ok(())
    }

    /// See [`Endpoint::set_group_entry`](crate::Endpoint::set_group_entry).
    pub(in crate::endpoint) fn set_group_entry(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        source: NodeId,
        group: NodeId,
        entry: GroupEntry,
    ) -> Result<(), GroupError> {
        self.relay.set_group_entry(now, source, group, entry)?;
        // Senders may have waited for branches.
        for flow in self.groups.senders.values().map(GroupSender::flow) {
            if flow.destination == group {
                wake_branches(connections, &self.relay, flow);
            }
        }
        self.wake_links(connections);
        Ok(())
    }

    /// See [`Endpoint::remove_group_entry`](crate::Endpoint::remove_group_entry).
    pub(in crate::endpoint) fn remove_group_entry(
        &mut self,
        source: NodeId,
        group: NodeId,
    ) -> bool {
        self.relay.remove_group_entry(source, group)
    }

    /// See [`Endpoint::open_group_sender`](crate::Endpoint::open_group_sender).
    pub(in crate::endpoint) fn open_group_sender(
        &mut self,
        now: Timestamp,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
        instance: u64,
        rng: &mut impl Rng,
    ) -> Result<GroupHandle, GroupError> {
        self.check_group(group)?;
        let groups = &mut self.groups;
        if groups.senders.len() >= MAX_GROUPS {
            return Err(GroupError::TooMany(groups.senders.len()));
        }
        let mut salt = [0; ANNOUNCEMENT_SALT_LEN];
        rng.fill_bytes(&mut salt);
        let source = self.relay.node();
        let flow = loop {
            let flow = FlowKey { destination: group, source, flow: rng.next_u32() & !DIRECT_FLOW };
            if groups.senders.values().all(|sender| sender.flow() != flow) {
                break flow;
            }
        };
        let random = (salt, rng.next_u64(), instance);
        let sender = GroupSender::new(now, flow, key, options, random).ok_or(GroupError::Keys)?;
        let handle = groups.fresh_handle();
        groups.senders.insert(handle, sender);
        Ok(handle)
    }

    /// See [`Endpoint::send_to_group`](crate::Endpoint::send_to_group).
    pub(in crate::endpoint) fn send_to_group(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: GroupHandle,
        message: Bytes,
    ) -> Result<(), SendError> {
        let sender = self.groups.senders.get_mut(&handle).ok_or(SendError::Closed)?;
        sender.send(now, message)?;
        if self.groups.ready.insert(handle) {
            wake_branches(connections, &self.relay, sender.flow());
        }
        Ok(())
    }

    /// See [`Endpoint::finish_group_sender`](crate::Endpoint::finish_group_sender).
    pub(in crate::endpoint) fn finish_group_sender(&mut self, now: Timestamp, handle: GroupHandle) {
        if let Some(sender) = self.groups.senders.get_mut(&handle) {
            sender.finish(now);
        }
    }

    /// See [`Endpoint::join_group`](crate::Endpoint::join_group).
    pub(in crate::endpoint) fn join_group(
        &mut self,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<GroupHandle, GroupError> {
        self.check_group(group)?;
        let members = self.groups.members.len();
        if self.groups.members.contains_key(&group) {
            return Err(GroupError::AlreadyJoined(group));
        }
        if members >= MAX_GROUPS {
            return Err(GroupError::TooMany(members));
        }
        let handle = self.groups.fresh_handle();
        let receiver = GroupReceiver::new(key.clone(), options);
        self.groups.members.insert(group, (handle, receiver));
        self.relay.set_member(group, true);
        Ok(handle)
    }

    /// See [`Endpoint::recv_from_group`](crate::Endpoint::recv_from_group).
    pub(in crate::endpoint) fn recv_from_group(
        &mut self,
        handle: GroupHandle,
    ) -> Option<GroupMessage> {
        let mut members = self.groups.members.iter_mut();
        let (&group, (_, member)) = members.find(|(_, (member, _))| *member == handle)?;
        let message = member.recv();
        if message.is_none() {
            self.groups.readable.remove(&group);
        }
        message
    }

    /// See [`Endpoint::leave_group`](crate::Endpoint::leave_group).
    pub(in crate::endpoint) fn leave_group(&mut self, handle: GroupHandle) {
        let mut members = self.groups.members.iter();
        let member = members.find(|(_, (member, _))| *member == handle);
        if let Some(group) = member.map(|(&group, _)| group) {
            self.groups.members.remove(&group);
            self.groups.readable.remove(&group);
            self.relay.set_member(group, false);
        }
    }

    /// See [`Endpoint::group_sender_stats`](crate::Endpoint::group_sender_stats).
    pub(in crate::endpoint) fn group_sender_stats(
        &self,
        handle: GroupHandle,
    ) -> Option<GroupSenderStats> {
        Some(self.groups.senders.get(&handle)?.stats())
    }

    /// See [`Endpoint::has_group_senders`](crate::Endpoint::has_group_senders).
    pub(in crate::endpoint) fn has_group_senders(&self) -> bool {
        !self.groups.senders.is_empty()
    }

    /// See [`Endpoint::group_receiver_stats`](crate::Endpoint::group_receiver_stats).
    pub(in crate::endpoint) fn group_receiver_stats(
        &self,
        handle: GroupHandle,
    ) -> Option<GroupReceiverStats> {
        let mut members = self.groups.members.values();
        Some(members.find(|(member, _)| *member == handle)?.1.stats())
    }

    /// The next event of a group.
    pub(in crate::endpoint) fn pop_group_event(&mut self) -> Option<(GroupHandle, GroupEvent)> {
        self.groups.events.pop_front()
    }
}

/// Schedules the links of the branches of a flow: there may be packets for them.
fn wake_branches(connections: &mut Connections, relay: &Relay, flow: FlowKey) {
    for LinkId(id) in relay.branches(flow) {
        wake_link(connections, ConnectionHandle(id));
    }
}
