//! Channels: streams of bytes within a connection.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bats_proto::{ChannelId, ChannelStats, ConnectionCalls};
use futures_io::{AsyncRead, AsyncWrite};

use crate::channel_wakers::Waiting;
use crate::connection::Connection;
use crate::error::ChannelError;
use crate::work::{FollowUp, Read, Work};

/// What a call leaves to do after which something may be to be sent.
fn sent() -> Work {
    Work::follow_up(FollowUp::Send)
}

impl Connection {
    /// Opens a channel, without a round trip: the peer learns of it by its first byte or its end.
    /// Waits while the peer allows no more open channels.
    ///
    /// Dropping the future opens none.
    ///
    /// # Errors
    /// The connection has no channels, or has ended.
    pub async fn open_channel(&self) -> Result<Channel, ChannelError> {
        let opened = poll_fn(|context| {
            self.poll_channels(context, Waiting::Opening, |calls| {
                Ok((calls.open_channel()?, sent()))
            })
        });
        Ok(Channel::new(self.clone(), opened.await?))
    }

    /// Waits for the next channel that the peer opens.
    ///
    /// Dropping the future loses none.
    ///
    /// # Errors
    /// The connection has no channels, or has ended.
    pub async fn accept_channel(&self) -> Result<Channel, ChannelError> {
        let accepted = poll_fn(|context| {
            self.poll_channels(context, Waiting::Accepting, |calls| {
                let accepted = calls.accept_channel()?.ok_or(bats_proto::ChannelError::Blocked)?;
                Ok((accepted, sent()))
            })
        });
        Ok(Channel::new(self.clone(), accepted.await?))
    }

    /// Runs a call, which also returns what it leaves to do; if it is blocked, the task of `context` waits.
    fn poll_channels<T>(
        &self,
        context: &mut Context<'_>,
        waiting: Waiting,
        call: impl FnOnce(&ConnectionCalls) -> Result<(T, Work), bats_proto::ChannelError>,
    ) -> Poll<Result<T, ChannelError>> {
        use bats_proto::ChannelError as Error;
        let called = self.on_channels(|slot, calls| match call(calls) {
            Ok((value, work)) => (Ok(value), work),
            Err(error @ (Error::Blocked | Error::TooMany)) => {
                slot.channels.of(waiting).register(context.waker());
                let read = match waiting {
                    Waiting::Reading(_) => Read::Channel { bytes: None, has_credit: false },
                    _ => Read::Never,
                };
                (Err(error), Work { read, ..Work::waiter() })
            }
            Err(error) => (Err(error), sent()),
        });
        called.map_or(Poll::Pending, Poll::Ready)
    }
}

/// A stream of bytes in each direction within a [`Connection`], with an order, flow control and an end
/// of its own: a channel that is not read, or one that waits for a lost packet, does not hold up the
/// others.
///
/// Implements [`AsyncRead`] and [`AsyncWrite`], also for `&Channel`, so that two tasks can read and
/// write; with the feature `tokio` also tokio's traits. [`into_messages`](Self::into_messages) sends and
/// receives messages instead. What is written is sent without a flush. The calls of this type are cancel
/// safe unless stated otherwise. Dropping the channel finishes its sending direction and stops reading with code 0.
///
/// The connection stays open as long as a channel of it is held, unless it is
/// [a link](crate::node::Links::session).
pub struct Channel {
    connection: Connection,
    id: ChannelId,
    /// The end was read.
    is_at_end: AtomicBool,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("id", &self.id.number())
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let id = self.id;
        let _ = self.connection.on_channels(|slot, calls| {
            let _ = calls.finish_channel(id);
            calls.stop_channel(id, 0);
            slot.channels.forget(id);
            (Ok(()), sent())
        });
    }
}

impl Channel {
    fn new(connection: Connection, id: ChannelId) -> Self {
        Self { connection, id, is_at_end: AtomicBool::new(false) }
    }

    /// Runs a call that changes the channel and cannot be blocked.
    fn change(
        &self,
        call: impl FnOnce(&ConnectionCalls) -> Result<(), bats_proto::ChannelError>,
    ) -> Result<(), ChannelError> {
        let changed = self.connection.on_channels(|_, calls| (call(calls), sent()));
        changed.unwrap_or(Ok(()))
    }

    /// Its number, which both ends know. Numbers of a connection are never used again.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id.number()
    }

    /// The connection of the channel.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Counters and credit.
    ///
    /// # Errors
    /// Both directions or the connection have ended.
    pub fn stats(&self) -> Result<ChannelStats, ChannelError> {
        let id = self.id;
        let look = |calls: &ConnectionCalls| (calls.channel_stats(id), Work::NOTHING);
        let stats = self.connection.on_channels(|_, calls| look(calls));
        stats.unwrap_or(Err(ChannelError::Closed))
    }

    /// Reads bytes that have arrived and returns their number, 0 at the end.
    ///
    /// # Errors
    /// The peer reset the channel, this end stopped it, or the connection has ended.
    pub async fn read(&self, buffer: &mut [u8]) -> Result<usize, ChannelError> {
        poll_fn(|context| self.poll_read_bytes(context, buffer)).await
    }

    pub(crate) fn poll_read_bytes(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, ChannelError>> {
        if buffer.is_empty() || self.is_at_end.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(0));
        }
        let id = self.id;
        let waiting = Waiting::Reading(id);
        let polled = self.connection.poll_channels(context, waiting, |calls| {
            let (read, has_credit) = calls.read_channel(id, buffer)?;
            let bytes = Some(read.unwrap_or(0));
            Ok((read, Work { read: Read::Channel { bytes, has_credit }, ..Work::NOTHING }))
        });
        polled.map_ok(|read| {
            self.is_at_end.store(read.is_none(), Ordering::Relaxed);
            read.unwrap_or(0)
        })
    }

    /// Queues bytes and returns how many: at least one, as many as there is room for. Waits while there
    /// is none.
    ///
    /// # Errors
    /// The sending direction has ended, the peer reads no more, or the connection has ended.
    pub async fn write(&self, data: &[u8]) -> Result<usize, ChannelError> {
        poll_fn(|context| self.poll_write_bytes(context, data)).await
    }

    pub(crate) fn poll_write_bytes(
        &self,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, ChannelError>> {
        let id = self.id;
        let waiting = Waiting::Writing(id);
        self.connection
            .poll_channels(context, waiting, |calls| Ok((calls.write_channel(id, data)?, sent())))
    }

    /// Waits until there is room for at least one byte.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn writable(&self) -> Result<(), ChannelError> {
        let id = self.id;
        poll_fn(|context| {
            self.connection.poll_channels(context, Waiting::Writing(id), |calls| {
                Ok((calls.check_channel_room(id)?, Work::NOTHING))
            })
        })
        .await
    }

    /// Queues all bytes. Not cancel safe: some may be queued when the future is dropped.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_all(&self, mut data: &[u8]) -> Result<(), ChannelError> {
        while !data.is_empty() {
            let written = self.write(data).await?;
            data = &data[written..];
        }
        Ok(())
    }

    /// Ends the sending direction: the peer gets the end after all bytes.
    ///
    /// # Errors
    /// It has ended before, or the connection has.
    pub fn finish(&self) -> Result<(), ChannelError> {
        let id = self.id;
        self.change(|calls| calls.finish_channel(id))
    }

    /// Gives up the sending direction: bytes that are not sent are dropped, and the peer gets the code
    /// instead of the end. No effect after the end was sent.
    pub fn reset(&self, code: u64) {
        let id = self.id;
        let _ = self.change(|calls| {
            calls.reset_channel(id, code);
            Ok(())
        });
    }

    /// Reads no more: what has arrived is dropped, and the peer gets the code when it writes.
    pub fn stop(&self, code: u64) {
        let id = self.id;
        let _ = self.change(|calls| {
            calls.stop_channel(id, code);
            Ok(())
        });
    }

    /// Sets the weight, 1 to 255: the channels that have something to send share the rate in this
    /// proportion. Each has 16 at first, and so have the messages of the connection.
    ///
    /// # Errors
    /// The channel or the connection is closed.
    pub fn set_weight(&self, weight: u8) -> Result<(), ChannelError> {
        let id = self.id;
        self.change(|calls| calls.set_channel_weight(id, weight))
    }

    /// Lets the peer send up to one part in `share` (1 to 255) of the bytes that all channels of the
    /// connection may still have unread: 8 unless it is set, so that several channels that are not read
    /// leave room for the others. With 1 a single channel fills longer paths, but while it is not read
    /// it may take all of them. The credit of the peer never shrinks.
    ///
    /// # Errors
    /// The channel or the connection is closed.
    pub fn set_receive_share(&self, share: u8) -> Result<(), ChannelError> {
        let id = self.id;
        self.change(|calls| calls.set_channel_receive_share(id, share))
    }
}

impl AsyncRead for &Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_read_bytes(context, buffer).map_err(Into::into)
    }
}

impl AsyncWrite for &Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_bytes(context, data).map_err(Into::into)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.finish() {
            Ok(()) | Err(ChannelError::Finished | ChannelError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self).poll_read(context, buffer)
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self).poll_write(context, data)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_close(context)
    }
}
