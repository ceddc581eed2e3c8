//! The links of a node, as the application uses them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bats_proto::relay::LinkQueue;
use bytes::Bytes;

use super::NodeId;
use super::link::{LinkError, LinkId, LinkOptions, LinkPolicy, LinkStatus};
use super::link_table::MAX_LINK_MESSAGE;
use super::session::Session;
use crate::connection::Connection;
use crate::endpoint_state::Core;
use crate::fingerprint::Fingerprint;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::transport::Handle;

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

    /// The session of a link itself, while the link is established: its channels use this link alone. No relay takes
    /// part: packets are neither recoded nor sealed twice, so a channel costs less processor time than one of a
    /// session over routes. At the link, packets of this session and all others take turns, so that it has half of a
    /// full link. It ends with this connection of the link, and what is in flight is lost then: a link that is established
    /// again has a new session.
    ///
    /// Both nodes need [`link_channels`](super::NodeBuilder::link_channels), and a node that opens a link must trust
    /// exactly the fingerprint that [`peer`](super::NodeBuilder::peer) names. A channel whose other end has no such session is
    /// stopped with [`codes::NO_SESSION`](super::codes::NO_SESSION). Messages of this session are those of
    /// [`send`](Self::send) and of its events. [`Session::close`] ends the link as a failure does; dropping the session or a
    /// channel of it does not, and neither keeps the node open.
    ///
    /// `None` if the link is not established, its neighbour has a certificate that [`peer`](super::NodeBuilder::peer) ties to
    /// no node or to several, or links of this node have no channels.
    #[must_use]
    pub fn session(&self, id: LinkId) -> Option<Session> {
        let mut core = self.shared.lock();
        let node = core.node.as_ref()?;
        let neighbour = node.node_with(node.links.get(id)?.fingerprint?)?;
        self.session_of(&mut core, id, neighbour)
    }

    /// The [sessions](Self::session) of all links, at one moment.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        let mut core = self.shared.lock();
        let links = core.node.as_ref().map(|node| node.links_with_nodes()).unwrap_or_default();
        let session = |(id, node)| self.session_of(&mut core, id, node);
        links.into_iter().filter_map(session).collect()
    }

    fn session_of(&self, core: &mut Core, id: LinkId, neighbour: NodeId) -> Option<Session> {
        let node = core.node.as_ref()?;
        node.setup.link_channels?;
        let entry = node.links.get(id)?;
        let (handle, remote) = (Handle::Packets(entry.connection?), entry.remote);
        let establishment = (id, entry.established);
        if !core.slots.contains_key(&handle) {
            let slot = Slot {
                established: true,
                mode: core.endpoint.mode(handle)?,
                is_reliable: core.endpoint.is_reliable(handle),
                peer_fingerprint: core.endpoint.peer_fingerprint(handle),
                is_held: true,
                is_link: true,
                ..Slot::default()
            };
            core.add_slot(handle, slot);
        }
        let connection = Connection::new(self.shared.clone(), core, handle, remote);
        Some(Session::of_link(connection, neighbour, establishment))
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
        self.shared.call(|core, clock| {
            if let Some(node) = &mut core.node {
                node.set_link_policy(clock.now(), core.endpoint.packets(), id, policy);
            }
        });
    }

    /// Admits the neighbour with this certificate: it may open links to this node, with this policy.
    /// The new policy applies at once to the links that it has opened.
    pub fn admit(&self, neighbour: Fingerprint, policy: LinkPolicy) {
        self.shared.call(|core, clock| {
            if let Some(node) = &mut core.node {
                node.admit_neighbour(clock.now(), core.endpoint.packets(), neighbour, policy);
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
