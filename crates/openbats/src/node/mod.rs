//! Nodes: sessions over any number of relays, and over several links at once.
//!
//! A [`Node`] has [`Links`] to its neighbours, [`Routes`] that say which links lead to which node,
//! and [`Session`]s with other nodes, which may be many links away. A node with
//! [`relaying`](NodeBuilder::relaying) forwards the sessions of others: it recodes their packets and
//! repairs the losses of each hop, and cannot read them. A session uses all links to its destination
//! at once (multipath).
//!
//! ```
//! use openbats::node::{LinkOptions, Node, NodeId, RouteSet};
//! use openbats::{ClientOptions, Identity, Trust, Wait};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let identities = [Identity::generate(&["one"])?, Identity::generate(&["two"])?];
//! let prints = identities.clone().map(|identity| identity.fingerprint());
//! let [one, two] = identities;
//! let two = Node::builder(NodeId(2), two)
//!     .listen("127.0.0.1:0".parse()?)
//!     .neighbour(prints[0], Default::default())
//!     .peer(NodeId(1), prints[0])
//!     .start()?;
//! let one = Node::builder(NodeId(1), one).peer(NodeId(2), prints[1]).start()?;
//!
//! let trust = Trust::fingerprint(prints[1]);
//! let link = one.links().open(LinkOptions::new(two.local_addrs()[0], trust.clone()))?;
//! link.established().wait()?;
//! one.routes().replace(RouteSet::new().to(NodeId(2), link.id()))?;
//! two.routes().replace(RouteSet::new().to(NodeId(1), prints[0]))?;
//!
//! let to = one.connect_node(NodeId(2), "two", ClientOptions::new(trust)).wait()?;
//! let from = two.accept().wait()?;
//! to.send("hello").wait()?;
//! to.finish().wait()?;
//! assert_eq!(from.recv().wait()?.as_deref(), Some(&b"hello"[..]));
//! assert_eq!(from.remote_node(), NodeId(1));
//! # Ok(())
//! # }
//! ```
//!
//! # Groups
//!
//! A [`GroupSender`] sends messages to a group, and each [`GroupReceiver`] of it that the [`GroupRoute`]s lead to
//! gets them: one way, with a deadline, as in mode BTP. Every link transports a message once, and repairs its own
//! losses; a slow or failed branch delays no other one.
//!
//! # Authentication and admission
//!
//! Every link and every session has a TLS handshake in which both ends show their certificates.
//!
//! | question | answer |
//! |---|---|
//! | Which neighbour does this node open a link to? | the trust in [`LinkOptions`] |
//! | Who may open links to this node? | [`NodeBuilder::neighbour`], [`Links::admit`]; others are closed with code [`codes::NOT_ADMITTED`] |
//! | What may a neighbour send? | its [`LinkPolicy`]: to this node alone or through it, from and to which nodes |
//! | Who may have sessions with this node? | [`NodeBuilder::peer`]: a node ID is tied to a certificate |
//! | Which neighbour does a direct session reach? | that of the links whose certificate [`NodeBuilder::peer`] ties to the node |
//! | Who answers for a node that this one opens a session to? | the trust in [`ClientOptions`], and [`NodeBuilder::peer`] |
//!
//! # Futures, blocking calls, callbacks
//!
//! Calls that may take time are futures that run on any executor; [`Wait::wait`](crate::Wait::wait)
//! blocks instead. [`Session::on_message`] and [`Events::for_each`] call a function on a thread of
//! their own. All futures of this module are cancel safe, as each call describes.
//!
//! # Limits
//!
//! Links and routes are given by the application: no routing protocol runs here. A node has at most
//! 4,096 links, of which a neighbour opens at most 16, and 16,384 destinations with 16 next hops
//! each. A link that fails is dialled again after 0.2 s, then after up to 5 s.

mod builder;
pub mod codes;
mod event;
mod events;
mod group_route;
mod groups;
mod handling;
mod interface;
mod link;
mod link_table;
mod links;
#[cfg(feature = "node-core")]
mod network;
mod route_error;
mod route_set;
mod routes;
mod session;
mod state;
mod via;
#[cfg(feature = "virtual-time")]
#[doc(hidden)]
pub mod virtual_time;

use std::net::SocketAddr;
use std::sync::Arc;

pub use bats_proto::relay::{
    FlowStatus, LinkQueue, MAX_GROUP_ENTRIES, MAX_PATHS, RelayBatchStats, RelayDropStats,
    RelayMemoryStats, RelayStats,
};
pub use bats_proto::wire::flow::FlowKey;
pub use bats_proto::wire::flow::NodeId;
use bats_proto::{EndpointStats, PresharedKey, TransportConfig};
pub use bats_proto::{
    GROUP_SOURCE_TIMEOUT, GroupError, GroupMessage, GroupOptions, GroupReceiverStats,
    GroupSenderStats, MAX_GROUP_SOURCES,
};

pub use builder::NodeBuilder;
pub use event::Event;
pub use events::Events;
pub use group_route::GroupRoute;
pub use groups::{GroupReceiver, GroupSender};
pub use link::{LinkError, LinkId, LinkOptions, LinkPolicy, LinkState, LinkStatus};
pub use links::{Link, Links};
pub use route_error::{MAX_DESTINATIONS, RouteError};
pub use route_set::{NextHop, RouteSet};
pub use routes::Routes;
pub use session::Session;
pub(crate) use state::{NodeSetup, NodeState};
pub use via::Via;

use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::options::ClientOptions;
use crate::slot::RemoteNode;

/// A node. Clones refer to the same node. Its sockets and links stay open until the node and all its
/// sessions are dropped.
#[derive(Clone, Debug)]
pub struct Node {
    endpoint: Endpoint,
}

impl Node {
    /// Returns a builder of a node with this ID, which no other node of the network has, and this
    /// certificate and key, which it shows to its neighbours and to the other ends of its sessions.
    #[must_use]
    pub fn builder(id: NodeId, identity: Identity) -> NodeBuilder {
        NodeBuilder::new(id, identity)
    }

    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    fn with_state<T>(&self, read: impl FnOnce(&NodeState) -> T) -> Option<T> {
        self.endpoint.shared().lock().node.as_deref().map(read)
    }

    /// The ID of this node.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.with_state(|node| node.id).unwrap_or(NodeId(0))
    }

    /// The fingerprint of this node's certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.with_state(|node| node.setup.identity.fingerprint())
    }

    /// The addresses of the node's sockets, in the order of [`NodeBuilder::listen`].
    #[must_use]
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.with_state(|node| node.addresses.clone()).unwrap_or_default()
    }

    /// The links to neighbours.
    #[must_use]
    pub fn links(&self) -> Links {
        Links::new(Arc::clone(self.endpoint.shared()))
    }

    /// The routes to other nodes.
    #[must_use]
    pub fn routes(&self) -> Routes {
        Routes::new(Arc::clone(self.endpoint.shared()))
    }

    /// The events of links and sessions.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(Arc::clone(self.endpoint.shared()))
    }

    /// Opens a session with another node over the links that the routes define. With
    /// [`Trust::authorities`](crate::Trust::authorities) the certificate of that node must be valid
    /// for `server_name`. The session shows this node's identity and uses its pre-shared key, unless
    /// the options have others. Modes BTP, BRTP, BRCTP and TRANSPARENT, without early data.
    ///
    /// Cancel safe: a future that is dropped before it completes closes the session.
    ///
    /// # Errors
    /// [`ConnectError::NoRoute`] if no route leads to the node. If a relay has none for more than a
    /// second, the error names it. If the node does not answer, for example because a link on the
    /// path is down, the handshake times out. For other errors see [`ConnectError`].
    pub async fn connect_node(
        &self,
        node: NodeId,
        server_name: &str,
        options: ClientOptions,
    ) -> Result<Session, ConnectError> {
        let connection = self.endpoint.establish_session(node, server_name, options).await?;
        Ok(Session::new(connection, RemoteNode { id: node, is_direct: false }))
    }

    /// Opens a direct session with a neighbour over all established links with it, those that are established later
    /// included: these are the links whose neighbour has a certificate that [`NodeBuilder::peer`] or
    /// [`set_peer`](Self::set_peer) ties to this node alone. The neighbour must tie the certificate of this node to its ID,
    /// too.
    ///
    /// It needs no route. It has neither a TLS handshake nor seals of its own: the links authenticate the neighbour and
    /// protect each packet. So it is established within one round trip, and a further link is used as soon as it is
    /// established. While there is no link it waits for one, up to the idle timeout. Modes BTP, BRTP, BRCTP and TRANSPARENT,
    /// without early data; pre-shared keys and resumption are those of the links.
    ///
    /// Cancel safe: a future that is dropped before it completes closes the session.
    ///
    /// # Errors
    /// [`ConnectError::NoLink`] if no such link is established. If the neighbour does not answer, or ties no certificate of
    /// this node to its ID, the handshake times out. [`ConnectError::Configuration`] if the configuration has a pre-shared
    /// key, resumption or early data. For other errors see [`ConnectError`].
    pub async fn connect_neighbour(
        &self,
        node: NodeId,
        transport: TransportConfig,
    ) -> Result<Session, ConnectError> {
        let connection = self.endpoint.establish_direct_session(node, transport).await?;
        Ok(Session::new(connection, RemoteNode { id: node, is_direct: true }))
    }

    /// Returns the next session that another node has opened, direct ones included.
    ///
    /// Cancel safe: a future that is dropped takes no session.
    ///
    /// # Errors
    /// [`ConnectError::EndpointClosed`] after [`shut_down`](Self::shut_down).
    pub async fn accept(&self) -> Result<Session, ConnectError> {
        let (connection, remote) = self.endpoint.accept_session().await?;
        Ok(Session::new(connection, remote))
    }

    /// Opens a sender of messages to a group: one of the IDs of 224.0.0.0/4. [`GroupRoute`]s of this node and of the
    /// relays say where they go. Only holders of the key can read them; each of them can also forge them, so the
    /// key proves that a member has sent a message, and not which one. An application that needs more signs its messages.
    ///
    /// # Errors
    /// `group` is no group, the node does not recode, or it has 64 senders.
    pub fn group_sender(
        &self,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<GroupSender, GroupError> {
        GroupSender::open(self.endpoint.clone(), group, key, options)
    }

    /// Makes this node a member of a group. It receives the messages of sources whose [`GroupRoute`]s lead here, of
    /// at most [`MAX_GROUP_SOURCES`] at once, and each from the next message on.
    ///
    /// # Errors
    /// `group` is no group, the node does not recode, is a member already, or of 64 groups.
    pub fn join_group(
        &self,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<GroupReceiver, GroupError> {
        GroupReceiver::join(self.endpoint.clone(), group, key, options)
    }

    /// PSK mode: replaces the keys of this node without a restart. Links and sessions that it opens
    /// from now on use the first one; neighbours and peers that open one may have any of them. Open
    /// links and sessions stay. To change the key of a network, let every node accept the old and the
    /// new key, then put the new one first everywhere, then drop the old one.
    ///
    /// # Errors
    /// [`ConnectError::Configuration`] if the node was started without
    /// [`NodeBuilder::preshared_key`], or there are not one to four keys.
    pub fn set_preshared_keys(&self, keys: &[PresharedKey]) -> Result<(), ConnectError> {
        self.endpoint.set_preshared_keys(keys)?;
        let mut core = self.endpoint.shared().lock();
        if let Some(node) = core.node.as_deref_mut() {
            node.setup.preshared_key = keys.first().cloned();
        }
        Ok(())
    }

    /// Accepts sessions from the node with this ID if it has one of these certificates, in place of
    /// those that [`NodeBuilder::peer`] or an earlier call named. Without certificates there are no
    /// more sessions with it, unless [`NodeBuilder::any_peer`] is set. Open sessions stay open, but direct ones leave the
    /// links whose certificate is not tied to the node any more.
    pub fn set_peer(&self, node: NodeId, fingerprints: impl IntoIterator<Item = Fingerprint>) {
        let fingerprints: Vec<Fingerprint> = fingerprints.into_iter().collect();
        self.endpoint.shared().call(|core, clock| {
            if let Some(state) = core.node.as_deref_mut() {
                state.set_peer(clock.now(), core.endpoint.packets(), node, fingerprints);
            }
        });
    }

    /// Accepts no more sessions and no more links of neighbours; open ones stay open.
    pub fn stop_accepting(&self) {
        self.endpoint.stop_accepting();
    }

    /// Counters of relayed, recoded and dropped packets with the reasons, and the current memory use.
    /// They include the packets of the node's own sessions.
    #[must_use]
    pub fn relay_stats(&self) -> RelayStats {
        let mut core = self.endpoint.shared().lock();
        core.endpoint.packets().relay_stats().unwrap_or_default()
    }

    /// The flows that the node relays, sends and receives, in the order of their keys. Each session has
    /// one in each direction; those of sessions that have ended stay until an idle timeout of 300 s.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowStatus> {
        self.endpoint.shared().call(|core, clock| core.endpoint.packets().relay_flows(clock.now()))
    }

    /// Returns the counters that belong to no link and no session.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }

    /// Closes all sessions with an application's code and text, then all links. The node opens and
    /// accepts no more. Await [`idle`](Self::idle) to let the peers receive the close.
    pub fn shut_down(&self, code: u64, reason: &str) {
        self.endpoint.shut_down(code, reason);
    }

    /// Waits until there are no links and sessions, closing ones included.
    ///
    /// Cancel safe.
    pub async fn idle(&self) {
        self.endpoint.idle().await;
    }

    /// Closes everything like [`shut_down`](Self::shut_down), sends each peer one CONNECTION_CLOSE
    /// and closes the sockets. Completes when the local addresses are free again.
    ///
    /// Cancel safe: the node ends even if the future is dropped after it was first polled.
    pub async fn terminate(&self, code: u64, reason: &str) {
        self.endpoint.terminate(code, reason).await;
    }
}
