//! Sets of links: the ends and the settings of all links of a network.

use crate::settings::Link;

/// Maximum number of networks of one test.
pub(super) const MAX_NETWORKS: usize = 1_000;

/// The ends and the settings of the links.
pub(super) type LinkSet = (Vec<(u32, u32)>, Vec<Link>);

/// The ends of the links of a chain of nodes.
pub(super) fn chain(nodes: u32) -> Vec<(u32, u32)> {
    (0..).zip(1..nodes).collect()
}
