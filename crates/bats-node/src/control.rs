//! Reconciles a network with the plan, and follows the kernel's routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bats_types::Timestamp;

use crate::fib::{Fib, FibRoute, KernelRoutes, NoRoute};
use crate::host::{HostLinkStatus, Progress};
use crate::network::{Network, Via};
use crate::node_id::NodeId;
use crate::plan::{Fingerprint, Hop, HostLink, NeighbourPolicy, Plan};
use crate::reconcile::{Accepted, Action, State, reconcile};

/// Shortest time between two attempts at a link because the kernel has another route to its neighbour.
const DIAL_AGAIN: Duration = Duration::from_secs(1);

/// The present state of the node, with the numbers of its links, and the routes that follow from the kernel's.
#[derive(Clone, Debug, Default)]
pub struct Control {
    state: State,
    /// Numbers of the links that this node has opened, by name.
    numbers: BTreeMap<String, u64>,
    /// When links were opened again because the kernel's route to their neighbours changed.
    dialled: BTreeMap<String, Timestamp>,
    kernel: KernelRoutes,
    fib: Arc<Fib>,
}

/// What a call of [`Control::reconcile`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Nodes whose routes of the kernel have changed, with the names of the links that these lead over now.
    pub kernel_routes: Vec<(NodeId, Vec<String>)>,
    /// Nodes with which there may be no more sessions, or only with another certificate than before.
    pub dismissed: Vec<NodeId>,
    /// What could not be done, in words. The next call tries again.
    pub errors: Vec<String>,
}

impl Control {
    /// The present state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The number of a link that this node has opened.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// The name of a link that this node has opened.
    #[must_use]
    pub fn name(&self, number: u64) -> Option<&str> {
        let named = self.numbers.iter().find(|(_, known)| **known == number);
        named.map(|(name, _)| name.as_str())
    }

    /// The routes that follow from the kernel's, and what they follow from.
    #[must_use]
    pub fn kernel(&self) -> (&KernelRoutes, &Arc<Fib>) {
        (&self.kernel, &self.fib)
    }

    /// Takes over which links neighbours have opened.
    pub fn observe(&mut self, network: &impl Network) {
        let links = network.links().into_iter();
        let accepted = links.filter(|link| !link.is_opened_here && link.progress == Progress::Up);
        self.state.accepted = accepted
            .filter_map(|link| {
                let scope = match link.remote {
                    SocketAddr::V6(remote) if remote.ip().is_unicast_link_local() => {
                        remote.scope_id()
                    }
                    _ => 0,
                };
                let address = link.remote.ip().to_canonical();
                let accepted = Accepted { fingerprint: link.fingerprint?, address, scope };
                Some((link.number, accepted))
            })
            .collect();
    }

    /// The address of the open link of this name, if it is one to this host.
    #[must_use]
    pub fn address_of(&self, name: &str, host: &HostLink) -> Option<SocketAddr> {
        let link = self.state.links.get(name)?;
        (*link == host.at(link.remote)).then_some(link.remote)
    }

    /// What the link of this name does.
    #[must_use]
    pub fn host_status(&self, name: &str, network: &impl Network) -> Option<HostLinkStatus> {
        let link = network.link(self.number(name)?)?;
        let (number, failures, progress) = (link.number, link.failures, link.progress);
        Some(HostLinkStatus { number, failures, progress })
    }

    /// Reconciles the network with a plan, whose hosts have their addresses. `fib` has the kernel's routes, if they count;
    /// static routes come first. Call [`observe`](Self::observe) before.
    pub fn reconcile(
        &mut self,
        now: Timestamp,
        plan: &Plan,
        fib: Arc<Fib>,
        network: &mut impl Network,
    ) -> Reconciled {
        let mut done = Reconciled::default();
        let mut plan = plan.clone();
        let moved = self.follow(&plan, fib, &mut done);
        self.dial_again(now, &moved, network);
        for (&to, hops) in &self.kernel.routes {
            plan.routes.entry(to).or_insert_with(|| hops.clone());
        }
        for action in reconcile(&plan, &self.state) {
            match self.carry_out(&plan, &action, network) {
                Ok(()) => self.state.apply(&action),
                Err(error) => done.errors.push(error),
            }
            if let Action::DismissPeer(node) = action {
                done.dismissed.push(node);
            }
        }
        done
    }

    /// Finds the routes that follow from the kernel's. Returns the addresses to which it has another route than
    /// before.
    fn follow(&mut self, plan: &Plan, fib: Arc<Fib>, done: &mut Reconciled) -> BTreeSet<IpAddr> {
        let found = KernelRoutes::find(plan, &self.state, &fib);
        let old = std::mem::replace(&mut self.kernel, found);
        let old_fib = std::mem::replace(&mut self.fib, fib);
        let nodes: BTreeSet<_> =
            old.routes.keys().chain(self.kernel.routes.keys()).copied().collect();
        for to in nodes {
            let hops = self.kernel.routes.get(&to);
            if old.routes.get(&to) != hops {
                let via = hops.map(|hops| self.state.names(hops.keys()));
                done.kernel_routes.push((to, via.unwrap_or_default()));
            }
        }
        let leads = |route: &FibRoute| route.hops.iter().any(|hop| hop.is_up);
        let is_moved = |address: &IpAddr, route: &Result<FibRoute, NoRoute>| {
            let before = old_fib.answers.get(address);
            before.is_some_and(|before| before != route) && route.as_ref().is_ok_and(leads)
        };
        let moved = self.fib.answers.iter().filter(|(address, route)| is_moved(address, route));
        moved.map(|(&address, _)| address).collect()
    }

    /// Opens links again that do not answer, if the kernel has another route to their neighbours now: their next
    /// attempt may be seconds away.
    fn dial_again(&mut self, now: Timestamp, moved: &BTreeSet<IpAddr>, network: &impl Network) {
        self.dialled.retain(|_, at| now - *at < DIAL_AGAIN);
        for (name, link) in &self.state.links {
            let Some(&number) =
                self.numbers.get(name).filter(|_| moved.contains(&link.remote.ip()))
            else {
                continue;
            };
            let is_up = network.link(number).is_some_and(|link| link.progress == Progress::Up);
            if !is_up && !self.dialled.contains_key(name) {
                self.state.stale.insert(name.clone());
                self.dialled.insert(name.clone(), now);
            }
        }
    }

    /// Sets the policy of the links that this node has opened to a neighbour.
    fn set_policy(
        &self,
        neighbour: &Fingerprint,
        policy: NeighbourPolicy,
        network: &mut impl Network,
    ) {
        for (name, link) in &self.state.links {
            if let Some(number) = self.number(name).filter(|_| link.fingerprint == *neighbour) {
                network.set_policy(number, policy);
            }
        }
    }

    fn carry_out(
        &mut self,
        plan: &Plan,
        action: &Action,
        network: &mut impl Network,
    ) -> Result<(), String> {
        let policy = |print: &Fingerprint| plan.neighbours.get(print).copied().unwrap_or_default();
        match action {
            Action::AdmitPeer(node, print) => network.set_peer(*node, Some(*print)),
            Action::DismissPeer(node) => network.set_peer(*node, None),
            Action::AdmitNeighbour(print, _) => {
                network.admit(*print, policy(print));
                self.set_policy(print, policy(print), network);
            }
            Action::RefuseNeighbour(print) => {
                network.refuse(*print);
                self.set_policy(print, policy(print), network);
            }
            Action::OpenLink(name, link) => {
                let opened = network.open(link, policy(&link.fingerprint));
                let number =
                    opened.map_err(|error| format!("cannot open the link {name}: {error}"))?;
                self.numbers.insert(name.clone(), number);
            }
            Action::CloseLink(name) => {
                if let Some(number) = self.numbers.remove(name) {
                    network.close(number);
                }
            }
            Action::SetRoutes(routes) => {
                let mut set = BTreeMap::new();
                for (&to, hops) in routes {
                    let mut over = BTreeMap::new();
                    for (hop, &tier) in hops {
                        let via = match hop {
                            Hop::Link(name) => {
                                let number = self.number(name);
                                Via::Link(number.ok_or_else(|| format!("no link {name}"))?)
                            }
                            Hop::Neighbour(print) => Via::Neighbour(*print),
                            // One that has just ended is missing, and its event comes.
                            Hop::Accepted(number) => match network.link(*number) {
                                Some(_) => Via::Link(*number),
                                None => continue,
                            },
                        };
                        over.insert(via, tier);
                    }
                    if !over.is_empty() {
                        set.insert(to, over);
                    }
                }
                network.replace_routes(&set)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LinkReport;
    use crate::plan::Link;

    /// Records the policies of links.
    #[derive(Default)]
    struct Policies(BTreeMap<u64, bool>);

    impl Network for Policies {
        fn links(&self) -> Vec<LinkReport> {
            Vec::new()
        }
        fn link(&self, _: u64) -> Option<LinkReport> {
            None
        }
        fn set_peer(&mut self, _: NodeId, _: Option<Fingerprint>) {}
        fn admit(&mut self, _: Fingerprint, _: NeighbourPolicy) {}
        fn refuse(&mut self, _: Fingerprint) {}
        fn open(&mut self, _: &Link, policy: NeighbourPolicy) -> Result<u64, String> {
            let number = self.0.len() as u64;
            self.0.insert(number, policy.transit);
            Ok(number)
        }
        fn set_policy(&mut self, number: u64, policy: NeighbourPolicy) {
            self.0.insert(number, policy.transit);
        }
        fn close(&mut self, _: u64) {}
        fn replace_routes(
            &mut self,
            _: &BTreeMap<NodeId, BTreeMap<Via, u8>>,
        ) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn a_changed_policy_applies_to_open_links() {
        let mut plan = Plan::new(NodeId([10, 255, 0, 1].into()), [0; 32]);
        for (name, neighbour) in [("north", 7), ("south", 8)] {
            let remote = "192.0.2.7:4900".parse().unwrap();
            let fingerprint = [neighbour; 32];
            let link = Link { remote, local: None, interface: None, fingerprint };
            plan.links.insert(name.to_owned(), link);
            plan.neighbours.insert(fingerprint, true.into());
        }
        let (mut control, mut network) = (Control::default(), Policies::default());
        let now = Timestamp::ZERO;
        let mut check = |plan: &Plan, expected: [bool; 2]| {
            control.reconcile(now, plan, Arc::default(), &mut network);
            assert!(network.0.values().eq(&expected), "{:?}", network.0);
        };
        check(&plan, [true, true]);
        plan.neighbours.insert([7; 32], false.into());
        check(&plan, [false, true]);
        plan.neighbours.insert([7; 32], true.into());
        plan.neighbours.remove(&[8; 32]);
        check(&plan, [true, false]);
    }
}
