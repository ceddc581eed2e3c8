//! Messages on a channel, as a `Stream` and a `Sink` of the crates `futures`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use futures_core::{FusedStream, Stream};
use futures_sink::Sink;

use crate::channel::Channel;
use crate::error::ChannelError;

/// Bytes of the length before each message, big-endian.
const HEADER: usize = 4;
/// Bytes that are read at once: the memory grows with what has arrived, not with the announced length.
const CHUNK: usize = 64 << 10;

/// Why no message was sent or received on a channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The channel or the connection has ended.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A message is longer than allowed: one that this end sends, or one that the peer announced.
    #[error(
        "message of {size} bytes is longer than the limit of {limit} bytes: raise it at both ends \
         (`Channel::into_messages`)"
    )]
    TooLong {
        /// Size of the message in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The channel ended within a message.
    #[error("the channel ended within a message")]
    Truncated,
}

/// Messages on a [`Channel`] as [`Stream`] and [`Sink`]. Made by [`Channel::into_messages`].
///
/// On the channel each message follows its length, 4 bytes in network byte order. Both ends must use the
/// channel in this way.
///
/// The stream ends at the end of the channel; an error is its last item. After a message that is longer
/// than the limit it stops reading with code 0. The sink keeps at most one message, until the channel has
/// room for it. Flushing waits for that, not for acknowledgements; closing finishes the sending direction.
///
/// Cancel safe: dropping a future of `next`, `send`, `feed`, `flush` or `close` loses nothing; a message
/// that was partly read or written is continued in the next call. If this value is dropped with such a
/// message in its sink, the peer gets [`MessageError::Truncated`] or the end.
#[derive(Debug)]
pub struct ChannelMessages {
    channel: Channel,
    limit: usize,
    /// What has arrived of a message and its length.
    incoming: BytesMut,
    /// What is left to write.
    outgoing: Bytes,
    is_terminated: bool,
}

impl Channel {
    /// Uses the channel for messages of at most `limit` bytes in both directions, as [`Stream`] and
    /// [`Sink`]. A receiver may need memory for one message of this size.
    #[must_use]
    pub fn into_messages(self, limit: usize) -> ChannelMessages {
        ChannelMessages {
            channel: self,
            limit: limit.min(u32::MAX as usize),
            incoming: BytesMut::new(),
            outgoing: Bytes::new(),
            is_terminated: false,
        }
    }
}

impl ChannelMessages {
    /// The channel. Reading or writing bytes on it breaks messages.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Bytes that are missing of the header or of the message that it announces.
    fn missing(&self) -> Result<usize, MessageError> {
        let Some(header) = self.incoming.first_chunk::<HEADER>() else {
            return Ok(HEADER.saturating_sub(self.incoming.len()));
        };
        let size = u32::from_be_bytes(*header) as usize;
        if size > self.limit {
            return Err(MessageError::TooLong { size, limit: self.limit });
        }
        Ok(HEADER.saturating_add(size).saturating_sub(self.incoming.len()))
    }

    fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, MessageError>> {
        loop {
            let filled = self.incoming.len();
            let missing = self.missing()?;
            if missing == 0 {
                let mut whole = core::mem::take(&mut self.incoming).freeze();
                return Poll::Ready(Ok(Some(whole.split_off(HEADER))));
            }
            self.incoming.resize(filled.saturating_add(missing.min(CHUNK)), 0);
            let space = self.incoming.get_mut(filled..).unwrap_or_default();
            let read = self.channel.poll_read_bytes(context, space);
            let arrived = if let Poll::Ready(Ok(arrived)) = read { arrived } else { 0 };
            self.incoming.truncate(filled.saturating_add(arrived));
            match ready!(read)? {
                0 if filled == 0 => return Poll::Ready(Ok(None)),
                0 => return Poll::Ready(Err(MessageError::Truncated)),
                _ => {}
            }
        }
    }

    fn poll_outgoing(&mut self, context: &mut Context<'_>) -> Poll<Result<(), MessageError>> {
        while !self.outgoing.is_empty() {
            let written = ready!(self.channel.poll_write_bytes(context, &self.outgoing))?;
            let _ = self.outgoing.split_to(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for ChannelMessages {
    type Item = Result<Bytes, MessageError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_terminated {
            return Poll::Ready(None);
        }
        let item = ready!(self.poll_message(context)).transpose();
        self.is_terminated = !matches!(item, Some(Ok(_)));
        if let Some(Err(MessageError::TooLong { .. })) = item {
            self.channel.stop(0);
        }
        Poll::Ready(item)
    }
}

impl FusedStream for ChannelMessages {
    fn is_terminated(&self) -> bool {
        self.is_terminated
    }
}

impl Sink<Bytes> for ChannelMessages {
    type Error = MessageError;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), MessageError>> {
        self.poll_outgoing(context)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> Result<(), MessageError> {
        let size = message.len();
        if size > self.limit {
            return Err(MessageError::TooLong { size, limit: self.limit });
        }
        let mut framed = BytesMut::with_capacity(HEADER.saturating_add(size));
        framed.put_u32(size as u32);
        framed.extend_from_slice(&message);
        self.outgoing = framed.freeze();
        Ok(())
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), MessageError>> {
        self.poll_outgoing(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), MessageError>> {
        ready!(self.poll_outgoing(context))?;
        Poll::Ready(match self.channel.finish() {
            Ok(()) | Err(ChannelError::Finished) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }
}
