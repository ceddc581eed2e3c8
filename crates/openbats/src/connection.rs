//! A connection: messages to and from one peer.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bats_proto::{CloseReason, ConnectionHandle, ConnectionStats, Mode, Timestamp};
use bytes::Bytes;

use crate::clock::Clock;
use crate::compress::MessageCodec;
use crate::driver::Candidate;
use crate::endpoint_state::Core;
use crate::error::{ChannelError, ConnectError, RecvError, SendError};
use crate::fingerprint::Fingerprint;
use crate::shared::{FollowUp, Shared};
use crate::transport::Handle;

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
    remote: SocketAddr,
    /// Set when the connection is established, if both ends enable compression.
    codec: OnceLock<MessageCodec>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.on_dropped(Some(self.handle));
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
        core.handles += 1;
        let codec = OnceLock::new();
        if let Some(agreed) = core.slots.get(&handle).and_then(|slot| slot.codec) {
            let _ = codec.set(agreed);
        }
        Self { inner: Arc::new(Inner { shared, handle, remote, codec }) }
    }

    /// Returns the reason if the connection has ended.
    fn end(&self, core: &Core) -> Option<CloseReason> {
        match core.slots.get(&self.inner.handle) {
            Some(slot) => match &slot.end {
                Some(end) => Some(end.reason.clone()),
                None => core.ended.is_some().then(lost),
            },
            None => Some(lost()),
        }
    }

    pub(crate) fn poll_established(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectError>> {
        let mut core = self.inner.shared.lock();
        if let Some(reason) = self.end(&core) {
            return Poll::Ready(Err(reason.into()));
        }
        let Some(slot) = core.slots.get_mut(&self.inner.handle) else {
            return Poll::Ready(Err(lost().into()));
        };
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
        self.inner.shared.call_inline(|core, clock| {
            match self.try_push(core, clock, message, waiting.deadline) {
                Err(SendError::Blocked(message)) => {
                    waiting.encoded = Some(message);
                    if let Some(slot) = core.slots.get_mut(&self.inner.handle) {
                        slot.writing.register(context.waker());
                        core.custody.disturb_leader();
                    }
                    (Poll::Pending, self.after_send())
                }
                other => {
                    let error = |error| self.with_uncompressed_sizes(error, waiting.size);
                    (Poll::Ready(other.map_err(error)), self.after_send())
                }
            }
        })
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
        let sent = self.inner.shared.call_inline(|core, clock| {
            (self.try_push(core, clock, encoded, deadline), self.after_send())
        });
        sent.map_err(|error| match error {
            SendError::Blocked(_) => SendError::Blocked(message),
            other => self.with_uncompressed_sizes(other, message.len()),
        })
    }

    fn is_blocked(&self) -> bool {
        self.inner.shared.lock().slots.get(&self.inner.handle).is_some_and(|slot| slot.is_blocked)
    }

    fn after_send(&self) -> FollowUp {
        match self.inner.handle.uses_shared_socket() {
            true => FollowUp::Send,
            false => FollowUp::Wake,
        }
    }

    fn try_push(
        &self,
        core: &mut Core,
        clock: &Clock,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        if let Some(reason) = self.end(core) {
            return Err(reason.into());
        }
        let (now, handle) = (clock.now(), self.inner.handle);
        let sent = match deadline {
            Some(deadline) => core.endpoint.send_within(now, handle, message, deadline),
            None => core.endpoint.send(now, handle, message),
        };
        if let Err(bats_proto::SendError::Blocked(_)) = sent
            && let Some(slot) = core.slots.get_mut(&handle)
        {
            slot.is_blocked = true;
        }
        sent.map_err(translate)
    }

    /// Waits until the send buffer has room after [`try_send`](Self::try_send) returned
    /// [`SendError::Blocked`]. Completes at once if it did not. Another task may fill the buffer
    /// first.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn writable(&self) -> Result<(), SendError> {
        poll_fn(|context| {
            let mut core = self.inner.shared.lock();
            if let Some(reason) = self.end(&core) {
                return Poll::Ready(Err(reason.into()));
            }
            match core.slots.get_mut(&self.inner.handle) {
                Some(slot) if slot.is_blocked => {
                    slot.writing.register(context.waker());
                    core.custody.disturb_leader();
                    Poll::Pending
                }
                _ => Poll::Ready(Ok(())),
            }
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
        self.inner.shared.call_inline(|core, clock| {
            let taken = self.take_of_core(core, clock, context);
            let follow_up = match &taken {
                _ if !handle.uses_shared_socket() => FollowUp::Wake,
                // Credit for the peer follows from messages that the application has taken. To look
                // for it after each one would take as long as the taking.
                Taken::Message(message) if core.custody.on_taken(message.len()) => FollowUp::Poll,
                Taken::Nothing if core.custody.has_taken() => FollowUp::Poll,
                _ => FollowUp::Nothing,
            };
            (taken, follow_up)
        })
    }

    fn take_of_core(
        &self,
        core: &mut Core,
        clock: &Clock,
        context: Option<&mut Context<'_>>,
    ) -> Taken {
        let handle = self.inner.handle;
        let ended = core.ended.is_some();
        let Some(slot) = core.slots.get_mut(&handle) else { return Taken::Closed(lost()) };
        if let Some(end) = &mut slot.end {
            return match end.messages.pop_front() {
                Some(message) => Taken::Message(message),
                None if end.finished => Taken::Finished,
                None => Taken::Closed(end.reason.clone()),
            };
        }
        match core.endpoint.recv(clock.now(), handle) {
            Some(message) => Taken::Message(message),
            None if core.endpoint.is_finished(handle) => Taken::Finished,
            None if ended => Taken::Closed(lost()),
            None => {
                if let Some(context) = context {
                    slot.reading.register(context.waker());
                    core.custody.disturb_leader();
                    Candidate::offer(&self.inner.shared, handle);
                }
                Taken::Nothing
            }
        }
    }

    /// Runs a call on the channels of an open connection, after which something may be to be sent.
    pub(crate) fn on_channels<T>(
        &self,
        call: impl FnOnce(&mut Core, Timestamp, ConnectionHandle) -> T,
    ) -> Result<T, ChannelError> {
        self.on_channels_with(|core, now, handle| (call(core, now, handle), FollowUp::Send))
    }

    /// Runs a call on the channels of an open connection, which also returns what work it leaves.
    pub(crate) fn on_channels_with<T>(
        &self,
        call: impl FnOnce(&mut Core, Timestamp, ConnectionHandle) -> (T, FollowUp),
    ) -> Result<T, ChannelError> {
        self.inner.shared.call_inline(|core, clock| {
            if let Some(reason) = self.end(core) {
                return (Err(reason.into()), FollowUp::Nothing);
            }
            let Handle::Packets(handle) = self.inner.handle else {
                return (Err(ChannelError::Unsupported), FollowUp::Nothing);
            };
            let (result, follow_up) = call(core, clock.now(), handle);
            (Ok(result), follow_up)
        })
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
        self.inner.shared.call(|core, clock| match self.end(core) {
            // If `finish` was called before the connection ended, everything may have arrived.
            Some(_) if core.slots.get(&self.inner.handle).is_some_and(|slot| slot.is_finished) => {
                Ok(())
            }
            Some(reason) => Err(SendError::Closed(reason)),
            None => match core.endpoint.finish(clock.now(), self.inner.handle) {
                Ok(()) | Err(bats_proto::SendError::Finished) => {
                    if let Some(slot) = core.slots.get_mut(&self.inner.handle) {
                        slot.is_finished = true;
                    }
                    Ok(())
                }
                Err(error) => Err(translate(error)),
            },
        })
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
        let handle = self.inner.handle;
        let mut core = self.inner.shared.lock();
        let done = match core.slots.get(&handle).and_then(|slot| slot.end.as_ref()) {
            Some(end) => end.all_acknowledged,
            None => core.endpoint.is_all_acknowledged(handle),
        };
        if done {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = self.end(&core) {
            return Poll::Ready(Err(reason.into()));
        }
        if let Some(slot) = core.slots.get_mut(&handle) {
            slot.finishing.register(context.waker());
            core.custody.disturb_leader();
        }
        Poll::Pending
    }

    /// Closes the connection at once, with an application's code and text for the peer. Messages
    /// that are not acknowledged may be lost.
    pub fn close(&self, code: u64, reason: &str) {
        self.inner.shared.call(|core, clock| {
            core.endpoint.close(clock.now(), self.inner.handle, code, reason);
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
        self.end(&self.inner.shared.lock())
    }

    /// Returns the current statistics, or the final ones after the end.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        let core = self.inner.shared.lock();
        match core.slots.get(&self.inner.handle).and_then(|slot| slot.end.as_ref()) {
            Some(end) => end.stats.clone(),
            None => core
                .endpoint
                .stats(self.inner.shared.clock.now(), self.inner.handle)
                .unwrap_or_default(),
        }
    }

    /// Returns the mode: the client's choice among those that the server accepts.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner
            .shared
            .lock()
            .slots
            .get(&self.inner.handle)
            .map(|slot| slot.mode)
            .unwrap_or_default()
    }

    /// Whether all messages arrive, each once and in order, unless the connection ends. Follows
    /// from the mode, but is false for QUIC datagrams.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        let core = self.inner.shared.lock();
        core.slots.get(&self.inner.handle).is_some_and(|slot| slot.is_reliable)
    }

    /// Size in bytes of the longest message that can be sent now. For QUIC datagrams it depends on
    /// the path MTU. `None` after the end, and in mode UDP.
    #[must_use]
    pub fn longest_message(&self) -> Option<usize> {
        let longest = self.inner.shared.lock().endpoint.longest_message(self.inner.handle)?;
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
        let core = self.inner.shared.lock();
        core.endpoint.local(self.inner.handle).unwrap_or(self.inner.shared.local_addr)
    }

    /// Returns the fingerprint of the peer's certificate, if it sent one and the connection is
    /// open.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.inner.shared.lock().endpoint.peer_fingerprint(self.inner.handle).map(Fingerprint)
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

fn translate(error: bats_proto::SendError) -> SendError {
    match error {
        bats_proto::SendError::Blocked(message) => SendError::Blocked(message),
        bats_proto::SendError::TooLarge { size, limit } => SendError::TooLarge { size, limit },
        bats_proto::SendError::Finished => SendError::Finished,
        _ => SendError::Closed(lost()),
    }
}
