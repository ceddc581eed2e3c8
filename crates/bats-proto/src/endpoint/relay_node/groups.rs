//! What a node sends to groups, and receives as a member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;

use crate::endpoint::handle::GroupHandle;
use crate::relay::{LinkId, Relay};
use crate::session::group::{GroupEvent, GroupReceiver, GroupSender};
use crate::wire::flow::{FlowKey, NodeId};
use crate::wire::short_header::PacketKind;

/// Senders and memberships of a node.
#[derive(Debug, Default)]
pub(super) struct GroupTable {
    pub(super) senders: BTreeMap<GroupHandle, GroupSender>,
    /// Senders that may have coded packets.
    pub(super) ready: BTreeSet<GroupHandle>,
    pub(super) members: BTreeMap<NodeId, (GroupHandle, GroupReceiver)>,
    /// Groups with messages of which the application knows, until it has read all of them.
    pub(super) readable: BTreeSet<NodeId>,
    pub(super) events: VecDeque<(GroupHandle, GroupEvent)>,
    next: u64,
    /// Scratch: the packet of a sender.
    packet: Vec<u8>,
}

impl GroupTable {
    pub(super) fn fresh_handle(&mut self) -> GroupHandle {
        self.next += 1;
        GroupHandle(self.next)
    }

    /// Takes a packet for this node as a member of a group.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn take(&mut self, now: Timestamp, key: FlowKey, kind: PacketKind, payload: &[u8]) {
        let Some((handle, member)) = self.members.get_mut(&key.destination) else { return };
        match kind {
            PacketKind::Control => member.on_control(now, key, payload),
            kind => member.on_coded(now, key, kind, payload),
        }
        if member.is_readable() && self.readable.insert(key.destination) {
            self.events.push_back((*handle, GroupEvent::Readable));
        }
    }

    /// Lets senders that a link has room for make a packet each, which goes to all their branches.
    pub(super) fn fill(&mut self, now: Timestamp, relay: &mut Relay, link: LinkId) {
        for handle in self.ready.iter().copied().collect::<Vec<_>>() {
            let Some(sender) = self.senders.get_mut(&handle) else { continue };
            let key = sender.flow();
            if !relay.has_room(now, key, link) {
                continue;
            }
            let Some(packet) = relay.branch_packet(key) else { continue };
            if let Some(kind) = sender.poll(now, packet, &mut self.packet) {
                relay.send_to_group(now, key, kind, &self.packet);
            }
            if !sender.has_data() {
                self.ready.remove(&handle);
            }
            if sender.takes_writable() {
                self.events.push_back((handle, GroupEvent::Writable));
            }
        }
    }

    /// Whether a sender has a packet that may be sent over a link now.
    pub(super) fn has_packet(&self, now: Timestamp, relay: &mut Relay, link: LinkId) -> bool {
        let mut ready = self.ready.iter().filter_map(|handle| self.senders.get(handle));
        ready.any(|sender| relay.has_room(now, sender.flow(), link))
    }

    /// Whether a sender has packets for a link, including those that wait for the next node's credit.
    pub(super) fn has_backlog(&self, relay: &Relay, link: LinkId) -> bool {
        let mut ready = self.ready.iter().filter_map(|handle| self.senders.get(handle));
        ready.any(|sender| relay.branches(sender.flow()).contains(&link))
    }

    /// When [`GroupTable::handle_timeout`] is to be called.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        let senders = self.senders.values().map(GroupSender::next_timeout);
        let members = self.members.values().filter_map(|(_, member)| member.next_timeout());
        senders.chain(members).min()
    }

    /// Handles the timers that are due; sends announcements.
    pub(super) fn handle_timeout(&mut self, now: Timestamp, relay: &mut Relay) {
        for (_, member) in self.members.values_mut() {
            if member.next_timeout().is_some_and(|at| at <= now) {
                member.handle_timeout(now);
            }
        }
        for (&handle, sender) in &mut self.senders {
            if sender.next_timeout() > now {
                continue;
            }
            sender.handle_timeout(now);
            if let Some(packet) = sender.announcement(now) {
                relay.send_opaque(now, sender.flow(), &packet);
            }
            if !sender.has_data() {
                self.ready.remove(&handle);
            }
            if sender.takes_writable() {
                self.events.push_back((handle, GroupEvent::Writable));
            }
        }
        self.senders.retain(|_, sender| !sender.is_over());
    }
}
