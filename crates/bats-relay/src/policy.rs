//! The policy of a relay for the packets of a neighbour.

use std::collections::BTreeSet;

use bats_wire::flow::{FlowKey, NodeId};

use super::rate_limit::RateLimit;

/// The packets that a relay accepts from a link. The default accepts all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkPolicy {
    /// Whether packets may be forwarded to other nodes. If not, the neighbour reaches only this node.
    pub transit: bool,
    /// Nodes that packets may come from; `None` for all. If these are the nodes behind a neighbour, it cannot
    /// use the IDs of others.
    pub sources: Option<BTreeSet<NodeId>>,
    /// Nodes that packets may go to, this one included; `None` for all.
    pub destinations: Option<BTreeSet<NodeId>>,
    /// The node that the owner has tied to the certificate of the link's other end. Direct sessions with this node, and
    /// with no other, use the link; `None` for no direct sessions.
    pub neighbour: Option<NodeId>,
    /// How much is forwarded of what the neighbour sends; `None` for all. What is beyond it waits here,
    /// and the neighbour's credit for the flows shrinks.
    pub rate: Option<RateLimit>,
}

impl Default for LinkPolicy {
    fn default() -> Self {
        Self { transit: true, sources: None, destinations: None, neighbour: None, rate: None }
    }
}

impl LinkPolicy {
    /// Whether a packet of this flow may enter; `here` if this node is its destination, or a member of the group that
    /// is. A direct flow ends here and begins at the neighbour itself, so that no group has direct flows.
    pub(super) fn allows(&self, key: FlowKey, here: bool) -> bool {
        let is_direct = here && !key.destination.is_group() && self.neighbour == Some(key.source);
        (!key.is_direct() || is_direct)
            && (here || self.transit)
            && self.sources.as_ref().is_none_or(|nodes| nodes.contains(&key.source))
            && self.destinations.as_ref().is_none_or(|nodes| nodes.contains(&key.destination))
    }
}
