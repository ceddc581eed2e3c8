//! The calls of the application for one connection that need only its lock.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use crate::config::PeerLimits;
use crate::connection::{Connection, SharedConnection};
use crate::error::SendError;
use crate::session::channel::{ChannelError, ChannelId, ChannelStats};
use crate::stats::ConnectionStats;

/// The calls of the application for one connection, as those of the same names of [`Endpoint`](super::Endpoint). They
/// lock this connection alone, so that a thread may use them while another one has the endpoint: a call waits at most
/// for one datagram or one burst of this connection. Its time may be a little before that of the last input.
///
/// Calls that change something may lead to packets and events: [`Endpoint::mark_called`](super::Endpoint::mark_called)
/// must follow them. Clones refer to the same connection; they keep its memory, which is no longer charged once it has
/// ended.
#[derive(Clone, Debug)]
pub struct ConnectionCalls(SharedConnection);

impl ConnectionCalls {
    pub(super) fn new(connection: SharedConnection) -> Self {
        Self(connection)
    }

    fn channels<T>(
        &self,
        call: impl FnOnce(&mut Connection) -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        call(&mut self.0.lock())
    }

    /// Whether the connection is open or about to be.
    pub fn is_open(&self) -> bool {
        self.0.lock().link().is_open()
    }

    /// Sends a message, with this deadline or the connection's.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send_within`](super::Endpoint::send_within).
    pub fn send(
        &self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        self.0.lock().send(now, message, deadline)
    }

    /// Ends the sending direction.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::finish`](super::Endpoint::finish).
    pub fn finish(&self) -> Result<(), SendError> {
        self.0.lock().finish()
    }

    /// The next message in order. Changes something also if there is none.
    pub fn recv(&self, now: Timestamp) -> Option<Bytes> {
        self.0.lock().recv(now)
    }

    /// Whether the peer has finished and the application has read every message.
    pub fn is_finished(&self) -> bool {
        self.0.lock().is_finished()
    }

    /// Whether the peer has acknowledged everything.
    pub fn is_all_acknowledged(&self) -> bool {
        self.0.lock().is_all_acknowledged()
    }

    /// Closes the connection at once.
    pub fn close(&self, now: Timestamp, code: u64, reason: &str) {
        self.0.lock().close(now, code, reason);
    }

    /// A sample of the connection's statistics.
    pub fn stats(&self, now: Timestamp) -> ConnectionStats {
        self.0.lock().stats(now)
    }

    /// The peer's limits, once they are known.
    pub fn peer_limits(&self) -> Option<PeerLimits> {
        self.0.lock().peer_limits()
    }

    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::open_channel`](super::Endpoint::open_channel).
    pub fn open_channel(&self) -> Result<ChannelId, ChannelError> {
        self.channels(|connection| connection.channels()?.open_channel())
    }

    /// The next channel that the peer has opened.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::accept_channel`](super::Endpoint::accept_channel).
    pub fn accept_channel(&self) -> Result<Option<ChannelId>, ChannelError> {
        self.channels(|connection| Ok(connection.channels()?.accept_channel()))
    }

    /// Queues as many bytes for a channel as there is room for; returns their number.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::write_channel`](super::Endpoint::write_channel).
    pub fn write_channel(&self, id: ChannelId, data: &[u8]) -> Result<usize, ChannelError> {
        self.channels(|connection| connection.write_channel(id, data))
    }

    /// Whether [`write_channel`](Self::write_channel) would queue at least a byte.
    ///
    /// # Errors
    ///
    /// As `write_channel`.
    pub fn check_channel_room(&self, id: ChannelId) -> Result<(), ChannelError> {
        self.channels(|connection| connection.channels()?.check_room(id))
    }

    /// Copies received bytes of a channel to `out`. Also returns whether it made a frame due, such as the credit for
    /// these bytes.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::read_channel`](super::Endpoint::read_channel).
    pub fn read_channel(
        &self,
        id: ChannelId,
        out: &mut [u8],
    ) -> Result<(Option<usize>, bool), ChannelError> {
        self.channels(|connection| {
            let channels = connection.channels()?;
            let had_control = channels.has_control();
            let read = channels.read(id, out)?;
            Ok((read, channels.has_control() && !had_control))
        })
    }

    /// Ends the sending direction of a channel after the bytes written.
    ///
    /// # Errors
    ///
    /// It has ended before.
    pub fn finish_channel(&self, id: ChannelId) -> Result<(), ChannelError> {
        self.channels(|connection| connection.finish_channel(id))
    }

    /// Gives up the sending direction of a channel.
    pub fn reset_channel(&self, id: ChannelId, code: u64) {
        let _ = self.channels(|connection| {
            connection.channels()?.reset(id, code);
            Ok(())
        });
    }

    /// Reads no more from a channel.
    pub fn stop_channel(&self, id: ChannelId, code: u64) {
        let _ = self.channels(|connection| {
            connection.channels()?.stop(id, code);
            Ok(())
        });
    }

    /// Sets the weight of a channel, 1 to 255.
    ///
    /// # Errors
    ///
    /// The channel is closed.
    pub fn set_channel_weight(&self, id: ChannelId, weight: u8) -> Result<(), ChannelError> {
        self.channels(|connection| connection.channels()?.set_weight(id, weight))
    }

    /// Lets the peer send on a channel up to one part in `share` of the unread bytes.
    ///
    /// # Errors
    ///
    /// The channel is closed.
    pub fn set_channel_receive_share(&self, id: ChannelId, share: u8) -> Result<(), ChannelError> {
        self.channels(|connection| connection.channels()?.set_receive_share(id, share))
    }

    /// Counters and credit of a channel.
    ///
    /// # Errors
    ///
    /// The channel is closed.
    pub fn channel_stats(&self, id: ChannelId) -> Result<ChannelStats, ChannelError> {
        self.channels(|connection| connection.channels()?.stats(id))
    }
}
