//! Bytes that this end sends on all channels together: the peer's credit, and what is queued.

/// The sending side of all channels.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// Bytes in symbols.
    sent: u64,
    /// The peer's credit for them.
    credit: u64,
    queued: usize,
}

impl SendWindow {
    pub(super) fn new(credit: u64) -> Self {
        Self { sent: 0, credit, queued: 0 }
    }

    /// Bytes that may be sent.
    pub(super) fn room(&self) -> u64 {
        self.credit - self.sent
    }

    /// Bytes queued on all channels.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// The peer gives this credit.
    pub(super) fn on_credit(&mut self, credit: u64) {
        self.credit = self.credit.max(credit);
    }

    /// Bytes were queued.
    pub(super) fn queue(&mut self, bytes: usize) {
        self.queued += bytes;
    }

    /// Queued bytes were dropped.
    pub(super) fn drop_queued(&mut self, bytes: usize) {
        self.queued -= bytes;
    }

    /// Queued bytes are in a symbol.
    pub(super) fn on_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        self.queued -= bytes;
    }

    #[cfg(test)]
    pub(super) fn credit(&self) -> u64 {
        self.credit
    }

    #[cfg(test)]
    pub(super) fn set_room(&mut self, bytes: u64) {
        self.credit = self.sent + bytes;
    }
}
