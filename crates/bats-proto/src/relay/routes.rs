//! Which links lead where, and which of them a packet takes.
//!
//! Several links towards a node are used together: each has its own congestion control, its own ranks
//! and its own repair; the window of the code spans them, so that nothing needs to be put in order
//! on the way. A link that is silent carries nothing until it is heard again, and what it has not
//! brought over moves to the others.

use core::time::Duration;
use std::collections::BTreeSet;

use bats_types::Timestamp;

use super::outbound::Outbound;
use super::{LinkId, LinkView, Relay, RelayEvent};
use crate::wire::batch_rank::Space;
use crate::wire::flow::{FlowKey, NodeId};

/// Links used together towards a node; more are refused. Each holds a part of a flow's memory.
pub const MAX_PATHS: usize = 16;

/// How the links towards a node look together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSetStats {
    /// Links that are heard.
    pub links: usize,
    /// Sum of their rates before loss, in bytes per second.
    pub rate: u64,
    /// Longest smoothed round trip among them.
    pub slowest: Duration,
}

impl Relay {
    /// Packets for `destination` leave over `link` alone from now on.
    pub fn set_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) {
        self.routes.insert(destination, vec![link]);
        self.lying.retain(|(node, other)| *node != destination || *other == link);
        self.refit_all(now, destination);
    }

    /// Packets for `destination` leave over `link`, too. False if there are [`MAX_PATHS`] already.
    pub fn add_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) -> bool {
        let links = self.routes.entry(destination).or_default();
        if links.contains(&link) {
            return true;
        }
        if links.len() >= MAX_PATHS {
            return false;
        }
        links.push(link);
        self.refit_all(now, destination);
        true
    }

    /// Packets for `destination` no longer leave over `link`.
    pub fn remove_route(&mut self, now: Timestamp, destination: NodeId, link: LinkId) {
        if let Some(links) = self.routes.get_mut(&destination) {
            links.retain(|other| *other != link);
            self.lying.remove(&(destination, link));
            self.refit_all(now, destination);
        }
    }

    /// Forgets a link and the routes over it. What waits for it takes another, or waits for one.
    pub fn remove_link(&mut self, now: Timestamp, link: LinkId) {
        let orphaned = self.links.remove(&link).map(|mut state| state.opaque.take());
        self.ready.remove(&link);
        if orphaned.is_some() {
            self.lost.insert(link);
        }
        let mut touched = Vec::new();
        for (&destination, links) in &mut self.routes {
            if links.contains(&link) {
                links.retain(|other| *other != link);
                touched.push(destination);
            }
        }
        self.routes.retain(|_, links| !links.is_empty());
        self.lying.retain(|(_, other)| *other != link);
        for destination in touched {
            self.refit_all(now, destination);
        }
        for flow in self.flows.values_mut() {
            flow.inbound.remove(&link);
        }
        self.send_elsewhere(now, orphaned.into_iter().flatten());
    }

    /// The links towards a node that were admitted.
    pub fn routes(&self, destination: NodeId) -> impl Iterator<Item = LinkId> {
        let links = self.routes.get(&destination).map_or(&[][..], Vec::as_slice);
        let admitted = links.iter().copied().filter(|link| self.links.contains_key(link));
        let is_good = move |link: LinkId| !self.is_avoided(destination, link);
        let has_good = admitted.clone().any(|link| is_good(link) && self.is_alive(link));
        admitted.filter(move |&link| !has_good || is_good(link))
    }

    /// Whether a link is used towards a node only if no other is heard.
    fn is_avoided(&self, destination: NodeId, link: LinkId) -> bool {
        self.lying.contains(&(destination, link))
            || self.links.get(&link).is_some_and(|state| state.demoted)
    }

    /// What left over `link` for `destination` was altered on the way. From now on it is used only if no
    /// other is heard; what it has not brought over leaves by the others. False if it is no way there,
    /// or was known to lie.
    pub fn distrust(&mut self, now: Timestamp, destination: NodeId, link: LinkId) -> bool {
        let is_way = self.routes.get(&destination).is_some_and(|links| links.contains(&link));
        if !is_way || !self.lying.insert((destination, link)) {
            return false;
        }
        self.stats.ways_lying += 1;
        self.events.push_back(RelayEvent::PollutingPath(link, destination));
        self.refit_all(now, destination);
        true
    }

    /// Most of what comes over a link is useless, or no longer.
    pub(super) fn demote(&mut self, now: Timestamp, link: LinkId, demoted: bool) {
        let Some(state) = self.links.get_mut(&link).filter(|s| s.demoted != demoted) else {
            return;
        };
        state.demoted = demoted;
        self.stats.links_demoted += u64::from(demoted);
        self.refit_over(now, link);
    }

    /// Refits the flows to all nodes that a link leads to.
    fn refit_over(&mut self, now: Timestamp, link: LinkId) {
        let led = self.routes.iter().filter(|(_, links)| links.contains(&link));
        for destination in led.map(|(&node, _)| node).collect::<Vec<_>>() {
            self.refit_all(now, destination);
        }
    }

    /// The fastest link towards a node: the one with the shortest round trip of those that are heard,
    /// or of all if none is.
    #[must_use]
    pub fn route(&self, destination: NodeId) -> Option<LinkId> {
        self.routes(destination).min_by_key(|link| {
            let state = self.links.get(link);
            state.map(|state| (!state.view.alive, state.view.smoothed_rtt))
        })
    }

    /// How the links towards a node look together.
    #[must_use]
    pub fn way(&self, destination: NodeId) -> PathSetStats {
        let views = self.routes(destination).filter_map(|link| self.links.get(&link));
        let views = views.map(|state| state.view).filter(|view| view.alive);
        views.fold(PathSetStats::default(), |way, view| PathSetStats {
            links: way.links + 1,
            rate: way.rate.saturating_add(view.rate),
            slowest: way.slowest.max(view.smoothed_rtt),
        })
    }

    /// The longest round trip of the links that a flow comes over.
    #[must_use]
    pub fn slowest_inbound(&self, key: FlowKey) -> Duration {
        let links = self.flows.get(&key).into_iter().flat_map(|flow| flow.inbound.keys());
        let views = links.filter_map(|link| self.links.get(link)).map(|state| state.view);
        views.map(|view| view.smoothed_rtt).max().unwrap_or_default()
    }

    /// Whether a packet behind `backlog` bytes comes to the next node sooner over `link` than over
    /// the faster ones, once these have carried the backlog. For a little message a slow link is a
    /// detour; a long queue is worth it.
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

    /// Whether a link was heard of late.
    #[must_use]
    pub fn is_alive(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|state| state.view.alive)
    }

    /// Whether a link that looks like this is used: one that is quiet only if somewhere that it leads
    /// to there is no other, of those that are not avoided.
    fn would_be_alive(&self, link: LinkId, view: &LinkView) -> bool {
        let has_other = || {
            let mut ways = self.routes.iter().filter(|(_, links)| links.contains(&link));
            ways.all(|(&destination, links)| {
                links.iter().any(|&other| {
                    other != link && self.is_alive(other) && !self.is_avoided(destination, other)
                })
            })
        };
        view.alive && !(view.quiet && has_other())
    }

    /// The links that are heard, if this one is not: what all of them may take is not for it.
    pub(super) fn better_than(&self, link: LinkId) -> Vec<LinkId> {
        if self.is_alive(link) {
            return Vec::new();
        }
        let heard = self.links.iter().filter(|(_, state)| state.view.alive);
        heard.map(|(&id, _)| id).collect()
    }

    /// How a link looks now.
    pub fn set_view(&mut self, now: Timestamp, link: LinkId, view: &LinkView) {
        let is = self.would_be_alive(link, view);
        let Some(state) = self.links.get_mut(&link) else { return };
        let was = state.view.alive;
        state.view = LinkView { alive: is, ..*view };
        let avoids = !self.lying.is_empty() || self.links.values().any(|link| link.demoted);
        if was != is && avoids {
            // First of all: what one leaves needs another to go to.
            self.refit_over(now, link);
        }
        if was && !is {
            self.lost.insert(link);
            self.leave(now, link);
        } else if is && !was {
            // What was left on links that fell silent when none was heard.
            for other in self.silent_beside(link) {
                self.leave(now, other);
            }
            let keys: Vec<FlowKey> = self.flows_over(link);
            keys.into_iter().for_each(|key| self.activate(key));
        }
    }

    /// Links that lead where this one does, too, and are not heard.
    fn silent_beside(&self, link: LinkId) -> Vec<LinkId> {
        let ways = self.routes.values().filter(|links| links.contains(&link)).flatten();
        let silent = ways
            .copied()
            .filter(|other| self.links.get(other).is_some_and(|state| !state.view.alive));
        silent.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn flows_over(&self, link: LinkId) -> Vec<FlowKey> {
        let flows = self.flows.iter().filter(|(_, flow)| flow.ways.contains_key(&link));
        flows.map(|(key, _)| *key).collect()
    }

    /// A link is silent: what it has not brought over moves to others that are heard.
    fn leave(&mut self, now: Timestamp, link: LinkId) {
        for key in self.flows_over(link) {
            let Some(to) = self.route(key.destination).filter(|&to| to != link) else { continue };
            if !self.links.get(&to).is_some_and(|state| state.view.alive) {
                continue;
            }
            let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
            let Some(flow) = self.flows.get_mut(&key) else { continue };
            let Some(way) = flow.ways.get_mut(&link) else { continue };
            let fresh = Box::new(Outbound::new(flow.seed, feedback));
            let moved = core::mem::replace(way, fresh);
            self.adopt(now, key, to, moved);
        }
        let orphaned = self.links.get_mut(&link).map(|state| state.opaque.take());
        self.send_elsewhere(now, orphaned.into_iter().flatten());
    }

    /// Packets between the ends whose link is gone or silent.
    fn send_elsewhere(
        &mut self,
        now: Timestamp,
        packets: impl Iterator<Item = (crate::wire::flow::FlowHeader, Vec<u8>)>,
    ) {
        for (header, bytes) in packets {
            let next = self.route(header.key.destination);
            self.push_opaque(now, next, header, &bytes);
        }
    }

    /// Adds what another link has not brought over to what `to` is to bring.
    fn adopt(&mut self, now: Timestamp, key: FlowKey, to: LinkId, moved: Box<Outbound>) {
        let Some(flow) = self.flows.get_mut(&key) else { return };
        self.bytes -= moved.bytes();
        if let Some(way) = flow.ways.get_mut(&to) {
            let before = way.bytes();
            way.adopt(now, *moved, &mut self.stats);
            self.bytes = self.bytes - before + way.bytes();
        }
        self.shed(key, to);
        self.activate(key);
        self.arm(key);
    }

    fn refit_all(&mut self, now: Timestamp, destination: NodeId) {
        let moved: Vec<FlowKey> =
            self.flows.keys().filter(|key| key.destination == destination).copied().collect();
        for key in moved {
            self.refit(now, key);
        }
    }

    /// Sets the links that a flow leaves by, as the routes are now.
    pub(super) fn refit(&mut self, now: Timestamp, key: FlowKey) {
        if key.destination == self.config.node {
            return;
        }
        let wanted: Vec<LinkId> = self.routes(key.destination).collect();
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let gone: Vec<LinkId> =
            flow.ways.keys().filter(|link| !wanted.contains(link)).copied().collect();
        let mut left: Vec<Box<Outbound>> = flow.parked.take().into_iter().collect();
        left.extend(gone.iter().filter_map(|link| flow.ways.remove(link)));
        for &link in &wanted {
            if flow.ways.contains_key(&link) {
                continue;
            }
            let feedback = self.links.get(&link).is_some_and(|state| state.feedback);
            let mut way =
                left.pop().unwrap_or_else(|| Box::new(Outbound::new(flow.seed, feedback)));
            way.restart(feedback);
            flow.ways.insert(link, way);
        }
        match wanted.first() {
            Some(&to) => {
                for moved in left {
                    self.adopt(now, key, to, moved);
                }
            }
            None => {
                // What one of several links had is repaired by the ends.
                flow.parked = left.pop();
                self.bytes -= left.iter().map(|way| way.bytes()).sum::<usize>();
            }
        }
        self.activate(key);
    }

    /// The link that a packet of this batch leaves by: the one that has others of the batch, or the one
    /// by which it comes to the next node first. It came `from` a link that it does not go back over.
    pub(super) fn choose(
        &self,
        key: FlowKey,
        space: Space,
        batch: u64,
        from: LinkId,
    ) -> Option<LinkId> {
        let flow = self.flows.get(&key)?;
        if flow.ways.len() <= 1 {
            return flow.ways.keys().next().copied();
        }
        let is_alive = |link: &LinkId| self.links.get(link).is_some_and(|s| s.view.alive);
        if let Some((&link, _)) =
            flow.ways.iter().find(|(link, way)| way.holds(space, batch) && is_alive(link))
        {
            return Some(link);
        }
        let cost = |link: &LinkId, way: &Outbound| {
            let view = self.links.get(link)?.view;
            let queued = way.queued() as u64 * view.packet;
            let wait = Duration::from_secs_f64(queued as f64 / view.rate.max(1) as f64);
            Some((!view.alive, wait.saturating_add(view.smoothed_rtt / 2), *link))
        };
        let others = flow.ways.iter().filter(|(link, _)| **link != from);
        others.filter_map(|(link, way)| cost(link, way)).min().map(|(_, _, link)| link)
    }
}
