//! Totals that this end grants its peer: credit in bytes, and the number of channels.

/// A larger total is worth a frame when it grows by this part of the window.
pub(super) const CREDIT_STEP: u64 = 8;

/// A total that the peer must not exceed. It is what the peer gave back so far, and a window.
#[derive(Debug)]
pub(super) struct Grant {
    /// What the peer may use again: bytes read or dropped, channels closed.
    returned: u64,
    /// The total in the last frame, or in the transport parameters.
    granted: u64,
    /// A frame with a larger total must be sent.
    is_due: bool,
}

impl Grant {
    pub(super) fn new(granted: u64) -> Self {
        Self { returned: 0, granted, is_due: false }
    }

    pub(super) fn returned(&self) -> u64 {
        self.returned
    }

    /// The total that the peer knows.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    #[cfg(test)]
    pub(super) fn set_granted(&mut self, granted: u64) {
        self.granted = granted;
    }

    /// The peer may use so much again.
    pub(super) fn give_back(&mut self, amount: u64, window: u64) {
        self.returned += amount;
        self.update(window);
    }

    /// Schedules a frame if the total has grown by a step.
    pub(super) fn update(&mut self, window: u64) {
        let total = self.returned + window;
        self.is_due |= total.saturating_sub(self.granted) >= (window / CREDIT_STEP).max(1);
    }

    /// Schedules a frame if the total has grown at all: the window is larger.
    pub(super) fn raise(&mut self, window: u64) {
        self.is_due |= self.returned + window > self.granted;
    }

    /// Whether a frame must be sent.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// The total to send, if a frame must be sent.
    pub(super) fn due(&self, window: u64) -> Option<u64> {
        self.is_due.then(|| self.returned + window)
    }

    /// A frame with this total was written.
    pub(super) fn on_sent(&mut self, total: u64) {
        (self.granted, self.is_due) = (total, false);
    }
}
