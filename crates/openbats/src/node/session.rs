//! Sessions with other nodes, over any number of relays.

use std::io;
use std::thread;
use std::time::Duration;

use bats_proto::{CloseReason, ConnectionStats, Mode};
use bytes::Bytes;

use super::{LinkId, NodeId};
use crate::channel::Channel;
use crate::connection::Connection;
use crate::error::{ChannelError, RecvError, SendError};
use crate::fingerprint::Fingerprint;
use crate::messages::Messages;
use crate::slot::RemoteNode;
use crate::wait::Wait;

/// A session with another node. It has its own handshake and keys, which relays do not know, and
/// goes over all links that the routes of the nodes define. A [direct](Self::is_direct) session goes over all links with a
/// neighbour instead, whose handshakes and keys protect it.
///
/// It has the calls of a [`Connection`], and through [`AsRef`] it can be used where one is needed,
/// for example for [files](crate::file). The remote address of that connection is `0.0.0.0:0`, and
/// its local one has no meaning.
///
/// Clones refer to the same session. Dropping the last one closes an open session with code 0 and
/// may lose unacknowledged messages: call [`finish`](Self::finish) first. The node's sockets and
/// links stay open while there are sessions.
#[derive(Clone, Debug)]
pub struct Session {
    connection: Connection,
    remote: RemoteNode,
    link: Option<(LinkId, u64)>,
}

impl AsRef<Connection> for Session {
    fn as_ref(&self) -> &Connection {
        &self.connection
    }
}

impl Session {
    pub(crate) fn new(connection: Connection, remote: RemoteNode) -> Self {
        Self { connection, remote, link: None }
    }

    /// The session of a link that was established for the so many-th time.
    pub(crate) fn of_link(connection: Connection, neighbour: NodeId, link: (LinkId, u64)) -> Self {
        let remote = RemoteNode { id: neighbour, is_direct: false };
        Self { connection, remote, link: Some(link) }
    }

    /// The other end.
    #[must_use]
    pub fn remote_node(&self) -> NodeId {
        self.remote.id
    }

    /// Whether this is a direct session with a neighbour:
    /// [`Node::connect_neighbour`](super::Node::connect_neighbour).
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.remote.is_direct
    }

    /// The link whose own session this is ([`Links::session`](super::Links::session)), and how many times it had been
    /// established: sessions for which both are equal are the same.
    #[must_use]
    pub fn link(&self) -> Option<(LinkId, u64)> {
        self.link
    }

    /// Queues a message; completes when the send buffer has room for it, not when the message
    /// arrives.
    ///
    /// Cancel safe: a future that is dropped before it completes sends nothing, and the message is
    /// lost with it.
    ///
    /// # Errors
    /// See [`SendError`]; never [`SendError::Blocked`].
    pub async fn send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.connection.send(message).await
    }

    /// Like [`send`](Self::send), with a deadline; see [`Connection::send_within`].
    ///
    /// Cancel safe, as [`send`](Self::send).
    ///
    /// # Errors
    /// See [`SendError`]; never [`SendError::Blocked`].
    pub async fn send_within(
        &self,
        message: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<(), SendError> {
        self.connection.send_within(message, deadline).await
    }

    /// Queues a message if the send buffer has room for it now.
    ///
    /// # Errors
    /// [`SendError::Blocked`] returns the message; see [`SendError`] for the others.
    pub fn try_send(&self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.connection.try_send(message)
    }

    /// Waits until the send buffer has room after [`SendError::Blocked`].
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The session has ended.
    pub async fn writable(&self) -> Result<(), SendError> {
        self.connection.writable().await
    }

    /// Returns the next message, or `None` after the last one if the peer has finished.
    ///
    /// Cancel safe: a future that is dropped takes no message.
    ///
    /// # Errors
    /// The session ended before the peer finished. Messages that arrived before that are returned
    /// first.
    pub async fn recv(&self) -> Result<Option<Bytes>, RecvError> {
        self.connection.recv().await
    }

    /// The messages of this session as `Stream` and `Sink`; see [`Connection::messages`].
    #[must_use]
    pub fn messages(&self) -> Messages {
        self.connection.messages()
    }

    /// Opens a channel; see [`Connection::open_channel`].
    ///
    /// # Errors
    /// The session has no channels, or has ended.
    pub async fn open_channel(&self) -> Result<Channel, ChannelError> {
        self.connection.open_channel().await
    }

    /// Waits for the next channel that the peer opens; see [`Connection::accept_channel`].
    ///
    /// # Errors
    /// The session has no channels, or has ended.
    pub async fn accept_channel(&self) -> Result<Channel, ChannelError> {
        self.connection.accept_channel().await
    }

    /// Returns the next message if there is one now; otherwise `None`, also after the last one.
    #[must_use]
    pub fn try_recv(&self) -> Option<Bytes> {
        self.connection.try_recv()
    }

    /// Calls `callback` with each result of [`recv`](Self::recv) up to the end of the messages or an
    /// error, on a thread of its own. The thread keeps the session.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn on_message(
        &self,
        mut callback: impl FnMut(Result<Option<Bytes>, RecvError>) + Send + 'static,
    ) -> io::Result<()> {
        let connection = self.connection.clone();
        let run = move || {
            loop {
                let result = connection.recv().wait();
                let is_last = !matches!(result, Ok(Some(_)));
                callback(result);
                if is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("openbats-messages".into()).spawn(run).map(drop)
    }

    /// Sends the end of the messages and waits until the peer has acknowledged everything.
    ///
    /// Cancel safe: the end is sent when the future is first polled, and stays sent if it is
    /// dropped.
    ///
    /// # Errors
    /// The session ended before everything was acknowledged.
    pub async fn finish(&self) -> Result<(), SendError> {
        self.connection.finish().await
    }

    /// Waits until the peer has acknowledged all messages sent so far.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The session ended before everything was acknowledged.
    pub async fn flush(&self) -> Result<(), SendError> {
        self.connection.flush().await
    }

    /// Closes the session at once, with an application's code and text for the peer. Messages that
    /// are not acknowledged may be lost.
    pub fn close(&self, code: u64, reason: &str) {
        self.connection.close(code, reason);
    }

    /// Returns the close reason once the session has ended.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.connection.close_reason()
    }

    /// Returns the current statistics, or the final ones after the end. Congestion window, pacing
    /// and delivery rate are those of the first links together.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.connection.stats()
    }

    /// Returns the mode, which the node that opened the session has chosen.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.connection.mode()
    }

    /// Returns the fingerprint of the peer's certificate, if it presented one and the session is
    /// open. In a direct session it is the one that the neighbour presented on the links.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.connection.peer_fingerprint()
    }
}
