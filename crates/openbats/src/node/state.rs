//! The state of a node under the endpoint's lock: neighbours, links and routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bats_proto::wire::flow::NodeId;
use bats_proto::{CloseReason, ConnectionHandle, Endpoint, GroupHandle, PresharedKey, Timestamp};

use super::codes;
use super::event::{Event, EventQueue};
use super::group_route::GroupRoute;
use super::interface;
use super::link::{LinkError, LinkId, LinkOptions, LinkPolicy, LinkStatus};
use super::link_table::{Entry, LinkTable, MAX_LINKS};
use super::route_set::{NextHop, RouteSet};
use super::via::Via;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::options::{ClientOptions, Extras};
use crate::wakers::Wakers;

/// Interval at which links are examined for neighbours that do not answer.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// A link whose neighbour has not answered for this long is dialled again, in case the neighbour was
/// restarted. The old connection stays until the new one is established.
const SILENT_BEFORE_REDIAL: Duration = Duration::from_secs(1);

/// Links by the fingerprint of the neighbour.
type NeighbourLinks = BTreeMap<[u8; 32], Vec<LinkId>>;

/// Configuration of a node.
#[derive(Debug)]
pub(crate) struct NodeSetup {
    pub(crate) id: NodeId,
    pub(crate) identity: Identity,
    pub(crate) preshared_key: Option<PresharedKey>,
    pub(crate) relaying: bool,
    /// Policies of admitted neighbours, by fingerprint.
    pub(crate) neighbours: BTreeMap<[u8; 32], LinkPolicy>,
    /// Policy of neighbours that are not listed.
    pub(crate) any_neighbour: Option<LinkPolicy>,
    /// Certificates of the nodes that may have sessions with this one.
    pub(crate) peers: BTreeMap<NodeId, Vec<Fingerprint>>,
    /// Whether nodes that are not listed may have sessions, too.
    pub(crate) any_peer: bool,
    /// Whether neighbours may send messages on links.
    pub(crate) link_messages: bool,
    /// What the sessions of links may take, if links have sessions.
    pub(crate) link_channels: Option<LinkChannels>,
}

/// What the session of a link may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkChannels {
    /// Channels that the neighbour may have open.
    pub(crate) count: u32,
    /// Bytes of received data.
    pub(crate) receive_budget: usize,
}

impl NodeSetup {
    /// The node whose certificate this is. One of several nodes identifies none of them.
    fn node_with(&self, fingerprint: Fingerprint) -> Option<NodeId> {
        let nodes = self.peers.iter().filter(|(_, prints)| prints.contains(&fingerprint));
        let mut nodes = nodes.map(|(node, _)| *node);
        nodes.next().filter(|_| nodes.next().is_none())
    }
}

#[derive(Debug)]
pub(crate) struct NodeState {
    pub(crate) id: NodeId,
    pub(crate) setup: NodeSetup,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) links: LinkTable,
    pub(crate) routes: RouteSet,
    pub(crate) events: EventQueue,
    /// Established end-to-end sessions, for the events of their ends.
    pub(crate) sessions: BTreeMap<ConnectionHandle, NodeId>,
    pub(crate) next_check: Option<Timestamp>,
    /// Tasks that wait for a sender to a group, or for messages of one.
    pub(crate) groups: BTreeMap<GroupHandle, Wakers>,
}

impl NodeState {
    pub(crate) fn new(setup: NodeSetup, addresses: Vec<SocketAddr>) -> Self {
        Self {
            id: setup.id,
            setup,
            addresses,
            links: LinkTable::default(),
            routes: RouteSet::new(),
            events: EventQueue::default(),
            sessions: BTreeMap::new(),
            next_check: None,
            groups: BTreeMap::new(),
        }
    }

    pub(crate) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.events.wake_all(due);
        for (_, entry) in self.links.iter_mut() {
            entry.waiting.drain_into(due);
        }
        self.groups.values_mut().for_each(|waiting| waiting.drain_into(due));
    }

    // Neighbours.

    fn policy_of(&self, fingerprint: Option<Fingerprint>) -> Option<&LinkPolicy> {
        let listed = fingerprint.and_then(|print| self.setup.neighbours.get(&print.0));
        listed.or(self.setup.any_neighbour.as_ref())
    }

    /// The policy for the neighbour on a link.
    pub(crate) fn enforced_policy(&self, id: LinkId) -> Option<bats_proto::relay::LinkPolicy> {
        let entry = self.links.get(id)?;
        let policy = match &entry.options {
            Some(options) => &options.policy,
            None => self.policy_of(entry.fingerprint)?,
        };
        let fingerprint = entry.fingerprint?;
        let neighbour = self.node_with(fingerprint);
        Some(policy.enforced(self.setup.relaying, fingerprint, neighbour))
    }

    pub(crate) fn node_with(&self, fingerprint: Fingerprint) -> Option<NodeId> {
        self.setup.node_with(fingerprint)
    }

    /// The established links whose certificate identifies a node, with it.
    pub(crate) fn links_with_nodes(&self) -> Vec<(LinkId, NodeId)> {
        // `None` for a certificate of several nodes.
        let mut nodes: BTreeMap<[u8; 32], Option<NodeId>> = BTreeMap::new();
        for (&node, prints) in &self.setup.peers {
            for print in prints {
                let known = nodes.entry(print.0).or_insert(Some(node));
                *known = known.filter(|known| *known == node);
            }
        }
        let established = self.links.iter().filter(|(_, entry)| entry.is_up());
        let with_node =
            |(id, entry): (LinkId, &Entry)| Some((id, (*nodes.get(&entry.fingerprint?.0)?)?));
        established.filter_map(with_node).collect()
    }

    /// The established links over which the routes lead to each of these nodes, with their tiers.
    pub(crate) fn links_to_each(&self, nodes: &[NodeId]) -> Vec<Vec<(LinkId, u8)>> {
        let neighbours = self.neighbour_links();
        let links = |node: &NodeId| self.resolve_with(&neighbours, *node);
        let without_connection =
            |found: Vec<(LinkId, _, u8)>| found.into_iter().map(|(link, _, tier)| (link, tier));
        nodes.iter().map(|node| without_connection(links(node)).collect()).collect()
    }

    /// Whether a link with this node is established.
    pub(crate) fn has_link_with(&self, node: NodeId) -> bool {
        let established = self.links.iter().filter(|(_, entry)| entry.is_up());
        let mut prints = established.filter_map(|(_, entry)| entry.fingerprint);
        prints.any(|print| self.node_with(print) == Some(node))
    }

    /// Ties a node to these certificates alone, or to none. The links of those that it had or has now get their policies
    /// again.
    pub(crate) fn set_peer(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        node: NodeId,
        fingerprints: Vec<Fingerprint>,
    ) {
        let mut changed = fingerprints.clone();
        let before = match fingerprints.is_empty() {
            true => self.setup.peers.remove(&node),
            false => self.setup.peers.insert(node, fingerprints),
        };
        changed.extend(before.into_iter().flatten());
        let links = self.links.iter();
        let links: Vec<_> = links
            .filter(|(_, entry)| entry.fingerprint.is_some_and(|print| changed.contains(&print)))
            .filter_map(|(id, entry)| Some((id, entry.connection?)))
            .collect();
        self.apply_policies(now, packets, links);
    }

    fn apply_policies(
        &self,
        now: Timestamp,
        packets: &mut Endpoint,
        links: Vec<(LinkId, ConnectionHandle)>,
    ) {
        for (id, connection) in links {
            if let Some(policy) = self.enforced_policy(id) {
                packets.admit_with(now, connection, policy);
            }
        }
    }

    pub(crate) fn admit_neighbour(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        neighbour: Fingerprint,
        policy: LinkPolicy,
    ) {
        self.setup.neighbours.insert(neighbour.0, policy);
        self.apply_policies(now, packets, self.accepted_from(neighbour));
    }

    /// Sets the policy of a link that this node has opened.
    pub(crate) fn set_link_policy(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        id: LinkId,
        policy: LinkPolicy,
    ) {
        let Some(entry) = self.links.get_mut(id) else { return };
        let Some(options) = &mut entry.options else { return };
        options.policy = policy;
        let established = entry.connection.map(|connection| (id, connection));
        self.apply_policies(now, packets, established.into_iter().collect());
    }

    pub(crate) fn refuse_neighbour(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        neighbour: Fingerprint,
        due: &mut Vec<Waker>,
    ) {
        self.setup.neighbours.remove(&neighbour.0);
        if self.policy_of(Some(neighbour)).is_some() {
            return;
        }
        for (id, connection) in self.accepted_from(neighbour) {
            packets.close(now, connection, codes::NOT_ADMITTED, "not admitted any more");
            self.forget(now, packets, id, due);
        }
    }

    /// Links that a neighbour has opened.
    pub(crate) fn accepted_from(&self, neighbour: Fingerprint) -> Vec<(LinkId, ConnectionHandle)> {
        let accepted = self
            .links
            .iter()
            .filter(|(_, entry)| entry.options.is_none() && entry.fingerprint == Some(neighbour));
        accepted.filter_map(|(id, entry)| Some((id, entry.connection?))).collect()
    }

    // Links.

    pub(crate) fn open_link(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        options: LinkOptions,
    ) -> Result<LinkId, LinkError> {
        if self.links.len() >= MAX_LINKS {
            return Err(LinkError::TooMany(self.links.len()));
        }
        if options.trust.is_known_hosts() {
            let text = "a file of known servers cannot be used for links: trust a fingerprint";
            return Err(LinkError::Configuration(text.to_owned()));
        }
        if let Some(ip) = options.local_ip
            && !self.addresses.iter().any(|address| serves(address, ip))
        {
            let text = format!("the node does not listen at {ip}");
            return Err(LinkError::Configuration(text));
        }
        self.check_interface(&options).map_err(LinkError::Configuration)?;
        let (remote, redials) = (options.remote, options.redials);
        let mut entry = Entry::new(Some(options), remote);
        match dial(&self.setup, now, packets, &entry) {
            Ok(connection) => entry.attempt = Some(connection),
            Err(error @ DialError::Interface(_)) if redials => {
                entry.on_failure(now, false, error.reason());
            }
            Err(error) => return Err(LinkError::Configuration(error.to_string())),
        }
        self.next_check = Some(now);
        Ok(self.links.insert(entry))
    }

    /// Whether a link can keep to its interface.
    fn check_interface(&self, options: &LinkOptions) -> Result<(), String> {
        let Some(name) = &options.interface else { return Ok(()) };
        if !cfg!(target_os = "linux") {
            return Err("links cannot be bound to an interface on this system".to_owned());
        }
        if !interface::is_name(name) {
            return Err(format!("{name:?} is no name of an interface"));
        }
        // With a source address of IPv6 the system would choose the interface by its routes.
        if options.local_ip.is_some_and(|ip| ip.is_ipv6()) {
            let text = "a link with an interface cannot have a local address of IPv6: leave it out";
            return Err(text.to_owned());
        }
        let chooses = |at: &SocketAddr| at.is_ipv6() && at.ip().is_unspecified();
        match options.remote.is_ipv6() && !self.addresses.iter().any(chooses) {
            true => Err(format!(
                "a link to {} over an interface needs a node that listens at [::]",
                options.remote
            )),
            false => Ok(()),
        }
    }

    pub(crate) fn close_link(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        id: LinkId,
        due: &mut Vec<Waker>,
    ) {
        let Some(entry) = self.links.get(id) else { return };
        for connection in entry.connection.into_iter().chain(entry.attempt) {
            packets.close(now, connection, 0, "the link was closed");
        }
        self.forget(now, packets, id, due);
    }

    /// Removes a link whose connections are closed.
    pub(crate) fn forget(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        id: LinkId,
        due: &mut Vec<Waker>,
    ) {
        let Some(mut entry) = self.links.remove(id) else { return };
        entry.waiting.drain_into(due);
        if entry.is_up() {
            let event = Event::LinkDown { link: id, reason: CloseReason::Local };
            self.events.push(event, due);
        }
        self.apply_routes_over(now, packets, id, entry.fingerprint);
    }

    pub(crate) fn link_status(
        &self,
        now: Timestamp,
        packets: &Endpoint,
        id: LinkId,
    ) -> Option<LinkStatus> {
        let entry = self.links.get(id)?;
        Some(LinkStatus {
            id,
            state: entry.state(),
            is_opened_here: entry.options.is_some(),
            remote: entry.remote,
            local_ip: entry.local_ip,
            interface: entry.options.as_ref().and_then(|options| options.interface.clone()),
            fingerprint: entry.fingerprint,
            established: entry.established,
            failures: entry.failures,
            last_end: entry.last_end.clone(),
            stats: entry.connection.and_then(|connection| packets.stats(now, connection)),
        })
    }

    /// Examines the links and dials those that are due.
    pub(crate) fn check_links(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        due: &mut Vec<Waker>,
    ) {
        let mut dialled = Vec::new();
        for (id, entry) in self.links.iter_mut() {
            if let Some(connection) = entry.connection {
                let is_silent = !packets.is_responsive(now, connection);
                let event = match (is_silent, entry.silent_since) {
                    (true, None) => {
                        entry.silent_since = Some(now);
                        Some(Event::LinkSilent { link: id })
                    }
                    (false, Some(_)) => {
                        entry.silent_since = None;
                        Some(Event::LinkResponsive { link: id })
                    }
                    _ => None,
                };
                if let Some(event) = event {
                    self.events.push(event, due);
                }
            }
            let is_long_silent =
                entry.silent_since.is_some_and(|since| now >= since + SILENT_BEFORE_REDIAL);
            let is_due = match entry.connection {
                Some(_) => is_long_silent && entry.redial_at.is_none_or(|at| at <= now),
                None => entry.redial_at.is_some_and(|at| at <= now),
            };
            let redials = entry.options.as_ref().is_some_and(|options| options.redials);
            if is_due && redials && entry.attempt.is_none() {
                entry.redial_at = None;
                dialled.push((id, dial(&self.setup, now, packets, entry)));
            }
        }
        for (id, attempt) in dialled {
            let Some(entry) = self.links.get_mut(id) else { continue };
            match attempt {
                Ok(connection) => entry.attempt = Some(connection),
                // Memory may become free again, and an interface may return.
                Err(error) => {
                    let reason = error.reason();
                    entry.on_failure(now, false, reason.clone());
                    entry.waiting.drain_into(due);
                    self.events.push(Event::LinkDown { link: id, reason }, due);
                }
            }
            self.links.index(id);
        }
        self.next_check = (self.links.len() > 0).then(|| now + CHECK_INTERVAL);
    }

    // Routes.

    /// The links with each neighbour, so that many routes are resolved in little time.
    fn neighbour_links(&self) -> NeighbourLinks {
        let mut links = NeighbourLinks::new();
        for (id, entry) in self.links.iter() {
            if let Some(print) = entry.fingerprint {
                links.entry(print.0).or_default().push(id);
            }
        }
        links
    }

    /// The established links over which the routes lead to a node: with their connections and
    /// tiers.
    fn resolve_with(
        &self,
        neighbours: &NeighbourLinks,
        destination: NodeId,
    ) -> Vec<(LinkId, ConnectionHandle, u8)> {
        let mut found: BTreeMap<LinkId, (ConnectionHandle, u8)> = BTreeMap::new();
        for hop in self.routes.hops_to(destination) {
            for (id, connection) in self.connections_via(neighbours, &hop.via) {
                let known = found.entry(id).or_insert((connection, hop.tier));
                known.1 = known.1.min(hop.tier);
            }
        }
        let mut links: Vec<_> =
            found.into_iter().map(|(id, (connection, tier))| (id, connection, tier)).collect();
        // The core accepts fewer links than there are: choose responsive links of low tiers.
        links.sort_by_key(|(id, _, tier)| {
            let is_silent = self.links.get(*id).is_some_and(|link| link.silent_since.is_some());
            (is_silent, *tier)
        });
        links.truncate(bats_proto::relay::MAX_PATHS);
        links
    }

    /// The established links that a next hop means, with their connections.
    fn connections_via<'a>(
        &'a self,
        neighbours: &'a NeighbourLinks,
        via: &'a Via,
    ) -> impl Iterator<Item = (LinkId, ConnectionHandle)> + 'a {
        let ids = match via {
            Via::Link(id) => std::slice::from_ref(id),
            Via::Neighbour(print) => neighbours.get(&print.0).map_or(&[][..], Vec::as_slice),
        };
        ids.iter().filter_map(|&id| Some((id, self.links.get(id)?.connection?)))
    }

    pub(crate) fn replace_routes(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        routes: RouteSet,
    ) {
        let old = std::mem::replace(&mut self.routes, routes);
        let gone = old.iter().map(|(node, _)| node).filter(|node| !self.routes.leads_to(*node));
        for node in gone {
            packets.set_routes(now, node, &[]);
        }
        let neighbours = self.neighbour_links();
        for (node, _) in self.routes.iter() {
            self.apply_route(now, packets, &neighbours, node);
        }
        for (source, group) in old.groups().map(|route| (route.source(), route.group())) {
            if !self.routes.has_group(source, group) {
                packets.remove_group_entry(source, group);
            }
        }
        for route in self.routes.groups() {
            let is_set = self.apply_group(now, packets, &neighbours, route);
            // What the old route accepted or sent must not go on until there is a link for the new one.
            if !is_set && old.groups().all(|other| other != route) {
                packets.remove_group_entry(route.source(), route.group());
            }
        }
    }

    /// Sets the entry of a group over the links that are established now. False if there is no link to the source.
    fn apply_group(
        &self,
        now: Timestamp,
        packets: &mut Endpoint,
        neighbours: &NeighbourLinks,
        route: &GroupRoute,
    ) -> bool {
        let resolve = |vias: &[Via], known: &mut BTreeSet<LinkId>| -> Vec<ConnectionHandle> {
            let links = vias.iter().flat_map(|via| self.connections_via(neighbours, via));
            let links = links.filter(|(id, _)| known.insert(*id)).map(|(_, connection)| connection);
            links.take(bats_proto::relay::MAX_PATHS).collect()
        };
        let incoming = resolve(route.incoming(), &mut BTreeSet::new());
        // Without a link to the source nothing arrives. What is held for other nodes stays.
        if incoming.is_empty() && route.source() != self.id {
            return false;
        }
        let mut known = BTreeSet::new();
        let branches: Vec<_> = route.branches().map(|vias| resolve(vias, &mut known)).collect();
        let set = packets.set_group_entry(now, route.source(), route.group(), &incoming, &branches);
        if let Err(error) = set {
            // A link may have ended just now. Its event applies the route again.
            tracing::debug!(%error, "a route of a group is not set");
        }
        true
    }

    fn apply_route(
        &self,
        now: Timestamp,
        packets: &mut Endpoint,
        neighbours: &NeighbourLinks,
        destination: NodeId,
    ) {
        let links: Vec<_> = self
            .resolve_with(neighbours, destination)
            .into_iter()
            .map(|(_, connection, tier)| (connection, tier))
            .collect();
        packets.set_routes(now, destination, &links);
    }

    /// Applies the routes over a link whose connection has changed.
    pub(crate) fn apply_routes_over(
        &self,
        now: Timestamp,
        packets: &mut Endpoint,
        id: LinkId,
        fingerprint: Option<Fingerprint>,
    ) {
        let is_concerned = |via: &Via| match *via {
            Via::Link(link) => link == id,
            Via::Neighbour(print) => fingerprint == Some(print),
        };
        let concerns = |hop: &NextHop| is_concerned(&hop.via);
        let neighbours = self.neighbour_links();
        for (node, hops) in self.routes.iter() {
            if hops.iter().any(concerns) {
                self.apply_route(now, packets, &neighbours, node);
            }
        }
        for route in self.routes.groups().filter(|route| route.concerns(is_concerned)) {
            self.apply_group(now, packets, &neighbours, route);
        }
    }
}

/// Whether a socket bound to this address sends from this IP address.
pub(super) fn serves(bound: &SocketAddr, ip: std::net::IpAddr) -> bool {
    bound.ip() == ip || bound.ip().is_unspecified() && (bound.is_ipv6() || ip.is_ipv4())
}

/// Why the connection of a link was not started.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("{0}")]
    Interface(String),
    #[error(transparent)]
    Connect(#[from] bats_proto::ConnectError),
}

impl DialError {
    fn reason(self) -> CloseReason {
        match self {
            Self::Interface(text) => CloseReason::Interface(text),
            Self::Connect(error) => CloseReason::Internal(error.to_string()),
        }
    }
}

/// Starts the connection of a link.
fn dial(
    setup: &NodeSetup,
    now: Timestamp,
    packets: &mut Endpoint,
    entry: &Entry,
) -> Result<ConnectionHandle, DialError> {
    let Some(options) = &entry.options else {
        let text = "the neighbour opens it".to_owned();
        return Err(bats_proto::ConnectError::Configuration(text).into());
    };
    let interface = options.interface.as_deref().map(interface::index).transpose();
    let interface = interface.map_err(DialError::Interface)?;
    let client = ClientOptions::new(options.trust.clone())
        .transport(options.transport.clone())
        .with_node_defaults(&setup.identity, setup.preshared_key.as_ref());
    let (mut config, Extras { .. }) = client.into_config();
    // The mode matters only for messages and channels of the link itself.
    let transport = Arc::make_mut(&mut config.transport);
    (transport.mode, transport.channels) = (bats_proto::Mode::Brtp, None);
    if let Some(LinkChannels { count, receive_budget }) = setup.link_channels
        && options.trust.only_fingerprint().is_some_and(|print| setup.node_with(print).is_some())
    {
        (transport.channels, transport.receive_budget) = (Some(count), receive_budget);
    }
    let local = bats_proto::Local { ip: options.local_ip, interface };
    let name = &options.server_name;
    Ok(packets.connect_from(now, local, options.remote, name, config)?)
}
