//! Changes of routes and links: flows change to the links that are used from then on.
//!
//! An unresponsive link gets no packets until it responds again, and its undelivered packets move to
//! the other links.

use bats_types::Timestamp;

use super::destination::Destination;
use super::link_view::{LinkId, LinkView};
use super::outbound::Outbound;
use super::{GroupEntry, GroupEntryError, MAX_PATHS, Relay, RelayEvent};
use bats_wire::flow::{FlowHeader, FlowKey, NodeId};

impl Relay {
    /// Makes `link` the only link for packets to `destination`. No effect if that is a group.
    pub fn set_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) {
        if destination.is_group() {
            return;
        }
        self.routes.set(destination.into(), link);
        self.update_flows_to(now, destination.into());
    }

    /// Replaces all links for packets to `destination` at once, each with its tier: the responsive
    /// links of the lowest tier are used. An empty list removes the route. Returns false and changes
    /// nothing if there are more than [`MAX_PATHS`], or if the destination is a group.
    pub fn set_routes(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        links: &[(LinkId, u8)],
    ) -> bool {
        if destination.is_group() || !self.routes.replace(destination.into(), links) {
            return false;
        }
        self.update_flows_to(now, destination.into());
        true
    }

    /// Whether this node has direct sessions with a neighbour: their packets use all admitted links with it, those that
    /// are admitted later included. Beyond [`MAX_PATHS`], the responsive and the oldest ones.
    pub fn set_direct(&mut self, now: Timestamp, neighbour: NodeId, is_used: bool) {
        let has_changed = match is_used {
            true => self.direct.insert(neighbour),
            false => self.direct.remove(&neighbour),
        };
        if has_changed {
            self.update_links_with(now, neighbour);
        }
    }

    /// Updates the links that direct sessions with a neighbour use.
    fn update_links_with(&mut self, now: Timestamp, neighbour: NodeId) {
        let is_used = self.direct.contains(&neighbour);
        let links = if is_used { self.links_with(neighbour) } else { Vec::new() };
        let links: Vec<_> = links.into_iter().take(MAX_PATHS).map(|link| (link, 0)).collect();
        let destination = Destination::Neighbour(neighbour);
        self.routes.replace(destination, &links);
        self.update_flows_to(now, destination);
    }

    /// An admitted link has another neighbour now. What waits there for the former one takes another link with it.
    pub(super) fn change_neighbour(
        &mut self,
        now: Timestamp,
        link: LinkId,
        before: Option<NodeId>,
        neighbour: Option<NodeId>,
    ) {
        let orphaned = self.links.get_mut(&link).map(|state| state.opaque.take_direct());
        for changed in before.into_iter().chain(neighbour) {
            if self.direct.contains(&changed) {
                self.update_links_with(now, changed);
            }
        }
        if let Some(before) = before {
            self.lost.insert(link);
            self.stop_receiving_direct(link, before);
        }
        self.requeue_opaque(now, link, orphaned.into_iter().flatten());
    }

    /// A link leads to this neighbour no more: no report of its direct flows goes there.
    fn stop_receiving_direct(&mut self, link: LinkId, neighbour: NodeId) {
        let here = self.config.node;
        let ends =
            |key: &FlowKey| key.is_direct() && key.destination == here && key.source == neighbour;
        for (_, flow) in self.flows.iter_mut().filter(|(key, _)| ends(key)) {
            flow.stop_receiving(link);
        }
        if let Some(state) = self.links.get_mut(&link) {
            state.reporting.retain(|key| !ends(key));
            state.reports.retain(|report| !ends(&report.key));
        }
    }

    /// Adds `link` to the links for packets to `destination`. Returns false if there are
    /// [`MAX_PATHS`] already, or if the destination is a group.
    pub fn add_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) -> bool {
        if self.routes.contains(destination.into(), link) {
            return true;
        }
        if destination.is_group() || !self.routes.add(destination.into(), link) {
            return false;
        }
        self.update_flows_to(now, destination.into());
        true
    }

    /// Removes `link` from the links for packets to `destination`.
    pub fn remove_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) {
        if self.routes.remove(destination.into(), link) {
            self.update_flows_to(now, destination.into());
        }
    }

    /// Removes a link and the routes over it. Its packets take another route or wait for one.
    pub fn remove_link(&mut self, now: Timestamp, link: LinkId) {
        let removed = self.links.remove(&link);
        let neighbour = removed.as_ref().and_then(|state| state.policy.neighbour);
        let orphaned = removed.map(|mut state| state.opaque.take());
        self.drop_unused_limits();
        self.ready.remove(&link);
        if orphaned.is_some() {
            self.lost.insert(link);
        }
        for destination in self.routes.remove_link(link) {
            self.update_flows_to(now, destination);
        }
        if let Some(neighbour) = neighbour.filter(|neighbour| self.direct.contains(neighbour)) {
            // There may be more links with it than are used.
            self.update_links_with(now, neighbour);
        }
        self.update_branches_over(now, link);
        for flow in self.flows.values_mut() {
            flow.stop_receiving(link);
        }
        self.requeue_opaque(now, link, orphaned.into_iter().flatten());
        self.groups.remove_link(link);
    }

    /// Sets how the packets of `source` to `group` pass through this node, in place of the entry that there may be.
    ///
    /// # Errors
    ///
    /// The entry is not valid, or there are too many. Nothing is changed then.
    pub fn set_group_entry(
        &mut self,
        now: Timestamp,
        source: NodeId,
        group: NodeId,
        entry: GroupEntry,
    ) -> Result<(), GroupEntryError> {
        if !self.config.recoding {
            return Err(GroupEntryError::NotRecoding);
        }
        self.groups.set(self.config.node, source, group, entry, &self.links)?;
        for key in self.flows_of_group(source, group) {
            self.update_branches(now, key);
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let incoming = self.groups.incoming(source, group);
            let gone = flow.inbound.keys().filter(|link| !incoming.contains(link)).copied();
            for link in gone.collect::<Vec<LinkId>>() {
                flow.stop_receiving(link);
            }
        }
        Ok(())
    }

    /// Removes an entry: packets of `source` to `group` are dropped from now on. False if there is none.
    pub fn remove_group_entry(&mut self, source: NodeId, group: NodeId) -> bool {
        if !self.groups.remove(source, group) {
            return false;
        }
        for key in self.flows_of_group(source, group) {
            self.forget(key);
        }
        true
    }

    /// Sets whether this node is a member of a group: packets that its entries accept are then delivered here.
    pub fn set_member(&mut self, group: NodeId, is_member: bool) {
        self.groups.set_member(group, is_member);
    }

    /// The links that the branches of a group's flow use now.
    #[must_use]
    pub fn branches(&self, key: FlowKey) -> Vec<LinkId> {
        self.groups.links_of(&self.links, key)
    }

    /// Bytes of the longest packet that fits the links of all branches of a flow now; `None` without branches.
    #[must_use]
    pub fn branch_packet(&self, key: FlowKey) -> Option<u64> {
        let links = self.branches(key).into_iter();
        links.filter_map(|link| Some(self.links.get(&link)?.view.packet)).min()
    }

    fn flows_of_group(&self, source: NodeId, group: NodeId) -> Vec<FlowKey> {
        let first = FlowKey { destination: group, source, flow: 0 };
        let last = FlowKey { flow: u32::MAX, ..first };
        self.flows.range(first..=last).map(|(key, _)| *key).collect()
    }

    /// A link has become responsive or unresponsive, or was removed: branches change to others.
    fn update_branches_over(&mut self, now: Timestamp, link: LinkId) {
        for (source, group) in self.groups.sources_over(link) {
            for key in self.flows_of_group(source, group) {
                self.update_branches(now, key);
            }
        }
    }

    /// Updates the links that the branches of a flow are sent over. What the next node of a branch has not reported
    /// moves to its new link.
    fn update_branches(&mut self, now: Timestamp, key: FlowKey) {
        let wanted = self.groups.links_of(&self.links, key);
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let gone: Vec<LinkId> =
            flow.outbound.keys().filter(|link| !wanted.contains(link)).copied().collect();
        let left: Vec<_> = gone
            .into_iter()
            .filter_map(|link| Some((link, flow.outbound.remove(&link)?)))
            .collect();
        // A neighbour that connects again has one link in place of the other, of which the entry has only the new one.
        let new: Vec<LinkId> =
            wanted.iter().filter(|link| !flow.outbound.contains_key(link)).copied().collect();
        let instead = if left.len() == 1 && new.len() == 1 { Some(new[0]) } else { None };
        for link in wanted {
            let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
            flow.outbound
                .entry(link)
                .or_insert_with(|| Box::new(Outbound::new(flow.seed, feedback, true)));
        }
        for (link, outbound) in left {
            match self.groups.link_instead_of(&self.links, key, link).or(instead) {
                Some(to) => self.adopt(now, key, to, outbound),
                None => self.bytes -= outbound.bytes(),
            }
        }
        self.activate(key);
        self.arm(key);
    }

    /// Marks the path over `link` to `destination` as polluting. From now on it is used only if no
    /// other link is responsive; its undelivered packets move to the others. Returns false if there
    /// is no such route or if it was marked before.
    pub fn mark_polluting(&mut self, now: Timestamp, destination: NodeId, link: LinkId) -> bool {
        if !self.routes.mark_polluting(destination.into(), link) {
            return false;
        }
        self.stats.polluting_paths += 1;
        self.events.push_back(RelayEvent::PollutingPath(link, destination));
        self.update_flows_to(now, destination.into());
        true
    }

    /// Demotes a link because most of its packets are non-innovative, or restores it.
    pub(super) fn demote(&mut self, now: Timestamp, link: LinkId, demoted: bool) {
        let Some(state) = self.links.get_mut(&link).filter(|s| s.demoted != demoted) else {
            return;
        };
        state.demoted = demoted;
        self.routes.on_link_change();
        self.stats.links_demoted += u64::from(demoted);
        self.update_flows_over(now, link);
    }

    /// Updates the paths of the flows to all nodes that a link leads to.
    fn update_flows_over(&mut self, now: Timestamp, link: LinkId) {
        for destination in self.routes.nodes_over(link) {
            self.update_flows_to(now, destination);
        }
    }

    /// Updates the measurements of a link.
    pub fn set_view(&mut self, now: Timestamp, link: LinkId, view: &LinkView) {
        let is_used = self.routes.would_use(&mut self.links, link, view);
        let Some(state) = self.links.get_mut(&link) else { return };
        let was_used = state.view.alive;
        let was_failed = state.view.potentially_failed;
        state.view = LinkView { alive: is_used, ..*view };
        let avoids = || {
            let is_demoted = self.links.values().any(|link| link.demoted);
            self.routes.has_preferences() || is_demoted
        };
        let avoids = was_used != is_used && avoids();
        if was_used != is_used {
            self.routes.on_link_change();
        }
        if avoids {
            // Update paths first, because packets of the link need another one to move to.
            self.update_flows_over(now, link);
        }
        if (was_used, was_failed) != (is_used, view.potentially_failed) {
            self.update_branches_over(now, link);
        }
        if was_used && !is_used {
            self.lost.insert(link);
            self.move_packets_from(now, link);
        } else if is_used && !was_used {
            // Packets left on links that became unresponsive when no link was responsive.
            for other in self.routes.unresponsive_alternatives(&self.links, link) {
                self.move_packets_from(now, other);
            }
            let keys: Vec<FlowKey> = self.flows_over(link);
            keys.into_iter().for_each(|key| self.activate(key));
        }
    }

    fn flows_over(&self, link: LinkId) -> Vec<FlowKey> {
        let flows = self.flows.iter().filter(|(_, flow)| flow.outbound.contains_key(&link));
        flows.map(|(key, _)| *key).collect()
    }

    /// Moves the undelivered packets of an unresponsive link to responsive ones.
    fn move_packets_from(&mut self, now: Timestamp, link: LinkId) {
        for key in self.flows_over(link) {
            let Some(to) = self.route(key).filter(|&to| to != link) else { continue };
            if !self.is_alive(to) {
                continue;
            }
            let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let Some(outbound) = flow.outbound.get_mut(&link) else { continue };
            let fresh = Box::new(Outbound::new(flow.seed, feedback, false));
            let moved = core::mem::replace(outbound, fresh);
            self.adopt(now, key, to, moved);
        }
        let orphaned = self.links.get_mut(&link).map(|state| state.opaque.take());
        self.requeue_opaque(now, link, orphaned.into_iter().flatten());
    }

    /// Queues end-to-end packets of a removed or unresponsive link on another link.
    fn requeue_opaque(
        &mut self,
        now: Timestamp,
        link: LinkId,
        packets: impl Iterator<Item = (FlowHeader, Vec<u8>)>,
    ) {
        for (header, bytes) in packets {
            if header.key.destination.is_group() {
                match self.groups.link_instead_of(&self.links, header.key, link) {
                    Some(next) => self.push_opaque(now, Some(next), header, &bytes),
                    None => self.stats.dropped.overflowed += 1,
                }
                continue;
            }
            let next = self.route(header.key);
            self.push_opaque(now, next, header, &bytes);
        }
    }

    /// Adds the undelivered packets of another link to those of `to`.
    fn adopt(&mut self, now: Timestamp, key: FlowKey, to: LinkId, moved: Box<Outbound>) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        self.bytes -= moved.bytes();
        if let Some(outbound) = flow.outbound.get_mut(&to) {
            let before = outbound.bytes();
            outbound.adopt(now, *moved, &mut self.stats);
            self.bytes = self.bytes - before + outbound.bytes();
        }
        self.shed(key, to);
        self.activate(key);
        self.arm(key);
    }

    fn update_flows_to(&mut self, now: Timestamp, to: Destination) {
        let (destination, least, most) = (to.node(), NodeId(0), NodeId(u32::MAX));
        let first = FlowKey { destination, source: least, flow: 0 };
        let last = FlowKey { destination, source: most, flow: u32::MAX };
        let flows = self.flows.range(first..=last).map(|(key, _)| *key);
        let moved: Vec<FlowKey> = flows.filter(|&key| Destination::from(key) == to).collect();
        for key in moved {
            self.update_links(now, key);
        }
    }

    /// Updates the links that a flow is sent over to the current routes.
    fn update_links(&mut self, now: Timestamp, key: FlowKey) {
        if key.destination == self.config.node {
            return;
        }
        let wanted: Vec<LinkId> = self.routes(key).collect();
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let gone: Vec<LinkId> =
            flow.outbound.keys().filter(|link| !wanted.contains(link)).copied().collect();
        let mut left: Vec<Box<Outbound>> = flow.unrouted.take().into_iter().collect();
        left.extend(gone.iter().filter_map(|link| flow.outbound.remove(link)));
        for &link in &wanted {
            if flow.outbound.contains_key(&link) {
                continue;
            }
            let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
            let mut outbound =
                left.pop().unwrap_or_else(|| Box::new(Outbound::new(flow.seed, feedback, false)));
            outbound.restart(feedback);
            flow.outbound.insert(link, outbound);
        }
        match wanted.first() {
            Some(&to) => {
                for moved in left {
                    self.adopt(now, key, to, moved);
                }
            }
            None => {
                // The ends repair the packets of all but one link.
                flow.unrouted = left.pop();
                self.bytes -= left.iter().map(|outbound| outbound.bytes()).sum::<usize>();
            }
        }
        self.activate(key);
        self.arm(key);
    }
}
