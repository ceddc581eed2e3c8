//! Changes of a plan at run time, in addition to the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::node_id::NodeId;
use crate::plan::{Fingerprint, Hop, HostLink, Link, Plan, PlanError};

/// Maximum number of next hops of a route.
pub const MAX_HOPS: usize = 16;
/// Maximum number of links, so that changes cannot use unlimited memory.
pub const MAX_LINKS: usize = 4_096;

/// A change at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Open a link of a new name, and admit the neighbour, with transit or without.
    AddLink(String, Link, bool),
    /// The same to a neighbour whose address is looked up.
    AddHost(String, HostLink, bool),
    /// Close a link that this node opens; no route leads over it any more. The neighbour stays admitted.
    DeleteLink(String),
    /// Use these links, by name and with their tiers, for packets to a node, too.
    AddRoute(NodeId, BTreeMap<String, u8>),
    /// Use these links no more for packets to a node; with none given, remove its route.
    DeleteRoute(NodeId, BTreeSet<String>),
}

/// Why a change is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// There is a link of this name.
    LinkExists(String),
    /// There is no link of this name that this node opens.
    NoLink(String),
    /// The neighbour has another policy: whether its packets may go to other nodes.
    Transit,
    /// There is no route to this node, or it does not lead over this link.
    NoRoute(NodeId, Option<String>),
    /// There are too many of these.
    TooMany(&'static str, usize),
    /// The plan would not be consistent.
    Plan(PlanError),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkExists(name) => {
                write!(f, "there is a link of the name '{name}': use another one, or delete it")
            }
            Self::NoLink(name) => write!(f, "this node opens no link of the name '{name}'"),
            Self::Transit => write!(
                f,
                "another link with this neighbour disagrees about transit: a neighbour has one policy"
            ),
            Self::NoRoute(to, None) => write!(f, "there is no route to {to}"),
            Self::NoRoute(to, Some(link)) => {
                write!(f, "the route to {to} does not lead over '{link}'")
            }
            Self::TooMany(what, limit) => write!(f, "more than {limit} {what}"),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ChangeError {}

impl Plan {
    /// The plan with a change.
    ///
    /// # Errors
    /// The change is not possible; this plan stays as it is.
    pub fn with(&self, change: &Change) -> Result<Self, ChangeError> {
        let mut plan = self.clone();
        match change {
            Change::AddLink(name, link, transit) => {
                plan.admit(name, link.fingerprint, *transit)?;
                plan.links.insert(name.clone(), link.clone());
            }
            Change::AddHost(name, link, transit) => {
                plan.admit(name, link.fingerprint, *transit)?;
                plan.hosts.insert(name.clone(), link.clone());
            }
            Change::DeleteLink(name) => {
                if plan.links.remove(name).is_none() && plan.hosts.remove(name).is_none() {
                    return Err(ChangeError::NoLink(name.clone()));
                }
                plan.routes.retain(|_, hops| {
                    hops.remove(&Hop::Link(name.clone()));
                    !hops.is_empty()
                });
            }
            Change::AddRoute(to, links) => {
                let hops = plan.routes.entry(*to).or_default();
                hops.extend(links.iter().map(|(name, &tier)| (Hop::Link(name.clone()), tier)));
                if hops.len() > MAX_HOPS {
                    return Err(ChangeError::TooMany("links of a route", MAX_HOPS));
                }
                if hops.is_empty() {
                    return Err(ChangeError::NoRoute(*to, None));
                }
            }
            Change::DeleteRoute(to, links) => {
                let mut hops = plan.routes.remove(to).ok_or(ChangeError::NoRoute(*to, None))?;
                for name in links {
                    if hops.remove(&Hop::Link(name.clone())).is_none() {
                        return Err(ChangeError::NoRoute(*to, Some(name.clone())));
                    }
                }
                if !links.is_empty() && !hops.is_empty() {
                    plan.routes.insert(*to, hops);
                }
            }
        }
        plan.check().map_err(ChangeError::Plan)?;
        Ok(plan)
    }

    /// Adds what one configuration has and an earlier one did not have. Changes that were made since the earlier one stay.
    pub fn add_new(&mut self, earlier: &Self, later: &Self) {
        fn add<K: Ord + Clone, V: Clone>(
            to: &mut BTreeMap<K, V>,
            earlier: &BTreeMap<K, V>,
            later: &BTreeMap<K, V>,
        ) {
            for (key, value) in later.iter().filter(|(key, _)| !earlier.contains_key(key)) {
                to.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        let taken = |name: &String| self.opens(name);
        let (mut links, mut hosts) = (later.links.clone(), later.hosts.clone());
        links.retain(|name, _| !taken(name));
        hosts.retain(|name, _| !taken(name));
        add(&mut self.links, &earlier.links, &links);
        add(&mut self.hosts, &earlier.hosts, &hosts);
        add(&mut self.neighbours, &earlier.neighbours, &later.neighbours);
        add(&mut self.peers, &earlier.peers, &later.peers);
        let none = BTreeMap::new();
        for (node, hops) in &later.routes {
            let before = earlier.routes.get(node).unwrap_or(&none);
            if hops.keys().any(|hop| !before.contains_key(hop)) {
                add(self.routes.entry(*node).or_default(), before, hops);
            }
        }
    }

    /// Admits the neighbour of a new link.
    fn admit(
        &mut self,
        name: &str,
        neighbour: Fingerprint,
        transit: bool,
    ) -> Result<(), ChangeError> {
        if self.opens(name) {
            return Err(ChangeError::LinkExists(name.to_owned()));
        }
        if self.links.len() + self.hosts.len() >= MAX_LINKS {
            return Err(ChangeError::TooMany("links", MAX_LINKS));
        }
        let policy = self.neighbours.entry(neighbour);
        match policy.or_insert(transit.into()).transit == transit {
            true => Ok(()),
            false => Err(ChangeError::Transit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::HostName;
    use crate::reconcile::{State, reconcile};

    const OWN: NodeId = NodeId(std::net::Ipv4Addr::new(10, 255, 0, 1));
    const FAR: NodeId = NodeId(std::net::Ipv4Addr::new(10, 255, 0, 9));

    fn add(name: &str, print: u8, transit: bool) -> Change {
        let remote = "192.0.2.7:4900".parse().unwrap();
        let link = Link { remote, local: None, interface: None, fingerprint: [print; 32] };
        Change::AddLink(name.to_owned(), link, transit)
    }

    fn route(names: &[&str]) -> Change {
        Change::AddRoute(FAR, names.iter().map(|name| ((*name).to_owned(), 0)).collect())
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn links_and_routes_come_and_go() {
        let empty = Plan::new(OWN, [0; 32]);
        let mut plan = empty.clone();
        for change in [add("north", 7, false), add("south", 8, false), route(&["north", "south"])] {
            plan = plan.with(&change).unwrap();
        }
        assert_eq!((plan.links.len(), plan.neighbours.len(), plan.routes[&FAR].len()), (2, 2, 2));
        let fewer = plan.with(&Change::DeleteRoute(FAR, names(&["north"]))).unwrap();
        assert_eq!(fewer.routes[&FAR].len(), 1);
        // A link takes its routes with it.
        let without = fewer.with(&Change::DeleteLink("south".to_owned())).unwrap();
        assert!(without.routes.is_empty() && without.links.len() == 1);
        assert!(plan.with(&Change::DeleteRoute(FAR, names(&[]))).unwrap().routes.is_empty());
    }

    #[test]
    fn what_a_later_configuration_adds_is_added_to_the_changes_since_the_earlier_one() {
        let empty = Plan::new(OWN, [0; 32]);
        let all = |changes: &[Change]| {
            changes.iter().fold(empty.clone(), |plan, change| plan.with(change).unwrap())
        };
        let earlier = all(&[add("north", 7, false), add("south", 8, true), route(&["north"])]);
        let later = all(&[
            add("north", 7, false),
            add("south", 8, true),
            add("east", 9, false),
            add("west", 10, false),
            route(&["north", "east"]),
        ]);
        // One link of the file was deleted, and one added, with the name of a later one.
        let mut plan = earlier
            .with(&Change::DeleteLink("south".to_owned()))
            .and_then(|plan| plan.with(&add("west", 11, false)))
            .unwrap();
        plan.add_new(&earlier, &later);
        assert!(plan.check().is_ok());
        let prints: Vec<_> =
            plan.links.iter().map(|(name, link)| (&**name, link.fingerprint[0])).collect();
        assert_eq!(prints, [("east", 9), ("north", 7), ("west", 11)]);
        assert_eq!(plan.routes[&FAR].len(), 2);
        assert!(plan.neighbours.contains_key(&[9; 32]) && plan.neighbours.contains_key(&[11; 32]));
        let before = plan.clone();
        plan.add_new(&later, &later);
        assert_eq!(plan, before, "nothing is new");
    }

    #[test]
    fn links_to_hosts_are_opened_once_their_addresses_are_known() {
        let empty = Plan::new(OWN, [0; 32]);
        let host = HostLink {
            host: HostName { name: "node.example.org".to_owned(), port: 4_900 },
            local: None,
            interface: None,
            fingerprint: [7; 32],
        };
        let plan = empty.with(&Change::AddHost("north".to_owned(), host, false)).unwrap();
        let plan = plan.with(&route(&["north"])).unwrap();
        assert_eq!(
            plan.with(&add("north", 7, false)),
            Err(ChangeError::LinkExists("north".to_owned()))
        );
        // Without an address there is no link. If the neighbour opens one, the route leads over that.
        let neighbour: BTreeMap<Hop, u8> = [(Hop::Neighbour([7; 32]), 0)].into();
        let mut state = State::default();
        let follow = |state: &mut State, address: Option<&str>| {
            let address = address.map(|address| address.parse().unwrap());
            let plan = plan.with_addresses(|_| address);
            plan.check().unwrap();
            let actions = reconcile(&plan, state);
            actions.iter().for_each(|action| state.apply(action));
            assert_eq!(reconcile(&plan, state), []);
        };
        follow(&mut state, None);
        assert_eq!((state.links.len(), state.neighbours.len()), (0, 1));
        assert_eq!(state.routes[&FAR], neighbour);
        for address in ["192.0.2.7:4900", "[2001:db8::7]:4900"] {
            follow(&mut state, Some(address));
            assert_eq!(state.links["north"].remote, address.parse().unwrap());
            assert_eq!(state.routes[&FAR], [(Hop::Link("north".to_owned()), 0)].into());
        }
        follow(&mut state, None);
        assert_eq!((state.links.len(), &state.routes[&FAR]), (0, &neighbour));
        let without = plan.with(&Change::DeleteLink("north".to_owned())).unwrap();
        assert!(without.hosts.is_empty() && without.routes.is_empty());
    }

    #[test]
    fn impossible_changes_are_refused_with_the_reason() {
        let plan = Plan::new(OWN, [0; 32]).with(&add("north", 7, false)).unwrap();
        for (change, words) in [
            (add("north", 8, false), "of the name 'north'"),
            (add("south", 7, true), "disagrees about transit"),
            (route(&["west"]), "no such link"),
            (route(&[]), "no route to 10.255.0.9"),
            (Change::AddRoute(OWN, [("north".to_owned(), 0)].into()), "this node itself"),
            (Change::DeleteLink("west".to_owned()), "no link of the name 'west'"),
            (Change::DeleteRoute(FAR, names(&[])), "no route to 10.255.0.9"),
        ] {
            let error = plan.with(&change).unwrap_err().to_string();
            assert!(error.contains(words), "{change:?}: {error}");
        }
        let many: Vec<String> = (0..=MAX_HOPS).map(|number| format!("l{number}")).collect();
        let wide = many.iter().fold(plan, |plan, name| plan.with(&add(name, 7, false)).unwrap());
        let hops = many.into_iter().map(|name| (name, 0)).collect();
        let error = wide.with(&Change::AddRoute(FAR, hops)).unwrap_err();
        assert_eq!(error, ChangeError::TooMany("links of a route", MAX_HOPS));
    }
}
