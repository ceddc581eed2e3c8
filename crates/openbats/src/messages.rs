//! The messages of a connection as a `Stream` and a `Sink` of the crates `futures`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::{FusedStream, Stream};
use futures_sink::Sink;

use crate::connection::{Connection, Waiting};
use crate::error::{RecvError, SendError};

/// The messages of a [`Connection`] as [`Stream`] and [`Sink`], for the combinators of the crates
/// `futures` and `tokio-stream`. Made by [`Connection::messages`].
///
/// The stream ends after the last message if the peer has finished; an error is its last item. The sink
/// keeps at most one message, until the send buffer has room for it. Flushing waits for that, not for
/// acknowledgements ([`Connection::flush`] does); closing finishes as [`Connection::finish`] does.
///
/// Cancel safe: dropping a future of `next`, `send`, `feed`, `flush` or `close` loses no message that
/// arrived and none that the sink has taken; the sink passes it on in the next call. A message in the
/// sink is lost with this value.
#[derive(Debug)]
pub struct Messages {
    connection: Connection,
    /// A message that the send buffer has no room for.
    waiting: Option<Waiting>,
    is_terminated: bool,
    is_finishing: bool,
}

impl Connection {
    /// The messages of this connection as [`Stream`] and [`Sink`].
    #[must_use]
    pub fn messages(&self) -> Messages {
        Messages {
            connection: self.clone(),
            waiting: None,
            is_terminated: false,
            is_finishing: false,
        }
    }
}

impl Messages {
    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        match &mut self.waiting {
            None => Poll::Ready(Ok(())),
            Some(waiting) => {
                let sent = ready!(self.connection.poll_push(context, waiting));
                self.waiting = None;
                Poll::Ready(sent)
            }
        }
    }
}

impl Stream for Messages {
    type Item = Result<Bytes, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_terminated {
            return Poll::Ready(None);
        }
        let item = ready!(self.connection.poll_recv(context)).transpose();
        self.is_terminated = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

impl FusedStream for Messages {
    fn is_terminated(&self) -> bool {
        self.is_terminated
    }
}

impl Sink<Bytes> for Messages {
    type Error = SendError;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        self.poll_waiting(context)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Bytes) -> Result<(), SendError> {
        self.waiting = self.connection.push_or_wait(message)?;
        Ok(())
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        self.poll_waiting(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        ready!(self.poll_waiting(context))?;
        if !self.is_finishing {
            self.connection.begin_finish()?;
            self.is_finishing = true;
        }
        self.connection.poll_flushed(context)
    }
}
