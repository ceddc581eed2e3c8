//! Senders and members of groups, as the application holds them.

use std::future::poll_fn;
use std::task::Poll;

use bats_proto::wire::flow::NodeId;
use bats_proto::{
    CloseReason, GroupError, GroupHandle, GroupMessage, GroupOptions, GroupReceiverStats,
    GroupSenderStats, PresharedKey,
};
use bytes::Bytes;

use crate::endpoint::Endpoint;
use crate::endpoint_state::Core;
use crate::error::{RecvError, SendError};
use crate::wakers::Wakers;

/// A sender of messages to a group; see [`Node::group_sender`](super::Node::group_sender). Dropping it ends it as
/// [`finish`](Self::finish) does. The node's sockets and links stay open while there are senders.
#[derive(Debug)]
pub struct GroupSender {
    endpoint: Endpoint,
    handle: GroupHandle,
}

/// A membership of a group; see [`Node::join_group`](super::Node::join_group). Dropping it ends it. The node's sockets
/// and links stay open while there are memberships.
#[derive(Debug)]
pub struct GroupReceiver {
    endpoint: Endpoint,
    handle: GroupHandle,
}

/// Whether nothing is sent and received any more.
fn is_over(core: &Core) -> bool {
    core.is_shut_down || core.ended.is_some()
}

/// Adds the tasks that wait for a sender or a membership.
fn add_waiting(core: &mut Core, handle: GroupHandle) {
    if let Some(node) = &mut core.node {
        node.groups.insert(handle, Wakers::default());
    }
}

fn remove_waiting(core: &mut Core, handle: GroupHandle) {
    if let Some(node) = &mut core.node {
        node.groups.remove(&handle);
    }
}

impl GroupSender {
    pub(super) fn open(
        endpoint: Endpoint,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<Self, GroupError> {
        let handle = endpoint.shared().call(|core, clock| {
            let packets = core.endpoint.packets();
            let handle = packets.open_group_sender(clock.now(), group, key, options)?;
            add_waiting(core, handle);
            Ok::<_, GroupError>(handle)
        })?;
        Ok(Self { endpoint, handle })
    }

    /// Queues a message; completes when there is room for it. It expires if it is not sent within the deadline of
    /// [`GroupOptions`], and a member may lose it: nothing returns to the source.
    ///
    /// Cancel safe: a future that is dropped before it completes sends nothing, and the message is lost with it.
    ///
    /// # Errors
    /// See [`SendError`]; never [`SendError::Blocked`].
    pub async fn send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        let mut message = Some(message.into());
        poll_fn(|context| {
            let Some(next) = message.take() else { return Poll::Ready(Ok(())) };
            self.endpoint.shared().call(|core, clock| {
                match self.send_now(core, clock.now(), next) {
                    Err(SendError::Blocked(refused)) => {
                        message = Some(refused);
                        if let Some(node) = &mut core.node
                            && let Some(waiting) = node.groups.get_mut(&self.handle)
                        {
                            waiting.register(context.waker());
                        }
                        core.custody.disturb_leader();
                        Poll::Pending
                    }
                    result => Poll::Ready(result),
                }
            })
        })
        .await
    }

    /// Queues a message if there is room for it now.
    ///
    /// # Errors
    /// [`SendError::Blocked`] returns the message; see [`SendError`] for the others.
    pub fn try_send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        let message = message.into();
        self.endpoint.shared().call(|core, clock| self.send_now(core, clock.now(), message))
    }

    fn send_now(
        &self,
        core: &mut Core,
        now: bats_proto::Timestamp,
        message: Bytes,
    ) -> Result<(), SendError> {
        if is_over(core) {
            return Err(SendError::Closed(CloseReason::Local));
        }
        let result = core.endpoint.packets().send_to_group(now, self.handle, message);
        result.map_err(|error| match error {
            bats_proto::SendError::Blocked(message) => SendError::Blocked(message),
            bats_proto::SendError::TooLarge { size, limit } => SendError::TooLarge { size, limit },
            bats_proto::SendError::Finished => SendError::Finished,
            _ => SendError::Closed(CloseReason::Local),
        })
    }

    /// Ends the flow after the messages that were queued, and announces the end to the members for 320 ms.
    pub fn finish(&self) {
        self.endpoint.shared().call(|core, clock| {
            core.endpoint.packets().finish_group_sender(clock.now(), self.handle);
        });
    }

    /// Counters; `None` once the end was announced.
    #[must_use]
    pub fn stats(&self) -> Option<GroupSenderStats> {
        self.endpoint.shared().lock().endpoint.packets().group_sender_stats(self.handle)
    }
}

impl Drop for GroupSender {
    fn drop(&mut self) {
        self.finish();
        self.endpoint.shared().call(|core, _| remove_waiting(core, self.handle));
    }
}

impl GroupReceiver {
    pub(super) fn join(
        endpoint: Endpoint,
        group: NodeId,
        key: &PresharedKey,
        options: GroupOptions,
    ) -> Result<Self, GroupError> {
        let handle = endpoint.shared().call(|core, _| {
            let handle = core.endpoint.packets().join_group(group, key, options)?;
            add_waiting(core, handle);
            Ok::<_, GroupError>(handle)
        })?;
        Ok(Self { endpoint, handle })
    }

    /// Returns the next message, with its source; the sources take turns.
    ///
    /// Cancel safe: a future that is dropped takes no message.
    ///
    /// # Errors
    /// The node was shut down.
    pub async fn recv(&self) -> Result<GroupMessage, RecvError> {
        poll_fn(|context| {
            let mut core = self.endpoint.shared().lock();
            if let Some(message) = core.endpoint.packets().recv_from_group(self.handle) {
                return Poll::Ready(Ok(message));
            }
            if is_over(&core) {
                return Poll::Ready(Err(RecvError::Closed(CloseReason::Local)));
            }
            if let Some(node) = &mut core.node
                && let Some(waiting) = node.groups.get_mut(&self.handle)
            {
                waiting.register(context.waker());
            }
            core.custody.disturb_leader();
            Poll::Pending
        })
        .await
    }

    /// Returns the next message if there is one now.
    #[must_use]
    pub fn try_recv(&self) -> Option<GroupMessage> {
        self.endpoint.shared().lock().endpoint.packets().recv_from_group(self.handle)
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> GroupReceiverStats {
        let mut core = self.endpoint.shared().lock();
        core.endpoint.packets().group_receiver_stats(self.handle).unwrap_or_default()
    }
}

impl Drop for GroupReceiver {
    fn drop(&mut self) {
        self.endpoint.shared().call(|core, _| {
            core.endpoint.packets().leave_group(self.handle);
            remove_waiting(core, self.handle);
        });
    }
}
