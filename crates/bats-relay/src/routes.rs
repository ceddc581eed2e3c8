//! Routes: the links that lead to a node, and which of them are used.
//!
//! The links with a neighbour are a route of their own for direct sessions.
//!
//! Several links to a node are used together (multipath). Each has its own congestion control,
//! ranks and repair. The coding window spans all of them, so relays need not reorder packets.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::destination::Destination;
use super::link::{Links, is_alive};
use super::link_view::{LinkId, LinkView};

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

/// The links to each node, with what makes one of them better than another.
#[derive(Debug, Default)]
pub(super) struct Routes {
    links: BTreeMap<Destination, Vec<LinkId>>,
    /// Tiers of the routes that have another one than 0.
    tiers: BTreeMap<(Destination, LinkId), u8>,
    /// Paths on which data was polluted.
    polluting: BTreeSet<(Destination, LinkId)>,
    /// Changes of routes and of what links may be used for.
    changes: u64,
}

impl Routes {
    /// A change of what links may be used for.
    pub(super) fn on_link_change(&mut self) {
        self.changes += 1;
    }

    /// Makes `link` the only link to a node.
    pub(super) fn set(&mut self, destination: Destination, link: LinkId) {
        self.changes += 1;
        self.links.insert(destination, vec![link]);
        self.remove_tiers(destination);
        self.polluting.retain(|(node, other)| *node != destination || *other == link);
    }

    /// Replaces all links to a node, each with its tier. Returns false and changes nothing if there
    /// are more than [`MAX_PATHS`].
    pub(super) fn replace(&mut self, destination: Destination, links: &[(LinkId, u8)]) -> bool {
        let tiers: BTreeMap<LinkId, u8> = links.iter().copied().collect();
        if tiers.len() > MAX_PATHS {
            return false;
        }
        self.changes += 1;
        self.polluting.retain(|(node, link)| *node != destination || tiers.contains_key(link));
        self.remove_tiers(destination);
        let backups = tiers.iter().filter(|&(_, &tier)| tier > 0);
        self.tiers.extend(backups.map(|(&link, &tier)| ((destination, link), tier)));
        match tiers.is_empty() {
            true => self.links.remove(&destination),
            false => self.links.insert(destination, tiers.into_keys().collect()),
        };
        true
    }

    /// Whether a link leads to a node.
    pub(super) fn contains(&self, destination: Destination, link: LinkId) -> bool {
        self.links.get(&destination).is_some_and(|links| links.contains(&link))
    }

    /// Adds a link that does not lead to the node yet. Returns false if there are [`MAX_PATHS`]
    /// already.
    pub(super) fn add(&mut self, destination: Destination, link: LinkId) -> bool {
        let links = self.links.entry(destination).or_default();
        if links.len() >= MAX_PATHS {
            return false;
        }
        links.push(link);
        self.changes += 1;
        true
    }

    /// Removes a link to a node. Returns false if no route was ever set for it.
    pub(super) fn remove(&mut self, destination: Destination, link: LinkId) -> bool {
        let Some(links) = self.links.get_mut(&destination) else { return false };
        links.retain(|other| *other != link);
        self.changes += 1;
        self.polluting.remove(&(destination, link));
        self.tiers.remove(&(destination, link));
        true
    }

    /// Removes a link. Returns the nodes that it led to.
    pub(super) fn remove_link(&mut self, link: LinkId) -> Vec<Destination> {
        self.changes += 1;
        let affected = self.nodes_over(link);
        for destination in &affected {
            if let Some(links) = self.links.get_mut(destination) {
                links.retain(|other| *other != link);
            }
        }
        self.links.retain(|_, links| !links.is_empty());
        self.polluting.retain(|(_, other)| *other != link);
        self.tiers.retain(|(_, other), _| *other != link);
        affected
    }

    /// Marks a path as polluting. Returns false if there is no such route or if it was marked
    /// before.
    pub(super) fn mark_polluting(&mut self, destination: Destination, link: LinkId) -> bool {
        if !self.contains(destination, link) || !self.polluting.insert((destination, link)) {
            return false;
        }
        self.changes += 1;
        true
    }

    /// Whether there are polluting paths or tiers: the links that are used may depend on others.
    pub(super) fn has_preferences(&self) -> bool {
        !self.polluting.is_empty() || !self.tiers.is_empty()
    }

    /// All nodes that a link leads to.
    pub(super) fn nodes_over(&self, link: LinkId) -> Vec<Destination> {
        let leading = self.links.iter().filter(|(_, links)| links.contains(&link));
        leading.map(|(&node, _)| node).collect()
    }

    /// The admitted links to a node, of the lowest tier with a responsive one. Polluting and demoted
    /// links are left out while another link is responsive.
    pub(super) fn usable(
        &self,
        links: &Links,
        destination: Destination,
    ) -> impl Iterator<Item = LinkId> {
        let leading = self.links.get(&destination).map_or(&[][..], Vec::as_slice);
        let admitted = leading.iter().copied().filter(|link| links.contains_key(link));
        let is_good = move |link: LinkId| !self.is_avoided(links, destination, link);
        // Asked for each packet, and most nodes have one link: it is used whatever it is like.
        let has_good = leading.len() > 1
            && admitted.clone().any(|link| is_good(link) && is_alive(links, link));
        let allowed = admitted.filter(move |&link| !has_good || is_good(link));
        let tier = match self.tiers.is_empty() {
            true => None,
            false => {
                let responsive = allowed.clone().filter(|&link| is_alive(links, link));
                responsive.map(|link| self.tier(destination, link)).min()
            }
        };
        allowed.filter(move |&link| tier.is_none_or(|tier| self.tier(destination, link) == tier))
    }

    fn remove_tiers(&mut self, destination: Destination) {
        let range = (destination, LinkId(0))..=(destination, LinkId(u64::MAX));
        let known: Vec<LinkId> = self.tiers.range(range).map(|(&(_, link), _)| link).collect();
        for link in known {
            self.tiers.remove(&(destination, link));
        }
    }

    fn tier(&self, destination: Destination, link: LinkId) -> u8 {
        self.tiers.get(&(destination, link)).copied().unwrap_or(0)
    }

    /// Whether a link is used for a node only if no other is responsive.
    fn is_avoided(&self, links: &Links, destination: Destination, link: LinkId) -> bool {
        self.polluting.contains(&(destination, link))
            || links.get(&link).is_some_and(|state| state.demoted)
    }

    /// The fastest link to a node: the responsive one with the shortest round trip, or the one with
    /// the shortest round trip of all if none is responsive.
    pub(super) fn fastest(&self, links: &Links, destination: Destination) -> Option<LinkId> {
        self.usable(links, destination).min_by_key(|link| {
            let state = links.get(link);
            state.map(|state| (!state.view.alive, state.view.smoothed_rtt))
        })
    }

    /// Combined measurements of the links to a node.
    pub(super) fn path_set(&self, links: &Links, destination: Destination) -> PathSetStats {
        let views = self.usable(links, destination).filter_map(|link| links.get(&link));
        let views = views.map(|state| state.view).filter(|view| view.alive);
        views.fold(PathSetStats::default(), |total, view| PathSetStats {
            links: total.links + 1,
            rate: total.rate.saturating_add(view.rate),
            slowest: total.slowest.max(view.smoothed_rtt),
        })
    }

    /// Whether a packet behind `backlog` bytes reaches the next node sooner over `link` than over
    /// the faster links after these have sent the backlog.
    pub(super) fn is_worthwhile(
        &self,
        links: &Links,
        destination: Destination,
        link: LinkId,
        backlog: u64,
    ) -> bool {
        let Some(own) = links.get(&link).map(|state| state.view) else { return false };
        // Asked for each packet, and most nodes have one link.
        if self.links.get(&destination).is_some_and(|leading| *leading == [link]) {
            return true;
        }
        let mut rate = 0.0;
        let mut fastest = own.smoothed_rtt;
        for other in self.usable(links, destination).filter(|other| *other != link) {
            let Some(view) = links.get(&other).map(|state| state.view) else { continue };
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

    /// Whether a link with these measurements is used. A potentially failed link is used only if,
    /// for some node that it leads to, there is no other responsive link that is not avoided.
    pub(super) fn would_use(&self, links: &mut Links, link: LinkId, view: &LinkView) -> bool {
        view.alive && !(view.potentially_failed && self.has_alternatives(links, link))
    }

    /// Whether each node that a link leads to has another usable link. Asked for each packet, and a node may have
    /// thousands of routes: the answer is kept until they change.
    fn has_alternatives(&self, links: &mut Links, link: LinkId) -> bool {
        let known = links.get(&link).and_then(|state| state.has_alternatives);
        if let Some((_, known)) = known.filter(|&(changes, _)| changes == self.changes) {
            return known;
        }
        let over = |is_direct| {
            let routes = self.links.iter().filter(move |(to, _)| to.is_neighbour() == is_direct);
            routes.filter(|(_, leading)| leading.contains(&link))
        };
        // A direct session, which the neighbour may open, must not hold the routes of others on the link.
        let is_direct = over(false).next().is_none();
        let found = over(is_direct).all(|(&destination, leading)| {
            leading.iter().any(|&other| {
                other != link
                    && is_alive(links, other)
                    && !self.is_avoided(links, destination, other)
            })
        });
        if let Some(state) = links.get_mut(&link) {
            state.has_alternatives = Some((self.changes, found));
        }
        found
    }

    /// Unresponsive links to nodes that this link leads to as well.
    pub(super) fn unresponsive_alternatives(&self, links: &Links, link: LinkId) -> Vec<LinkId> {
        let alternatives = self.links.values().filter(|links| links.contains(&link)).flatten();
        let unresponsive = alternatives
            .copied()
            .filter(|other| links.get(other).is_some_and(|state| !state.view.alive));
        unresponsive.collect::<BTreeSet<_>>().into_iter().collect()
    }
}
