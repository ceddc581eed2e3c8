//! Bytes that the peer sends on all channels together: credit, and memory of what is not read.

use super::ChannelViolation;
use super::grant::Grant;

/// The receiving side of all channels.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// The credit of the session; what is given back are bytes read or dropped.
    grant: Grant,
    /// Bytes that the peer has sent, as far as is known.
    received: u64,
    /// Memory of parts behind gaps.
    early: usize,
}

impl ReceiveWindow {
    pub(super) fn new(credit: u64) -> Self {
        Self { grant: Grant::new(credit), received: 0, early: 0 }
    }

    /// Bytes received and neither read nor dropped.
    pub(super) fn unread(&self) -> u64 {
        self.received - self.grant.returned()
    }

    /// Memory of parts behind gaps.
    pub(super) fn early(&self) -> usize {
        self.early
    }

    /// The memory of the parts of a channel behind gaps has changed.
    pub(super) fn on_early_changed(&mut self, before: usize, after: usize) {
        self.early = self.early + after - before;
    }

    /// Counts `fresh` bytes that the peer has sent on the channel `id`.
    ///
    /// # Errors
    ///
    /// They exceed the credit of the session.
    pub(super) fn charge(&mut self, id: u64, fresh: u64) -> Result<(), ChannelViolation> {
        if fresh > self.grant.granted() - self.received {
            return Err(ChannelViolation::BeyondCredit(id));
        }
        self.received += fresh;
        Ok(())
    }

    /// The credit of the session.
    pub(super) fn grant(&mut self) -> &mut Grant {
        &mut self.grant
    }

    /// Whether a frame with more credit must be sent.
    pub(super) fn is_grant_due(&self) -> bool {
        self.grant.is_due()
    }

    /// Bytes read or dropped, received, and granted.
    #[cfg(test)]
    pub(super) fn totals(&self) -> [u64; 3] {
        [self.grant.returned(), self.received, self.grant.granted()]
    }
}
