//! Calls of the application for one connection, or one of its
//! [channels](crate::TransportConfig::channels): they are passed to the connection.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::{ConnectionCalls, ConnectionHandle, Endpoint};
use crate::config::{Mode, PeerLimits};
use crate::connection::Connection;
use crate::error::SendError;
use crate::session::channel::{ChannelError, ChannelId, ChannelStats};
use crate::stats::ConnectionStats;

impl Endpoint {
    /// The calls for a connection that need only its lock. When it has ended, they send nothing more, and those that
    /// only look answer with its last state.
    pub fn calls(&self, handle: ConnectionHandle) -> Option<ConnectionCalls> {
        self.connections.shared(handle).cloned().map(ConnectionCalls::new)
    }

    /// A call of [`ConnectionCalls`] may have led to packets or events.
    pub fn mark_called(&mut self, handle: ConnectionHandle) {
        self.connections.mark_dirty(handle);
    }

    /// Sends a message; it is kept until it is acknowledged. Before
    /// [`Event::Connected`](crate::Event::Connected) only early data is accepted: see
    /// [`TransportConfig::early_data`](crate::TransportConfig::early_data).
    pub fn send(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        message: Bytes,
    ) -> Result<(), SendError> {
        self.send_with(now, handle, message, None)
    }

    /// As [`Endpoint::send`], with a deadline for this message in place of the connection's, at
    /// most one hour. An expired message is neither sent nor repaired (modes BTP and TRANSPARENT;
    /// the others deliver everything).
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`].
    pub fn send_within(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        message: Bytes,
        deadline: Duration,
    ) -> Result<(), SendError> {
        self.send_with(now, handle, message, Some(deadline))
    }

    fn send_with(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        let send = |connection: &mut Connection| connection.send(now, message, deadline);
        self.connections.change(handle, send).unwrap_or(Err(SendError::Closed))
    }

    /// Ends the sending direction; the peer is notified after the last message.
    pub fn finish(&mut self, _now: Timestamp, handle: ConnectionHandle) -> Result<(), SendError> {
        self.connections.change(handle, Connection::finish).unwrap_or(Err(SendError::Closed))
    }

    /// Returns the next message in order; `None` if there is none now.
    pub fn recv(&mut self, now: Timestamp, handle: ConnectionHandle) -> Option<Bytes> {
        self.connections.change(handle, |connection| connection.recv(now))?
    }

    /// Whether the peer has finished and the application has read every message.
    pub fn is_finished(&self, handle: ConnectionHandle) -> bool {
        self.connections.get(handle).is_some_and(|connection| connection.is_finished())
    }

    /// Whether the peer has acknowledged everything passed to `send`, and `finish` if it was
    /// called.
    pub fn is_all_acknowledged(&self, handle: ConnectionHandle) -> bool {
        self.connections.get(handle).is_some_and(|connection| connection.is_all_acknowledged())
    }

    /// Closes the connection at once; unsent data is dropped. [`Event::Closed`](crate::Event::Closed)
    /// follows.
    pub fn close(&mut self, now: Timestamp, handle: ConnectionHandle, code: u64, reason: &str) {
        self.connections.change(handle, |connection| connection.close(now, code, reason));
    }

    /// A sample of the connection's statistics.
    pub fn stats(&self, now: Timestamp, handle: ConnectionHandle) -> Option<ConnectionStats> {
        Some(self.connections.get(handle)?.stats(now))
    }

    /// Bytes received on a connection that the application has not read, in complete messages or
    /// not.
    pub fn receive_buffer_bytes(&self, handle: ConnectionHandle) -> Option<usize> {
        Some(self.connections.get(handle)?.receive_buffer_bytes())
    }

    /// Address of the peer. A session over relays has none, but [`Endpoint::remote_node`].
    pub fn remote(&self, handle: ConnectionHandle) -> Option<SocketAddr> {
        self.connections.get(handle)?.remote().address()
    }

    /// Local address that the connection's packets leave from, if it is known.
    pub fn local_ip(&self, handle: ConnectionHandle) -> Option<IpAddr> {
        self.connections.get(handle)?.local_ip()
    }

    /// The mode of a connection, once it is established.
    pub fn mode(&self, handle: ConnectionHandle) -> Option<Mode> {
        self.connections.get(handle)?.mode()
    }

    /// The peer's limits, once they are known.
    pub fn peer_limits(&self, handle: ConnectionHandle) -> Option<PeerLimits> {
        self.connections.get(handle)?.peer_limits()
    }

    /// SHA-256 fingerprint of the peer's end-entity certificate, if it presented one.
    pub fn peer_fingerprint(&self, handle: ConnectionHandle) -> Option<[u8; 32]> {
        self.connections.get(handle)?.peer_fingerprint()
    }

    fn with_channels<T>(
        &mut self,
        handle: ConnectionHandle,
        call: impl FnOnce(&mut Connection) -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        self.connections.change(handle, call).unwrap_or(Err(ChannelError::Closed))
    }

    /// Opens a channel, without a round trip: the peer learns of it by its first byte or its end.
    ///
    /// # Errors
    ///
    /// [`ChannelError::TooMany`] until [`Event::ChannelAvailable`](crate::Event::ChannelAvailable),
    /// or the connection has no channels.
    pub fn open_channel(
        &mut self,
        _now: Timestamp,
        handle: ConnectionHandle,
    ) -> Result<ChannelId, ChannelError> {
        self.with_channels(handle, |connection| connection.channels()?.open_channel())
    }

    /// The next channel that the peer has opened; `None` until
    /// [`Event::ChannelIncoming`](crate::Event::ChannelIncoming).
    ///
    /// # Errors
    ///
    /// The connection has no channels.
    pub fn accept_channel(
        &mut self,
        handle: ConnectionHandle,
    ) -> Result<Option<ChannelId>, ChannelError> {
        self.with_channels(handle, |connection| Ok(connection.channels()?.accept_channel()))
    }

    /// Queues as many bytes for a channel as there is room for; returns their number.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Blocked`] until [`Event::ChannelWritable`](crate::Event::ChannelWritable), or
    /// nothing can be written any more.
    pub fn write_channel(
        &mut self,
        _now: Timestamp,
        handle: ConnectionHandle,
        id: ChannelId,
        data: &[u8],
    ) -> Result<usize, ChannelError> {
        self.with_channels(handle, |connection| connection.write_channel(id, data))
    }

    /// Whether [`write_channel`](Self::write_channel) would queue at least a byte.
    ///
    /// # Errors
    ///
    /// As `write_channel`.
    pub fn check_channel_room(
        &mut self,
        handle: ConnectionHandle,
        id: ChannelId,
    ) -> Result<(), ChannelError> {
        self.with_channels(handle, |connection| connection.channels()?.check_room(id))
    }

    /// Copies received bytes of a channel to `out` and returns their number; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Blocked`] until [`Event::ChannelReadable`](crate::Event::ChannelReadable), or
    /// the peer has reset the channel.
    pub fn read_channel(
        &mut self,
        _now: Timestamp,
        handle: ConnectionHandle,
        id: ChannelId,
        out: &mut [u8],
    ) -> Result<Option<usize>, ChannelError> {
        self.with_channels(handle, |connection| connection.channels()?.read(id, out))
    }

    /// Ends the sending direction of a channel after the bytes written.
    ///
    /// # Errors
    ///
    /// It has ended before.
    pub fn finish_channel(
        &mut self,
        handle: ConnectionHandle,
        id: ChannelId,
    ) -> Result<(), ChannelError> {
        self.with_channels(handle, |connection| connection.finish_channel(id))
    }

    /// Gives up the sending direction of a channel: bytes that are not sent are dropped, and the peer
    /// gets the code instead of the end. No effect after the end was sent.
    pub fn reset_channel(&mut self, handle: ConnectionHandle, id: ChannelId, code: u64) {
        let call = |connection: &mut Connection| {
            connection.channels()?.reset(id, code);
            Ok(())
        };
        let _ = self.with_channels(handle, call);
    }

    /// Reads no more from a channel: what has arrived is dropped, and the peer's application gets the
    /// code when it writes.
    pub fn stop_channel(&mut self, handle: ConnectionHandle, id: ChannelId, code: u64) {
        let call = |connection: &mut Connection| {
            connection.channels()?.stop(id, code);
            Ok(())
        };
        let _ = self.with_channels(handle, call);
    }

    /// Sets the weight of a channel, 1 to 255: what can be sent is divided in this proportion among the
    /// channels that have something to send. 16 unless it is set, as the messages.
    ///
    /// # Errors
    ///
    /// The channel is closed.
    pub fn set_channel_weight(
        &mut self,
        handle: ConnectionHandle,
        id: ChannelId,
        weight: u8,
    ) -> Result<(), ChannelError> {
        self.with_channels(handle, |connection| connection.channels()?.set_weight(id, weight))
    }

    /// Lets the peer send on a channel up to one part in `share` (1 to 255) of the bytes that all channels
    /// of the session may still have unread: 8 unless it is set. The credit never shrinks.
    ///
    /// # Errors
    ///
    /// The channel is closed.
    pub fn set_channel_receive_share(
        &mut self,
        handle: ConnectionHandle,
        id: ChannelId,
        share: u8,
    ) -> Result<(), ChannelError> {
        self.with_channels(handle, |connection| connection.channels()?.set_receive_share(id, share))
    }

    /// Counters and credit of a channel.
    ///
    /// # Errors
    ///
    /// The channel is closed.
    pub fn channel_stats(
        &mut self,
        handle: ConnectionHandle,
        id: ChannelId,
    ) -> Result<ChannelStats, ChannelError> {
        let mut connection = self.connections.get_mut(handle).ok_or(ChannelError::Closed)?;
        connection.channels()?.stats(id)
    }
}
