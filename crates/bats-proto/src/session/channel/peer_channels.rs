//! The channels that the peer opens: those seen, how many it may open, and those to accept.

use std::collections::VecDeque;

use super::ChannelViolation;
use super::grant::Grant;
use super::ids::SeenIndexes;

/// The channels of the peer.
#[derive(Debug)]
pub(super) struct PeerChannels {
    seen: SeenIndexes,
    /// How many it may open; what it gives back are closed channels.
    grant: Grant,
    /// Numbers of those that the application has not accepted, in the order of arrival.
    unaccepted: VecDeque<u64>,
    /// The application knows that there are some.
    is_notified: bool,
}

impl PeerChannels {
    pub(super) fn new(granted: u64) -> Self {
        Self {
            seen: SeenIndexes::default(),
            grant: Grant::new(granted),
            unaccepted: VecDeque::new(),
            is_notified: false,
        }
    }

    /// A frame is for the channel `id`. Returns whether it is a new one.
    ///
    /// # Errors
    ///
    /// The peer may not open it.
    pub(super) fn see(&mut self, id: u64, index: u64) -> Result<bool, ChannelViolation> {
        if index >= self.grant.granted() {
            return Err(ChannelViolation::TooMany(id));
        }
        if self.seen.contains(index) {
            return Ok(false);
        }
        self.seen.insert(index);
        self.unaccepted.push_back(id);
        Ok(true)
    }

    /// Whether the application must be notified of a new channel: once until it has taken all.
    pub(super) fn take_notification(&mut self) -> bool {
        !core::mem::replace(&mut self.is_notified, true)
    }

    /// The next number for the application.
    pub(super) fn accept(&mut self) -> Option<u64> {
        let id = self.unaccepted.pop_front();
        self.is_notified &= id.is_some();
        id
    }

    /// How many channels the peer may open.
    pub(super) fn grant(&mut self) -> &mut Grant {
        &mut self.grant
    }

    /// Whether a frame with a larger number of channels must be sent.
    pub(super) fn is_grant_due(&self) -> bool {
        self.grant.is_due()
    }

    #[cfg(test)]
    pub(super) fn is_seen(&self, index: u64) -> bool {
        self.seen.contains(index)
    }
}
