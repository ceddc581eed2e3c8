//! The application's calls for channels.

use super::{Connection, Role};
use crate::config::{Mode, TransportConfig};
use crate::event::Event;
use crate::session::channel::{
    ChannelError, ChannelEvent, ChannelId, ChannelLimits, ChannelStats, Channels,
};
use crate::wire::parameters::TransportParameters;

/// The limits of a connection with channels.
pub(super) fn limits(config: &TransportConfig, receive_budget: usize) -> Option<ChannelLimits> {
    let channels = u64::from(config.channels?);
    Some(ChannelLimits::new(channels, receive_budget, config.send_budget))
}

impl Connection {
    /// The channels of an established connection, if both ends have them.
    pub(super) fn agreed_channels(
        &self,
        mode: Mode,
        peer: &TransportParameters,
    ) -> Option<Box<Channels>> {
        let own = limits(&self.config, self.memory_limit())?;
        let peer = peer.channels.filter(|_| mode == Mode::Brtp)?;
        Some(Box::new(Channels::new(self.role == Role::Server, own, peer)))
    }

    fn channels(&mut self) -> Result<&mut Channels, ChannelError> {
        if !self.state.is_open() {
            return Err(ChannelError::Closed);
        }
        let channels = self.streams.as_mut().and_then(|streams| streams.channels.as_deref_mut());
        channels.ok_or(ChannelError::Unsupported)
    }

    /// See [`crate::Endpoint::open_channel`].
    pub(crate) fn open_channel(&mut self) -> Result<ChannelId, ChannelError> {
        self.channels()?.open_channel()
    }

    /// See [`crate::Endpoint::accept_channel`].
    pub(crate) fn accept_channel(&mut self) -> Result<Option<ChannelId>, ChannelError> {
        Ok(self.channels()?.accept_channel())
    }

    /// See [`crate::Endpoint::write_channel`].
    pub(crate) fn write_channel(
        &mut self,
        id: ChannelId,
        data: &[u8],
    ) -> Result<usize, ChannelError> {
        let written = self.channels()?.write(id, data)?;
        self.acknowledged_notified &= written == 0;
        Ok(written)
    }

    /// See [`crate::Endpoint::check_channel_room`].
    pub(crate) fn check_channel_room(&mut self, id: ChannelId) -> Result<(), ChannelError> {
        self.channels()?.check_room(id)
    }

    /// See [`crate::Endpoint::read_channel`].
    pub(crate) fn read_channel(
        &mut self,
        id: ChannelId,
        out: &mut [u8],
    ) -> Result<Option<usize>, ChannelError> {
        self.channels()?.read(id, out)
    }

    /// See [`crate::Endpoint::finish_channel`].
    pub(crate) fn finish_channel(&mut self, id: ChannelId) -> Result<(), ChannelError> {
        self.channels()?.finish(id)?;
        self.acknowledged_notified = false;
        Ok(())
    }

    /// See [`crate::Endpoint::reset_channel`].
    pub(crate) fn reset_channel(&mut self, id: ChannelId, code: u64) {
        if let Ok(channels) = self.channels() {
            channels.reset(id, code);
        }
    }

    /// See [`crate::Endpoint::stop_channel`].
    pub(crate) fn stop_channel(&mut self, id: ChannelId, code: u64) {
        if let Ok(channels) = self.channels() {
            channels.stop(id, code);
        }
    }

    /// See [`crate::Endpoint::set_channel_weight`].
    pub(crate) fn set_channel_weight(
        &mut self,
        id: ChannelId,
        weight: u8,
    ) -> Result<(), ChannelError> {
        self.channels()?.set_weight(id, weight)
    }

    /// See [`crate::Endpoint::set_channel_receive_share`].
    pub(crate) fn set_channel_receive_share(
        &mut self,
        id: ChannelId,
        share: u8,
    ) -> Result<(), ChannelError> {
        self.channels()?.set_receive_share(id, share)
    }

    /// See [`crate::Endpoint::channel_stats`].
    pub(crate) fn channel_stats(&mut self, id: ChannelId) -> Result<ChannelStats, ChannelError> {
        self.channels()?.stats(id)
    }

    /// The next event of a channel, while the connection is open.
    pub(super) fn pop_channel_event(&mut self) -> Option<Event> {
        Some(match self.channels().ok()?.pop_event()? {
            ChannelEvent::Incoming => Event::ChannelIncoming,
            ChannelEvent::Available => Event::ChannelAvailable,
            ChannelEvent::Readable(id) => Event::ChannelReadable(id),
            ChannelEvent::Writable(id) => Event::ChannelWritable(id),
        })
    }
}
