//! The configuration of each node, and which nodes reach each other then. It is computed from the configurations alone, without
//! the core of the node.

use std::collections::{BTreeMap, BTreeSet};

use openbats::node::virtual_time::fingerprint;

/// Fingerprint of the certificate of a node.
pub(super) fn print(node: usize) -> [u8; 32] {
    fingerprint(&[node as u8]).0
}

/// An edge between two nodes, over which either may open a link.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) ends: [usize; 2],
    pub(super) delay_ms: u64,
    pub(super) loss: f64,
    pub(super) is_cut: bool,
}

impl Edge {
    /// The end of a node, 0 or 1.
    pub(super) fn side(&self, node: usize) -> Option<usize> {
        self.ends.iter().position(|end| *end == node)
    }
}

/// The configuration of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeConfig {
    /// The ID that it claims is that of this node.
    pub(super) claims: usize,
    /// Whether its routes are those of its kernel.
    pub(super) follows_kernel: bool,
    /// Edges over which it opens a link.
    pub(super) dials: BTreeSet<usize>,
    /// Admitted neighbours, and whether their packets go on.
    pub(super) transit: BTreeMap<usize, bool>,
    /// Nodes with which it has sessions.
    pub(super) peers: BTreeSet<usize>,
    /// Edges to other nodes.
    pub(super) routes: BTreeMap<usize, BTreeSet<usize>>,
}

/// Whether messages get from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Each path that the routes allow leads there.
    All,
    /// Some do.
    Some,
    /// None does.
    None,
}

/// All nodes and edges. The last node may be an impostor.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) nodes: Vec<NodeConfig>,
    pub(super) edges: Vec<Edge>,
}

impl World {
    /// Whether a route of a node over an edge leads over an established link. A route of the file over an own link
    /// does not use the neighbour's, unless it is left to the neighbour: that with the smaller fingerprint stays.
    fn has_link(&self, edge: usize, node: usize) -> bool {
        let next = self.other(edge, node);
        let opens = |from: usize, to: usize| {
            self.nodes[from].dials.contains(&edge) && self.nodes[to].transit.contains_key(&from)
        };
        let config = &self.nodes[node];
        let uses_both =
            config.follows_kernel || !config.dials.contains(&edge) || print(node) > print(next);
        !self.edges[edge].is_cut && (opens(node, next) || uses_both && opens(next, node))
    }

    /// The node at the other end of an edge.
    pub(super) fn other(&self, edge: usize, node: usize) -> usize {
        let [a, b] = self.edges[edge].ends;
        if a == node { b } else { a }
    }

    fn walk(&self, at: usize, to: usize, passed: &mut Vec<usize>) -> Reach {
        if at == to {
            return Reach::All;
        }
        // A node that claims another ID takes the packets for it.
        if self.nodes[at].claims == to || passed.contains(&at) {
            return Reach::None;
        }
        passed.push(at);
        let edges = self.nodes[at].routes.get(&to).into_iter().flatten();
        let (mut good, mut bad) = (0, 0);
        for &edge in edges.filter(|edge| self.has_link(**edge, at)) {
            let next = self.other(edge, at);
            let passes = next == to || self.nodes[next].transit.get(&at) == Some(&true);
            let reach = if passes { self.walk(next, to, passed) } else { Reach::None };
            good += usize::from(reach != Reach::None);
            bad += usize::from(reach != Reach::All);
        }
        passed.pop();
        match (good, bad) {
            (0, _) => Reach::None,
            (_, 0) => Reach::All,
            _ => Reach::Some,
        }
    }

    /// Whether messages of one node reach another: both know each other, and there are paths in both directions.
    pub(super) fn reach(&self, from: usize, to: usize) -> Reach {
        let knows = |one: usize, other: usize| {
            self.nodes[one].peers.contains(&other) && self.nodes[one].claims == one
        };
        if !knows(from, to) || !knows(to, from) {
            return Reach::None;
        }
        match [self.walk(from, to, &mut Vec::new()), self.walk(to, from, &mut Vec::new())] {
            [Reach::All, Reach::All] => Reach::All,
            [Reach::None, _] | [_, Reach::None] => Reach::None,
            _ => Reach::Some,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_needs_peers_links_transit_and_routes_without_loops() {
        let edge = |a, b| Edge { ends: [a, b], delay_ms: 1, loss: 0.0, is_cut: false };
        let node =
            |claims, dials: &[usize], neighbours: &[usize], routes: &[(usize, usize)]| NodeConfig {
                claims,
                dials: dials.iter().copied().collect(),
                transit: neighbours.iter().map(|&node| (node, true)).collect(),
                peers: (0..3).filter(|&peer| peer != claims).collect(),
                routes: routes.iter().map(|&(to, edge)| (to, [edge].into())).collect(),
                ..NodeConfig::default()
            };
        let world = World {
            nodes: vec![
                node(0, &[0], &[1], &[(1, 0), (2, 0)]),
                node(1, &[1], &[0, 2], &[(0, 0), (2, 1)]),
                node(2, &[], &[1], &[(0, 1), (1, 1)]),
            ],
            edges: vec![edge(0, 1), edge(1, 2)],
        };
        let reach = |change: &dyn Fn(&mut World)| {
            let mut world = world.clone();
            change(&mut world);
            world.reach(0, 2)
        };
        assert_eq!(reach(&|_| {}), Reach::All);
        assert_eq!(reach(&|w| w.edges[1].is_cut = true), Reach::None);
        assert_eq!(
            reach(&|w| {
                let _ = w.nodes[1].transit.insert(2, false);
            }),
            Reach::None
        );
        assert_eq!(
            reach(&|w| {
                let _ = w.nodes[2].peers.remove(&0);
            }),
            Reach::None
        );
        assert_eq!(
            reach(&|w| {
                let _ = w.nodes[2].transit.remove(&1);
            }),
            Reach::None,
            "not admitted"
        );
        assert_eq!(
            reach(&|w| drop(w.nodes[1].routes.insert(2, [0].into()))),
            Reach::None,
            "a loop"
        );
        assert_eq!(
            reach(&|w| {
                let _ = w.nodes[1].routes.insert(2, [0, 1].into());
            }),
            Reach::Some
        );
        assert_eq!(reach(&|w| w.nodes[1].claims = 2), Reach::None, "it takes the packets");
    }
}
