//! The actions that change a node from its present state to the wanted state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::node_id::NodeId;
use crate::plan::{Fingerprint, Hop, Link, NeighbourPolicy, Plan};

/// A link that a neighbour has opened and that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The neighbour's certificate.
    pub fingerprint: Fingerprint,
    /// Its address.
    pub address: IpAddr,
    /// The interface of a link-local address of IPv6, otherwise 0.
    pub scope: u32,
}

/// The present state of a node. It changes by [`State::apply`] for each action, and by events of links that
/// neighbours open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Links that this node has opened.
    pub links: BTreeMap<String, Link>,
    /// Links that this node has opened and has to open again.
    pub stale: BTreeSet<String>,
    /// Links that neighbours have opened and that are up, by number.
    pub accepted: BTreeMap<u64, Accepted>,
    /// Admitted neighbours and their policies.
    pub neighbours: BTreeMap<Fingerprint, NeighbourPolicy>,
    /// Certificates of the nodes with which there may be sessions.
    pub peers: BTreeMap<NodeId, Fingerprint>,
    /// Routes.
    pub routes: BTreeMap<NodeId, BTreeMap<Hop, u8>>,
}

/// A step towards the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allow sessions with this node, with this certificate and no other.
    AdmitPeer(NodeId, Fingerprint),
    /// Allow no more sessions with this node, and end its open sessions.
    DismissPeer(NodeId),
    /// Accept links of this neighbour, under this policy.
    AdmitNeighbour(Fingerprint, NeighbourPolicy),
    /// Accept no more links of this neighbour, and close those that it has opened.
    RefuseNeighbour(Fingerprint),
    /// Open a link.
    OpenLink(String, Link),
    /// Close a link.
    CloseLink(String),
    /// Replace all routes.
    SetRoutes(BTreeMap<NodeId, BTreeMap<Hop, u8>>),
}

impl State {
    /// Names of links for people: a link that a neighbour has opened has its address.
    pub fn names<'a>(&self, hops: impl IntoIterator<Item = &'a Hop>) -> Vec<String> {
        let name = |hop: &Hop| match hop {
            Hop::Link(name) => name.clone(),
            Hop::Neighbour(_) => "a neighbour".to_owned(),
            Hop::Accepted(number) => match self.accepted.get(number) {
                Some(link) => link.address.to_string(),
                None => format!("link {number}"),
            },
        };
        hops.into_iter().map(name).collect()
    }

    /// Records an action that was carried out.
    pub fn apply(&mut self, action: &Action) {
        match action.clone() {
            Action::AdmitPeer(node, print) => drop(self.peers.insert(node, print)),
            Action::DismissPeer(node) => drop(self.peers.remove(&node)),
            Action::AdmitNeighbour(print, policy) => {
                self.neighbours.insert(print, policy);
            }
            Action::RefuseNeighbour(print) => {
                self.neighbours.remove(&print);
                self.accepted.retain(|_, link| link.fingerprint != print);
            }
            Action::OpenLink(name, link) => drop(self.links.insert(name, link)),
            Action::CloseLink(name) => {
                self.links.remove(&name);
                self.stale.remove(&name);
            }
            Action::SetRoutes(routes) => self.routes = routes,
        }
    }
}

/// The links of a plan that this node lets its neighbours open. If both ends open one between the same hosts,
/// the link of the smaller fingerprint stays. Two links would send over one path with two congestion
/// controllers. A link that is bound to an interface is left to none: only the end that opens it keeps to the
/// interface.
pub(crate) struct LeftToNeighbours<'a> {
    plan: &'a Plan,
    /// Neighbour, address and scope of each accepted link: there may be thousands of both kinds of links.
    accepted: BTreeSet<(Fingerprint, IpAddr, u32)>,
}

impl<'a> LeftToNeighbours<'a> {
    pub(crate) fn new(plan: &'a Plan, state: &State) -> Self {
        let ends = state.accepted.values().map(|link| (link.fingerprint, link.address, link.scope));
        Self { plan, accepted: ends.collect() }
    }

    pub(crate) fn contains(&self, link: &Link) -> bool {
        let end = (link.fingerprint, link.remote.ip().to_canonical(), link.scope());
        link.interface.is_none()
            && self.plan.fingerprint > link.fingerprint
            && self.plan.neighbours.contains_key(&link.fingerprint)
            && self.accepted.contains(&end)
    }
}

/// Returns the actions in this order: additions, then routes, then removals. So a destination that has a
/// route before and after also has one in between.
///
/// A link with other options under the same name is another link: it is closed and opened, as a stale one is. Between
/// the two, routes over it are missing unless they have another next hop.
#[must_use]
pub fn reconcile(plan: &Plan, state: &State) -> Vec<Action> {
    let mut actions = Vec::new();
    for (&node, peer) in &plan.peers {
        if state.peers.get(&node) != Some(&peer.fingerprint) {
            if state.peers.contains_key(&node) {
                actions.push(Action::DismissPeer(node));
            }
            actions.push(Action::AdmitPeer(node, peer.fingerprint));
        }
    }
    for (&print, &policy) in &plan.neighbours {
        if state.neighbours.get(&print) != Some(&policy) {
            actions.push(Action::AdmitNeighbour(print, policy));
        }
    }
    let left = LeftToNeighbours::new(plan, state);
    let links: BTreeMap<&String, &Link> =
        plan.links.iter().filter(|(_, link)| !left.contains(link)).collect();
    let changed: BTreeSet<&String> = state
        .links
        .iter()
        .filter(|(name, link)| {
            links.get(name).is_some_and(|wanted| wanted != link || state.stale.contains(*name))
        })
        .map(|(name, _)| name)
        .collect();
    let routes = routes_over(plan, &links);
    if !changed.is_empty() {
        // Routes over a changed link end before the link does.
        let mut without = state.routes.clone();
        for hops in without.values_mut() {
            hops.retain(|hop, _| !matches!(hop, Hop::Link(name) if changed.contains(name)));
        }
        without.retain(|_, hops| !hops.is_empty());
        if without != state.routes {
            actions.push(Action::SetRoutes(without));
        }
        actions.extend(changed.iter().map(|name| Action::CloseLink((*name).clone())));
    }
    for (&name, &link) in &links {
        if state.links.get(name) != Some(link) || state.stale.contains(name) {
            actions.push(Action::OpenLink(name.clone(), link.clone()));
        }
    }
    let last = actions.iter().rev().find_map(|action| match action {
        Action::SetRoutes(routes) => Some(routes),
        _ => None,
    });
    if last.unwrap_or(&state.routes) != &routes {
        actions.push(Action::SetRoutes(routes));
    }
    for name in state.links.keys().filter(|name| !links.contains_key(name)) {
        actions.push(Action::CloseLink(name.clone()));
    }
    for &print in state.neighbours.keys().filter(|print| !plan.neighbours.contains_key(*print)) {
        actions.push(Action::RefuseNeighbour(print));
    }
    for &node in state.peers.keys().filter(|node| !plan.peers.contains_key(node)) {
        actions.push(Action::DismissPeer(node));
    }
    actions
}

/// The routes of the plan. Those over a link that the neighbour opens instead, or to a host whose address is not
/// known, lead over the neighbour.
fn routes_over(
    plan: &Plan,
    links: &BTreeMap<&String, &Link>,
) -> BTreeMap<NodeId, BTreeMap<Hop, u8>> {
    let hop_over = |hop: &Hop| match hop {
        Hop::Link(name) if !links.contains_key(name) => {
            let link = plan.links.get(name).map(|link| link.fingerprint);
            let host = || plan.hosts.get(name).map(|host| host.fingerprint);
            link.or_else(host).map(Hop::Neighbour)
        }
        hop => Some(hop.clone()),
    };
    let mut routes = BTreeMap::new();
    for (&to, hops) in &plan.routes {
        let mut over: BTreeMap<Hop, u8> = BTreeMap::new();
        for (hop, &tier) in hops {
            if let Some(hop) = hop_over(hop) {
                let least = over.entry(hop).or_insert(tier);
                *least = tier.min(*least);
            }
        }
        if !over.is_empty() {
            routes.insert(to, over);
        }
    }
    routes
}
