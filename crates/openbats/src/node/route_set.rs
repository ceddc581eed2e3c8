//! Sets of routes: which links lead to a node.

use std::collections::BTreeMap;

use bats_proto::relay::{MAX_GROUP_ENTRIES, MAX_PATHS};
use bats_proto::wire::flow::NodeId;

use super::group_route::GroupRoute;
use super::link::LinkId;
use super::route_error::{MAX_DESTINATIONS, RouteError};
use super::via::Via;

/// A next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextHop {
    /// The next link or links.
    pub via: Via,
    /// Its tier: the lowest one that has a responsive link is used.
    pub tier: u8,
}

/// Routes to nodes. All links to a node of the same tier are used at once (multipath): the packets
/// of one session go over all of them, each as fast as its own congestion control allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSet {
    hops: BTreeMap<NodeId, Vec<NextHop>>,
    /// By group and source.
    groups: BTreeMap<(NodeId, NodeId), GroupRoute>,
}

impl RouteSet {
    /// A set without routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a link, or the links with a neighbour, that lead to a node.
    #[must_use]
    pub fn to(self, destination: NodeId, via: impl Into<Via>) -> Self {
        self.backup(destination, via, 0)
    }

    /// Like [`to`](Self::to), for use only while no link of a lower tier responds.
    #[must_use]
    pub fn backup(mut self, destination: NodeId, via: impl Into<Via>, tier: u8) -> Self {
        self.add(destination, via, tier);
        self
    }

    /// Adds a link, or the links with a neighbour, in a tier. One that is there already changes its
    /// tier.
    pub fn add(&mut self, destination: NodeId, via: impl Into<Via>, tier: u8) {
        let (via, hops) = (via.into(), self.hops.entry(destination).or_default());
        match hops.iter_mut().find(|hop| hop.via == via) {
            Some(hop) => hop.tier = tier,
            None => hops.push(NextHop { via, tier }),
        }
    }

    /// Adds the route of a source and a group, in place of another one for both.
    #[must_use]
    pub fn group(mut self, route: GroupRoute) -> Self {
        self.add_group(route);
        self
    }

    /// As [`group`](Self::group).
    pub fn add_group(&mut self, route: GroupRoute) {
        self.groups.insert((route.group(), route.source()), route);
    }

    /// The routes of groups.
    pub fn groups(&self) -> impl Iterator<Item = &GroupRoute> {
        self.groups.values()
    }

    pub(crate) fn has_group(&self, source: NodeId, group: NodeId) -> bool {
        self.groups.contains_key(&(group, source))
    }

    /// The destinations with their next hops.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &[NextHop])> {
        self.hops.iter().map(|(&node, hops)| (node, &hops[..]))
    }

    pub(crate) fn hops_to(&self, destination: NodeId) -> &[NextHop] {
        self.hops.get(&destination).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn leads_to(&self, destination: NodeId) -> bool {
        self.hops.contains_key(&destination)
    }

    pub(super) fn check(
        &self,
        own: NodeId,
        is_link: impl Fn(LinkId) -> bool,
    ) -> Result<(), RouteError> {
        if self.hops.len() > MAX_DESTINATIONS {
            return Err(RouteError::TooManyDestinations(self.hops.len()));
        }
        for (&node, hops) in &self.hops {
            if node == own {
                return Err(RouteError::Own(node));
            }
            if node.is_group() {
                return Err(RouteError::Group(node));
            }
            if hops.len() > MAX_PATHS {
                return Err(RouteError::TooManyHops { destination: node, hops: hops.len() });
            }
            let unknown = hops.iter().find_map(|hop| match hop.via {
                Via::Link(link) if !is_link(link) => Some(link),
                _ => None,
            });
            if let Some(link) = unknown {
                return Err(RouteError::UnknownLink { destination: node, link });
            }
        }
        if self.groups.len() > MAX_GROUP_ENTRIES {
            return Err(RouteError::TooManyGroups(self.groups.len()));
        }
        self.groups.values().try_for_each(|route| route.check(own, &is_link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;

    const OWN: NodeId = NodeId(1);
    const FAR: NodeId = NodeId(9);

    #[test]
    fn invalid_route_sets_are_refused_with_a_reason() {
        let known = |link: LinkId| link.0 < 100;
        let check = |routes: RouteSet| routes.check(OWN, known).map_err(|e| e.to_string());
        assert_eq!(check(RouteSet::new().to(FAR, LinkId(3)).to(FAR, LinkId(3))), Ok(()));
        let error = check(RouteSet::new().to(FAR, LinkId(100))).unwrap_err();
        assert_eq!(error, "the route to node 9 leads over link 100, which this node does not have");
        let error = check(RouteSet::new().to(OWN, LinkId(3))).unwrap_err();
        assert_eq!(error, "node 1 is this node itself: it needs no route");
        let many = |count| (0..count).fold(RouteSet::new(), |set, link| set.to(FAR, LinkId(link)));
        assert_eq!(check(many(MAX_PATHS as u64)), Ok(()));
        assert!(check(many(MAX_PATHS as u64 + 1)).unwrap_err().contains("17 next hops"));
        let wide =
            |count| (2..2 + count).fold(RouteSet::new(), |set, n| set.to(NodeId(n), LinkId(1)));
        assert_eq!(check(wide(MAX_DESTINATIONS as u32)), Ok(()));
        assert!(check(wide(MAX_DESTINATIONS as u32 + 1)).is_err());
    }

    #[test]
    fn invalid_routes_of_groups_are_refused_with_a_reason() {
        const GROUP: NodeId = NodeId(0xe000_0001);
        let check = |route: GroupRoute| {
            let known = |link: LinkId| link.0 < 100;
            RouteSet::new().group(route).check(OWN, known).map_err(|error| error.to_string())
        };
        let route = || GroupRoute::new(FAR, GROUP).from(LinkId(1));
        assert_eq!(check(route().to(LinkId(2)).to(Fingerprint([3; 32]))), Ok(()));
        assert_eq!(check(GroupRoute::new(OWN, GROUP).to(LinkId(2))), Ok(()));
        for (route, reason) in [
            (GroupRoute::new(FAR, FAR).from(LinkId(1)), "node 9 is no group"),
            (GroupRoute::new(GROUP, GROUP).from(LinkId(1)), "is a group"),
            (GroupRoute::new(FAR, GROUP), "needs the neighbour"),
            (GroupRoute::new(OWN, GROUP).from(LinkId(1)), "none if this node is the source"),
            (route().to(LinkId(100)), "link 100, which this node does not have"),
            (route().to(LinkId(2)).to(LinkId(2)), "two branches"),
            ((0..17).fold(route(), |route, link| route.to(LinkId(link))), "17 next hops"),
        ] {
            let error = check(route).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let routes = RouteSet::new().to(GROUP, LinkId(1));
        assert_eq!(routes.check(OWN, |_| true), Err(RouteError::Group(GROUP)));
        let many = |count| {
            (2..2 + count).fold(RouteSet::new(), |set, source| {
                set.group(GroupRoute::new(NodeId(source), GROUP).from(LinkId(1)))
            })
        };
        assert_eq!(many(MAX_GROUP_ENTRIES as u32).check(OWN, |_| true), Ok(()));
        assert!(many(MAX_GROUP_ENTRIES as u32 + 1).check(OWN, |_| true).is_err());
    }
}
