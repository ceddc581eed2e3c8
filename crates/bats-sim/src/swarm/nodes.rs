//! The nodes of a network with relays.

use bats_proto::relay::RelayConfig;

/// Client, relays and server.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// The two nodes of each link. Node 0 is the client, the node with the largest index the
    /// server.
    pub edges: Vec<(usize, usize)>,
    /// Relay configuration of all nodes.
    pub relay: RelayConfig,
}

impl Nodes {
    /// Index of the server.
    pub fn last(&self) -> usize {
        self.edges.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(0)
    }

    /// Number of relays.
    pub fn relays(&self) -> usize {
        self.last().saturating_sub(1)
    }

    /// Indices of the links of a node.
    pub fn of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let edges = self.edges.iter().enumerate();
        edges.filter(move |(_, (a, b))| *a == node || *b == node).map(|(link, _)| link)
    }
}
