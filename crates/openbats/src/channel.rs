//! Channels: streams of bytes within a connection.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bats_proto::{ChannelId, ChannelStats, ConnectionHandle, Timestamp};
use futures_io::{AsyncRead, AsyncWrite};

use crate::channel_wakers::Waiting;
use crate::connection::Connection;
use crate::driver::Custody;
use crate::endpoint_state::Core;
use crate::error::ChannelError;
use crate::shared::FollowUp;
use crate::transport::Handle;

/// The result of a call, or `None` if it is blocked.
fn translate<T>(result: Result<T, bats_proto::ChannelError>) -> Option<Result<T, ChannelError>> {
    use bats_proto::ChannelError as Error;
    let error = match result {
        Ok(value) => return Some(Ok(value)),
        Err(Error::Blocked | Error::TooMany) => return None,
        Err(error) => error,
    };
    Some(Err(match error {
        Error::Unsupported => ChannelError::Unsupported,
        Error::Finished => ChannelError::Finished,
        Error::Stopped { code } => ChannelError::Stopped { code },
        Error::Reset { code } => ChannelError::Reset { code },
        _ => ChannelError::Closed,
    }))
}

/// What a call that reads from a channel leaves to do. `gives_credit`: it made a frame due. Credit is sent at once;
/// everything else that follows from bytes that were read waits for the next turn, if that is near: a call for each
/// few packets would take longer than the reading.
fn after_read(gives_credit: bool, custody: &Custody, now: Timestamp) -> FollowUp {
    match gives_credit || custody.has_taken() && !custody.has_turn_soon(now) {
        true => FollowUp::Poll,
        false => FollowUp::Nothing,
    }
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
            self.poll_channels(context, Waiting::Opening, |core, now, handle| {
                core.endpoint.packets().open_channel(now, handle)
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
            self.poll_channels(context, Waiting::Accepting, |core, _, handle| {
                let accepted = core.endpoint.packets().accept_channel(handle)?;
                accepted.ok_or(bats_proto::ChannelError::Blocked)
            })
        });
        Ok(Channel::new(self.clone(), accepted.await?))
    }

    /// Runs a call; if it is blocked, the task of `context` waits.
    fn poll_channels<T>(
        &self,
        context: &mut Context<'_>,
        waiting: Waiting,
        call: impl FnOnce(&mut Core, Timestamp, ConnectionHandle) -> Result<T, bats_proto::ChannelError>,
    ) -> Poll<Result<T, ChannelError>> {
        let called = self.on_channels_with(|core, now, handle| {
            let had_control = core.endpoint.packets().has_channel_control(handle);
            let result = translate(call(core, now, handle));
            if result.is_none()
                && let Some(slot) = core.slots.get_mut(&Handle::Packets(handle))
            {
                slot.channels.of(waiting).register(context.waker());
                core.custody.disturb_leader();
            }
            let follow_up = match waiting {
                Waiting::Reading(_) => {
                    let has_control = core.endpoint.packets().has_channel_control(handle);
                    after_read(has_control && !had_control, &core.custody, now)
                }
                // Nothing was queued.
                _ if result.is_none() => FollowUp::Nothing,
                _ => FollowUp::Send,
            };
            (result, follow_up)
        });
        match called {
            Ok(None) => Poll::Pending,
            Ok(Some(result)) => Poll::Ready(result),
            Err(error) => Poll::Ready(Err(error)),
        }
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
/// The connection stays open as long as a channel of it is held.
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
        let _ = self.connection.on_channels(|core, _, handle| {
            let endpoint = core.endpoint.packets();
            let _ = endpoint.finish_channel(handle, id);
            endpoint.stop_channel(handle, id, 0);
            if let Some(slot) = core.slots.get_mut(&Handle::Packets(handle)) {
                slot.channels.forget(id);
            }
        });
    }
}

impl Channel {
    fn new(connection: Connection, id: ChannelId) -> Self {
        Self { connection, id, is_at_end: AtomicBool::new(false) }
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
        let stats = self.connection.on_channels_with(|core, _, handle| {
            (translate(core.endpoint.packets().channel_stats(handle, id)), FollowUp::Nothing)
        })?;
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
        let polled = self.connection.poll_channels(context, waiting, |core, now, handle| {
            let read = core.endpoint.packets().read_channel(now, handle, id, buffer)?;
            core.custody.on_taken(read.unwrap_or(0));
            Ok(read)
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
        self.connection.poll_channels(context, waiting, |core, now, handle| {
            core.endpoint.packets().write_channel(now, handle, id, data)
        })
    }

    /// Waits until there is room for at least one byte.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn writable(&self) -> Result<(), ChannelError> {
        let id = self.id;
        poll_fn(|context| {
            self.connection.poll_channels(context, Waiting::Writing(id), |core, _, handle| {
                core.endpoint.packets().check_channel_room(handle, id)
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
        let finished = self.connection.on_channels(|core, _, handle| {
            translate(core.endpoint.packets().finish_channel(handle, id))
        })?;
        finished.unwrap_or(Ok(()))
    }

    /// Gives up the sending direction: bytes that are not sent are dropped, and the peer gets the code
    /// instead of the end. No effect after the end was sent.
    pub fn reset(&self, code: u64) {
        let id = self.id;
        let _ = self.connection.on_channels(|core, _, handle| {
            core.endpoint.packets().reset_channel(handle, id, code);
        });
    }

    /// Reads no more: what has arrived is dropped, and the peer gets the code when it writes.
    pub fn stop(&self, code: u64) {
        let id = self.id;
        let _ = self.connection.on_channels(|core, _, handle| {
            core.endpoint.packets().stop_channel(handle, id, code);
        });
    }

    /// Sets the weight, 1 to 255: the channels that have something to send share the rate in this
    /// proportion. Each has 16 at first, and so have the messages of the connection.
    ///
    /// # Errors
    /// The channel or the connection is closed.
    pub fn set_weight(&self, weight: u8) -> Result<(), ChannelError> {
        let id = self.id;
        let set = self.connection.on_channels(|core, _, handle| {
            translate(core.endpoint.packets().set_channel_weight(handle, id, weight))
        })?;
        set.unwrap_or(Ok(()))
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
        let set = self.connection.on_channels(|core, _, handle| {
            translate(core.endpoint.packets().set_channel_receive_share(handle, id, share))
        })?;
        set.unwrap_or(Ok(()))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reading_leaves_work_only_for_credit_or_if_no_turn_follows() {
        let now = Timestamp::ZERO + Duration::from_secs(1);
        let mut custody = Custody::default();
        assert_eq!(after_read(false, &custody, now), FollowUp::Nothing, "nothing was read");
        assert_eq!(after_read(true, &custody, now), FollowUp::Poll, "credit");
        custody.on_taken(1);
        assert_eq!(after_read(false, &custody, now), FollowUp::Poll, "no timer is set");
        custody.set_deadline(Some(now + Duration::from_micros(500)), now);
        assert_eq!(after_read(false, &custody, now), FollowUp::Nothing, "a turn follows");
        assert_eq!(after_read(true, &custody, now), FollowUp::Poll, "credit does not wait for it");
    }
}
