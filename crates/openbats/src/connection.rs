//! A connection: messages to and from one peer.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bats_proto::{CloseReason, ConnectionCalls, ConnectionStats, Mode, Timestamp};
use bytes::Bytes;

use crate::access::Access;
use crate::compress::MessageCodec;
use crate::driver::Candidate;
use crate::endpoint_state::Core;
use crate::error::{ChannelError, ConnectError, RecvError, SendError};
use crate::fingerprint::Fingerprint;
use crate::shared::Shared;
use crate::slot::{SharedSlot, Slot};
use crate::transport::Handle;
use crate::work::{FollowUp, Read, Work};

/// A connection to a peer. It transports messages and keeps their boundaries; the other guarantees
/// depend on the [`mode`](Self::mode): see [the modes](crate#modes).
///
/// Clones refer to the same connection. Dropping the last one closes an open connection with code 0
/// and may lose unacknowledged messages: call [`finish`](Self::finish) first.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    handle: Handle,
    slot: SharedSlot,
    remote: SocketAddr,
    /// Set when the connection is established, if both ends enable compression.
    codec: OnceLock<MessageCodec>,
    /// Whether the connection and the endpoint stay open as long as this value exists.
    keeps_open: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.keeps_open {
            self.shared.on_dropped(Some(self.handle));
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("handle", &self.inner.handle)
            .field("remote", &self.inner.remote)
            .finish_non_exhaustive()
    }
}

/// The close reason if the I/O thread ended before the connection did.
fn lost() -> CloseReason {
    CloseReason::Local
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        core: &mut Core,
        handle: Handle,
        remote: SocketAddr,
    ) -> Self {
        let codec = OnceLock::new();
        let slot = core.slots.get(&handle).cloned();
        // A connection without a slot has ended.
        let slot =
            slot.unwrap_or_else(|| SharedSlot::new(Slot { is_lost: true, ..Slot::default() }));
        if let Some(agreed) = slot.lock().codec {
            let _ = codec.set(agreed);
        }
        let keeps_open = !slot.lock().is_link;
        core.handles += usize::from(keeps_open);
        Self { inner: Arc::new(Inner { shared, handle, slot, remote, codec, keeps_open }) }
    }

    /// Runs a call for this connection.
    fn call<T>(&self, call: impl FnOnce(&mut Slot, &mut Access<'_>, Timestamp) -> (T, Work)) -> T {
        self.inner.shared.call_connection(self.inner.handle, &self.inner.slot, call)
    }

    /// The reason of the end, for a call that the connection has refused because it is closed. The turn in which it was
    /// closed may not have got to the event that says why, so this waits for it. A turn that could not send everything
    /// ends without it; then the reason is not known yet.
    fn reason_of_end(&self) -> CloseReason {
        let known = self.inner.slot.lock().end_reason();
        known.unwrap_or_else(|| {
            drop(self.inner.shared.lock());
            self.inner.slot.lock().end_reason().unwrap_or_else(lost)
        })
    }

    /// Runs a call that changes nothing, unless the connection has ended.
    fn look<T>(&self, look: impl FnOnce(&Access<'_>, Timestamp) -> Option<T>) -> Option<T> {
        self.call(|_, access, now| (look(access, now), Work::NOTHING))
    }

    pub(crate) fn poll_established(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectError>> {
        let mut slot = self.inner.slot.lock();
        if let Some(reason) = slot.end_reason() {
            return Poll::Ready(Err(reason.into()));
        }
        if slot.established {
            if let Some(agreed) = slot.codec {
                let _ = self.inner.codec.set(agreed);
            }
            return Poll::Ready(Ok(()));
        }
        slot.connecting.register(context.waker());
        Poll::Pending
    }

    /// Queues a message; completes when the send buffer has room for it, not when the message
    /// arrives.
    ///
    /// # Errors
    /// See [`SendError`]; never [`SendError::Blocked`].
    pub async fn send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.push(message.into(), None).await
    }

    /// Like [`send`](Self::send), with a deadline of at most one hour from the time at which the
    /// message is queued. After the deadline BTP and TRANSPARENT neither send nor repair the
    /// message. Without this, the deadline of [`TransportConfig`](crate::TransportConfig) applies.
    /// Reliable modes ignore deadlines.
    ///
    /// # Errors
    /// See [`SendError`]; never [`SendError::Blocked`].
    pub async fn send_within(
        &self,
        message: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<(), SendError> {
        self.push(message.into(), Some(deadline)).await
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    async fn push(&self, message: Bytes, deadline: Option<Duration>) -> Result<(), SendError> {
        let mut waiting = self.waiting(message, deadline)?;
        poll_fn(|context| self.poll_push(context, &mut waiting)).await
    }

    fn waiting(&self, message: Bytes, deadline: Option<Duration>) -> Result<Waiting, SendError> {
        Ok(Waiting { size: message.len(), encoded: Some(self.encode(&message)?), deadline })
    }

    /// Queues a message. If the send buffer has no room for it, it stays in `waiting`, and the task of
    /// `context` waits.
    pub(crate) fn poll_push(
        &self,
        context: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<(), SendError>> {
        let Some(message) = waiting.encoded.take() else { return Poll::Ready(Ok(())) };
        self.call(|slot, access, now| {
            match try_push(slot, access, now, message, waiting.deadline) {
                Err(SendError::Blocked(message)) => {
                    waiting.encoded = Some(message);
                    slot.writing.register(context.waker());
                    (Poll::Pending, Work { has_waiter: true, ..self.after_send() })
                }
                other => {
                    let error = |error| self.with_uncompressed_sizes(error, waiting.size);
                    (Poll::Ready(other.map_err(error)), self.after_send())
                }
            }
        })
        .map_err(|error| self.with_reason(error))
    }

    /// Queues a message, or returns it if the send buffer has no room for it now.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn push_or_wait(&self, message: Bytes) -> Result<Option<Waiting>, SendError> {
        let mut waiting = self.waiting(message, None)?;
        let mut context = Context::from_waker(Waker::noop());
        match self.poll_push(&mut context, &mut waiting) {
            Poll::Pending => Ok(Some(waiting)),
            Poll::Ready(sent) => sent.map(|()| None),
        }
    }

    /// Encodes a message for the peer.
    fn encode(&self, message: &Bytes) -> Result<Bytes, SendError> {
        match self.inner.codec.get() {
            None => Ok(message.clone()),
            Some(codec) if message.len() > codec.max_send => {
                Err(SendError::TooLarge { size: message.len(), limit: codec.max_send })
            }
            Some(codec) => Ok(codec.encode(message)),
        }
    }

    /// Converts sizes in an error to those of the application's uncompressed message of `size`
    /// bytes.
    fn with_uncompressed_sizes(&self, error: SendError, size: usize) -> SendError {
        match error {
            SendError::TooLarge { limit, .. } if self.is_compressed() => {
                SendError::TooLarge { size, limit: limit.saturating_sub(1) }
            }
            other => other,
        }
    }

    /// Queues a message if the send buffer has room for it now.
    ///
    /// # Errors
    /// [`SendError::Blocked`] returns the message; see [`SendError`] for the others.
    pub fn try_send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.try_send_encoded(message.into(), None)
    }

    /// Like [`try_send`](Self::try_send), with a deadline as in [`send_within`](Self::send_within).
    ///
    /// # Errors
    /// [`SendError::Blocked`] returns the message; see [`SendError`] for the others.
    pub fn try_send_within(
        &self,
        message: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<(), SendError> {
        self.try_send_encoded(message.into(), Some(deadline))
    }

    fn try_send_encoded(
        &self,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        // Compression would be wasted while the send buffer is full.
        if self.is_compressed() && self.is_blocked() {
            return Err(SendError::Blocked(message));
        }
        let encoded = self.encode(&message)?;
        let sent = self.call(|slot, access, now| {
            (try_push(slot, access, now, encoded, deadline), self.after_send())
        });
        sent.map_err(|error| match error {
            SendError::Blocked(_) => SendError::Blocked(message),
            other => self.with_reason(self.with_uncompressed_sizes(other, message.len())),
        })
    }

    /// Says why the connection is closed, which has refused a message.
    fn with_reason(&self, error: SendError) -> SendError {
        match error {
            SendError::Closed(_) => SendError::Closed(self.reason_of_end()),
            other => other,
        }
    }

    fn is_blocked(&self) -> bool {
        self.inner.slot.lock().is_blocked
    }

    fn after_send(&self) -> Work {
        Work::follow_up(match self.inner.handle.uses_shared_socket() {
            true => FollowUp::Send,
            false => FollowUp::Wake,
        })
    }

    /// Waits until the send buffer has room after [`try_send`](Self::try_send) returned
    /// [`SendError::Blocked`]. Completes at once if it did not. Another task may fill the buffer
    /// first.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn writable(&self) -> Result<(), SendError> {
        poll_fn(|context| {
            self.call(|slot, _, _| match slot.end_reason() {
                Some(reason) => (Poll::Ready(Err(reason.into())), Work::NOTHING),
                None if slot.is_blocked => {
                    slot.writing.register(context.waker());
                    (Poll::Pending, Work::waiter())
                }
                None => (Poll::Ready(Ok(())), Work::NOTHING),
            })
        })
        .await
    }

    /// Returns the next message, or `None` after the last one if the peer has finished.
    ///
    /// # Errors
    /// The connection ended before the peer finished. Messages that arrived before that are
    /// returned first.
    pub async fn recv(&self) -> Result<Option<Bytes>, RecvError> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    pub(crate) fn poll_recv(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, RecvError>> {
        match self.take(Some(context)) {
            Taken::Nothing => Poll::Pending,
            Taken::Message(message) => Poll::Ready(Ok(Some(message))),
            Taken::Finished => Poll::Ready(Ok(None)),
            Taken::Closed(reason) => Poll::Ready(Err(reason.into())),
        }
    }

    /// Returns the next message if there is one now; otherwise `None`, also after the last one.
    #[must_use]
    pub fn try_recv(&self) -> Option<Bytes> {
        match self.take(None) {
            Taken::Message(message) => Some(message),
            _ => None,
        }
    }

    /// Takes a message; if there is none, registers `context` to be woken by the next one.
    fn take(&self, context: Option<&mut Context<'_>>) -> Taken {
        match (self.take_encoded(context), self.inner.codec.get()) {
            (Taken::Message(encoded), Some(codec)) => {
                match codec.decode(encoded) {
                    Ok(message) => Taken::Message(message),
                    Err(rule) => Taken::Closed(self.inner.shared.call(|core, clock| {
                        core.close_for_violation(clock, self.inner.handle, &rule)
                    })),
                }
            }
            (other, _) => other,
        }
    }

    fn take_encoded(&self, context: Option<&mut Context<'_>>) -> Taken {
        let handle = self.inner.handle;
        self.call(|slot, access, now| {
            let mut has_waiter = false;
            let taken = take_from(slot, access, now);
            if let (Taken::Nothing, Some(context)) = (&taken, context) {
                slot.reading.register(context.waker());
                has_waiter = true;
                Candidate::offer(&self.inner.shared, handle);
            }
            if !handle.uses_shared_socket() {
                return (taken, Work { has_waiter, ..Work::follow_up(FollowUp::Wake) });
            }
            // Credit for the peer follows from messages that the application has taken.
            let read = match &taken {
                Taken::Message(message) => Read::Message(Some(message.len())),
                Taken::Nothing => Read::Message(None),
                Taken::Finished | Taken::Closed(_) => Read::Never,
            };
            (taken, Work { has_waiter, read, ..Work::NOTHING })
        })
    }

    /// Runs a call on the channels of an open connection, which also returns what it leaves to do. `None` if it is
    /// blocked.
    pub(crate) fn on_channels<T>(
        &self,
        call: impl FnOnce(&mut Slot, &ConnectionCalls) -> (Result<T, bats_proto::ChannelError>, Work),
    ) -> Option<Result<T, ChannelError>> {
        let (result, is_open) = self.call(|slot, access, _| {
            if let Some(reason) = slot.end_reason() {
                return ((Some(Err(reason.into())), true), Work::NOTHING);
            }
            let Access::Own(calls) = access else {
                return ((Some(Err(ChannelError::Unsupported)), true), Work::NOTHING);
            };
            let (result, work) = call(slot, calls);
            let result = ChannelError::of_call(result);
            let is_open = !matches!(result, Some(Err(ChannelError::Closed))) || calls.is_open();
            ((result, is_open), work)
        });
        match is_open {
            true => result,
            false => Some(Err(self.reason_of_end().into())),
        }
    }

    /// Sends the end of the messages and waits until the peer has acknowledged everything. In BTP
    /// and TRANSPARENT the peer also learns how many messages were lost.
    ///
    /// # Errors
    /// The connection ended before everything was acknowledged.
    pub async fn finish(&self) -> Result<(), SendError> {
        self.begin_finish()?;
        self.flush().await
    }

    /// Sends the end of the messages.
    pub(crate) fn begin_finish(&self) -> Result<(), SendError> {
        let finished = self.call(|slot, access, now| match slot.end_reason() {
            // If `finish` was called before the connection ended, everything may have arrived.
            Some(_) if slot.is_finished => (Ok(()), Work::NOTHING),
            Some(reason) => (Err(SendError::Closed(reason)), Work::NOTHING),
            None => match access.finish(now) {
                Ok(()) | Err(bats_proto::SendError::Finished) => {
                    slot.is_finished = true;
                    (Ok(()), Work::follow_up(FollowUp::Wake))
                }
                Err(bats_proto::SendError::Closed) if slot.is_finished => (Ok(()), Work::NOTHING),
                Err(error) => (Err(translate(error)), Work::NOTHING),
            },
        });
        finished.map_err(|error| self.with_reason(error))
    }

    /// Waits until the peer has acknowledged all messages sent so far. In BTP and TRANSPARENT,
    /// waits until none of them would be sent or repaired any more.
    ///
    /// # Errors
    /// The connection ended before everything was acknowledged.
    pub async fn flush(&self) -> Result<(), SendError> {
        poll_fn(|context| self.poll_flushed(context)).await
    }

    pub(crate) fn poll_flushed(&self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.call(|slot, access, _| {
            let done = match &slot.end {
                Some(end) => end.all_acknowledged,
                None => access.is_all_acknowledged(),
            };
            if done {
                return (Poll::Ready(Ok(())), Work::NOTHING);
            }
            if let Some(reason) = slot.end_reason() {
                return (Poll::Ready(Err(reason.into())), Work::NOTHING);
            }
            slot.finishing.register(context.waker());
            (Poll::Pending, Work::waiter())
        })
    }

    /// Closes the connection at once, with an application's code and text for the peer. Messages
    /// that are not acknowledged may be lost.
    pub fn close(&self, code: u64, reason: &str) {
        self.call(|_, access, now| {
            access.close(now, code, reason);
            ((), Work::follow_up(FollowUp::Wake))
        });
    }

    /// Marks the peer as trusted, for example after it has identified itself: from now on its
    /// connection may hold as much as [`TransportConfig`](crate::TransportConfig) allows. Has no
    /// effect without
    /// [`ServerOptions::untrusted_peer_budget`](crate::ServerOptions::untrusted_peer_budget).
    pub fn trust_peer(&self) {
        self.inner.shared.call(|core, _| core.trust_peer(self.inner.handle));
    }

    /// Returns the close reason once the connection has ended.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.inner.slot.lock().end_reason()
    }

    /// Returns the current statistics, or the final ones after the end.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.call(|slot, access, now| {
            let stats = match &slot.end {
                Some(end) => end.stats.clone(),
                None => access.stats(now).unwrap_or_default(),
            };
            (stats, Work::NOTHING)
        })
    }

    /// Returns the mode: the client's choice among those that the server accepts.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.slot.lock().mode
    }

    /// Whether all messages arrive, each once and in order, unless the connection ends. Follows
    /// from the mode, but is false for QUIC datagrams.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        self.inner.slot.lock().is_reliable
    }

    /// Size in bytes of the longest message that can be sent now. For QUIC datagrams it depends on
    /// the path MTU. `None` after the end, and in mode UDP.
    #[must_use]
    pub fn longest_message(&self) -> Option<usize> {
        let longest = self.look(|access, _| access.longest_message())?;
        // With compression each message begins with a header byte.
        Some(longest.saturating_sub(usize::from(self.is_compressed())))
    }

    /// Whether messages are compressed: both ends enabled it.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.inner.codec.get().is_some()
    }

    /// Returns the peer's address: the unspecified `0.0.0.0:0` for a session over relays, whose peer is a node
    /// without one.
    #[must_use]
    pub fn remote_addr(&self) -> SocketAddr {
        self.inner.remote
    }

    /// Returns the local address: over TCP that of the open connection, otherwise that of the
    /// endpoint, which may be unspecified.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.look(|access, _| access.local()).unwrap_or(self.inner.shared.local_addr)
    }

    /// Returns the fingerprint of the peer's certificate, if it sent one.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.inner.slot.lock().peer_fingerprint.map(Fingerprint)
    }
}

/// A message for which the send buffer may have no room yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// `None` once it is queued.
    encoded: Option<Bytes>,
    /// Bytes before compression.
    size: usize,
    deadline: Option<Duration>,
}

enum Taken {
    Message(Bytes),
    Finished,
    Closed(CloseReason),
    Nothing,
}

/// Queues a message, or returns it if the send buffer has no room for it.
fn try_push(
    slot: &mut Slot,
    access: &mut Access<'_>,
    now: Timestamp,
    message: Bytes,
    deadline: Option<Duration>,
) -> Result<(), SendError> {
    if let Some(reason) = slot.end_reason() {
        return Err(reason.into());
    }
    let sent = access.send(now, message, deadline);
    if let Err(bats_proto::SendError::Blocked(_)) = sent {
        slot.is_blocked = true;
    }
    sent.map_err(translate)
}

/// Takes a message of an open or ended connection.
fn take_from(slot: &mut Slot, access: &mut Access<'_>, now: Timestamp) -> Taken {
    if let Some(end) = &mut slot.end {
        return match end.messages.pop_front() {
            Some(message) => Taken::Message(message),
            None if end.finished => Taken::Finished,
            None => Taken::Closed(end.reason.clone()),
        };
    }
    match access.recv(now) {
        Some(message) => Taken::Message(message),
        None if access.is_finished() => Taken::Finished,
        None if slot.is_lost => Taken::Closed(lost()),
        None => Taken::Nothing,
    }
}

fn translate(error: bats_proto::SendError) -> SendError {
    match error {
        bats_proto::SendError::Blocked(message) => SendError::Blocked(message),
        bats_proto::SendError::TooLarge { size, limit } => SendError::TooLarge { size, limit },
        bats_proto::SendError::Finished => SendError::Finished,
        _ => SendError::Closed(lost()),
    }
}
