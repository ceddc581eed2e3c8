//! A connection as the application sees it, and the tasks that wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bats_proto::wire::flow::NodeId;
use bats_proto::{CloseReason, ConnectionCalls, ConnectionStats, Mode};
use bytes::Bytes;

use crate::channel_wakers::ChannelWakers;
use crate::compress::{CompressionOffer, MessageCodec};
use crate::wakers::Wakers;

/// The other end of a session between nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteNode {
    pub(crate) id: NodeId,
    /// Whether the session is a direct one, with a neighbour.
    pub(crate) is_direct: bool,
}

/// A connection's slot with its lock, which is taken after that of the core and before that of the connection itself. A
/// thread that holds it locks no core. Clones refer to the same slot.
#[derive(Clone, Debug)]
pub(crate) struct SharedSlot(Arc<Mutex<Slot>>);

impl SharedSlot {
    pub(crate) fn new(slot: Slot) -> Self {
        Self(Arc::new(Mutex::new(slot)))
    }

    /// Locks the slot. After a panic in another thread it still says whether the connection has ended.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The application's view of a connection.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The connection, if it has a lock of its own and has not ended.
    pub(crate) calls: Option<ConnectionCalls>,
    /// The I/O thread has ended.
    pub(crate) is_lost: bool,
    pub(crate) established: bool,
    /// The negotiated mode, once established.
    pub(crate) mode: Mode,
    /// Messages arrive, or the connection ends.
    pub(crate) is_reliable: bool,
    /// This end's compression offer, and the negotiated codec once established.
    pub(crate) compression_offer: Option<CompressionOffer>,
    pub(crate) codec: Option<MessageCodec>,
    /// The other end of a session between nodes that was accepted.
    pub(crate) remote_node: Option<RemoteNode>,
    /// The fingerprint of the peer's certificate, once established.
    pub(crate) peer_fingerprint: Option<[u8; 32]>,
    /// The application holds a [`Connection`](crate::Connection) to it, or will get one.
    pub(crate) is_held: bool,
    /// The connection is a link of a node: it does not depend on who holds it.
    pub(crate) is_link: bool,
    /// Whether a message was refused because the send budget was used up, and no space has become free
    /// since.
    pub(crate) is_blocked: bool,
    /// Whether the application has finished sending.
    pub(crate) is_finished: bool,
    pub(crate) end: Option<FinalState>,
    pub(crate) connecting: Wakers,
    pub(crate) reading: Wakers,
    pub(crate) writing: Wakers,
    pub(crate) finishing: Wakers,
    pub(crate) channels: ChannelWakers,
}

impl Slot {
    /// The close reason once the connection has ended.
    pub(crate) fn end_reason(&self) -> Option<CloseReason> {
        match &self.end {
            Some(end) => Some(end.reason.clone()),
            // The I/O thread ended before the connection did.
            None => self.is_lost.then_some(CloseReason::Local),
        }
    }

    /// Whether the task of `waker` alone waits for the connection, for a message; without one, no
    /// task does.
    pub(crate) fn has_only_reader(&self, waker: Option<&Waker>) -> bool {
        self.reading.has_only(waker)
            && [&self.connecting, &self.writing, &self.finishing]
                .iter()
                .all(|wakers| wakers.has_only(None))
            && self.channels.is_empty()
    }

    pub(crate) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        for wakers in
            [&mut self.connecting, &mut self.reading, &mut self.writing, &mut self.finishing]
        {
            wakers.drain_into(due);
        }
        self.channels.wake_all(due);
    }
}

/// The final state of a connection that has ended.
#[derive(Debug)]
pub(crate) struct FinalState {
    pub(crate) reason: CloseReason,
    /// Messages received in order and not yet taken by the application.
    pub(crate) messages: VecDeque<Bytes>,
    /// The peer had finished: `recv` returns `None` after the last message.
    pub(crate) finished: bool,
    pub(crate) all_acknowledged: bool,
    pub(crate) stats: ConnectionStats,
}
