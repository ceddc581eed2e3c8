//! Routes of the kernel. A node's ID is an IPv4 address: the kernel's forwarding table (FIB) says which
//! gateway leads to it, and a link to that gateway is the next hop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::change::MAX_HOPS;
use crate::local::is_link_local;
use crate::node_id::NodeId;
use crate::plan::{Fingerprint, Hop, Plan};
use crate::reconcile::{LeftToNeighbours, State};

/// Maximum number of host routes of the kernel that are looked at, in addition to those to peers: each costs
/// a call at each change of the kernel's routes.
pub const MAX_HOSTS: usize = 4_096;

/// A next hop of a route of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FibHop {
    /// The gateway; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Index of the interface.
    pub interface: u32,
    /// Whether the interface is up and not `linkdown`.
    pub is_up: bool,
}

/// A route of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FibRoute {
    /// Length of its prefix: 32 for a host route of IPv4.
    pub prefix_length: u8,
    /// Its next hops: several with equal-cost multipath (ECMP).
    pub hops: Vec<FibHop>,
}

/// Why the kernel has no route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// No route has a prefix with the address.
    Missing,
    /// The type of the route is `unreachable`.
    Unreachable,
    /// The type of the route is `blackhole`.
    Blackhole,
    /// The type of the route is `prohibit`.
    Prohibited,
    /// It is an address of this host.
    Local,
    /// A route of another type, such as `broadcast`.
    NotUnicast,
    /// The parser cannot read the kernel's answer.
    Unreadable,
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the kernel has no route",
            Self::Unreachable => "the kernel's route is `unreachable`",
            Self::Blackhole => "the kernel's route is `blackhole`",
            Self::Prohibited => "the kernel's route is `prohibit`",
            Self::Local => "it is an address of this host",
            Self::NotUnicast => "the kernel's route is not `unicast`",
            Self::Unreadable => "the kernel's answer cannot be read",
        })
    }
}

/// The parts of the kernel's forwarding table that a node needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fib {
    /// The answers for the addresses of [`wanted`].
    pub answers: BTreeMap<IpAddr, Result<FibRoute, NoRoute>>,
    /// The host routes of IPv4 to other addresses: these may be nodes that are no peers of this one, and
    /// to which it relays.
    pub hosts: BTreeMap<Ipv4Addr, FibRoute>,
    /// Host routes that are not looked at, because there are more than [`MAX_HOSTS`].
    pub left_out: usize,
    /// Addresses for which the answer cannot be read.
    pub unreadable: usize,
    /// Indexes of the interfaces of [`wanted_interfaces`] that exist.
    pub interfaces: BTreeMap<String, u32>,
}

/// Why a route of the kernel, or one of its next hops, is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// There is no route.
    NoRoute(NoRoute),
    /// The interface is `linkdown`: its peer or cable is gone.
    LinkDown(FibHop),
    /// No link leads to the gateway, or, without a gateway, to the node over this interface.
    NoLink(FibHop),
    /// A route has more links than a node uses.
    TooMany(FibHop),
}

impl Ignored {
    /// The next hop, if the reason concerns one.
    #[must_use]
    pub fn hop(&self) -> Option<FibHop> {
        match *self {
            Self::NoRoute(_) => None,
            Self::LinkDown(hop) | Self::NoLink(hop) | Self::TooMany(hop) => Some(hop),
        }
    }
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute(reason) => reason.fmt(f),
            Self::LinkDown(_) => f.write_str("the interface is `linkdown`"),
            Self::NoLink(FibHop { gateway: Some(_), .. }) => {
                f.write_str("no link has the gateway as its remote address")
            }
            Self::NoLink(_) => f.write_str("no link with this node leads over the interface"),
            Self::TooMany(_) => write!(f, "a route has at most {MAX_HOPS} links"),
        }
    }
}

/// The routes that follow from those of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelRoutes {
    /// Next hops to nodes; all have tier 0.
    pub routes: BTreeMap<NodeId, BTreeMap<Hop, u8>>,
    /// What is not used of the routes to peers, and why.
    pub ignored: BTreeMap<NodeId, Vec<Ignored>>,
}

/// An end of a link at a neighbour.
#[derive(Clone)]
struct End {
    hop: Hop,
    fingerprint: Fingerprint,
    address: IpAddr,
    scope: u32,
    /// Name of the interface that it is bound to.
    interface: Option<String>,
}

impl End {
    fn is_at(&self, fib: &Fib, gateway: IpAddr, interface: u32) -> bool {
        self.address == gateway
            && (!is_link_local(gateway) || self.scope == interface)
            && self.is_bound_to(fib, interface).unwrap_or(true)
    }

    /// Whether it sends to the neighbour over this interface.
    fn is_over(&self, fib: &Fib, interface: u32) -> bool {
        if is_link_local(self.address) {
            return self.scope == interface && self.is_bound_to(fib, interface).unwrap_or(true);
        }
        if let Some(is_bound) = self.is_bound_to(fib, interface) {
            return is_bound;
        }
        let route = fib.answers.get(&self.address).and_then(|answer| answer.as_ref().ok());
        route.is_some_and(|route| route.hops.iter().any(|hop| hop.interface == interface))
    }

    /// Whether it is bound to this interface; `None` if it is bound to none.
    fn is_bound_to(&self, fib: &Fib, interface: u32) -> Option<bool> {
        let name = self.interface.as_ref()?;
        Some(fib.interfaces.get(name) == Some(&interface))
    }
}

/// The ends by address and by neighbour: there may be thousands of routes and of links.
#[derive(Default)]
struct Ends {
    by_address: BTreeMap<IpAddr, Vec<End>>,
    by_neighbour: BTreeMap<Fingerprint, Vec<End>>,
}

impl Ends {
    fn new(all: Vec<End>) -> Self {
        let mut ends = Self::default();
        for end in all {
            ends.by_neighbour.entry(end.fingerprint).or_default().push(end.clone());
            ends.by_address.entry(end.address).or_default().push(end);
        }
        ends
    }

    fn at(&self, address: IpAddr) -> impl Iterator<Item = &End> {
        self.by_address.get(&address).into_iter().flatten()
    }

    fn of(&self, neighbour: Option<Fingerprint>) -> impl Iterator<Item = &End> {
        neighbour.and_then(|print| self.by_neighbour.get(&print)).into_iter().flatten()
    }
}

/// The ends of all links with neighbours.
fn ends(plan: &Plan, state: &State) -> Vec<End> {
    let left = LeftToNeighbours::new(plan, state);
    let opened = plan.links.iter().filter(|(_, link)| !left.contains(link));
    let opened = opened.map(|(name, link)| End {
        hop: Hop::Link(name.clone()),
        fingerprint: link.fingerprint,
        address: link.remote.ip().to_canonical(),
        scope: link.scope(),
        interface: link.interface.clone(),
    });
    let accepted = state.accepted.iter().map(|(&number, link)| End {
        hop: Hop::Accepted(number),
        fingerprint: link.fingerprint,
        address: link.address,
        scope: link.scope,
        interface: None,
    });
    opened.chain(accepted).collect()
}

/// The addresses about which [`KernelRoutes::find`] needs to know: peers and ends of links. Link-local ones
/// have no route of their own.
#[must_use]
pub fn wanted(plan: &Plan, state: &State) -> BTreeSet<IpAddr> {
    let peers = plan.peers.keys().map(|id| IpAddr::V4(id.0));
    let ends = ends(plan, state).into_iter().map(|end| end.address);
    peers.chain(ends).filter(|address| !is_link_local(*address)).collect()
}

/// The interfaces whose indexes [`KernelRoutes::find`] needs to know: those that links are bound to.
#[must_use]
pub fn wanted_interfaces(plan: &Plan) -> BTreeSet<String> {
    plan.links.values().filter_map(|link| link.interface.clone()).collect()
}

impl KernelRoutes {
    /// The routes to the peers of a plan and to other nodes to which the kernel has host routes. `state` has
    /// the links that neighbours have opened.
    #[must_use]
    pub fn find(plan: &Plan, state: &State, fib: &Fib) -> Self {
        let ends = Ends::new(ends(plan, state));
        let mut found = Self::default();
        for &id in plan.peers.keys() {
            match fib.answers.get(&IpAddr::V4(id.0)) {
                Some(Ok(route)) => {
                    let ignored = found.add(plan, fib, &ends, id, route);
                    if !ignored.is_empty() {
                        found.ignored.insert(id, ignored);
                    }
                }
                Some(Err(reason)) => {
                    found.ignored.insert(id, vec![Ignored::NoRoute(*reason)]);
                }
                // The kernel has not been asked yet.
                None => {}
            }
        }
        let others = fib.hosts.iter().map(|(&address, route)| (NodeId(address), route));
        for (id, route) in others.take(MAX_HOSTS) {
            if id != plan.id && !plan.peers.contains_key(&id) {
                // Most host routes have nothing to do with nodes, so it is no news if one is not used.
                found.add(plan, fib, &ends, id, route);
            }
        }
        found
    }

    /// Adds the links of a route. Returns what is not used of it.
    fn add(
        &mut self,
        plan: &Plan,
        fib: &Fib,
        ends: &Ends,
        to: NodeId,
        route: &FibRoute,
    ) -> Vec<Ignored> {
        let print = plan.peers.get(&to).map(|peer| peer.fingerprint);
        let mut over = BTreeMap::new();
        let mut ignored = Vec::new();
        for &hop in &route.hops {
            if !hop.is_up {
                ignored.push(Ignored::LinkDown(hop));
                continue;
            }
            let links: BTreeSet<Hop> = match hop.gateway.map(|gateway| gateway.to_canonical()) {
                Some(gateway) => {
                    let at = ends.at(gateway).filter(|end| end.is_at(fib, gateway, hop.interface));
                    at.map(|end| end.hop.clone()).collect()
                }
                None => {
                    let own = ends.at(IpAddr::V4(to.0)).chain(ends.of(print));
                    let over = own.filter(|end| end.is_over(fib, hop.interface));
                    over.map(|end| end.hop.clone()).collect()
                }
            };
            if links.is_empty() {
                ignored.push(Ignored::NoLink(hop));
            }
            for link in links {
                if over.len() < MAX_HOPS {
                    over.insert(link, 0);
                } else if !over.contains_key(&link) {
                    ignored.push(Ignored::TooMany(hop));
                    break;
                }
            }
        }
        if !over.is_empty() {
            self.routes.insert(to, over);
        }
        ignored
    }
}
