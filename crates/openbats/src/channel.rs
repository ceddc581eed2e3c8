//! Channels: streams of bytes within a connection.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bats_proto::{ChannelId, CloseReason, Event};
use futures_io::{AsyncRead, AsyncWrite};

use crate::clock::Clock;
use crate::connection::Connection;
use crate::shared::{Core, FollowUp, Wakers};
use crate::transport::Handle;

/// Why a call on a channel failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The connection has no channels.
    #[error(
        "the connection has no channels: both ends must allow them (`TransportConfig::channels`), \
         in mode BRTP"
    )]
    Unsupported,
    /// The sending direction was finished or reset before.
    #[error("the sending direction of the channel is finished")]
    Finished,
    /// The peer reads no more.
    #[error("the peer stopped reading the channel, code {code}")]
    Stopped {
        /// The code of the peer's application.
        code: u64,
    },
    /// The peer sends no more; what has not been read is lost.
    #[error("the peer reset the channel, code {code}")]
    Reset {
        /// The code of the peer's application.
        code: u64,
    },
    /// This end has stopped or reset the channel before.
    #[error("the channel is closed")]
    Closed,
    /// The connection is over. Bytes that have arrived on its channels are lost with it.
    #[error("connection closed: {0}")]
    ConnectionClosed(#[from] CloseReason),
}

impl From<ChannelError> for io::Error {
    fn from(error: ChannelError) -> Self {
        let kind = match &error {
            ChannelError::Unsupported => io::ErrorKind::Unsupported,
            ChannelError::Finished | ChannelError::Stopped { .. } => io::ErrorKind::BrokenPipe,
            ChannelError::Reset { .. } => io::ErrorKind::ConnectionReset,
            ChannelError::Closed => io::ErrorKind::NotConnected,
            ChannelError::ConnectionClosed(_) => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}

/// Tasks that wait for channels of a connection.
#[derive(Debug, Default)]
pub(crate) struct ChannelWakers {
    opening: Wakers,
    accepting: Wakers,
    reading: BTreeMap<ChannelId, Wakers>,
    writing: BTreeMap<ChannelId, Wakers>,
}

impl ChannelWakers {
    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        let common = self.opening.is_empty() && self.accepting.is_empty();
        common && self.reading.is_empty() && self.writing.is_empty()
    }

    /// Applies an event to the tasks that wait for it.
    pub(crate) fn on_event(&mut self, event: &Event, due: &mut Vec<Waker>) {
        match event {
            Event::ChannelIncoming => self.accepting.drain_into(due),
            Event::ChannelAvailable => self.opening.drain_into(due),
            Event::ChannelReadable(id) => wake(&mut self.reading, *id, due),
            Event::ChannelWritable(id) => wake(&mut self.writing, *id, due),
            _ => {}
        }
    }

    pub(crate) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.opening.drain_into(due);
        self.accepting.drain_into(due);
        for waiting in [&mut self.reading, &mut self.writing] {
            core::mem::take(waiting).into_values().for_each(|mut wakers| wakers.drain_into(due));
        }
    }
}

fn wake(waiting: &mut BTreeMap<ChannelId, Wakers>, id: ChannelId, due: &mut Vec<Waker>) {
    if let Some(mut wakers) = waiting.remove(&id) {
        wakers.drain_into(due);
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
        poll_fn(|context| {
            self.call_channels(context, |core, clock, handle| {
                match core.endpoint.packets().open_channel(clock.now(), handle) {
                    Err(bats_proto::ChannelError::TooMany) => {
                        Err((bats_proto::ChannelError::Blocked, |wakers| &mut wakers.opening))
                    }
                    other => other.map_err(|error| (error, none)),
                }
            })
        })
        .await
        .map(|id| Channel::new(self.clone(), id))
    }

    /// Waits for the next channel that the peer opens.
    ///
    /// Dropping the future loses none.
    ///
    /// # Errors
    /// The connection has no channels, or has ended.
    pub async fn accept_channel(&self) -> Result<Channel, ChannelError> {
        poll_fn(|context| {
            self.call_channels(context, |core, _, handle| {
                match core.endpoint.packets().accept_channel(handle) {
                    Ok(Some(id)) => Ok(id),
                    Ok(None) => {
                        Err((bats_proto::ChannelError::Blocked, |wakers| &mut wakers.accepting))
                    }
                    Err(error) => Err((error, none)),
                }
            })
        })
        .await
        .map(|id| Channel::new(self.clone(), id))
    }

    /// Runs a call; if it is blocked, the task waits with those that the error names.
    fn call_channels<T>(
        &self,
        context: &mut Context<'_>,
        call: impl FnOnce(
            &mut Core,
            &Clock,
            bats_proto::ConnectionHandle,
        ) -> Result<T, (bats_proto::ChannelError, Waiting)>,
    ) -> Poll<Result<T, ChannelError>> {
        self.with_core(|core, clock, handle| {
            let (result, waiting) = match self.packet_call(core, clock, handle, call) {
                Ok(result) => return (Poll::Ready(result), FollowUp::Send),
                Err(waiting) => ((), waiting),
            };
            let () = result;
            if let Some(slot) = core.slots.get_mut(&handle) {
                waiting(&mut slot.channels).register(context.waker());
                core.custody.disturb_leader();
            }
            (Poll::Pending, FollowUp::Send)
        })
    }
}
