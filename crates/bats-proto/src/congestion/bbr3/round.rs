//! Packet-timed round trips (draft-ietf-ccwg-bbr-06 section 5.5.1).

/// Counts round trips by the data delivered.
#[derive(Debug, Default)]
pub(super) struct RoundCounter {
    /// next_round_delivered: bytes delivered that end the round.
    end: u64,
    /// round_count.
    pub(super) count: u64,
    /// round_start: the acknowledgement being processed began a round.
    pub(super) is_start: bool,
}

impl RoundCounter {
    /// StartRound: a new round begins with what is sent from now on.
    pub(super) fn restart(&mut self, delivered: u64) {
        self.end = delivered;
    }

    /// UpdateRound: `prior_delivered` belongs to the newest acknowledged packet.
    pub(super) fn on_ack(&mut self, prior_delivered: u64, delivered: u64) {
        self.is_start = prior_delivered >= self.end;
        if self.is_start {
            self.restart(delivered);
            self.count += 1;
        }
    }
}
