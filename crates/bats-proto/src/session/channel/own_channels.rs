//! The channels that this end opens: their numbers, and how many the peer allows.

/// Channels of one end in the life of a session: their numbers must fit the wire.
const MAX_INDEX: u64 = 1 << 60;

/// The channels of this end.
#[derive(Debug)]
pub(super) struct OwnChannels {
    is_server: bool,
    opened: u64,
    /// How many the peer allows.
    limit: u64,
    /// A channel could not be opened.
    is_blocked: bool,
}

impl OwnChannels {
    pub(super) fn new(is_server: bool, limit: u64) -> Self {
        Self { is_server, opened: 0, limit, is_blocked: false }
    }

    /// The number of a new channel; `None` if the peer allows no more.
    pub(super) fn open(&mut self) -> Option<u64> {
        if self.opened >= self.limit.min(MAX_INDEX) {
            self.is_blocked = true;
            return None;
        }
        let id = self.opened * 2 + if self.is_server { 1 } else { 2 };
        self.opened += 1;
        Some(id)
    }

    /// Whether this end opens channels with such numbers.
    pub(super) fn is_own(&self, id: u64) -> bool {
        (id % 2 == 1) == self.is_server
    }

    /// Whether the channel with this index was opened.
    pub(super) fn is_opened(&self, index: u64) -> bool {
        index < self.opened
    }

    /// The peer allows so many channels. Returns whether one can be opened again.
    pub(super) fn on_limit(&mut self, channels: u64) -> bool {
        self.limit = self.limit.max(channels);
        self.opened < self.limit && core::mem::take(&mut self.is_blocked)
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    #[cfg(test)]
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }
}
