//! The wanted state of a node: links, neighbours, peers and routes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use ipnet::IpNet;

use crate::node_id::NodeId;
use crate::owners::{Owners, PrefixConflict};

/// SHA-256 of a node's certificate.
pub type Fingerprint = [u8; 32];

/// A link that this node opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Address of the neighbour.
    pub remote: SocketAddr,
    /// Local address of the link, if the system does not choose it.
    pub local: Option<IpAddr>,
    /// Name of the only interface that it sends through; `None` if the kernel's routes choose.
    pub interface: Option<String>,
    /// The neighbour's certificate.
    pub fingerprint: Fingerprint,
}

impl Link {
    /// The interface of a link-local address of IPv6, otherwise 0.
    pub(crate) fn scope(&self) -> u32 {
        match self.remote {
            SocketAddr::V6(remote) if remote.ip().is_unicast_link_local() => remote.scope_id(),
            _ => 0,
        }
    }
}

/// A host by its name, and a port. Displayed as `NAME:PORT`, with brackets around an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// A host name, or a link-local address of IPv6 with the name of the interface (`fe80::2%eth0`).
    pub name: String,
    /// UDP port.
    pub port: u16,
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// A link that this node opens to a neighbour whose name has to be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// The neighbour's host.
    pub host: HostName,
    /// Local address of the link, if the system does not choose it.
    pub local: Option<IpAddr>,
    /// Name of the only interface that it sends through; `None` if the kernel's routes choose.
    pub interface: Option<String>,
    /// The neighbour's certificate.
    pub fingerprint: Fingerprint,
}

impl HostLink {
    /// The link to this address of the host.
    #[must_use]
    pub fn at(&self, remote: SocketAddr) -> Link {
        let interface = self.interface.clone();
        Link { remote, local: self.local, interface, fingerprint: self.fingerprint }
    }
}

/// What a node forwards for a neighbour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourPolicy {
    /// Whether its packets may go on to other nodes.
    pub transit: bool,
    /// Payload bits per second of these packets, over all links with the neighbour; `None` for all.
    pub rate: Option<NonZeroU64>,
}

impl From<bool> for NeighbourPolicy {
    /// With transit or without, at any rate.
    fn from(transit: bool) -> Self {
        Self { transit, rate: None }
    }
}

/// Another node with which this one has sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its certificate.
    pub fingerprint: Fingerprint,
    /// Addresses in the tunnel that it may own.
    pub prefixes: BTreeSet<IpNet>,
}

/// A next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hop {
    /// The link with this name, which this node opens.
    Link(String),
    /// All links with the neighbour that has this certificate.
    Neighbour(Fingerprint),
    /// The link with this number, which the neighbour has opened.
    Accepted(u64),
}

/// The wanted state of a node. [`check`](Self::check) says whether it is consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// This node.
    pub id: NodeId,
    /// Its certificate.
    pub fingerprint: Fingerprint,
    /// The links that it opens, by name.
    pub links: BTreeMap<String, Link>,
    /// The links that it opens once the address of the neighbour's host is known, by name: no name is in both maps.
    pub hosts: BTreeMap<String, HostLink>,
    /// The neighbours whose links it accepts, and what it forwards for them.
    pub neighbours: BTreeMap<Fingerprint, NeighbourPolicy>,
    /// The nodes with which it has sessions.
    pub peers: BTreeMap<NodeId, Peer>,
    /// Next hops to nodes, with their tiers.
    pub routes: BTreeMap<NodeId, BTreeMap<Hop, u8>>,
}

/// Why a plan is not consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A peer has the ID of this node.
    OwnId(NodeId),
    /// A route leads to this node.
    OwnRoute(NodeId),
    /// Two peers have the same certificate, so each could use the ID of the other.
    SharedCertificate(NodeId, NodeId),
    /// Two peers own the same prefix.
    Prefix(PrefixConflict),
    /// A route leads over a link that does not exist.
    UnknownLink(NodeId, String),
    /// A route leads over a neighbour that is not admitted.
    UnknownNeighbour(NodeId),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnId(id) => write!(f, "{id} is the ID of this node: a peer needs another one"),
            Self::OwnRoute(id) => write!(f, "{id} is this node itself: it needs no route"),
            Self::SharedCertificate(one, other) => write!(
                f,
                "{one} and {other} have the same fingerprint: each node needs its own identity \
                 (`batsd keygen`)"
            ),
            Self::Prefix(conflict) => conflict.fmt(f),
            Self::UnknownLink(to, link) => {
                write!(f, "the route to {to} leads over '{link}', and there is no such link")
            }
            Self::UnknownNeighbour(to) => {
                write!(f, "the route to {to} leads over a neighbour that is not admitted")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// A node without links, peers and routes.
    #[must_use]
    pub fn new(id: NodeId, fingerprint: Fingerprint) -> Self {
        Self {
            id,
            fingerprint,
            links: BTreeMap::new(),
            hosts: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            peers: BTreeMap::new(),
            routes: BTreeMap::new(),
        }
    }

    /// Whether this node opens a link of this name.
    #[must_use]
    pub fn opens(&self, link: &str) -> bool {
        self.links.contains_key(link) || self.hosts.contains_key(link)
    }

    /// The plan with the links to the hosts whose addresses are known; `address` gets the name of the link. Routes over
    /// the other hosts lead over the links that these open themselves.
    #[must_use]
    pub fn with_addresses(&self, address: impl Fn(&str) -> Option<SocketAddr>) -> Self {
        let mut plan = self.clone();
        let known =
            self.hosts.iter().filter_map(|(name, link)| Some((name, link.at(address(name)?))));
        plan.links.extend(known.map(|(name, link)| (name.clone(), link)));
        plan.hosts.retain(|name, _| !plan.links.contains_key(name));
        plan
    }

    /// Checks that no two nodes own an ID, a certificate or a prefix, and that routes lead over
    /// existing links and neighbours. Returns the owners of the prefixes.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn check(&self) -> Result<Owners, PlanError> {
        if self.peers.contains_key(&self.id) {
            return Err(PlanError::OwnId(self.id));
        }
        if self.routes.contains_key(&self.id) {
            return Err(PlanError::OwnRoute(self.id));
        }
        let mut prints = BTreeMap::new();
        let mut owners = Owners::default();
        for (&id, peer) in &self.peers {
            if let Some(other) = prints.insert(peer.fingerprint, id) {
                return Err(PlanError::SharedCertificate(other, id));
            }
            for &prefix in &peer.prefixes {
                owners.add(prefix, id).map_err(PlanError::Prefix)?;
            }
        }
        for (&to, hops) in &self.routes {
            for hop in hops.keys() {
                match hop {
                    Hop::Link(name) if !self.opens(name) => {
                        return Err(PlanError::UnknownLink(to, name.clone()));
                    }
                    Hop::Neighbour(print) if !self.neighbours.contains_key(print) => {
                        return Err(PlanError::UnknownNeighbour(to));
                    }
                    _ => {}
                }
            }
        }
        Ok(owners)
    }
}
