//! Routes of groups: which neighbours packets of a source to a group come from and go to.

use std::collections::BTreeSet;

use bats_proto::relay::MAX_PATHS;
use bats_proto::wire::flow::NodeId;

use super::link::LinkId;
use super::route_error::RouteError;
use super::via::Via;

/// How packets of a source to a group pass through this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRoute {
    source: NodeId,
    group: NodeId,
    incoming: Vec<Via>,
    branches: Vec<Vec<Via>>,
}

impl GroupRoute {
    /// Packets of this source to this group: one of 224.0.0.0/4.
    #[must_use]
    pub fn new(source: NodeId, group: NodeId) -> Self {
        Self { source, group, incoming: Vec::new(), branches: Vec::new() }
    }

    /// Accepts packets from a link or a neighbour: the one that leads to the source. Packets from others are dropped.
    /// The source itself has none.
    #[must_use]
    pub fn from(mut self, via: impl Into<Via>) -> Self {
        self.incoming.push(via.into());
        self
    }

    /// Sends packets also to this neighbour, or over this link. Of several links with a neighbour the first
    /// responsive one is used.
    #[must_use]
    pub fn to(self, via: impl Into<Via>) -> Self {
        self.to_first([via.into()])
    }

    /// Sends packets also over the first responsive one of these links, which are in order of preference and lead to
    /// the same neighbour.
    #[must_use]
    pub fn to_first(mut self, vias: impl IntoIterator<Item = Via>) -> Self {
        self.branches.push(vias.into_iter().collect());
        self
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> NodeId {
        self.source
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> NodeId {
        self.group
    }

    /// The neighbours that packets are accepted from.
    #[must_use]
    pub fn incoming(&self) -> &[Via] {
        &self.incoming
    }

    /// The neighbours that packets are sent to, each with its links in order of preference.
    pub fn branches(&self) -> impl Iterator<Item = &[Via]> {
        self.branches.iter().map(Vec::as_slice)
    }

    fn vias(&self) -> impl Iterator<Item = &Via> {
        self.incoming.iter().chain(self.branches.iter().flatten())
    }

    /// Whether it names this link or neighbour.
    pub(super) fn concerns(&self, is_concerned: impl Fn(&Via) -> bool) -> bool {
        self.vias().any(is_concerned)
    }

    pub(super) fn check(
        &self,
        own: NodeId,
        is_link: impl Fn(LinkId) -> bool,
    ) -> Result<(), RouteError> {
        let (source, group) = (self.source, self.group);
        if !group.is_group() {
            return Err(RouteError::NotAGroup(group));
        }
        if source.is_group() {
            return Err(RouteError::Group(source));
        }
        if (source == own) != self.incoming.is_empty() {
            return Err(RouteError::Incoming(source, group));
        }
        let sizes = self.branches.iter().map(Vec::len);
        let most = sizes.chain([self.incoming.len(), self.branches.len()]).max().unwrap_or(0);
        if most > MAX_PATHS {
            return Err(RouteError::TooManyHops { destination: group, hops: most });
        }
        for via in self.vias() {
            if let Via::Link(link) = *via
                && !is_link(link)
            {
                return Err(RouteError::UnknownLink { destination: group, link });
            }
        }
        let links = self.branches.iter().flatten().filter_map(|via| match via {
            Via::Link(link) => Some(*link),
            Via::Neighbour(_) => None,
        });
        let mut known = BTreeSet::new();
        for link in links {
            if !known.insert(link) {
                return Err(RouteError::SharedLink { group, link });
            }
        }
        Ok(())
    }
}
