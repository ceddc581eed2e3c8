//! Why a set of routes is not valid.

use bats_proto::relay::{MAX_GROUP_ENTRIES, MAX_PATHS};
use bats_proto::wire::flow::NodeId;

use super::link::LinkId;

/// Most destinations of a [`RouteSet`](super::RouteSet).
pub const MAX_DESTINATIONS: usize = 16_384;

/// Why a set of routes was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// A route leads over a link that the node does not have.
    #[error("the route to {destination} leads over {link}, which this node does not have")]
    UnknownLink {
        /// The destination.
        destination: NodeId,
        /// The link.
        link: LinkId,
    },
    /// A route leads to the node itself.
    #[error("{0} is this node itself: it needs no route")]
    Own(NodeId),
    /// A destination has too many next hops.
    #[error("the route to {destination} has {hops} next hops, and at most {MAX_PATHS} are used")]
    TooManyHops {
        /// The destination.
        destination: NodeId,
        /// Number of next hops.
        hops: usize,
    },
    /// A group has no next hops as a node has, and cannot be a source.
    #[error("{0} is a group: it can only be the group of a GroupRoute")]
    Group(NodeId),
    /// A route of a group is for a node.
    #[error("{0} is no group: groups are the IDs of 224.0.0.0/4")]
    NotAGroup(NodeId),
    /// The route of this source to this group needs the neighbour that leads to the source, unless this node is the
    /// source.
    #[error(
        "the route of {0} to {1} needs the neighbour that packets come from, and none if this node \
         is the source"
    )]
    Incoming(NodeId, NodeId),
    /// Two branches of a group use a link.
    #[error("two branches of {group} use {link}")]
    SharedLink {
        /// The group.
        group: NodeId,
        /// The link.
        link: LinkId,
    },
    /// The set has too many routes of groups.
    #[error("{0} routes of groups are more than the {MAX_GROUP_ENTRIES} that a node keeps")]
    TooManyGroups(usize),
    /// The node was built without [`recoding`](super::NodeBuilder::recoding), so that it cannot repair the branches
    /// of groups.
    #[error("a node that does not recode has no routes of groups")]
    NotRecoding,
    /// The set has too many destinations.
    #[error("{0} destinations are more than the {MAX_DESTINATIONS} that a node keeps")]
    TooManyDestinations(usize),
    /// The node was shut down.
    #[error("the node is shut down")]
    Closed,
}
