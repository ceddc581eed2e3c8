//! A connection: messages to and from one peer.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bats_proto::{CloseReason, ConnectionStats, Mode};
use bytes::Bytes;

use crate::carrier::Handle;
use crate::clock::Clock;
use crate::compress::Packing;
use crate::error::{ConnectError, RecvError, SendError};
use crate::identity::Fingerprint;
use crate::shared::{Core, Shared};

/// One connection to a peer. Messages keep their boundaries. What else is promised is the
/// [`mode`](Self::mode)'s matter: see [the modes](crate#modes).
///
/// Clones are the same connection; when the last is dropped, an open connection is closed with
/// code 0, and what was not acknowledged by then may be lost: [`finish`](Self::finish) first.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    handle: Handle,
    remote: SocketAddr,
    /// Set once established, if both ends compress.
    packing: OnceLock<Packing>,
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

/// Why a slot without an end of its own has ended: the I/O thread is gone.
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
        let packing = OnceLock::new();
        if let Some(agreed) = core.slots.get(&handle).and_then(|slot| slot.packing) {
            let _ = packing.set(agreed);
        }
        Self { inner: Arc::new(Inner { shared, handle, remote, packing }) }
    }

    /// How the connection ended, if it has.
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
            if let Some(agreed) = slot.packing {
                let _ = self.inner.packing.set(agreed);
            }
            return Poll::Ready(Ok(()));
        }
        slot.connecting.register(context.waker());
        Poll::Pending
    }

    /// Hands a message over; done when there is room for it, not when it has arrived.
    ///
    /// # Errors
    /// See [`SendError`]; never [`SendError::Blocked`].
    pub async fn send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.push(message.into(), None).await
    }

    /// As [`send`](Self::send), for a message that is worth something for so long, an hour at
    /// most, counted from when there is room for it. Modes BTP and TRANSPARENT neither begin to
    /// send it nor repair it after that; without a deadline of its own a message has that of
    /// [`TransportConfig`](crate::TransportConfig). BRTP delivers everything, however late.
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

    async fn push(&self, message: Bytes, deadline: Option<Duration>) -> Result<(), SendError> {
        let size = message.len();
        let mut waiting = Some(self.pack(&message)?);
        drop(message);
        poll_fn(|context| {
            let Some(message) = waiting.take() else { return Poll::Ready(Ok(())) };
            self.inner.shared.call(|core, clock| {
                match self.try_push(core, clock, message, deadline) {
                    Err(SendError::Blocked(message)) => {
                        waiting = Some(message);
                        if let Some(slot) = core.slots.get_mut(&self.inner.handle) {
                            slot.writing.register(context.waker());
                        }
                        Poll::Pending
                    }
                    other => Poll::Ready(other.map_err(|error| self.unpacked(error, size))),
                }
            })
        })
        .await
    }

    /// What goes to the peer for a message.
    fn pack(&self, message: &Bytes) -> Result<Bytes, SendError> {
        match self.inner.packing.get() {
            None => Ok(message.clone()),
            Some(packing) if message.len() > packing.max_out => {
                Err(SendError::TooLarge { size: message.len(), limit: packing.max_out })
            }
            Some(packing) => Ok(packing.pack(message)),
        }
    }

    /// An error as the application is to see it, who knows its own message of `size` bytes only.
    fn unpacked(&self, error: SendError, size: usize) -> SendError {
        match error {
            SendError::TooLarge { limit, .. } if self.is_compressed() => {
                SendError::TooLarge { size, limit: limit.saturating_sub(1) }
            }
            other => other,
        }
    }

    /// Hands a message over if there is room for it now.
    ///
    /// # Errors
    /// [`SendError::Blocked`] gives the message back; see [`SendError`] for the others.
    pub fn try_send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.try_send_packed(message.into(), None)
    }

    /// As [`try_send`](Self::try_send), with a deadline as in [`send_within`](Self::send_within).
    ///
    /// # Errors
    /// [`SendError::Blocked`] gives the message back; see [`SendError`] for the others.
    pub fn try_send_within(
        &self,
        message: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<(), SendError> {
        self.try_send_packed(message.into(), Some(deadline))
    }

    fn try_send_packed(&self, message: Bytes, deadline: Option<Duration>) -> Result<(), SendError> {
        // Not compressed for nothing while there is no room.
        if self.is_compressed() && self.is_blocked() {
            return Err(SendError::Blocked(message));
        }
        let packed = self.pack(&message)?;
        let sent =
            self.inner.shared.call(|core, clock| self.try_push(core, clock, packed, deadline));
        sent.map_err(|error| match error {
            SendError::Blocked(_) => SendError::Blocked(message),
            other => self.unpacked(other, message.len()),
        })
    }

    fn is_blocked(&self) -> bool {
        self.inner.shared.lock().slots.get(&self.inner.handle).is_some_and(|slot| slot.is_blocked)
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

    /// Waits until there is room again after [`try_send`](Self::try_send) had refused a message;
    /// done at once if it has not. Another sender may have taken the room meanwhile.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn writable(&self) -> Result<(), SendError> {
        poll_fn(|context| {
            let mut core = self.inner.shared.lock();
            if let Some(reason) = self.end(&core) {
                return Poll::Ready(Err(reason.into()));
            }
            match core.slots.get_mut(&self.inner.handle) {
                Some(slot) if slot.is_blocked => {
                    slot.writing.register(context.waker());
                    Poll::Pending
                }
                _ => Poll::Ready(Ok(())),
            }
        })
        .await
    }

    /// The next message, or `None` after the last one when the peer has finished.
    ///
    /// # Errors
    /// The connection ended before the peer had finished. Messages that had arrived until then
    /// come first.
    pub async fn recv(&self) -> Result<Option<Bytes>, RecvError> {
        poll_fn(|context| match self.take(Some(context)) {
            Taken::Nothing => Poll::Pending,
            Taken::Message(message) => Poll::Ready(Ok(Some(message))),
            Taken::Finished => Poll::Ready(Ok(None)),
            Taken::Closed(reason) => Poll::Ready(Err(reason.into())),
        })
        .await
    }

    /// The next message if there is one now; otherwise `None`, also after the last.
    #[must_use]
    pub fn try_recv(&self) -> Option<Bytes> {
        match self.take(None) {
            Taken::Message(message) => Some(message),
            _ => None,
        }
    }

    /// Takes a message; the task of `context` is woken when there may be one later.
    fn take(&self, context: Option<&mut Context<'_>>) -> Taken {
        match (self.take_packed(context), self.inner.packing.get()) {
            (Taken::Message(packed), Some(packing)) => match packing.unpack(packed) {
                Ok(message) => Taken::Message(message),
                Err(rule) => Taken::Closed(
                    self.inner
                        .shared
                        .call(|core, clock| core.condemn(clock, self.inner.handle, &rule)),
                ),
            },
            (other, _) => other,
        }
    }

    fn take_packed(&self, context: Option<&mut Context<'_>>) -> Taken {
        let handle = self.inner.handle;
        self.inner.shared.call(|core, clock| {
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
                    }
                    Taken::Nothing
                }
            }
        })
    }

    /// Says that no more messages follow and waits until the peer has everything and knows that it
    /// has. In BTP and TRANSPARENT everything is what was not lost: the peer then knows, too, how
    /// many messages are missing.
    ///
    /// # Errors
    /// The connection ended before all was acknowledged.
    pub async fn finish(&self) -> Result<(), SendError> {
        self.inner.shared.call(|core, clock| match self.end(core) {
            // What a call before the end had finished may have arrived all the same.
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
        })?;
        self.flush().await
    }

    /// Waits until the peer has everything that was sent so far; in BTP and TRANSPARENT, until
    /// nothing of it would be sent any more.
    ///
    /// # Errors
    /// The connection ended before all was acknowledged.
    pub async fn flush(&self) -> Result<(), SendError> {
        let handle = self.inner.handle;
        poll_fn(|context| {
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
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the connection at once, with an application's code and text for the peer. What was
    /// not acknowledged may be lost.
    pub fn close(&self, code: u64, reason: &str) {
        self.inner.shared.call(|core, clock| {
            core.endpoint.close(clock.now(), self.inner.handle, code, reason);
        });
    }

    /// Vouches for a peer that has said who it is: from here on its connection may hold as much as
    /// [`TransportConfig`](crate::TransportConfig) lets it, not only what
    /// [`ServerOptions::stranger_budget`](crate::ServerOptions::stranger_budget) leaves to strangers.
    /// Without such a budget nothing changes.
    pub fn trust_peer(&self) {
        self.inner.shared.call(|core, _| core.trust_peer(self.inner.handle));
    }

    /// How the connection ended, once it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.end(&self.inner.shared.lock())
    }

    /// A sample of the statistics; the last one after the end.
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

    /// What the connection promises of messages: the client's choice among what the server accepts.
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

    /// Whether everything that is sent arrives, once and in order, or the connection ends: the
    /// mode's promise, but for datagrams of QUIC.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        let core = self.inner.shared.lock();
        core.slots.get(&self.inner.handle).is_some_and(|slot| slot.is_reliable)
    }

    /// Bytes of the longest message that may be sent now. Of datagrams of QUIC it follows the path.
    /// None after the end, and in mode UDP.
    #[must_use]
    pub fn longest_message(&self) -> Option<usize> {
        let longest = self.inner.shared.lock().endpoint.longest_message(self.inner.handle)?;
        // Compressed messages begin with a byte that counts.
        Some(longest.saturating_sub(usize::from(self.is_compressed())))
    }

    /// Whether messages are compressed: both ends wanted it.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.inner.packing.get().is_some()
    }

    /// The peer's address.
    #[must_use]
    pub fn remote_addr(&self) -> SocketAddr {
        self.inner.remote
    }

    /// This end's address: that of the endpoint, which may be all of the host's, or over TCP that of
    /// the connection while it lasts.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        let core = self.inner.shared.lock();
        core.endpoint.local(self.inner.handle).unwrap_or(self.inner.shared.local_addr)
    }

    /// The fingerprint of the peer's certificate, if it showed one and is still connected.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.inner.shared.lock().endpoint.peer_fingerprint(self.inner.handle).map(Fingerprint)
    }
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
