//! What one link of a relay node sends: packets of the node's own end-to-end sessions, and of relayed flows.

use core::ops::Bound;

use bats_types::Timestamp;

use super::state::RelayNode;
use crate::endpoint::connections::Sessions;
use crate::link::PacketSource;
use crate::relay::{Destination, LinkId, LinkView};
use crate::session::FirstLink;
use crate::wire::batch_rank::BatchRank;
use crate::wire::flow::{DIRECT_FLOW, FlowKey};
use crate::wire::short_header::PacketKind;

/// The packet source of one link.
pub(super) struct LinkPackets<'a> {
    pub(super) link: LinkId,
    pub(super) relay_node: &'a mut RelayNode,
    pub(super) sessions: &'a mut Sessions,
    pub(super) recoded: bool,
}

impl LinkPackets<'_> {
    /// Whether a session's next packet may be sent over this link now.
    fn is_for_link(&mut self, now: Timestamp, key: FlowKey) -> bool {
        self.is_worthwhile(key) && self.relay_node.relay.has_room(now, key, self.link)
    }

    /// Whether a session's next packet should use this link, to which there is a route, ignoring whether it has
    /// room now.
    fn is_worthwhile(&self, key: FlowKey) -> bool {
        let handle = self.relay_node.sessions.get(&key);
        let Some(session) = handle.and_then(|handle| self.sessions.get(*handle)) else {
            return false;
        };
        session.session().has_assigned(self.link.0)
            || self.relay_node.relay.is_worthwhile(
                key,
                self.link,
                session.session().end_to_end_backlog(),
            )
    }

    fn has_route(&self, destination: Destination) -> bool {
        self.relay_node.relay.leads_to(destination, self.link)
    }

    /// Calls `visit` with the sessions that have data and a route over this link, in round-robin order,
    /// beginning after the one that sent last, until it returns something.
    ///
    /// Each packet that is sent asks for the next one. Destinations without a route over this link are skipped as a
    /// whole, because all sessions have the same source; sessions of the others are visited until one of them may send.
    fn visit_ready<T>(
        &mut self,
        mut visit: impl FnMut(&mut Self, FlowKey) -> Option<T>,
    ) -> Option<T> {
        let last = self.relay_node.last;
        let (mut after, mut is_wrapped) =
            (last.map_or(Bound::Unbounded, Bound::Excluded), last.is_none());
        loop {
            let key = self.relay_node.ready.range((after, Bound::Unbounded)).next().copied();
            let Some(key) = key.filter(|key| !is_wrapped || last.is_none_or(|last| *key <= last))
            else {
                if is_wrapped {
                    return None;
                }
                (after, is_wrapped) = (Bound::Unbounded, true);
                continue;
            };
            if !self.has_route(key.into()) {
                // Direct sessions follow the others with the same destination.
                let flow = if key.is_direct() { u32::MAX } else { DIRECT_FLOW - 1 };
                after = Bound::Excluded(FlowKey { flow, ..key });
                continue;
            }
            if let Some(found) = visit(self, key) {
                return Some(found);
            }
            after = Bound::Excluded(key);
        }
    }

    fn pull_own_session(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        self.visit_ready(|packets, key| {
            if !packets.is_for_link(now, key) {
                return None;
            }
            let kind = packets.pull_session(now, key, view, out)?;
            packets.relay_node.last = Some(key);
            let relay = &mut packets.relay_node.relay;
            Some(relay.send_coded(now, key, packets.link, view, (kind, number), out))
        })?
    }

    /// Writes the next packet of a session.
    fn pull_session(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        view: &LinkView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let path_set = self.relay_node.relay.path_set(key);
        let handle = *self.relay_node.sessions.get(&key)?;
        let mut session = self.sessions.get_mut(handle)?;
        let first = FirstLink { link: self.link.0, view: *view, recoded: self.recoded, path_set };
        let kind = session.poll_end_to_end(now, &first, out);
        // What remains may be reserved for another link.
        if kind.is_none() && (!session.has_end_to_end_data() || path_set.links <= 1) {
            self.relay_node.ready.remove(&key);
        }
        self.relay_node.serviced.push((handle, kind.is_some()));
        kind
    }
}

impl PacketSource for LinkPackets<'_> {
    fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let RelayNode { relay, groups, .. } = &mut *self.relay_node;
        groups.fill(now, relay, self.link);
        let own_session_next = self.relay_node.own_session_next;
        self.relay_node.own_session_next = !own_session_next;
        if !own_session_next && self.relay_node.relay.wants(now, self.link) {
            let pulled = self.relay_node.relay.pull(now, self.link, view, number, out);
            if pulled.is_some() {
                return pulled;
            }
        }
        self.pull_own_session(now, view, number, out)
            .or_else(|| self.relay_node.relay.pull(now, self.link, view, number, out))
    }

    fn has_more(&mut self, now: Timestamp) -> bool {
        let RelayNode { relay, groups, .. } = &mut *self.relay_node;
        relay.wants(now, self.link)
            || groups.has_packet(now, relay, self.link)
            || self
                .visit_ready(|packets, key| packets.is_for_link(now, key).then_some(()))
                .is_some()
    }

    fn has_backlog(&mut self) -> bool {
        let RelayNode { relay, groups, .. } = &*self.relay_node;
        relay.has_backlog(self.link)
            || groups.has_backlog(relay, self.link)
            || self.visit_ready(|packets, key| packets.is_worthwhile(key).then_some(())).is_some()
    }

    fn next_report(&mut self, now: Timestamp, mark: u64) -> Option<BatchRank> {
        self.relay_node.relay.next_report(now, self.link, mark)
    }

    fn has_report(&self) -> bool {
        self.relay_node.relay.has_report(self.link)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::relay::{LinkPolicy, RelayConfig};
    use crate::wire::flow::NodeId;

    const LINK: LinkId = LinkId(5);

    /// A node with two links and routes over the first one to even nodes, over the other one to the rest. The first link
    /// is with node 3.
    fn node(ready: &[FlowKey], last: Option<FlowKey>) -> RelayNode {
        let mut node = RelayNode::new(RelayConfig::new(NodeId(99)), 1);
        for link in [LINK, LinkId(6)] {
            node.relay.add_link(link, true);
        }
        for destination in 0..8 {
            let link = LinkId(LINK.0 + u64::from(destination % 2));
            node.relay.set_route(Timestamp::ZERO, NodeId(destination), link);
        }
        let mut policy = LinkPolicy::default();
        policy.neighbour = Some(NodeId(3));
        node.relay.set_policy(Timestamp::ZERO, LINK, policy);
        for neighbour in 0..10 {
            node.relay.set_direct(Timestamp::ZERO, NodeId(neighbour), true);
        }
        node.ready.extend(ready);
        node.last = last;
        node
    }

    fn key() -> impl Strategy<Value = FlowKey> {
        // Two destinations have no route at all.
        (
            0_u32..10,
            prop_oneof![Just(3), Just(u32::MAX)],
            prop_oneof![0_u32..4, DIRECT_FLOW - 1..=DIRECT_FLOW + 2, Just(u32::MAX)],
        )
            .prop_map(|(destination, source, flow)| FlowKey {
                destination: NodeId(destination),
                source: NodeId(source),
                flow,
            })
    }

    proptest! {
        /// Those with a route over the link, each once, beginning after the one that sent last.
        #[test]
        fn sessions_take_turns(
            ready in prop::collection::vec(key(), 0..60),
            last in prop::option::of(key()),
            most in 0_usize..40,
        ) {
            let mut node = node(&ready, last);
            let mut sessions = Sessions::default();
            let sorted: Vec<FlowKey> = node.ready.iter().copied().collect();
            let from = sorted.partition_point(|key| last.is_some_and(|last| *key <= last));
            let (before, after) = sorted.split_at(from);
            let turns = after.iter().chain(before).copied();
            let expected: Vec<FlowKey> = turns
                .filter(|key| match key.is_direct() {
                    true => key.destination.0 == 3,
                    false => key.destination.0 < 8 && key.destination.0 % 2 == 0,
                })
                .take(most)
                .collect();
            let mut packets = LinkPackets {
                link: LINK,
                relay_node: &mut node,
                sessions: &mut sessions,
                recoded: false,
            };
            let mut visited = Vec::new();
            let found = packets.visit_ready(|_, key| {
                if visited.len() == most {
                    return Some(key);
                }
                visited.push(key);
                None
            });
            prop_assert_eq!(&visited, &expected);
            prop_assert!(found.is_none() || visited.len() == most);
        }
    }
}
