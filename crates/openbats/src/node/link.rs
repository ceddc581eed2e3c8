//! Links to neighbours, as the application sees them.

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bats_proto::relay::{self, LinkQueue};
use bats_proto::{CloseReason, ConnectionStats, TransportConfig};
use bytes::Bytes;

use super::NodeId;
use super::link_table::MAX_LINK_MESSAGE;
use crate::driver::canonical;
use crate::fingerprint::Fingerprint;
use crate::options::Trust;
use crate::shared::Shared;

/// Idle time after which a link ends. An unresponsive link is not used long before that.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of keep-alives on links, so that the failure of an idle one is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A link has only few short messages of its own, so the minimum receive budget suffices.
const RECEIVE_BUDGET: usize = 3 << 20;

/// Identifies a link of a node; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) u64);

impl LinkId {
    /// The number of the link.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// The packets that a node accepts from a neighbour. By default the neighbour reaches only this node, and may
/// name any node as the source of its packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPolicy {
    transit: bool,
    sources: Option<BTreeSet<NodeId>>,
    destinations: Option<BTreeSet<NodeId>>,
    rate: Option<NonZeroU64>,
}

impl LinkPolicy {
    /// The neighbour reaches only this node.
    #[must_use]
    pub fn end() -> Self {
        Self::default()
    }

    /// This node forwards packets of the neighbour to other nodes, if it relays
    /// ([`NodeBuilder::relaying`](super::NodeBuilder::relaying)) and has a route.
    #[must_use]
    pub fn transit() -> Self {
        Self { transit: true, ..Self::default() }
    }

    /// Accepts only packets from these nodes: the neighbour itself, and the nodes behind it. Without this
    /// list the neighbour can use the IDs of other nodes.
    #[must_use]
    pub fn sources(mut self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        self.sources = Some(nodes.into_iter().collect());
        self
    }

    /// Accepts only packets for these nodes.
    #[must_use]
    pub fn destinations(mut self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        self.destinations = Some(nodes.into_iter().collect());
        self
    }

    /// Forwards at most this many payload bits per second for the neighbour, over all links with it
    /// together; repairs of the losses behind this node count, too. What is beyond the rate waits at
    /// this node, within the memory of its flow, and the nodes before it send less. End-to-end packets, as
    /// of handshakes, do not wait: those beyond the rate are dropped
    /// ([`RelayStats::rate_limited`](crate::node::RelayStats::rate_limited)).
    #[must_use]
    pub fn rate(mut self, bits_per_second: NonZeroU64) -> Self {
        self.rate = Some(bits_per_second);
        self
    }

    /// As the protocol core enforces it for the links with this neighbour, at a node that relays or not.
    pub(crate) fn enforced(&self, relaying: bool, neighbour: Fingerprint) -> relay::LinkPolicy {
        let mut policy = relay::LinkPolicy::default();
        policy.transit = relaying && self.transit;
        policy.sources.clone_from(&self.sources);
        policy.destinations.clone_from(&self.destinations);
        let (first, _) = neighbour.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let group = relay::LimitGroup(u64::from_be_bytes(*first));
        policy.rate = self.rate.map(|bits_per_second| relay::RateLimit { bits_per_second, group });
        policy
    }
}

/// Options of a link that this node opens.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    pub(crate) remote: SocketAddr,
    pub(crate) trust: Trust,
    pub(crate) server_name: String,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) interface: Option<String>,
    pub(crate) policy: LinkPolicy,
    pub(crate) redials: bool,
    pub(crate) transport: TransportConfig,
}

impl LinkOptions {
    /// A link to the neighbour at this address, which must have a certificate that `trust` accepts.
    /// [`Trust::known_hosts`] cannot be used.
    #[must_use]
    pub fn new(remote: SocketAddr, trust: Trust) -> Self {
        Self {
            remote: canonical(remote),
            trust,
            server_name: remote.ip().to_canonical().to_string(),
            local_ip: None,
            interface: None,
            policy: LinkPolicy::default(),
            redials: true,
            transport: Self::default_transport(),
        }
    }

    pub(crate) fn default_transport() -> TransportConfig {
        TransportConfig {
            idle_timeout: IDLE_TIMEOUT,
            keep_alive: Some(KEEP_ALIVE),
            receive_budget: RECEIVE_BUDGET,
            max_message_size: RECEIVE_BUDGET / 2,
            ..TransportConfig::default()
        }
    }

    /// The name for which the neighbour's certificate must be valid, with
    /// [`Trust::authorities`]. By default its IP address.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = name.into();
        self
    }

    /// Sends from this local address, which must be one that the node listens at. By default the
    /// system chooses.
    #[must_use]
    pub fn local_ip(mut self, ip: IpAddr) -> Self {
        self.local_ip = Some(ip.to_canonical());
        self
    }

    /// Sends only through the network interface of this name, even if the system has better routes over
    /// another one. So several links can go to one address over several interfaces. Packets of the
    /// neighbour are received over all interfaces.
    ///
    /// The name is looked up whenever the link is dialled. While there is no such interface, the link waits for
    /// the next attempt, and [`LinkStatus::last_end`] says why. If the interface of an established link is
    /// removed, the link becomes silent; if it returns, the link is dialled again.
    ///
    /// The interface needs a route to the neighbour, and each link another local address: the neighbour
    /// takes a second link from one address for that of a node that was restarted. With IPv6, Linux
    /// chooses the local address, so the node must listen at `[::]` and
    /// [`local_ip`](Self::local_ip) cannot be IPv6. By default the system's routes choose the interface.
    /// Only on Linux.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// Policy for the neighbour; see [`LinkPolicy`] for the default.
    #[must_use]
    pub fn policy(mut self, policy: LinkPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Whether the link is established again after it has failed, until it is closed. The default.
    #[must_use]
    pub fn redial(mut self, redials: bool) -> Self {
        self.redials = redials;
        self
    }

    /// Limits and behaviour, in place of an idle timeout of 10 s, keep-alives each second and a
    /// receive budget of 3 MiB (a link has no messages of its own, and no channels). The congestion controller is
    /// that of this end's packets on the link.
    #[must_use]
    pub fn transport(mut self, transport: TransportConfig) -> Self {
        self.transport = transport;
        self
    }
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// A handshake is under way.
    Dialling,
    /// Established, and the neighbour answers.
    Up,
    /// Established, but the neighbour does not answer.
    Silent,
    /// The last attempt failed; the next one follows.
    Waiting,
    /// It has ended and is not dialled again.
    Closed,
}

/// The state of a link at a moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStatus {
    /// The link.
    pub id: LinkId,
    /// Its state.
    pub state: LinkState,
    /// Whether this node opened it.
    pub is_opened_here: bool,
    /// Address of the neighbour.
    pub remote: SocketAddr,
    /// Local address, if it is known.
    pub local_ip: Option<IpAddr>,
    /// The interface that it is bound to: [`LinkOptions::interface`].
    pub interface: Option<String>,
    /// Fingerprint of the neighbour's certificate, once it was established, or the neighbour has refused this node after it
    /// proved its certificate.
    pub fingerprint: Option<Fingerprint>,
    /// Number of times that it was established.
    pub established: u64,
    /// Number of attempts and established connections that have ended.
    pub failures: u64,
    /// Why it or the last attempt ended.
    pub last_end: Option<CloseReason>,
    /// Statistics since it was last established. Bytes and packets include those of all sessions that use
    /// it.
    pub stats: Option<ConnectionStats>,
}

/// Why a link was not opened or established.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The options cannot be used.
    #[error("unusable configuration: {0}")]
    Configuration(String),
    /// The node has the maximum number of links.
    #[error("the node has {0} links and takes no more")]
    TooMany(usize),
    /// The attempt failed, or the link ended. A link that redials tries again.
    #[error("the link to the neighbour failed: {0}")]
    Failed(#[from] CloseReason),
    /// The link was closed.
    #[error("the link is closed")]
    Closed,
    /// The link takes no message now, or none of this length.
    #[error("the message was not sent: {0}")]
    Message(String),
    /// The node was shut down.
    #[error("the node is shut down")]
    NodeClosed,
}

/// A link to a neighbour. It stays open when this value is dropped, until it or the node is closed.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
    id: LinkId,
}

impl Link {
    /// The ID of the link, for [routes](super::RouteSet).
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Waits until the link is established. Completes at once if it is. The neighbour may still
    /// close it, if it does not admit this node.
    ///
    /// Cancel safe: the link does not depend on this future.
    ///
    /// # Errors
    /// [`LinkError::Failed`] when an attempt fails; a link that redials makes further attempts, so the
    /// caller can wait again.
    pub async fn established(&self) -> Result<(), LinkError> {
        let mut failures = None;
        poll_fn(|context| {
            let mut core = self.shared.lock();
            if core.is_shut_down || core.ended.is_some() {
                return Poll::Ready(Err(LinkError::NodeClosed));
            }
            let Some(node) = &mut core.node else { return Poll::Ready(Err(LinkError::NodeClosed)) };
            let Some(entry) = node.links.get_mut(self.id) else {
                return Poll::Ready(Err(LinkError::Closed));
            };
            if entry.is_up() {
                return Poll::Ready(Ok(()));
            }
            if let (true, Some(reason)) =
                (entry.failures > *failures.get_or_insert(entry.failures), &entry.last_end)
            {
                return Poll::Ready(Err(LinkError::Failed(reason.clone())));
            }
            entry.waiting.register(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Returns the state and the statistics.
    #[must_use]
    pub fn status(&self) -> Option<LinkStatus> {
        Links::new(self.shared.clone()).status(self.id)
    }

    /// Closes the link. Its queued packets use other links.
    pub fn close(&self) {
        Links::new(self.shared.clone()).close(self.id);
    }
}

/// The links of a node; see [`Node::links`](super::Node::links).
#[derive(Clone, Debug)]
pub struct Links {
    shared: Arc<Shared>,
}

impl Links {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Opens a link to a neighbour. Returns at once: see [`Link::established`] and the
    /// [events](super::Event).
    ///
    /// # Errors
    /// The options cannot be used, or there are too many links.
    pub fn open(&self, options: LinkOptions) -> Result<Link, LinkError> {
        self.shared.call(|core, clock| {
            let is_over = core.is_shut_down || core.ended.is_some();
            let Some(node) = core.node.as_mut().filter(|_| !is_over) else {
                return Err(LinkError::NodeClosed);
            };
            let id = node.open_link(clock.now(), core.endpoint.packets(), options)?;
            Ok(Link { shared: self.shared.clone(), id })
        })
    }

    /// The links that this node has opened, and those of neighbours that are established now.
    #[must_use]
    pub fn list(&self) -> Vec<LinkStatus> {
        let ids: Vec<LinkId> =
            self.shared.lock().node.iter().flat_map(|node| node.links.ids()).collect();
        ids.into_iter().filter_map(|id| self.status(id)).collect()
    }

    /// A link by its ID, if the node has it.
    #[must_use]
    pub fn get(&self, id: LinkId) -> Option<Link> {
        let is_known = self.shared.lock().node.as_ref()?.links.contains(id);
        is_known.then(|| Link { shared: self.shared.clone(), id })
    }

    /// Returns the state and the statistics of a link, if the node has it.
    #[must_use]
    pub fn status(&self, id: LinkId) -> Option<LinkStatus> {
        let mut core = self.shared.lock();
        let core = &mut *core;
        let now = self.shared.clock.now();
        core.node.as_ref()?.link_status(now, core.endpoint.packets(), id)
    }

    /// Returns the packets of all flows that the node has to send over a link, if it is established.
    #[must_use]
    pub fn queue(&self, id: LinkId) -> Option<LinkQueue> {
        let mut core = self.shared.lock();
        let core = &mut *core;
        let connection = core.node.as_ref()?.links.get(id)?.connection?;
        core.endpoint.packets().relay_link_queue(connection)
    }

    /// Sends a message of at most 1,024 bytes to the neighbour on a link, for the management of nodes. It is
    /// authenticated and reliable as long as the link lasts. The neighbour must
    /// [accept messages](super::NodeBuilder::link_messages); otherwise it closes the link.
    ///
    /// # Errors
    /// The link is not established, or takes no such message now.
    pub fn send(&self, id: LinkId, message: impl Into<Bytes>) -> Result<(), LinkError> {
        let message = message.into();
        if message.len() > MAX_LINK_MESSAGE {
            let text = format!("{} bytes are more than {MAX_LINK_MESSAGE}", message.len());
            return Err(LinkError::Message(text));
        }
        self.shared.call(|core, clock| {
            let links = core.node.as_ref().map(|node| &node.links).ok_or(LinkError::NodeClosed)?;
            let connection = links.get(id).and_then(|entry| entry.connection);
            let connection = connection.ok_or(LinkError::Closed)?;
            let sent = core.endpoint.packets().send(clock.now(), connection, message);
            sent.map_err(|error| LinkError::Message(error.to_string()))
        })
    }

    /// Closes a link permanently. Does nothing if there is no such link.
    pub fn close(&self, id: LinkId) {
        self.shared.call(|core, clock| {
            let mut due = Vec::new();
            if let Some(node) = &mut core.node {
                node.close_link(clock.now(), core.endpoint.packets(), id, &mut due);
            }
            due.into_iter().for_each(std::task::Waker::wake);
        });
    }

    /// Sets the policy of a link that this node has opened, in place of that of its options. It applies at once.
    /// Does nothing if there is no such link.
    pub fn set_policy(&self, id: LinkId, policy: LinkPolicy) {
        self.shared.call(|core, _| {
            if let Some(node) = &mut core.node {
                node.set_link_policy(core.endpoint.packets(), id, policy);
            }
        });
    }

    /// Admits the neighbour with this certificate: it may open links to this node, with this policy.
    /// The new policy applies at once to the links that it has opened.
    pub fn admit(&self, neighbour: Fingerprint, policy: LinkPolicy) {
        self.shared.call(|core, _| {
            if let Some(node) = &mut core.node {
                node.admit_neighbour(core.endpoint.packets(), neighbour, policy);
            }
        });
    }

    /// Stops admitting the neighbour, and closes the links that it has opened.
    pub fn refuse(&self, neighbour: Fingerprint) {
        self.shared.call(|core, clock| {
            let mut due = Vec::new();
            if let Some(node) = &mut core.node {
                node.refuse_neighbour(clock.now(), core.endpoint.packets(), neighbour, &mut due);
            }
            due.into_iter().for_each(std::task::Waker::wake);
        });
    }
}
