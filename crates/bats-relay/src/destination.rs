//! Where the packets of a flow go.

use bats_wire::flow::{FlowKey, NodeId};

/// Where the packets of a flow go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// To a node, over the routes that lead there.
    Node(NodeId),
    /// To a neighbour, over the links with it alone: those of direct sessions.
    Neighbour(NodeId),
}

impl Destination {
    /// The node.
    #[must_use]
    pub fn node(self) -> NodeId {
        match self {
            Self::Node(node) | Self::Neighbour(node) => node,
        }
    }

    /// Whether it is a neighbour, over the links with it alone.
    #[inline]
    #[must_use]
    pub fn is_neighbour(self) -> bool {
        matches!(self, Self::Neighbour(_))
    }
}

impl From<NodeId> for Destination {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

impl From<FlowKey> for Destination {
    #[inline]
    fn from(key: FlowKey) -> Self {
        match key.is_direct() {
            true => Self::Neighbour(key.destination),
            false => Self::Node(key.destination),
        }
    }
}
