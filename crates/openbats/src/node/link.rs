//! Options, states and errors of links to neighbours.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::time::Duration;

use bats_proto::wire::flow::NodeId;
use bats_proto::{CloseReason, ConnectionStats, TransportConfig, relay};

use crate::driver::canonical;
use crate::fingerprint::Fingerprint;
use crate::options::Trust;

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
    /// together; repairs of the losses behind this node count, too, and so does each copy of a packet to a group. What is beyond the rate waits at
    /// this node, within the memory of its flow, and the nodes before it send less. End-to-end packets, as
    /// of handshakes, do not wait: those beyond the rate are dropped
    /// ([`RelayDropStats::rate_limited`](crate::node::RelayDropStats::rate_limited)).
    #[must_use]
    pub fn rate(mut self, bits_per_second: NonZeroU64) -> Self {
        self.rate = Some(bits_per_second);
        self
    }

    /// As the protocol core enforces it for the links with the neighbour that has this certificate, at a node that relays
    /// or not. `neighbour` is the node that is tied to the certificate.
    pub(crate) fn enforced(
        &self,
        relaying: bool,
        fingerprint: Fingerprint,
        neighbour: Option<NodeId>,
    ) -> relay::LinkPolicy {
        let mut policy = relay::LinkPolicy::default();
        policy.neighbour = neighbour;
        policy.transit = relaying && self.transit;
        policy.sources.clone_from(&self.sources);
        policy.destinations.clone_from(&self.destinations);
        let (first, _) = fingerprint.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
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
