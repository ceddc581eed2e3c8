//! Routes: the links that lead to a node, and the choice of a link for each packet.
//!
//! Several links to a node are used together (multipath). Each has its own congestion control,
//! ranks and repair. The coding window spans all of them, so relays need not reorder packets. An
//! unresponsive link gets no packets until it responds again, and its undelivered packets move to
//! the other links.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use bats_types::Timestamp;

use super::inbound::OverAllLinks;
use super::link_view::{LinkId, LinkView};
use super::outbound::Outbound;
use super::{Flow, Link, Relay, RelayEvent};
use bats_wire::batch_rank::Space;
use bats_wire::flow::{FlowKey, NodeId};

/// Maximum number of links used together to a node; more are refused. Each holds a part of a flow's
/// memory.
pub const MAX_PATHS: usize = 16;

/// Combined measurements of the links to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSetStats {
    /// Number of responsive links.
    pub links: usize,
    /// Sum of their rates before loss, in bytes per second.
    pub rate: u64,
    /// Longest smoothed round-trip time of the links.
    pub slowest: Duration,
}

impl Relay {
    /// Makes `link` the only link for packets to `destination`.
    pub fn set_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) {
        self.route_changes += 1;
        self.routes.insert(destination, vec![link]);
        self.remove_tiers(destination);
        self.polluting.retain(|(node, other)| *node != destination || *other == link);
        self.update_flows_to(now, destination);
    }

    /// Replaces all links for packets to `destination` at once, each with its tier: the responsive
    /// links of the lowest tier are used. An empty list removes the route. Returns false and changes
    /// nothing if there are more than [`MAX_PATHS`].
    pub fn set_routes(
        &mut self,
        now: Timestamp,
        destination: NodeId,
        links: &[(LinkId, u8)],
    ) -> bool {
        let tiers: BTreeMap<LinkId, u8> = links.iter().copied().collect();
        if tiers.len() > MAX_PATHS {
            return false;
        }
        self.route_changes += 1;
        self.polluting.retain(|(node, link)| *node != destination || tiers.contains_key(link));
        self.remove_tiers(destination);
        let backups = tiers.iter().filter(|&(_, &tier)| tier > 0);
        self.tiers.extend(backups.map(|(&link, &tier)| ((destination, link), tier)));
        match tiers.is_empty() {
            true => self.routes.remove(&destination),
            false => self.routes.insert(destination, tiers.into_keys().collect()),
        };
        self.update_flows_to(now, destination);
        true
    }

    /// Adds `link` to the links for packets to `destination`. Returns false if there are
    /// [`MAX_PATHS`] already.
    pub fn add_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) -> bool {
        let links = self.routes.entry(destination).or_default();
        if links.contains(&link) {
            return true;
        }
        if links.len() >= MAX_PATHS {
            return false;
        }
        links.push(link);
        self.route_changes += 1;
        self.update_flows_to(now, destination);
        true
    }

    /// Removes `link` from the links for packets to `destination`.
    pub fn remove_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) {
        if let Some(links) = self.routes.get_mut(&destination) {
            links.retain(|other| *other != link);
            self.route_changes += 1;
            self.polluting.remove(&(destination, link));
            self.tiers.remove(&(destination, link));
            self.update_flows_to(now, destination);
        }
    }

    /// Removes a link and the routes over it. Its packets take another route or wait for one.
    pub fn remove_link(&mut self, now: Timestamp, link: LinkId) {
        self.route_changes += 1;
        let orphaned = self.links.remove(&link).map(|mut state| state.opaque.take());
        self.drop_unused_limits();
        self.ready.remove(&link);
        if orphaned.is_some() {
            self.lost.insert(link);
        }
        let mut affected = Vec::new();
        for (&destination, links) in &mut self.routes {
            if links.contains(&link) {
                links.retain(|other| *other != link);
                affected.push(destination);
            }
        }
        self.routes.retain(|_, links| !links.is_empty());
        self.polluting.retain(|(_, other)| *other != link);
        self.tiers.retain(|(_, other), _| *other != link);
        for destination in affected {
            self.update_flows_to(now, destination);
        }
        for flow in self.flows.values_mut() {
            let Some(inbound) = flow.inbound.remove(&link) else { continue };
            // Packets that came over the link must not be forwarded again if they come over another link.
            flow.over_all_links.get_or_insert_with(|| Box::new(OverAllLinks::new(&inbound)));
        }
        self.requeue_opaque(now, orphaned.into_iter().flatten());
    }

    /// The admitted links to a node, of the lowest tier with a responsive one. Polluting and demoted
    /// links are left out while another link is responsive.
    pub fn routes(&self, destination: NodeId) -> impl Iterator<Item = LinkId> {
        let links = self.routes.get(&destination).map_or(&[][..], Vec::as_slice);
        let admitted = links.iter().copied().filter(|link| self.links.contains_key(link));
        let is_good = move |link: LinkId| !self.is_avoided(destination, link);
        let has_good = admitted.clone().any(|link| is_good(link) && self.is_alive(link));
        let allowed = admitted.filter(move |&link| !has_good || is_good(link));
        let tier = match self.tiers.is_empty() {
            true => None,
            false => {
                let responsive = allowed.clone().filter(|link| self.is_alive(*link));
                responsive.map(|link| self.tier(destination, link)).min()
            }
        };
        allowed.filter(move |&link| tier.is_none_or(|tier| self.tier(destination, link) == tier))
    }

    fn remove_tiers(&mut self, destination: NodeId) {
        let range = (destination, LinkId(0))..=(destination, LinkId(u64::MAX));
        let known: Vec<LinkId> = self.tiers.range(range).map(|(&(_, link), _)| link).collect();
        for link in known {
            self.tiers.remove(&(destination, link));
        }
    }

    fn tier(&self, destination: NodeId, link: LinkId) -> u8 {
        self.tiers.get(&(destination, link)).copied().unwrap_or(0)
    }

    /// Whether a link is used for a node only if no other is responsive.
    fn is_avoided(&self, destination: NodeId, link: LinkId) -> bool {
        self.polluting.contains(&(destination, link))
            || self.links.get(&link).is_some_and(|state| state.demoted)
    }

    /// Marks the path over `link` to `destination` as polluting. From now on it is used only if no
    /// other link is responsive; its undelivered packets move to the others. Returns false if there
    /// is no such route or if it was marked before.
    pub fn mark_polluting(&mut self, now: Timestamp, destination: NodeId, link: LinkId) -> bool {
        let is_route = self.routes.get(&destination).is_some_and(|links| links.contains(&link));
        if !is_route || !self.polluting.insert((destination, link)) {
            return false;
        }
        self.route_changes += 1;
        self.stats.polluting_paths += 1;
        self.events.push_back(RelayEvent::PollutingPath(link, destination));
        self.update_flows_to(now, destination);
        true
    }

    /// Demotes a link because most of its packets are non-innovative, or restores it.
    pub(super) fn demote(&mut self, now: Timestamp, link: LinkId, demoted: bool) {
        let Some(state) = self.links.get_mut(&link).filter(|s| s.demoted != demoted) else {
            return;
        };
        state.demoted = demoted;
        self.route_changes += 1;
        self.stats.links_demoted += u64::from(demoted);
        self.update_flows_over(now, link);
    }

    /// Updates the paths of the flows to all nodes that a link leads to.
    fn update_flows_over(&mut self, now: Timestamp, link: LinkId) {
        let leading = self.routes.iter().filter(|(_, links)| links.contains(&link));
        for destination in leading.map(|(&node, _)| node).collect::<Vec<_>>() {
            self.update_flows_to(now, destination);
        }
    }

    /// The fastest link to a node: the responsive one with the shortest round trip, or the one with
    /// the shortest round trip of all if none is responsive.
    #[must_use]
    pub fn route(&self, destination: NodeId) -> Option<LinkId> {
        self.routes(destination).min_by_key(|link| {
            let state = self.links.get(link);
            state.map(|state| (!state.view.alive, state.view.smoothed_rtt))
        })
    }

    /// Combined measurements of the links to a node.
    #[must_use]
    pub fn path_set(&self, destination: NodeId) -> PathSetStats {
        let views = self.routes(destination).filter_map(|link| self.links.get(&link));
        let views = views.map(|state| state.view).filter(|view| view.alive);
        views.fold(PathSetStats::default(), |total, view| PathSetStats {
            links: total.links + 1,
            rate: total.rate.saturating_add(view.rate),
            slowest: total.slowest.max(view.smoothed_rtt),
        })
    }

    /// The longest round trip of the links that a flow arrives over.
    #[must_use]
    pub fn slowest_inbound(&self, key: FlowKey) -> Duration {
        let links = self.flows.get(&key).into_iter().flat_map(|flow| flow.inbound.keys());
        let views = links.filter_map(|link| self.links.get(link)).map(|state| state.view);
        views.map(|view| view.smoothed_rtt).max().unwrap_or_default()
    }

    /// Whether a packet behind `backlog` bytes reaches the next node sooner over `link` than over
    /// the faster links after these have sent the backlog. A slow link delays short messages but
    /// helps with a long queue.
    #[must_use]
    pub fn is_worthwhile(&self, destination: NodeId, link: LinkId, backlog: u64) -> bool {
        let Some(own) = self.links.get(&link).map(|state| state.view) else { return false };
        let mut rate = 0.0;
        let mut fastest = own.smoothed_rtt;
        for other in self.routes(destination).filter(|other| *other != link) {
            let Some(view) = self.links.get(&other).map(|state| state.view) else { continue };
            if !view.alive {
                continue;
            }
            if !own.alive {
                return false;
            }
            if view.smoothed_rtt < own.smoothed_rtt {
                rate += view.rate as f64 * (1.0 - view.loss);
                fastest = fastest.min(view.smoothed_rtt);
            }
        }
        let ahead = (own.smoothed_rtt - fastest).as_secs_f64() / 2.0;
        backlog as f64 >= rate * ahead
    }

    /// Whether a link is responsive.
    #[must_use]
    pub fn is_alive(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|state| state.view.alive)
    }

    /// Whether a link with these measurements is used. A potentially failed link is used only if,
    /// for some node that it leads to, there is no other responsive link that is not avoided.
    fn would_be_used(&mut self, link: LinkId, view: &LinkView) -> bool {
        view.alive && !(view.potentially_failed && self.has_alternatives(link))
    }

    /// Whether each node that a link leads to has another usable link. Asked for each packet, and a node may have
    /// thousands of routes: the answer is kept until they change.
    fn has_alternatives(&mut self, link: LinkId) -> bool {
        let known = self.links.get(&link).and_then(|state| state.has_alternatives);
        if let Some((_, known)) = known.filter(|&(changes, _)| changes == self.route_changes) {
            return known;
        }
        let mut routes = self.routes.iter().filter(|(_, links)| links.contains(&link));
        let found = routes.all(|(&destination, links)| {
            links.iter().any(|&other| {
                other != link && self.is_alive(other) && !self.is_avoided(destination, other)
            })
        });
        if let Some(state) = self.links.get_mut(&link) {
            state.has_alternatives = Some((self.route_changes, found));
        }
        found
    }

    /// The responsive links, if this one is not responsive. They take unrecoded packets instead of
    /// it.
    pub(super) fn responsive_alternatives(&self, link: LinkId) -> Vec<LinkId> {
        if self.is_alive(link) {
            return Vec::new();
        }
        let responsive = self.links.iter().filter(|(_, state)| state.view.alive);
        responsive.map(|(&id, _)| id).collect()
    }

    /// Updates the measurements of a link.
    pub fn set_view(&mut self, now: Timestamp, link: LinkId, view: &LinkView) {
        let is_used = self.would_be_used(link, view);
        let Some(state) = self.links.get_mut(&link) else { return };
        let was_used = state.view.alive;
        state.view = LinkView { alive: is_used, ..*view };
        let avoids = || {
            let is_demoted = self.links.values().any(|link| link.demoted);
            !self.polluting.is_empty() || !self.tiers.is_empty() || is_demoted
        };
        let avoids = was_used != is_used && avoids();
        self.route_changes += u64::from(was_used != is_used);
        if avoids {
            // Update paths first, because packets of the link need another one to move to.
            self.update_flows_over(now, link);
        }
        if was_used && !is_used {
            self.lost.insert(link);
            self.move_packets_from(now, link);
        } else if is_used && !was_used {
            // Packets left on links that became unresponsive when no link was responsive.
            for other in self.unresponsive_alternatives(link) {
                self.move_packets_from(now, other);
            }
            let keys: Vec<FlowKey> = self.flows_over(link);
            keys.into_iter().for_each(|key| self.activate(key));
        }
    }

    /// Unresponsive links to nodes that this link leads to as well.
    fn unresponsive_alternatives(&self, link: LinkId) -> Vec<LinkId> {
        let alternatives = self.routes.values().filter(|links| links.contains(&link)).flatten();
        let unresponsive = alternatives
            .copied()
            .filter(|other| self.links.get(other).is_some_and(|state| !state.view.alive));
        unresponsive.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn flows_over(&self, link: LinkId) -> Vec<FlowKey> {
        let flows = self.flows.iter().filter(|(_, flow)| flow.outbound.contains_key(&link));
        flows.map(|(key, _)| *key).collect()
    }

    /// Moves the undelivered packets of an unresponsive link to responsive ones.
    fn move_packets_from(&mut self, now: Timestamp, link: LinkId) {
        for key in self.flows_over(link) {
            let Some(to) = self.route(key.destination).filter(|&to| to != link) else { continue };
            if !self.links.get(&to).is_some_and(|state| state.view.alive) {
                continue;
            }
            let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let Some(outbound) = flow.outbound.get_mut(&link) else { continue };
            let fresh = Box::new(Outbound::new(flow.seed, feedback));
            let moved = core::mem::replace(outbound, fresh);
            self.adopt(now, key, to, moved);
        }
        let orphaned = self.links.get_mut(&link).map(|state| state.opaque.take());
        self.requeue_opaque(now, orphaned.into_iter().flatten());
    }

    /// Queues end-to-end packets of a removed or unresponsive link on another link.
    fn requeue_opaque(
        &mut self,
        now: Timestamp,
        packets: impl Iterator<Item = (bats_wire::flow::FlowHeader, Vec<u8>)>,
    ) {
        for (header, bytes) in packets {
            let next = self.route(header.key.destination);
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

    fn update_flows_to(&mut self, now: Timestamp, destination: NodeId) {
        let (least, most) = (NodeId(0), NodeId(u32::MAX));
        let first = FlowKey { destination, source: least, flow: 0 };
        let last = FlowKey { destination, source: most, flow: u32::MAX };
        let moved: Vec<FlowKey> = self.flows.range(first..=last).map(|(key, _)| *key).collect();
        for key in moved {
            self.update_links(now, key);
        }
    }

    /// Updates the links that a flow is sent over to the current routes.
    pub(super) fn update_links(&mut self, now: Timestamp, key: FlowKey) {
        if key.destination == self.config.node {
            return;
        }
        let wanted: Vec<LinkId> = self.routes(key.destination).collect();
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
                left.pop().unwrap_or_else(|| Box::new(Outbound::new(flow.seed, feedback)));
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
    }
}

impl Flow {
    /// The link for a packet of this batch: the one that has other packets of the batch, or the one
    /// with the earliest arrival at the next node. The packet arrived over `from` and does not go
    /// back over it.
    pub(super) fn choose_link(
        &self,
        links: &BTreeMap<LinkId, Link>,
        space: Space,
        batch: u64,
        from: LinkId,
    ) -> Option<LinkId> {
        if self.outbound.len() <= 1 {
            return self.outbound.keys().next().copied();
        }
        let is_alive = |link: &LinkId| links.get(link).is_some_and(|s| s.view.alive);
        if let Some((&link, _)) = self
            .outbound
            .iter()
            .find(|(link, outbound)| outbound.holds(space, batch) && is_alive(link))
        {
            return Some(link);
        }
        let cost = |link: &LinkId, outbound: &Outbound| {
            let view = links.get(link)?.view;
            let queued = outbound.queued() as u64 * view.packet;
            let wait = Duration::from_secs_f64(queued as f64 / view.rate.max(1) as f64);
            Some((!view.alive, wait.saturating_add(view.smoothed_rtt / 2), *link))
        };
        let others = self.outbound.iter().filter(|(link, _)| **link != from);
        others.filter_map(|(link, outbound)| cost(link, outbound)).min().map(|(_, _, link)| link)
    }
}
