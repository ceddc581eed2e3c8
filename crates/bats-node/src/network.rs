//! What the core needs of the network, so that the same core runs over sockets and in a simulation.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::host::Progress;
use crate::node_id::NodeId;
use crate::plan::{Fingerprint, Link, NeighbourPolicy};

/// A link, as the network reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// Its number, which is never used again.
    pub number: u64,
    /// Whether this node has opened it.
    pub is_opened_here: bool,
    /// How far it is.
    pub progress: Progress,
    /// Address of the neighbour.
    pub remote: SocketAddr,
    /// The neighbour's certificate, once it was established.
    pub fingerprint: Option<Fingerprint>,
    /// Attempts and established connections that have ended.
    pub failures: u64,
}

/// A next hop by the number of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// The link with this number.
    Link(u64),
    /// All links with the neighbour that has this certificate.
    Neighbour(Fingerprint),
}

/// Links, admission and routes of a node.
pub trait Network {
    /// The links that this node has opened, and those of neighbours that are established.
    fn links(&self) -> Vec<LinkReport>;

    /// A link by its number, if there is one.
    fn link(&self, number: u64) -> Option<LinkReport>;

    /// Allows sessions with a node, with this certificate and no other; or none, without one.
    fn set_peer(&mut self, node: NodeId, fingerprint: Option<Fingerprint>);

    /// Accepts links of a neighbour, under this policy, which also applies to its established links.
    fn admit(&mut self, neighbour: Fingerprint, policy: NeighbourPolicy);

    /// Accepts no more links of a neighbour, and closes those that it has opened.
    fn refuse(&mut self, neighbour: Fingerprint);

    /// Opens a link, which is dialled again whenever it ends. Returns its number.
    ///
    /// # Errors
    /// The link cannot be opened, in words.
    fn open(&mut self, link: &Link, policy: NeighbourPolicy) -> Result<u64, String>;

    /// Sets what a neighbour may do on a link that this node has opened.
    fn set_policy(&mut self, number: u64, policy: NeighbourPolicy);

    /// Closes a link.
    fn close(&mut self, number: u64);

    /// Replaces all routes.
    ///
    /// # Errors
    /// The routes are not valid, in words; the old ones stay.
    fn replace_routes(
        &mut self,
        routes: &BTreeMap<NodeId, BTreeMap<Via, u8>>,
    ) -> Result<(), String>;
}
