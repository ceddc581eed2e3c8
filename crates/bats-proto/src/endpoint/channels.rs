//! Channels of connections; see [`TransportConfig::channels`](crate::TransportConfig::channels).

use bats_types::Timestamp;

use super::{ConnectionHandle, Endpoint};
use crate::connection::Connection;
use crate::session::channel::{ChannelError, ChannelId, ChannelStats};

impl Endpoint {
    fn with_channels<T>(
        &mut self,
        handle: ConnectionHandle,
        call: impl FnOnce(&mut Connection) -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        let connection = self.connections.get_mut(handle).ok_or(ChannelError::Closed)?;
        let result = call(connection);
        self.connections.mark_dirty(handle);
        result
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
        let connection = self.connections.get_mut(handle).ok_or(ChannelError::Closed)?;
        connection.channels()?.stats(id)
    }
}
